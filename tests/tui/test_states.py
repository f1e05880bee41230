"""Every state of every screen, where test_snapshots.py has no picture of it yet: as wide as a wall,
as small as a stamp, with much, with long names, right to left, offline, with no card and with two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from localspec import paths
from localspec.chat.context_window import ContextOverflow
from localspec.chat.conversation import Conversation
from localspec.chat.session import ChatSession
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.launch import ResolvedPair
from localspec.models.hub.client import HubClient
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from tests.chat.saved_chats import add_events
from tests.support import scenes, wizards
from tests.support.long_cases import often
from tests.support.scenes import Steps, asking, opened, settled, surveyed
from tests.support.scripted_engine import (
    Gate,
    Opening,
    ScriptedEngine,
    answer,
    painted,
    ready,
    wait_until,
)
from tests.support.wizards import CARD, CPU, GIB, NO_CARD
from tests.tui import test_snapshots as pictures
from tests.tui.screens import test_doctor, test_log
from tests.tui.screens import test_welcome as test_first

Compare = Callable[..., bool]
Size = tuple[int, int]
State = tuple[Callable[[], App[None]], Steps]
WALL = (200, 50)
STAMP = (20, 5)

LONG = "a-model-of-many-names-" * 5 + "instruct!"
"""119 letters."""
HEBREW = "מודל-שפה-גדול-מאוד-גרסה-שנייה"
ARABIC = "لماذا تحجز حلقتي الذاكرة في كل مرة؟"
CHINESE = "大規模言語モデル-七十億-第二版-指示調整済み-長い名前はどこまで続くのだろうか"
LINE = "x" * 10_000


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, whose name is on no picture, with a catalogue that stays the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", "data")
    monkeypatch.setenv("LOCALSPEC_CONFIG", "config.toml")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    Path("shelf.yaml").write_text(pictures.SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: Path("shelf.yaml"))


async def as_it_comes(pilot: Pilot[Any]) -> None:
    await settled(pilot)


# --- computers ----------------------------------------------------------------------------

SMALLER = replace(
    CARD,
    name="CUDA1",
    description="NVIDIA GeForce GTX 1660 SUPER",
    total=6 * GIB,
    free=int(1.2 * GIB),
)
TWO = MachineProfile((CARD, SMALLER), CPU, from_devices((CARD, SMALLER), TYPICAL_CPU_SPEED))


async def walls_and_stamps(pilot: Pilot[Any]) -> None:
    """There and back again, as somebody drags the corner of a window."""
    for size in (WALL, (40, 10), (6, 2), STAMP, (90, 12), (80, 24)):
        await pilot.resize_terminal(*size)
        await pilot.pause()


def computer(place: MachineProfile) -> Callable[[], MachineSurvey]:
    """Home's words for it, as it would find them."""
    from localspec.tui import home_rows  # noqa: PLC0415  its own words, though they are private

    found = pictures.with_room()
    return lambda: replace(
        found,
        machine_label=home_rows._describe_machine(place) or scenes.MACHINE,
        machine_profile=place,
    )


# --- Home ---------------------------------------------------------------------------------


def full() -> App[None]:
    """Pairs, suggestions, downloads and chats at once."""
    pictures.opened_before()
    options = AppOptions(seed=1, chats=pictures.chats_of_long_ago())
    return scenes.home(options, scenes.Still(), pictures.with_room)


def named() -> App[None]:
    """Long names, and such as are read from the right."""
    Path("models").mkdir()
    for name in (LONG, HEBREW, CHINESE, f"{LONG}-draft"):
        Path("models", f"{name}.gguf").write_bytes(b"GGUF")
    from localspec.launch import recent_pairs  # noqa: PLC0415

    for target, draft in ((LONG, f"{LONG}-draft"), (HEBREW, None), (CHINESE, HEBREW)):
        files = (Path("models", f"{one}.gguf") if one else None for one in (target, draft))
        recent_pairs.add(ResolvedPair(*files))  # type: ignore[arg-type]
    return scenes.home(AppOptions(seed=1))


def offline() -> App[None]:
    return scenes.home(
        AppOptions(seed=1, offline=True),
        DownloadManager(HubClient("http://127.0.0.1:9", offline=True)),
    )


async def searched(pilot: Pilot[Any]) -> None:
    await surveyed(pilot)
    await pilot.press("slash", *"gemma", "up", "enter")
    await wait_until(pilot, lambda: "Offline mode" in painted(pilot.app.screen))
    await settled(pilot)


async def asked_for(pilot: Pilot[Any]) -> None:
    """The sheet of a pair, without a network."""
    await surveyed(pilot)
    await pilot.press("slash", *"qwen3-8b", "tab", "enter")
    await wait_until(pilot, lambda: "Offline mode" in painted(pilot.app.screen))
    await settled(pilot)


HOME: dict[str, State] = {
    "empty": (scenes.home, surveyed),
    "full": (full, pictures.pressed("down", "down")),
    "names": (named, surveyed),
    "offline": (offline, searched),
    "pull-offline": (offline, asked_for),
    "no-gpu": (lambda: scenes.home(survey=computer(NO_CARD)), surveyed),
    "two-cards": (lambda: scenes.home(survey=computer(TWO)), surveyed),
}

# --- the wizard ---------------------------------------------------------------------------


def wizard(place: MachineProfile = wizards.PLACE) -> Callable[[], App[None]]:
    return lambda: wizards.app(wizards.stock(Path(), place))


WIZARD: dict[str, State] = {
    "first": (wizard(), pictures.stepping()),
    "second": (wizard(), pictures.stepping("1", "down")),
    "third": (wizard(), pictures.stepping("1", "enter")),
    "second-no-gpu": (wizard(NO_CARD), pictures.stepping("1")),
    "third-no-gpu": (wizard(NO_CARD), pictures.stepping("1", "enter")),
    "third-two-cards": (wizard(TWO), pictures.stepping("1", "enter")),
    "card": (wizard(), pictures.stepping("1", "g", *"4060")),
}

# --- chats --------------------------------------------------------------------------------


def said_before(*turns: tuple[str, str]) -> Conversation:
    conversation = Conversation(7)
    for question, text in turns:
        conversation.ask(question)
        add_events(conversation, answer(scenes.words(text)))
    return conversation


def chat_with(
    conversation: Conversation, choice: ResolvedPair = scenes.PAIR, **more: Any
) -> Callable[[], App[None]]:
    """One that has begun already."""

    def made() -> App[None]:
        options = AppOptions(seed=1)
        engine = ScriptedEngine(scenes.spoken, ready=ready(**more))
        runner = EngineRunner(Opening([engine]))

        def first() -> Screen[None]:
            dialogue = ChatSession(choice, 1)
            dialogue.conversation = conversation
            return ChatScreen(dialogue, runner, options)

        return LocalspecApp(options, runner, first)

    return made


def much() -> App[None]:
    turns = ((f"Question {n}: and what then?", f"Answer {n}.\n\n{scenes.SAID}") for n in range(200))
    return chat_with(said_before(*turns))()


def loading() -> App[None]:
    options, runner = AppOptions(seed=1), EngineRunner(Opening([ScriptedEngine()], gate=Gate()))
    return LocalspecApp(
        options, runner, lambda: ChatScreen(ChatSession(scenes.PAIR), runner, options)
    )


async def toasted(pilot: Pilot[Any]) -> None:
    """Something is said while one types."""
    await asking()(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text("And what about a comprehension? It is")
    await settled(pilot)
    pilot.app.notify(
        "The chat is not saved: the disk is full. Free some room, and ask again.",
        severity="warning",
        markup=False,
        timeout=600,
    )
    await wait_until(pilot, lambda: "disk is full" in painted(pilot.app.screen))
    await settled(pilot)


async def full_context(pilot: Pilot[Any]) -> None:
    await opened(pilot)
    pilot.app.push_screen(ContextFullScreen(ContextOverflow(8102, 8192, 11, mid_answer=True)))
    await settled(pilot)


def keys(*pressed: str) -> Steps:
    """In a chat that is open."""

    async def steps(pilot: Pilot[Any]) -> None:
        await opened(pilot)
        await settled(pilot)
        for key in pressed:
            await pilot.press(key)
            await settled(pilot)

    return steps


NAMED = ResolvedPair(Path(f"{LONG}.gguf"), Path(f"{LONG}-draft.gguf"))
RIGHT_TO_LEFT = said_before(
    (ARABIC, "كل مرة، `xs + [x]` ينشئ قائمة جديدة وينسخ القديمة إليها.\n\n1. أولا\n2. ثانيا"),
    ("ומה עם הבנה?", "**הבנה** בונה רשימה אחת, ולא מעתיקה דבר."),
)
CHAT: dict[str, State] = {
    "loading": (loading, as_it_comes),
    "empty": pictures.CHATS["empty"],
    "streaming": pictures.CHATS["streaming"],
    "tokens": pictures.CHATS["tokens"],
    "dead": pictures.CHATS["dead"],
    "unicode": pictures.CHATS["unicode"],
    "refused": (scenes.refused, scenes.failed),
    "long": (much, keys()),
    "long-turns": (much, keys("f8")),
    "line": (chat_with(said_before((LINE, LINE))), keys()),
    "names": (chat_with(said_before((f"{LONG} {LONG}", "Yes.")), NAMED), keys()),
    "right-to-left": (
        chat_with(RIGHT_TO_LEFT, ResolvedPair(Path(f"{HEBREW}.gguf"), Path(f"{CHINESE}.gguf"))),
        keys(),
    ),
    "toast": (lambda: scenes.chat(scenes.spoken), toasted),
    "settings": pictures.ONCE["settings"],
    "help": pictures.ONCE["help"],
    "replay": pictures.ONCE["replay"],
    "room": (lambda: scenes.chat(scenes.spoken), full_context),
    "turns": (chat_with(RIGHT_TO_LEFT), keys("f8")),
}

# --- the rest -----------------------------------------------------------------------------


def opening() -> App[None]:
    Path("models").mkdir()
    Path("models", f"{LONG}.gguf").write_bytes(b"GGUF")
    return scenes.home()


async def named_files(pilot: Pilot[Any]) -> None:
    """A file of a long name that is none of ours."""
    await surveyed(pilot)
    await pilot.press("o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, OpenFilesScreen))
    pilot.app.screen.query_one("#target", Input).value = f"models/{LONG}.gguf"
    await pilot.press("enter")
    await wait_until(pilot, lambda: "✗" in painted(pilot.app.screen))
    await settled(pilot)


def log() -> App[None]:
    test_log.write(f"{test_log.SAID}{HEBREW} {CHINESE}\n{LINE}\nthe end\n")
    return test_log.app()


def first_run(what: str) -> Callable[[], App[None]]:
    def seen() -> MachineSurvey:
        if what == "different-cards":
            return replace(test_first.survey(Path(), "one-card"), machine_profile=TWO)
        return test_first.survey(Path(), what)

    return lambda: test_first.app(seen)


def preferences() -> App[None]:
    from localspec.tui import app  # noqa: PLC0415
    from tests.support.welcomed import been_here  # noqa: PLC0415

    been_here(paths.data_dir())
    paths.config_file().write_text(pictures.PREFERRED)
    options = app.load_options()
    options.seed, options.chats = 1, None
    return scenes.home(options)


def doctor() -> App[None]:
    return test_doctor.app(test_doctor.Patient())


REST: dict[str, State] = {
    "opening": (opening, named_files),
    "log": (log, test_log.having()),
    "first": (first_run("one-card"), test_first.told),
    "first-no-gpu": (first_run("no-gpu"), test_first.told),
    "first-different-cards": (first_run("different-cards"), test_first.told),
    "preferences": (preferences, pictures.pressed("f10", "down", "down")),
    "keys": (preferences, pictures.pressed("f10", "up", "enter", "down")),
    "doctor": (doctor, test_doctor.having()),
    "doctor-asked": (doctor, test_doctor.having("down", "enter")),
    "doctor-running": (doctor, test_doctor.having("down", "enter", "y")),
}
STATES: dict[str, State] = {
    f"{where}-{what}": state
    for where, states in (("home", HOME), ("wizard", WIZARD), ("chat", CHAT), ("rest", REST))
    for what, state in states.items()
}


# --- pictures -----------------------------------------------------------------------------

PICTURES: dict[Size, str] = {
    WALL: "wizard-third",
    (120, 40): "chat-tokens",
    (80, 24): "home-full home-names home-offline wizard-third-two-cards chat-long chat-names "
    "chat-right-to-left chat-toast",
    (40, 10): "home-full chat-streaming",
}
TAKEN = [(name, size) for size, names in PICTURES.items() for name in names.split()]


@pytest.mark.pictures
@pytest.mark.parametrize(
    ("name", "size"), TAKEN, ids=[f"{name}-{size[0]}x{size[1]}" for name, size in TAKEN]
)
def test_state(snap_compare: Compare, name: str, size: Size) -> None:
    app, steps = STATES[name]
    assert snap_compare(app(), terminal_size=size, run_before=steps)


# --- no room at all -----------------------------------------------------------------------

WAITING_FOR_WORDS = {"home-offline", "home-pull-offline", "chat-toast", "rest-opening"}
"""Which a stamp has no room for."""
OFTEN = """
home-full wizard-third-two-cards chat-tokens chat-settings chat-turns rest-keys rest-doctor
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("name", often(sorted(STATES), OFTEN.split()))
async def test_any_size_is_survived(name: str) -> None:
    """And what was on the screen is on it again."""
    made, steps = STATES[name]
    size = (80, 24) if name in WAITING_FOR_WORDS else STAMP
    async with made().run_test(size=size, notifications=True) as pilot:
        await steps(pilot)
        assert painted(pilot.app.screen)
        await walls_and_stamps(pilot)
        await settled(pilot)
        assert painted(pilot.app.screen)
