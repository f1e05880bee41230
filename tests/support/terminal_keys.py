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
_CHARACTERS = {"enter": "\r", "space": " ", "underscore": "_", "slash": "/",
    "minus": "-", "plus": "+",
}  # fmt: skip


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


# --- every key of the table
# ----------------------------------------------------------------------

TABLE_FORMS = ("legacy", "modifyOtherKeys", "kitty")
_LEGACY_SEQUENCES = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "space": " ", "backspace": "\x7f",
    "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C", "left": "\x1b[D",
    "home": "\x1b[H", "end": "\x1b[F", "delete": "\x1b[3~",
    "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "f1": "\x1bOP", "f2": "\x1bOQ", "f3": "\x1bOR", "f4": "\x1bOS", "f5": "\x1b[15~",
    "f6": "\x1b[17~", "f7": "\x1b[18~", "f8": "\x1b[19~", "f9": "\x1b[20~",
    "f10": "\x1b[21~", "f11": "\x1b[23~", "f12": "\x1b[24~",
}  # fmt: skip
_KITTY_SEQUENCES = _LEGACY_SEQUENCES | {
    "enter": "\x1b[13u", "escape": "\x1b[27u", "tab": "\x1b[9u",
    "backspace": "\x1b[127u", "space": "\x1b[32;;32u",
    "f1": "\x1b[P", "f2": "\x1b[Q", "f3": "\x1b[13~", "f4": "\x1b[S",
}  # fmt: skip
_US_KEYS_WITH_SHIFT = {"?": "/", "_": "-", "!": "1", ":": ";", "+": "="}


def table_key_bytes(key: str, form: str) -> str:
    """What a terminal with a US keyboard sends; empty if it has no such key."""
    *modifiers, name = key.split("+")
    bits = 0
    for bit, modifier in enumerate(("shift", "alt", "ctrl")):
        if modifier in modifiers:
            bits |= 1 << bit
    sequences = _KITTY_SEQUENCES if form == "kitty" else _LEGACY_SEQUENCES
    if name in sequences and not bits:
        return sequences[name]
    if name in ("up", "down", "right", "left", "home", "end"):
        return f"\x1b[1;{bits + 1}{_LEGACY_SEQUENCES[name][-1]}"
    character = _CHARACTERS.get(name) or key_to_character(name) or name
    assert len(character) == 1, f"add {key} to this file"
    if form == "kitty":
        return _kitty_bytes(character, bits)
    if not bits:
        return character
    if form == "modifyOtherKeys":
        return f"\x1b[27;{bits + 1};{ord(character)}~"
    return _legacy_bytes(character, bits)


def _legacy_bytes(character: str, bits: int) -> str:
    if bits == 1:
        return ""  # It is sent as the key without shift.
    sent = character
    if bits & 4:
        sent = chr(ord(character) & 0x1F)
    elif bits & 1:
        sent = character.upper()
    return f"\x1b{sent}" if bits & 2 else sent


def _kitty_bytes(character: str, bits: int) -> str:
    """With the flags for which the app asks: alternate keys, and text."""
    own_key = _US_KEYS_WITH_SHIFT.get(character, character.lower())
    code = str(ord(own_key))
    if own_key != character:
        code += f":{ord(character)}"
        bits |= 1
    text = f";{ord(character)}" if bits in (0, 1) and character.isprintable() else ""
    modifiers = str(bits + 1) if bits else ""
    return f"\x1b[{code};{modifiers}{text}u"
