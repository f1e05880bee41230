"""States of the app for tests: scripted engines, and the keys that lead to each state."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widgets import Static

from localspec import errors
from localspec.chat.session import ChatSession
from localspec.errors import Hint
from localspec.launch import ResolvedPair
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadPhase, DownloadState
from localspec.models.reference import RepoFile
from localspec.protocol.events import EngineExit
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from tests.support.fake_hub import COMMIT
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    drafted_round,
    ready,
    wait_until,
)

QUESTION = "Why does my loop allocate?"
SAID = """\
Each time round, `xs + [x]` builds a **new list** and copies the old one into it. \
Use `append`, which grows in place:

```python
for x in items:
    xs.append(x)
```

The list then over-allocates a little, so that most calls cost nothing:

1. it asks for an eighth more than it needs,
2. it copies only when that is used up.
"""
ANYTHING = """\
## Überschrift · 見出し · עברית

漢字かな交じり文は単語の間に空白がないので、行の折り返しは文字と文字の間で起こります。幅は二桁です。

Combining: e\u0301 n\u0303 a\u0308 Z\u0351\u036b\u0343o\u0334; emoji: 🙂 👍🏽 🇩🇪 ❤️;
مرحبا بالعالم and שלום.

https://example.org/a-very-long-address/without-any-place-to-break/\
Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft

| Sprache | Gruß | 長さ |
|---|---:|---|
| Deutsch | Guten Tag | 9 |
| 日本語 | こんにちは | 五 |

```python
def an_unusually_long_name(argument, another_argument, *, keyword="漢字", default=None) -> str:
    return f"{argument}"
```

> quoted, *emphasised*, and `code`
"""
CODE = "def fibonacci(n):"
COMPLETED = """
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


def is_even(n):
    return n % 2 == 0
"""
PAIR = ResolvedPair(Path("qwen3-8b.gguf"), Path("qwen3-0.6b.gguf"))
MACHINE = "8 cores · 31.3 GB, 24.0 GB free"

Steps = Callable[[Pilot[Any]], Awaitable[None]]
P = ParamSpec("P")


def steps(
    action: Callable[Concatenate[Pilot[Any], P], Awaitable[None]],
) -> Callable[P, Steps]:
    """Makes a function of a pilot and more one that takes the rest.

    It returns what to do with the pilot.
    """
    return lambda *args, **more: lambda pilot: action(pilot, *args, **more)


def words(text: str) -> list[str]:
    return re.findall(r" ?\w{1,6}|\n *|[^\w\s]| +", text)


def home(
    options: AppOptions | None = None,
    downloads: DownloadManager | None = None,
    survey: Callable[[], MachineSurvey] = lambda: MachineSurvey(MACHINE),
    closer: Callable[[MachineSurvey], MachineSurvey] | None = None,
    opening: Opening | None = None,
) -> LocalspecApp:
    """Home, with the slow part of the survey only if there is a `closer`.

    Otherwise snapshots would depend on this computer.
    """
    options = options or AppOptions(seed=1)
    runner = EngineRunner(opening or Opening([REFUSED]))
    closer = closer or (lambda seen: seen)
    return LocalspecApp(
        options, runner, lambda: HomeScreen(runner, options, survey, downloads, closer)
    )


class Still(DownloadManager):
    """Downloads that never change: one in each phase."""

    def states(self) -> tuple[DownloadState, ...]:
        return STATES


def _state(
    name: str, phase: DownloadPhase, *, done: float, total: float, **more: Any
) -> DownloadState:
    """`done` and `total` are in GB."""
    repo = f"someone/{name.rpartition('-')[0]}-GGUF"
    job = DownloadJob(repo, COMMIT, RepoFile(f"{name}.gguf", int(total * 1e9)))
    return DownloadState(job, phase, int(done * 1e9), **more)


STATES = (
    _state(
        "Qwen3-8B-Q4_K_M",
        DownloadPhase.LOADING,
        done=3.1,
        total=5.0,
        rate=11.4e6,
        eta=167.0,
    ),
    _state("Qwen3-0.6B-Q8_0", DownloadPhase.PAUSED, done=0.2, total=0.6),
    _state(
        "大規模言語モデル-七十億-Q4_K_M",
        DownloadPhase.VERIFYING,
        done=4.4,
        total=4.4,
    ),
    _state(
        "Mistral-Small-3.2-24B-Instruct-2506-Q4_K_M",
        DownloadPhase.WAITING,
        done=0.0,
        total=14.3,
    ),
    _state("Llama-3.2-1B-Q8_0", DownloadPhase.DONE, done=1.3, total=1.3),
    _state(
        "Gemma-3-12B-Q4_K_M",
        DownloadPhase.FAILED,
        done=1.0,
        total=7.3,
        error=errors.AccessDeniedError(
            "The hub denies access to someone/Gemma-3-12B-GGUF.",
            "Open https://huggingface.co/someone/Gemma-3-12B-GGUF and agree to its terms.",
        ),
    ),
)


def chat(
    *scripts: Callable[[], Script],
    chats: bool = True,
    thinking: tuple[str, str] | None = None,
    **options: Any,
) -> LocalspecApp:
    wanted = AppOptions(seed=1, **options)
    loaded = ready(chats=chats, thinking=thinking)
    runner = EngineRunner(Opening([ScriptedEngine(*scripts, ready=loaded)]))

    def first() -> Screen[None]:
        return ChatScreen(ChatSession(PAIR, 1), runner, wanted)

    return LocalspecApp(wanted, runner, first)


REFUSED = errors.IncompatiblePairError(
    "The draft model does not fit this target: token 151668 is “</think>” in one and "
    "“<|im_sep|>” in the other.",
    "Choose a draft of the same family, or none.",
)


def spoken(text: str = SAID) -> Script:
    return answer(words(text))


def held(text: str = SAID) -> Script:
    """Two thirds of an answer, then a gate."""
    said = answer(words(text))
    return [*said[: len(said) * 2 // 3], Gate(), *said[-1:]]


def guessed() -> Script:
    """Rounds whose guesses are all right, wrong in part, and wrong at once."""
    start = answer(["x"])[:3]
    return [
        *start,
        drafted_round(0, [], "The"),
        drafted_round(1, [" color", " of", " the", " new", " theater"], " is"),
        drafted_round(2, [" gray", ".", " Our", " neighbors", " organized"], " a"),
        drafted_round(3, [" party", " in", " the"], " town", " center", " of", " the"),
        drafted_round(4, [], "."),
        drafted_round(5, [" They", " sang"], " until", " all"),
        drafted_round(6, [" the", " morning"], "."),
        drafted_round(7, [" Then"], " everybody", " they"),
        drafted_round(8, [" had", " a"], " favorite", " great", " time"),
        drafted_round(9, [" flavor", " of", " ice"], " cream", " tea"),
        drafted_round(10, ["."], " The"),
        drafted_round(11, [" program"], " was", " is"),
        drafted_round(12, [" printed", " on"], " coloured", " colored"),
        answer(["x"])[-1],
    ]


def thought() -> Script:
    return spoken(
        f"<think>They ask about lists. {SAID.splitlines()[0]}</think>Use `append`."
    )


def dying() -> Script:
    said = answer(words(SAID))
    hint = Hint(
        "Try a smaller {ctx}, fewer {gpu_layers}, a smaller quantisation, or {draft=none}."
    )
    return [
        *said[: len(said) // 3],
        EngineExit("oom-gpu", ("cudaMalloc failed",), hint),
    ]


def phase(pilot: Pilot[Any]) -> str:
    screen = pilot.app.screen
    return screen.phase if isinstance(screen, ChatScreen) else ""


async def surveyed(pilot: Pilot[Any]) -> None:
    """Waits until Home shows this computer."""
    screen = pilot.app.screen

    def machine_shown() -> bool:
        return any(
            str(line.content) for line in screen.query("#machine").results(Static)
        )

    await wait_until(pilot, machine_shown)
    await settled(pilot)


async def opened(pilot: Pilot[Any]) -> None:
    await wait_until(pilot, lambda: phase(pilot) == "ready")


@steps
async def asking(
    pilot: Pilot[Any],
    question: str = QUESTION,
    *keys: str,
    before: tuple[str, ...] = (),
) -> None:
    """Asks, waits for the end of the answer, then presses keys."""
    await opened(pilot)
    await pilot.press(*before)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text(question)
    await pilot.press("enter")
    await wait_until(pilot, lambda: was_sent(screen, question))
    await wait_until(pilot, lambda: phase(pilot) in ("ready", "failed"))
    await settled(pilot)
    for key in keys:
        await pilot.press(key)
    await pilot.pause()


def was_sent(screen: ChatScreen, question: str) -> bool:
    """Whether a question is the last of the chat; a slash command is none."""
    turns = screen.session.conversation.turns
    return question.startswith("/") or bool(turns and turns[-1].question == question)


async def streaming(pilot: Pilot[Any]) -> None:
    """Asks, and waits until the engine has reached its gate."""
    await opened(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text(QUESTION)
    expected = sum(len(getattr(event, "tokens", ())) for event in held())
    await pilot.press("enter")
    await wait_until(pilot, lambda: shown_tokens(screen) == expected)
    await settled(pilot)


async def guessing(pilot: Pilot[Any]) -> None:
    """In slow motion, until one token is struck and the next guess is checked."""
    await opened(pilot)
    screen = pilot.app.screen
    assert isinstance(screen, ChatScreen)
    screen.composer.replace_text("Tell me about the new theater.")
    await pilot.press("enter")

    def is_shown() -> bool:
        """Then holds it there."""
        guess = screen._drawn_guess
        if "great" in guess.rejected and guess.unchecked:
            screen._frames._until = float("inf")
            return True
        return False

    await wait_until(pilot, is_shown)
    await settled(pilot)


def shown_tokens(screen: ChatScreen) -> int:
    """Tokens of the last answer on the screen."""
    turns = screen.transcript.turns
    return len(turns[-1].text.token_text.tokens) if turns else 0


async def failed(pilot: Pilot[Any]) -> None:
    await wait_until(pilot, lambda: phase(pilot) == "failed")


async def settled(pilot: Pilot[Any]) -> None:
    """Waits until the screen stays the same: threads and timers may change it later.

    On a busy machine these may be late, so there it has to stay the same for longer.
    """
    shown: list[Strip] = []
    unchanged = 0.0
    wanted = 0.1
    while unchanged < wanted:
        began = time.monotonic()
        await asyncio.sleep(0.02)
        took = time.monotonic() - began
        wanted = max(wanted, 10 * (took - 0.02))
        await pilot.pause()
        now = pilot.app.screen._compositor.render_strips()
        unchanged = unchanged + took if now == shown else 0.0
        shown = now


def walking(*keys: str) -> Steps:
    """Walks over the tokens of an answer."""
    return asking(CODE, "tab", *keys)
