"""States of every screen by name: an app, and the steps that lead to the state.

With much, with long names, right to left, offline, with no card and with two.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from localspec import paths
from localspec.chat.context_window import ContextOverflow
from localspec.chat.conversation import Conversation
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import catalog
from localspec.models.hub.client import HubClient
from localspec.models.pictures import accept_picture
from localspec.protocol.wire import LoadProgress
from localspec.tools.toolbox import Toolbox
from localspec.tui import app
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.saved_chats import SavedChats
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.themes import MONOCHROME
from localspec.tui.widgets.call_question import CallQuestion
from localspec.tui.wizard.shortlist import Candidate
from tests.chat.saved_chats import add_events, put
from tests.support import scenes, wizards
from tests.support.chat_pictures import (
    BEACH,
    SKETCH,
    SeeingEngine,
    beach_thumbnail,
    reading,
)
from tests.support.clock_tools import ClockTools, asking_time, call_text, saying
from tests.support.run_command import been_here
from tests.support.scenes import (
    Steps,
    asking,
    opened,
    settled,
    steps,
    surveyed,
    walking,
)
from tests.support.scripted_engine import (
    Gate,
    Opening,
    ScriptedEngine,
    answer,
    painted,
    ready,
    wait_until,
)
from tests.support.wizards import CARD, CPU, GIB
from tests.tui.screens import (
    test_doctor,
    test_log,
    test_measurement,
    test_serve,
    test_welcome,
)

State = tuple[Callable[[], App[None]], Steps]

LONG = "a-model-of-many-names-" * 5 + "instruct!"
HEBREW = "מודל-שפה-גדול-מאוד-גרסה-שנייה"
ARABIC = "لماذا تحجز حلقتي الذاكرة في كل مرة؟"
CHINESE = "大規模言語モデル-七十億-第二版-指示調整済み-長い名前はどこまで続くのだろうか"
LINE = "x" * 10_000
SHELF = """\
schema: 1
models:
  - {id: qwen3-8b, title: Qwen3 8B, repo: a/A-GGUF, file: A.gguf, about: 4.9 GiB, parameters: 8B}
  - {id: qwen3-0.6b, title: Qwen3 0.6B, repo: a/B-GGUF, file: B.gguf, about: 0.6 GiB}
  - id: mistral-small-3.2-24b-instruct
    title: Mistral Small
    repo: a/C-GGUF
    file: C.gguf
    about: 13.3 GiB
    parameters: 24B
    use: [chat, writing]
pairs:
  - {target: qwen3-8b, draft: qwen3-0.6b, use: [chat, code], status: verified}
  - {target: mistral-small-3.2-24b-instruct}
"""
PREFERRED = """\
[screen]
theme = "high-contrast"
[chats]
keep = false
[keys]
"chat.send" = "ctrl+s"
"""

# --- steps
# --------------------------------------------------------------------------------


@steps
async def pressed(pilot: Pilot[Any], *keys: str) -> None:
    await surveyed(pilot)
    await pilot.press(*keys)
    await settled(pilot)


@steps
async def stepping(pilot: Pilot[Any], *keys: str) -> None:
    """Each key when the screen is at rest: what threads find out is waited for."""
    await settled(pilot)
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


@steps
async def in_chat(pilot: Pilot[Any], *keys: str) -> None:
    await opened(pilot)
    await stepping(*keys)(pilot)


@steps
async def seeing(pilot: Pilot[Any], words: str, *keys: str) -> None:
    """From Home, until the screen shows some words."""
    await pressed(*keys)(pilot)
    await wait_until(pilot, lambda: words in painted(pilot.app.screen))
    await settled(pilot)


@steps
async def choosing(pilot: Pilot[Any], /, **files: str) -> None:
    """Files in the dialog that opens them; the last is refused."""
    await pressed("o")(pilot)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, OpenFilesScreen))
    for field, name in files.items():
        pilot.app.screen.query_one(f"#{field}", Input).value = f"models/{name}.gguf"
        await pilot.press("enter")
    await wait_until(pilot, lambda: "✗" in painted(pilot.app.screen))
    await settled(pilot)


async def toasted(pilot: Pilot[Any]) -> None:
    """Something is said while one types."""
    await asking()(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text("And what about a comprehension? It is")
    await settled(pilot)
    words = "The chat is not saved: the disk is full. Free some room, and ask again."
    pilot.app.notify(words, severity="warning", markup=False, timeout=600)
    await wait_until(pilot, lambda: "Free some room" in painted(pilot.app.screen))
    await settled(pilot)


async def full_context(pilot: Pilot[Any]) -> None:
    await opened(pilot)
    pilot.app.push_screen(
        ContextFullScreen(ContextOverflow(8102, 8192, 11, mid_answer=True))
    )
    await settled(pilot)


async def branched(pilot: Pilot[Any]) -> None:
    await asking()(pilot)
    await asking("And a comprehension?")(pilot)
    await asking("And a generator, then, with all that it brings?", before=("f6",))(
        pilot
    )
    await asking("One more")(pilot)
    await pilot.press("f6", "f8")
    await settled(pilot)


# --- Home
# ---------------------------------------------------------------------------------

SMALLER = replace(
    CARD,
    name="CUDA1",
    description="NVIDIA GeForce GTX 1660 SUPER",
    total=6 * GIB,
    free=int(1.2 * GIB),
)
FAST = "qwen3-8b+qwen3-0.6b"
TWO = MachineProfile(
    (CARD, SMALLER), CPU, from_devices((CARD, SMALLER), TYPICAL_CPU_SPEED)
)


def with_room() -> MachineSurvey:
    known = catalog.load()
    large, fast = (
        known.pairs[name] for name in ("mistral-small-3.2-24b-instruct+lookup", FAST)
    )
    fit = wizards.fit(wizards.PRICES[FAST])
    suggested = (
        Candidate(large, large.size or 0),
        Candidate(fast, fast.size or 0, fit),
    )
    return MachineSurvey(scenes.MACHINE, candidates=suggested)


def opened_before() -> None:
    names = {
        "models/qwen3-8b-instruct-2507-q4_k_m.gguf": "models/qwen3-0.6b-q8_0.gguf",
        "models/大規模言語モデル-七十億-第二版-指示調整済み.gguf": "models/小さな下書き.gguf",
        "models/llama-3.2-1b.gguf": None,
    }
    Path("models").mkdir()
    for name in [*names, *filter(None, names.values())]:
        Path(name).write_bytes(b"GGUF")
    state = Path("data")
    state.mkdir(exist_ok=True)
    pairs = [{"target": target, "draft": draft} for target, draft in names.items()]
    (state / "recent.json").write_text(json.dumps(pairs), encoding="utf-8")


def chats_of_long_ago() -> SavedChats:
    """Three, on a day that stays the same."""
    told = (
        ("Why does my loop allocate?", "It builds a new list."),
        (
            "Letter to the landlord about the heating that has not worked since Tuesday",
            "Dear Sir",
        ),
        (
            "大規模言語モデルは一行に収まらないほど長い題名を持つことがあるのでしょうか",
            "はい",
        ),
    )
    with closing(ChatHistory.open()) as history:
        for question, said in told:
            put(history, (question, said))
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("UPDATE chats SET updated = 1700000000")
        database.commit()
    return SavedChats()


def full() -> App[None]:
    """Pairs, suggestions, downloads and chats at once."""
    opened_before()
    options = AppOptions(seed=1, chats=chats_of_long_ago())
    return scenes.home(options, scenes.Still(), with_room)


def named() -> App[None]:
    """Long names, and such as are read from the right."""
    Path("models").mkdir()
    for name in (LONG, HEBREW, CHINESE, f"{LONG}-draft"):
        Path("models", f"{name}.gguf").write_bytes(b"GGUF")
    for target, draft in ((LONG, f"{LONG}-draft"), (HEBREW, None), (CHINESE, HEBREW)):
        path = Path("models", f"{draft}.gguf") if draft else None
        recent_pairs.add(ResolvedPair(Path("models", f"{target}.gguf"), path))
    return scenes.home(AppOptions(seed=1))


def offline() -> App[None]:
    hub = HubClient("http://127.0.0.1:9", offline=True)
    return scenes.home(AppOptions(seed=1, offline=True), DownloadManager(hub))


def long_file() -> App[None]:
    Path("models").mkdir()
    Path("models", f"{LONG}.gguf").write_bytes(b"GGUF")
    return scenes.home()


def preferences(text: str = PREFERRED) -> Callable[[], App[None]]:
    def made() -> App[None]:
        been_here(paths.data_dir())
        paths.config_file().write_text(text)
        options = app.load_options()
        options.seed = 1
        options.chats = None
        return scenes.home(options)

    return made


HOME: dict[str, State] = {
    "empty": (scenes.home, surveyed),
    "full": (full, pressed("down", "down")),
    "chats": (full, stepping("c")),
    "chats-search": (full, stepping("c", "slash", *"letter")),
    "chats-none": (full, stepping("c", "slash", *"zzzz")),
    "search": (full, stepping("slash", *"zzzz")),
    "names": (named, surveyed),
    "downloads": (
        lambda: scenes.home(downloads=scenes.Still(), survey=with_room),
        pressed("end"),
    ),
    "offline": (offline, seeing("Offline mode", "slash", *"gemma", "up", "enter")),
    "opening": (long_file, choosing(target=LONG)),
    "preferences": (preferences(), pressed("f10", "down", "down")),
    "damaged-preferences": (
        preferences("[screen]\ntheme = \n"),
        pressed("f10", "down", "right"),
    ),
    "keys": (preferences(), pressed("f10", "up", "enter", "down")),
    "last-preferences": (preferences(), pressed("f10", "up", "up")),
}

# --- the wizard
# ---------------------------------------------------------------------------


def wizard(
    place: MachineProfile = wizards.PLACE, **options: Any
) -> Callable[[], App[None]]:
    return lambda: wizards.app(
        wizards.stock(Path(), place), AppOptions(seed=1, **options)
    )


WIZARD: dict[str, State] = {
    "first": (wizard(), stepping()),
    "second": (wizard(), stepping("1", "down")),
    "third": (wizard(), stepping("1", "enter")),
    "third-ascii": (wizard(ascii_only=True, colour=False), stepping("1", "enter", "t")),
    "third-other-draft": (wizard(), stepping("1", "enter", "d")),
    "third-two-cards": (wizard(TWO), stepping("1", "enter")),
    "card": (wizard(), stepping("1", "g", *"4060")),
}

# --- chats
# --------------------------------------------------------------------------------


def said_before(*turns: tuple[str, str]) -> Conversation:
    conversation = Conversation(7)
    for question, text in turns:
        conversation.ask(question)
        add_events(conversation, answer(scenes.words(text)))
    return conversation


def chat_with(
    conversation: Conversation, choice: ResolvedPair = scenes.PAIR
) -> Callable[[], App[None]]:
    """One that has begun already."""

    def made() -> App[None]:
        options = AppOptions(seed=1)
        runner = EngineRunner(Opening([ScriptedEngine(scenes.spoken, ready=ready())]))

        def first() -> Screen[None]:
            session = ChatSession(choice, 1)
            session.conversation = conversation
            return ChatScreen(session, runner, options)

        return LocalspecApp(options, runner, first)

    return made


def spoken() -> App[None]:
    return scenes.chat(scenes.spoken)


def completing(**options: Any) -> Callable[[], App[None]]:
    return lambda: scenes.chat(
        lambda: scenes.spoken(scenes.COMPLETED), chats=False, **options
    )


def thinking() -> App[None]:
    return scenes.chat(scenes.thought, thinking=("<think>", "</think>"))


def in_any_script() -> App[None]:
    return scenes.chat(lambda: scenes.spoken(scenes.ANYTHING))


def loading_half() -> App[None]:
    """For as long as the test lasts: of a file with a long name."""
    progress = LoadProgress("reading", f"{LONG}.gguf", 0.5)
    engine = ScriptedEngine(scenes.spoken, ready=ready())
    runner = EngineRunner(Opening([engine], says=[progress], gate=Gate()))
    options = AppOptions(seed=1)
    return LocalspecApp(
        options,
        runner,
        lambda: ChatScreen(ChatSession(scenes.PAIR, 1), runner, options),
    )


async def opening(pilot: Pilot[Any]) -> None:
    await wait_until(pilot, lambda: "Loading" in painted(pilot.app.screen))


def with_tools(*scripts: Callable[[], Any], **options: Any) -> Callable[[], App[None]]:
    """A chat whose model calls the clock's tools."""

    def made() -> App[None]:
        wanted = AppOptions(seed=1, **options)
        runner = EngineRunner(Opening([ScriptedEngine(*scripts, ready=ready())]))
        session = ChatSession(scenes.PAIR, 1)
        session.toolbox = Toolbox([ClockTools()])
        return LocalspecApp(wanted, runner, lambda: ChatScreen(session, runner, wanted))

    return made


@steps
async def calling(pilot: Pilot[Any], *keys: str) -> None:
    """Asks, waits for the question about a call, and presses keys."""
    await opened(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text("What time is it in Rome?")
    await pilot.press("enter")
    question = screen.query_one(CallQuestion)
    await wait_until(pilot, lambda: question.request is not None)
    await settled(pilot)
    await pilot.press(*keys)
    await settled(pilot)


async def called(pilot: Pilot[Any]) -> None:
    """All calls are allowed, and the answer has ended."""
    await calling("tab", "down", "enter")(pilot)
    await wait_until(pilot, lambda: scenes.phase(pilot) == "ready")
    await settled(pilot)


BEFORE_CALL = "I will look at the clock in Rome."
TOOL_CALL = asking_time("Rome", BEFORE_CALL)
NOTE = f"# Lists in Python\n\n{scenes.SAID}"
LONG_CALL = saying(
    f"I will write it down.{call_text('write', path='notes/lists.md', text=NOTE)}"
)


def looking() -> App[None]:
    """The answer is about a picture; see `shown_pictures`."""

    def script() -> list[Any]:
        plan, *rest = scenes.spoken("A beach at noon, and no clouds.")
        return [plan, reading(BEACH, rows=1020, thumbnail=beach_thumbnail()), *rest]

    options = AppOptions(seed=1)
    runner = EngineRunner(Opening([SeeingEngine(script)]))

    def first() -> Screen[None]:
        return ChatScreen(ChatSession(scenes.PAIR, 1), runner, options)

    return LocalspecApp(options, runner, first)


async def shown_pictures(pilot: Pilot[Any]) -> None:
    """A picture under the question, and one that waits in the message."""
    await opened(pilot)
    await attached(pilot, BEACH, "beach.png")
    await asking("What is in the picture?")(pilot)
    await attached(pilot, SKETCH, "Entwurf, zweite Fassung.png")
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text("And in this one?")
    await settled(pilot)


async def attached(pilot: Pilot[Any], data: bytes, name: str) -> None:
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    session = screen.session
    picture = accept_picture(data, name)
    screen.composer.attach_pictures(lambda: [session.pictures.add(picture)])
    await wait_until(pilot, lambda: picture.picture.sha256 in session.picture_costs)


TO_A_CORRECTION = walking(*("up",) * 8, "left")
LONG_PAIR = ResolvedPair(Path(f"{LONG}.gguf"), Path(f"{LONG}-draft.gguf"))
RIGHT_TO_LEFT = said_before(
    (
        ARABIC,
        "كل مرة، `xs + [x]` ينشئ قائمة جديدة وينسخ القديمة إليها.\n\n1. أولا\n2. ثانيا",
    ),
    ("ומה עם הבנה?", "**הבנה** בונה רשימה אחת, ולא מעתיקה דבר."),
)
CHAT: dict[str, State] = {
    "empty": (spoken, opened),
    "streaming": (lambda: scenes.chat(scenes.held), scenes.streaming),
    "guess": (lambda: scenes.chat(scenes.guessed, slow_motion=True), scenes.guessing),
    "tokens": (completing(), TO_A_CORRECTION),
    "tokens-ascii": (completing(colour=False, ascii_only=True), TO_A_CORRECTION),
    "tokens-monochrome": (completing(theme=MONOCHROME), TO_A_CORRECTION),
    "dead": (lambda: scenes.chat(scenes.dying), asking()),
    "unicode": (in_any_script, asking("漢字とは？")),
    "line": (chat_with(said_before((LINE, LINE))), in_chat()),
    "names": (chat_with(said_before((f"{LONG} {LONG}", "Yes.")), LONG_PAIR), in_chat()),
    "right-to-left": (
        chat_with(
            RIGHT_TO_LEFT, ResolvedPair(Path(f"{HEBREW}.gguf"), Path(f"{CHINESE}.gguf"))
        ),
        in_chat(),
    ),
    "toast": (spoken, toasted),
    "loading": (loading_half, opening),
    "monochrome": (lambda: scenes.chat(scenes.spoken, theme=MONOCHROME), asking()),
    "wrong-setting": (spoken, asking(scenes.QUESTION, "f4", *"zz", "enter")),
    "picker": (spoken, asking(scenes.QUESTION, "f12", *"zzzz")),
    "thinking": (thinking, asking(scenes.QUESTION, "ctrl+t")),
    "settings": (spoken, asking(scenes.QUESTION, "f4", "down")),
    "help": (spoken, asking(scenes.QUESTION, "f1")),
    "replay": (completing(), asking(scenes.CODE, "f7", "home", *["right"] * 5)),
    "pictures": (looking, shown_pictures),
    "room": (spoken, full_context),
    "turns": (spoken, branched),
    "tool-asking": (with_tools(TOOL_CALL), calling()),
    "tool-choosing": (with_tools(LONG_CALL), calling("tab", "down", "down", "down")),
    "tool-refusing": (
        with_tools(TOOL_CALL),
        calling("tab", "up", "enter", *"use the clock on the wall"),
    ),
    "tool-running": (
        with_tools(saying(f"{BEFORE_CALL}{call_text('wait')}")),
        calling("tab", "enter"),
    ),
    "tool-results": (
        with_tools(
            TOOL_CALL,
            asking_time("Atlantis"),
            asking_time("Lima", "And in Lima:"),
            saying("It is noon in Rome, and six in the morning in Lima."),
        ),
        called,
    ),
    "tool-monochrome": (with_tools(TOOL_CALL, theme=MONOCHROME), calling("tab")),
}

# --- the rest
# -----------------------------------------------------------------------------


def found_log() -> App[None]:
    test_log.write(test_log.SAID)
    return test_log.app()


def welcome(computer: str) -> State:
    return lambda: test_welcome.app(lambda: test_welcome.survey(Path(), computer)), (
        test_welcome.told
    )


def doctor() -> App[None]:
    return test_doctor.app(test_doctor.Patient())


def bench() -> App[None]:
    return test_measurement.bench(test_measurement.Measurable())


async def benched(pilot: Pilot[Any]) -> None:
    lab = test_measurement.MeasurementDriver(pilot)
    await lab.start()
    await lab.is_in("done")
    await settled(pilot)


REST: dict[str, State] = {
    "bench": (bench, benched),
    "log-found": (found_log, stepping("slash", "k", "e", "y", "_", "7", "enter", "n")),
    "welcome": welcome("one-card"),
    "welcome-no-gpu": welcome("no-gpu"),
    "doctor": (doctor, test_doctor.having()),
    "doctor-running": (doctor, test_doctor.having("down", "enter", "y")),
    "serve": (lambda: test_serve.board(test_serve.busy()), settled),
}
STATES: dict[str, State] = {
    **{f"home-{name}": state for name, state in HOME.items()},
    **{f"wizard-{name}": state for name, state in WIZARD.items()},
    **{f"chat-{name}": state for name, state in CHAT.items()},
    **REST,
}
