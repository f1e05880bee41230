"""Keys as bytes: each key of the table, other layouts, and pastes without an end."""

import time
from pathlib import Path

import pytest
from textual import events
from textual.command import CommandPalette

from localspec.config.key_table import KEY_BINDINGS
from localspec.tui import key_parser
from localspec.tui.key_parser import PasteParser, PlacedKey
from tests.support.app_driver import Chat, home_app, said
from tests.support.pty_terminal import Terminal, module
from tests.support.scripted_engine import ScriptedEngine
from tests.support.terminal_keys import TABLE_FORMS, table_key_bytes

KEYS = sorted({*",".join(row.keys for row in KEY_BINDINGS).split(",")})
END = "\x1b[201~"
START = "\x1b[200~"


def read(*reads: str) -> list[events.Key | events.Paste]:
    """What the parser makes of these reads from the terminal."""
    parser = PasteParser()
    found: list[events.Key | events.Paste] = []
    for data in reads:
        for message in parser.feed(data):
            assert isinstance(message, events.Key | events.Paste)
            found.append(message)
    return found


def us_keys(data: str) -> list[str]:
    """The keys at the places of the pressed ones; their own names where they have none."""
    names: list[str] = []
    for key in read(data):
        assert isinstance(key, events.Key)
        names.append(key.us_key if isinstance(key, PlacedKey) else key.key)
    return names


# --- the table of keys
# ------------------------------------------------------------------------


def test_every_key_of_the_table_arrives_through_a_pseudo_terminal(
    tmp_path: Path,
) -> None:
    log = tmp_path / "keys"
    log.touch()
    expected = ["ready"]
    with Terminal(module("tests.support.key_printer", str(log))) as terminal:

        def has_all() -> bool:
            return len(log.read_text().splitlines()) >= len(expected)

        terminal.wait_for(has_all)
        for form in TABLE_FORMS:
            for key in KEYS:
                sent = table_key_bytes(key, form)
                if sent:
                    terminal.type(sent)
                    expected.append(key)
                    terminal.wait_for(has_all)
        terminal.type("\x1b[23~")
        terminal.ends_with(0)
        terminal.assert_whole()
        asks = terminal.seen.decode()
    assert log.read_text().splitlines() == [*expected, "f11"]
    # Keys with their place; ESC in place of the eighth bit, as it was at the end.
    assert "\x1b[=4;2u" in asks
    assert asks.index("\x1b[?1036s") < asks.index("\x1b[?1036r")


@pytest.mark.parametrize("form", TABLE_FORMS)
def test_keys_without_bytes_in_a_form_are_few(form: str) -> None:
    without = {key for key in KEYS if not table_key_bytes(key, form)}
    assert without == ({"shift+enter"} if form == "legacy" else set())


def test_undo_is_ctrl_and_underscore_also_where_shift_is_reported_alone() -> None:
    assert us_keys("\x1b[45:95;6u") == ["ctrl+underscore"]
    assert us_keys("\x1b[45;6u") == ["ctrl+shift+minus"]  # The app translates it.


# --- other layouts
# ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("\x1b[1089;5u", "ctrl+c"),  # Russian, as the terminal sends it unasked
        ("\x1b[1081;5u", "ctrl+q"),
        ("\x1b[1089::99;5u", "ctrl+c"),
        ("\x1b[1081::113;5u", "ctrl+q"),
        ("\x1b[27;5;1089~", "ctrl+c"),
        ("\x1b[968;5u", "ctrl+c"),  # Greek
        ("\x1b[1489;5u", "ctrl+c"),  # Hebrew
        ("\x1b[1572;5u", "ctrl+c"),  # Arabic
        ("\x1b[12618;5u", "ctrl+c"),  # Korean
        ("\x1b[1110;5u", "ctrl+s"),  # Ukrainian
        ("\x1b[4321::99;5u", "ctrl+c"),  # Georgian: by what the terminal reports
        ("\x1bя", "alt+z"),
        ("\x1b[1103;4u", "alt+shift+z"),
        ("и", "b"),
        ("\x1b[1080::98;;1080u", "b"),
        ("\x1b[1087:1055:103;2;1055u", "G"),
        ("\x1b[233:50:50;3u", "alt+2"),  # French: é is on the key of 2
        ("\x1b[38:49:49;4u", "alt+1"),  # and 1 is & with shift
        ("\x1b[97::113;5u", "ctrl+a"),  # a Latin letter is itself at any place
        ("é", "é"),
        ("\x1b[246::59;5u", "ctrl+ö"),
    ],
)
def test_keys_of_other_layouts_are_known_by_their_place(typed: str, key: str) -> None:
    (read_key,) = us_keys(typed)
    assert read_key == key


def test_every_letter_of_the_layouts_is_typed_as_itself() -> None:
    for letter in key_parser._US_KEY_BY_LETTER:
        (key,) = read(letter)
        assert isinstance(key, events.Key)
        assert key.character == letter


async def press_bytes(chat: Chat, typed: str) -> None:
    driver = chat.app._driver
    assert driver is not None
    for message in PasteParser().feed(typed):
        driver.process_message(message)
    await chat.pilot.pause()


@pytest.mark.parametrize("typed", ["\x1b[1081;5u", "\x1b[1081::113;5u"])
async def test_ctrl_q_of_a_russian_keyboard_quits(typed: str) -> None:
    async with Chat(ScriptedEngine(said)) as chat:
        await press_bytes(chat, typed)
        await chat.wait(lambda: chat.app._exit)


async def test_cyrillic_is_typed_into_a_message_and_ctrl_keys_are_keys() -> None:
    async with Chat(ScriptedEngine(said)) as chat:
        await press_bytes(chat, "привет\x1b[1073::44;;1073u")
        await chat.wait(lambda: chat.typed == "приветб")
        await press_bytes(chat, "\x1b[1079::112;5u")
        await chat.wait(lambda: isinstance(chat.app.screen, CommandPalette))


async def test_a_users_own_key_of_another_script_stays() -> None:
    async with Chat(ScriptedEngine(said), keymap={"chat.send": "alt+я"}) as chat:
        await press_bytes(chat, "hello\x1bя")
        await chat.wait(lambda: chat.questions == ["hello"])
        await chat.until("ready")


async def test_the_letters_of_home_work_by_their_place() -> None:
    async with home_app() as driver:
        app_driver = driver.app._driver
        assert app_driver is not None
        for message in PasteParser().feed("щ"):  # the key of o
            app_driver.process_message(message)
        await driver.sees("Open model files")


# --- pastes
# -----------------------------------------------------------------------------------


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class TerminalReads:
    """A parser that is fed as the driver does, and whose clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = Clock()
        monkeypatch.setattr(key_parser, "time", self._clock)
        self._parser = PasteParser()
        self.found: list[str] = []

    def read(self, data: str, then_wait: float = 0.0) -> None:
        self._add(self._parser.feed(data))
        ticks = max(1, round(then_wait * 10))
        for _ in range(ticks):
            self._clock.now += then_wait / ticks
            self._add(self._parser.tick())

    def _add(self, messages: object) -> None:
        for message in messages:  # type: ignore[attr-defined]
            if isinstance(message, events.Paste):
                self.found.append(f"paste {message.text}")
            else:
                self.found.append(message.key)


def test_a_paste_without_its_end_is_delivered_and_keys_work_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = TerminalReads(monkeypatch)
    terminal.read(f"{START}half a paste", then_wait=2.2)
    terminal.read("\x03", then_wait=0.1)
    terminal.read("\x11", then_wait=0.1)
    assert terminal.found == ["paste half a paste", "ctrl+c", "ctrl+q"]


def test_a_paste_without_its_end_is_delivered_although_keys_are_held_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = TerminalReads(monkeypatch)
    terminal.read(f"{START}half")
    for _ in range(100):
        terminal.read("\x1b[99;5u", then_wait=1 / 30)
    assert terminal.found[0].startswith("paste half")
    assert terminal.found[-1] == "ctrl+c"


def test_a_slow_paste_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = TerminalReads(monkeypatch)
    terminal.read(START)
    for _ in range(600):  # 960 characters a second
        terminal.read("x" * 8, then_wait=8 / 960)
    terminal.read(END)
    assert terminal.found == ["paste " + "x" * 4800]


def test_what_comes_late_of_a_paste_is_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = TerminalReads(monkeypatch)
    late = "a line\r" * 20
    terminal.read(f"{START}begun", then_wait=3)
    terminal.read("k", then_wait=0.2)
    terminal.read(late, then_wait=0.2)
    terminal.read(f"end\r{END}", then_wait=0.2)
    terminal.read("q")
    assert terminal.found == ["paste begun", "k", f"paste {late}end\r", "q"]


def test_the_end_alone_after_a_stalled_paste_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = TerminalReads(monkeypatch)
    terminal.read(f"{START}begun", then_wait=3)
    terminal.read(END)
    terminal.read(f"a{START}next{END}b")
    assert terminal.found == ["paste begun", "paste ", "a", "paste next", "b"]


def test_a_paste_of_any_size_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_parser, "_MAX_PASTE_CHARACTERS", 10)
    text = "0123456789 abc \x1b[20 def"
    for size in range(1, 12):
        data = f"{START}{text}{END}z"
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        messages = read(*pieces)
        texts = [each.text for each in messages if isinstance(each, events.Paste)]
        assert "".join(texts) == text
        assert isinstance(messages[-1], events.Key)
        assert messages[-1].key == "z"


def test_escape_waits_for_the_rest_of_a_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parser = PasteParser()
    assert not list(parser.feed("\x1b"))
    assert not list(parser.tick())
    (key,) = parser.feed("[A")
    assert isinstance(key, events.Key)
    assert key.key == "up"
    assert not list(parser.feed("\x1b"))
    time.sleep(0.15)  # Longer than ESCDELAY, whose default is 100 ms.
    (key,) = parser.tick()
    assert isinstance(key, events.Key)
    assert key.key == "escape"
