"""Keys with alt: the bytes of terminals reach the app as the keys that the help names."""

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from textual import constants, events
from textual.message import Message

from localspec.config.key_table import KEY_BINDINGS
from localspec.tui.key_parser import PasteParser
from tests.support.app_driver import Chat, said
from tests.support.scripted_engine import Script, ScriptedEngine, answer
from tests.support.terminal_keys import FORMS, key_bytes

KEYS = ",".join(row.keys for row in KEY_BINDINGS).split(",")
ALT_KEYS = sorted(key for key in KEYS if key.startswith("alt+"))
DIGITS = tuple("123456789")


def read(parser: PasteParser, typed: str) -> list[Message]:
    """What the parser makes of characters after which nothing is typed for a while."""
    messages = list(parser.feed(typed))
    time.sleep(constants.ESCAPE_DELAY)
    return [*messages, *parser.tick()]


def read_keys(*typed: str) -> list[tuple[str, str | None]]:
    """Keys and their characters; between two arguments nothing is typed for a while."""
    parser = PasteParser()
    keys: list[tuple[str, str | None]] = []
    for part in typed:
        for message in read(parser, part):
            assert isinstance(message, events.Key)
            keys.append((message.key, message.character))
    return keys


# --- the parser
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ALT_KEYS)
def test_every_alt_key_of_the_help_is_read_in_every_form(key: str, form: str) -> None:
    assert read_keys(key_bytes(key, form)) == [(key, None)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "key",
    ["alt+s", "alt+é", "alt+я", "alt+space", "alt+left_square_bracket", "alt+shift+o"],
)
def test_other_alt_keys_that_a_user_may_choose(key: str, form: str) -> None:
    assert read_keys(key_bytes(key, form)) == [(key, None)]


PRINTABLE = st.characters().filter(lambda character: character.isprintable())


@given(PRINTABLE)
def test_escape_and_a_character_never_types_it(character: str) -> None:
    assume(character not in "[O")  # They may begin the sequence of another key.
    (key,) = PasteParser().feed(f"\x1b{character}")
    assert isinstance(key, events.Key)
    assert key.key.startswith("alt+")
    assert not key.is_printable


def test_alt_keys_that_follow_each_other_at_once_are_separate() -> None:
    assert read_keys("\x1b1\x1bz\x1b\r") == [
        ("alt+1", None),
        ("alt+z", None),
        ("alt+enter", None),
    ]
    assert read_keys("\x1b1a\x1bzb") == [
        ("alt+1", None),
        ("a", "a"),
        ("alt+z", None),
        ("b", "b"),
    ]
    bracket = ("alt+left_square_bracket", None)
    assert read_keys("\x1b[\x1b[") == [bracket, bracket]


def test_escape_alone_is_escape_after_the_delay_and_what_follows_is_typed() -> None:
    escape = ("escape", "\x1b")
    assert read_keys("\x1b") == [escape]
    assert read_keys("\x1b", "1") == [escape, ("1", "1")]
    assert read_keys("\x1b", "\r") == [escape, ("enter", "\r")]
    assert read_keys("\x1b\x1b") == [escape, escape]


def test_escape_and_a_character_in_two_reads_within_the_delay_are_alt() -> None:
    parser = PasteParser()
    assert not list(parser.feed("\x1b"))
    (key,) = parser.feed("1")
    assert isinstance(key, events.Key)
    assert key.key == "alt+1"


@pytest.mark.parametrize(
    "character", ["¡", "™", "£", "¢", "∞", "§", "¶", "•", "ª", "Ω", "Z"]
)
def test_what_option_types_on_a_mac_is_typed(character: str) -> None:
    """With the kitty protocol the character is reported as the text of a key with alt."""
    (plain,) = read_keys(character)
    (reported,) = read_keys(f"\x1b[49;3;{ord(character)}u")
    assert plain == reported
    assert plain[1] == character


def test_letters_that_modify_other_keys_reports_are_typed() -> None:
    assert read_keys("\x1b[27;2;65~", "\x1b[65;2u", "\x1b[27;2;33~") == [
        ("A", "A"),
        ("A", "A"),
        ("exclamation_mark", "!"),
    ]


def test_other_modified_keys_have_one_name_in_every_form() -> None:
    shift_enter = ("shift+enter", None)
    assert read_keys("\x1b[27;2;13~", "\x1b[13;2u") == [shift_enter, shift_enter]
    undo = ("ctrl+z", None)
    assert read_keys("\x1b[27;5;122~", "\x1b[122;5u", "\x1b[122;5;122u") == [
        undo,
        undo,
        undo,
    ]
    symbol = ("alt+exclamation_mark", None)
    assert read_keys("\x1b!", "\x1b[27;4;33~", "\x1b[27;3;33~") == [
        symbol,
        symbol,
        symbol,
    ]


def test_a_paste_keeps_its_escapes() -> None:
    pasted = "\x1b1\x1b\r\x1b[27;3;49~\x1b[49;3u¡"
    paste, key = PasteParser().feed(f"\x1b[200~{pasted}\x1b[201~\x1bz")
    assert isinstance(paste, events.Paste)
    assert paste.text == pasted
    assert isinstance(key, events.Key)
    assert key.key == "alt+z"


# --- the app
# --------------------------------------------------------------------------------


def code_blocks() -> Script:
    return answer([f"```\nblock {digit}\n```\n\n" for digit in DIGITS])


async def send_bytes(chat: Chat, typed: str) -> None:
    """Hands the app what its driver makes of characters from the terminal."""
    driver = chat.app._driver
    assert driver is not None
    for message in PasteParser().feed(typed):
        driver.process_message(message)
    await chat.pilot.pause()


def test_the_tests_below_have_all_alt_keys_of_the_help() -> None:
    digits = [f"alt+{digit}" for digit in DIGITS]
    assert {*ALT_KEYS} == {
        "alt+enter",
        "alt+z",
        "alt+shift+z",
        "alt+c",
        "alt+t",
        *digits,
    }


@pytest.mark.parametrize("form", FORMS)
async def test_alt_enter_begins_a_new_line_and_sends_nothing(form: str) -> None:
    async with Chat() as chat:
        await send_bytes(chat, f"first{key_bytes('alt+enter', form)}second")
        await chat.wait(lambda: chat.typed == "first\nsecond")
        assert not chat.questions


@pytest.mark.parametrize("form", FORMS)
async def test_alt_and_a_digit_copies_that_code_block(
    form: str, copied: list[str]
) -> None:
    async with Chat(ScriptedEngine(code_blocks)) as chat:
        await chat.send("blocks?")
        for digit in DIGITS:
            await send_bytes(chat, key_bytes(f"alt+{digit}", form))
        await chat.wait(lambda: len(copied) == len(DIGITS))
        assert copied == [f"block {digit}\n" for digit in DIGITS]
        assert chat.typed == ""


@pytest.mark.parametrize("form", FORMS)
async def test_alt_z_undoes_and_alt_shift_z_redoes(form: str) -> None:
    async with Chat() as chat:
        await send_bytes(chat, "abc")
        await chat.wait(lambda: chat.typed == "abc")
        await send_bytes(chat, key_bytes("alt+z", form))
        await chat.wait(lambda: chat.typed == "")
        await send_bytes(chat, key_bytes("alt+shift+z", form))
        await chat.wait(lambda: chat.typed == "abc")


@pytest.mark.parametrize("form", FORMS)
async def test_alt_t_shows_calls_of_tools(form: str) -> None:
    async with Chat() as chat:
        await send_bytes(chat, f"abc{key_bytes('alt+t', form)}")
        await chat.sees("No tool was called in this chat.")
        assert chat.typed == "abc"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", ["alt+s", "alt+f", "alt+question_mark"])
async def test_an_alt_key_of_the_user_sends(key: str, form: str) -> None:
    async with Chat(ScriptedEngine(said), keymap={"chat.send": key}) as chat:
        await send_bytes(chat, f"hello{key_bytes(key, form)}")
        await chat.wait(lambda: chat.questions == ["hello"])
        await chat.until("ready")


WORD_KEYS = [
    # Option with left and right, as Terminal.app sends them.
    ("one two\x1bb\x1bbx", "xone two"),
    ("one two\x1bb\x1bb\x1bfx", "onex two"),
    # Option and backspace.
    ("one two\x1b\x7f", "one "),
    ("one two\x1b[127;3u", "one "),
]


@pytest.mark.parametrize(("typed", "text"), WORD_KEYS)
async def test_option_and_an_arrow_or_backspace_moves_over_words(
    typed: str, text: str
) -> None:
    async with Chat() as chat:
        await send_bytes(chat, typed)
        await chat.wait(lambda: chat.typed == text)
