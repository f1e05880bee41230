"""The bytes by which terminals send a key with alt."""

from textual.keys import key_to_character

FORMS = (
    "legacy",
    "modifyOtherKeys",
    "modifyOtherKeys as CSI u",
    "kitty",
    "kitty with text",
)
"""Some terminals send the last if they report the text of a key."""
_CHARACTERS = {"enter": "\r", "space": " "}


def key_bytes(key: str, form: str) -> str:
    """The characters that arrive for a key such as alt+shift+z."""
    *modifiers, name = key.split("+")
    character = _CHARACTERS.get(name) or key_to_character(name) or name
    is_shifted = "shift" in modifiers
    modifier_code = 1 + 2 + int(is_shifted)
    typed = character
    if is_shifted:
        typed = character.upper()
    if form == "legacy":
        return f"\x1b{typed}"
    if form == "modifyOtherKeys":
        return f"\x1b[27;{modifier_code};{ord(typed)}~"
    if form == "modifyOtherKeys as CSI u":
        return f"\x1b[{ord(typed)};{modifier_code}u"
    if form == "kitty" or not typed.isprintable():
        return f"\x1b[{ord(character)};{modifier_code}u"
    assert form == "kitty with text"
    return f"\x1b[{ord(character)};{modifier_code};{ord(typed)}u"
