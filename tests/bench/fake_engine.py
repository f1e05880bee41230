"""An engine whose passes take as long as told, on its own clock, and whose draft is a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    TokenClass,
)
from localspec.protocol.wire import GenerateCommand, MeasuredCosts

READY = EngineReady({"llama_cpp_python": "0"}, "big.gguf", "small.gguf", ("CPU",), {}, {}, 1.0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEngine:
    """Says `says`; where it speculates, each round drafts `drafts` guesses and keeps the next of
    `keeps`, over and over.  A plain pass takes a second, a drafting round `round_s`.
    """

    clock: Clock
    says: Sequence[int] = tuple(range(100, 200))
    keeps: Sequence[int] = (2,)
    drafts: int = 3
    round_s: float = 1.5
    source: str = "model"
    asked: list[GenerateCommand] = field(default_factory=list)
    ready: EngineReady = READY
    measured: MeasuredCosts | None = None
    stop_at: int | None = None
    """Which answer stops itself, as if Ctrl+C came in it."""
    stopped: bool = False

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.asked.append(request)
        self.stopped = False
        says = self.says[: request.max_tokens]
        yield SpeculationPlan("off" if request.spec == "off" else "on", "")
        yield Prefill(4, 4, 0)
        self.clock.now += 0.25
        began = self.clock.now
        n = at = 0
        while at < len(says):
            if self.stopped or (len(self.asked) - 1 == self.stop_at and at):
                yield GenerationFinished("cancelled")
                return
            event = self._round(n, says, at, plain=request.spec == "off" or at == 0)
            at += len(event.tokens)
            n += 1
            yield event
        rate = (len(says) - 1) / (self.clock.now - began) if len(says) > 1 else None
        yield GenerationFinished("length", "", {"timings": {"tokens_per_second": rate}})

    def _round(self, n: int, says: Sequence[int], at: int, *, plain: bool) -> Round:
        kept = 0 if plain else self.keeps[(n - 1) % len(self.keeps)]
        drafted = 0 if plain else min(self.drafts, max(len(says) - at - 1, 0))
        kept = min(kept, drafted)
        if at:
            self.clock.now += self.round_s if drafted else 1.0
        last: TokenClass = "plain" if not drafted else "correction"
        kinds: list[TokenClass] = [*(["accepted"] * kept), last]  # type: ignore[list-item]
        tokens = tuple(Token(i, f"w{i} ", kind) for i, kind in zip(says[at:], kinds, strict=False))
        source = self.source if drafted else None
        return Round(
            n, source, "", drafted, kept, tokens, RoundTimes(0, 1, 2.0 if drafted else 1.0)
        )

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass
