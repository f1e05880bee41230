"""A scripted engine in this process, and helpers to wait for the app."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from textual.pilot import Pilot
from textual.screen import Screen

from localspec.errors import LocalspecError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine
from localspec.protocol.events import (
    Alternative,
    EngineReady,
    Event,
    FinishReason,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    TokenClass,
    TokenScore,
)
from localspec.protocol.wire import (
    CountCommand,
    CountResult,
    GenerateCommand,
    InspectCommand,
    LoadCommand,
    LoadEvent,
    MeasuredCosts,
    ProbeCommand,
)
from tests.support.fake_engine import BareEngine

LIMIT = 60.0
"""Seconds that a test waits for a condition, on a machine that does much else besides.
"""

MEASURED = MeasuredCosts(20.0, {"1": 1.0, "4": 1.2}, c=0.1)
PLAN = SpeculationPlan("on", "worth it: 3 of 4 draft tokens accepted", 1.8)


class Gate(threading.Event):
    """In a script: the engine waits here until a test sets it or stops the answer."""


Line = Event | LocalspecError | Gate
Script = Iterable[Line]


def ready(
    *, chats: bool = True, thinking: tuple[str, str] | None = None, **more: Any
) -> EngineReady:
    """A loaded pair: a chat model with its own template, or one that completes text."""
    template = "own" if chats else None
    chat: dict[str, Any] = {"template": template, "thinking": thinking}
    if thinking is not None:
        chat["thinking_controls"] = ["switch", "budget"]
    settings = {"target": {"n_ctx": 8192}, "chat": chat}
    body: dict[str, Any] = {"notices": ()} | more
    return EngineReady(
        {}, "scripted.gguf", "draft.gguf", ("CPU",), settings, {}, 12.0, **body
    )


def answer(
    words: Sequence[str],
    *,
    reason: FinishReason = "eog",
    width: int = 4,
    tail: str = "",
) -> list[Event]:
    """A whole answer: each word a token, in rounds of at most `width`."""
    return [
        PLAN,
        Prefill(0, 24, 8),
        Prefill(24, 24, 8),
        *rounds(words, width=width),
        GenerationFinished(reason, tail, {"timings": {"first_token_ms": 41.0}}),
    ]


def rounds(words: Iterable[str], *, width: int = 4) -> Iterator[Round]:
    """The first round is plain.

    The others end alternately in a correction and a bonus token.
    """
    waiting: list[str] = []
    wanted = 1
    n = 0
    for word in words:
        waiting.append(word)
        if len(waiting) == wanted:
            yield _round(n, waiting)
            waiting = []
            wanted = width
            n += 1
    if waiting:
        yield _round(n, waiting)


def _round(n: int, words: Sequence[str]) -> Round:
    accepted = len(words) - 1
    rejected: tuple[str, ...] = ()
    last_kind: TokenClass = "bonus"
    if n == 0:
        last_kind = "plain"
    elif n % 2 == 1:
        last_kind = "correction"
        rejected = (f"{words[-1]}?", " never")
    drafted = accepted + len(rejected)
    tokens = [token(word, "accepted", n) for word in words[:-1]]
    tokens.append(token(words[-1], last_kind, n))
    source = None
    if drafted:
        source = ("model", "lookup", "model+lookup")[n % 3]
    return Round(
        n,
        source,
        reason="",
        drafted=drafted,
        accepted=accepted,
        tokens=tuple(tokens),
        ms=RoundTimes(1.0, 20.0, 0.5),
        rejected=rejected,
    )


def drafted_round(n: int, right: Sequence[str], own: str, *rejected: str) -> Round:
    """Accepted draft tokens, and the model's own token in place of a rejected one."""
    kind: TokenClass = "plain"
    if rejected:
        kind = "correction"
    elif right:
        kind = "bonus"
    tokens = [Token(1, text, "accepted") for text in right]
    n_drafted = len(right) + len(rejected)
    verify_ms = 20.0 + 5.0 * n_drafted
    return Round(
        n,
        "model" if n_drafted else None,
        reason="",
        drafted=n_drafted,
        accepted=len(right),
        tokens=(*tokens, Token(2, own, kind)),
        ms=RoundTimes(1.0, verify_ms, 0.5),
        rejected=rejected,
    )


def token(word: str, kind: TokenClass, id: int = 1) -> Token:  # noqa: A002  as the event calls it
    """A token with probabilities and alternatives."""
    other = Alternative(7, f"{word}?", 0.2, 2, 0.8, was_drafted=True)
    third = Alternative(8, f"{word}!", 0.1, 3)
    instead = (other, third) if kind == "correction" else (third,)
    sure = 0.9 if kind == "accepted" else None
    return Token(id, word, kind, 0.6, sure, 1, instead)


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


class ScriptedEngine(BareEngine):
    """Plays one script per answer, repeating the last; `pace`: seconds between rounds."""

    def __init__(
        self,
        *scripts: Callable[[], Script],
        ready: EngineReady = ready(),  # noqa: B008  frozen
        measured: MeasuredCosts | None = MEASURED,
        pace: float = 0.0,
        sizes: Callable[[int], int] = lambda messages: 8 * messages,
    ) -> None:
        """`sizes`: the token count of a chat, from its number of messages."""
        self.ready = ready
        self.measured = measured
        self.asked: list[GenerateCommand] = []
        self.closed = False
        self._scripts = scripts
        self._pace = pace
        self._sizes = sizes
        self._stop = threading.Event()

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        script = self._scripts[min(len(self.asked), len(self._scripts) - 1)]
        self.asked.append(request)
        for line in script():
            if isinstance(line, LocalspecError):
                raise line
            if isinstance(line, Gate):
                while not line.wait(0.005) and not self._stop.is_set():
                    pass
            elif isinstance(line, Round):
                self._stop.wait(self._pace)
            if self._stop.is_set():
                self._stop.clear()
                yield GenerationFinished("cancelled")
                return
            if not isinstance(line, Gate):
                yield line

    def stop(self) -> None:
        self._stop.set()

    def count(self, count: CountCommand) -> CountResult:
        return CountResult(self._sizes(len(count.messages)))

    def inspect(self, inspect: InspectCommand) -> tuple[TokenScore, ...]:
        """Every token gets probability 0.5."""
        return tuple(
            TokenScore(0.5, 1, (Alternative(9, "else", 0.25, 2),))
            for _ in inspect.tokens
        )

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield from ()

    def close(self) -> None:
        self.closed = True
        self._stop.set()


@dataclass
class Opening:
    """A `StartEngine` that gives these engines, or raises these errors, in order.

    The last one is repeated.
    """

    engines: Sequence[BareEngine | LocalspecError]
    says: Sequence[LoadEvent] = ()
    gate: Gate | None = None
    loads: list[LoadCommand] = field(default_factory=list)
    wishes: list[SettingsRequest] = field(default_factory=list)

    def __call__(
        self,
        request: SettingsRequest,
        *,
        probe: bool,
        notify: Callable[[LoadEvent], None],
        on_worker: Callable[[Engine], None] = lambda _: None,
    ) -> Engine:
        result = self.engines[min(len(self.loads), len(self.engines) - 1)]
        self.loads.append(request.load)
        self.wishes.append(request)
        if isinstance(result, BareEngine):
            on_worker(result)
        for event in self.says:
            notify(event)
        if self.gate is not None:
            self.gate.wait(LIMIT)
        if isinstance(result, LocalspecError):
            raise result
        return result


async def wait_until(
    pilot: Pilot[Any], condition: Callable[[], object], limit: float = LIMIT
) -> None:
    """Lets the app run until a condition holds; fails after `limit` seconds."""
    until = time.monotonic() + limit
    began = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < until, "condition not met in time"
        # a dear condition leaves the app its time
        await asyncio.sleep(max(0.005, now - began))
        began = time.monotonic()
    await pilot.pause()


def painted(screen: Screen[Any]) -> str:
    """The text on the screen, without borders, with single spaces."""
    rows = (strip.text for strip in screen._compositor.render_strips())
    return " ".join(
        " ".join(rows).translate(dict.fromkeys(map(ord, "▌▏│┃╭╮╰╯─"), " ")).split()
    )
