"""Whether a speculated answer is the plain one, and where it is not, why."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from localspec.protocol.events import EngineExit, Event, Round, Token
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
    SamplingParams,
)
from localspec.worker import crashes


@dataclass(frozen=True, slots=True)
class SpeculationVariant:
    """How to guess."""

    spec: str
    draft_length: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of a speculated answer that is not the plain one's."""

    prompt: int
    variant: SpeculationVariant
    position: int
    """Counted from the answer's first token, 0."""
    width: int
    """Tokens in the pass that gave the other token."""
    margin: float | None
    """Logits between the plain token and the next that would have been taken in its place, in a
    pass of its own; None where one answer ends and the other goes on."""
    replayed: bool
    """Whether both answers come out again when their passes are made without guessing."""
    plain: Token | None
    speculative: Token | None

    def is_near_tie(self, limit: float) -> bool:
        """Whether the last bits of a wide pass explain it."""
        return self.replayed and self.margin is not None and self.margin <= limit


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """The answers to one prompt: the plain one against those of each way of guessing."""

    prompt: int
    answers: int
    tokens: int
    drafted: int
    divergences: tuple[Divergence, ...]


@dataclass(slots=True)
class ComparisonTotals:
    """Comparisons of one kind, folded."""

    prompts: int = 0
    answers: int = 0
    equal: int = 0
    """Prompts whose answers were all the same."""
    tokens: int = 0
    drafted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def add(self, comparison: PromptComparison) -> None:
        self.prompts += 1
        self.answers += comparison.answers
        self.equal += not comparison.divergences
        self.tokens += comparison.tokens
        self.drafted += comparison.drafted
        self.divergences += comparison.divergences


def compare_prompt(
    engine: ReplayEngine,
    variants: Sequence[SpeculationVariant],
    prompt: int,
    text: str,
    sampling: SamplingParams,
    *,
    tokens: int,
) -> PromptComparison:
    """One prompt, plain and in every way of guessing."""
    plain = record_answer(engine, GenerateCommand(text, sampling, tokens, spec="off"))
    others = [
        (way, record_answer(engine, _speculative_request(plain.request, way))) for way in variants
    ]
    different = [(way, other) for way, other in others if other.ids != plain.ids]
    return PromptComparison(
        prompt=prompt,
        answers=len(others),
        tokens=sum(len(other.ids) for _, other in others),
        drafted=sum(other.drafted for _, other in others),
        divergences=_explain_divergences(engine, prompt, plain, different),
    )


def _speculative_request(plain: GenerateCommand, variant: SpeculationVariant) -> GenerateCommand:
    return GenerateCommand(
        plain.text,
        plain.sampling,
        plain.max_tokens,
        spec=variant.spec,
        draft_length=variant.draft_length,
    )


def _explain_divergences(
    engine: ReplayEngine,
    prompt: int,
    plain: RecordedAnswer,
    different: list[tuple[SpeculationVariant, RecordedAnswer]],
) -> tuple[Divergence, ...]:
    if not different:
        return ()
    alone = replay_answer(engine, plain)  # its passes are of one token each
    sound = list(alone.best) == plain.ids
    found = []
    for way, other in different:
        again = replay_answer(engine, other)
        pairs = zip(plain.ids, other.ids, strict=False)
        same = [mine == theirs for mine, theirs in pairs]
        position = same.index(False) if False in same else len(same)
        both = position < len(same)
        found.append(
            Divergence(
                prompt=prompt,
                variant=way,
                position=position,
                width=other.pass_width_at(position),
                margin=alone.margin[position] if both else None,
                replayed=sound and list(again.best) == other.ids,
                plain=_token_at(plain, position),
                speculative=_token_at(other, position),
            )
        )
    return tuple(found)


def _token_at(answer: RecordedAnswer, position: int) -> Token | None:
    tokens = answer.tokens
    return tokens[position] if position < len(tokens) else None


# --- One answer with the passes it came from, and what the target alone says of it.


class ReplayEngine(Protocol):
    """A loaded pair that can also be measured and asked again."""

    @property
    def measured(self) -> MeasuredCosts | None: ...

    def generate(self, request: GenerateCommand) -> Iterator[Event]: ...

    def probe(self, probe: ProbeCommand) -> Iterator[Event]: ...

    def replay(self, replay: ReplayCommand) -> ReplayResult: ...


class VerifyCancelled(Exception):  # noqa: N818  no error
    """Somebody did not want to wait for the answer's end."""


class CancellableEngine:
    """An engine whose answers end with `Stopped` once they are not wanted any more."""

    def __init__(self, engine: ReplayEngine, should_stop: Callable[[], bool]) -> None:
        self._engine, self._should_stop = engine, should_stop

    @property
    def measured(self) -> MeasuredCosts | None:
        return self._engine.measured

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        events = self._engine.generate(request)
        try:
            for event in events:
                self._raise_if_cancelled()
                yield event
        finally:
            if isinstance(events, Generator):  # at once: the engine still writes
                events.close()

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        return self._engine.probe(probe)

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        self._raise_if_cancelled()
        return self._engine.replay(replay)

    def _raise_if_cancelled(self) -> None:
        if self._should_stop():
            raise VerifyCancelled


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """What was said to a request, round by round."""

    request: GenerateCommand
    rounds: tuple[Round, ...]

    @property
    def tokens(self) -> list[Token]:
        return [token for event in self.rounds for token in event.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def drafted(self) -> int:
        return sum(event.drafted for event in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(event.accepted for event in self.rounds)

    def pass_width_at(self, position: int) -> int:
        """Tokens in the pass that gave the token at this position; the last one beyond the end."""
        said = 0
        for event in self.rounds:
            said += len(event.tokens)
            if position < said:
                break
        return event.drafted + 1


def record_answer(engine: ReplayEngine, request: GenerateCommand) -> RecordedAnswer:
    """The answer from an empty memory: what another text left there has its passes' shapes."""
    engine.replay(ReplayCommand(request.text, (), (), ()))
    rounds = []
    for event in engine.generate(request):
        if isinstance(event, EngineExit):
            raise crashes.exit_error(event)
        if isinstance(event, Round) and event.tokens:
            rounds.append(event)
    return RecordedAnswer(request, tuple(rounds))


def replay_answer(engine: ReplayEngine, answer: RecordedAnswer) -> ReplayResult:
    """The target's own view of each token, in passes of the same shapes, without guessing.

    The first round reads the prompt, and a replay begins with that.
    """
    later = answer.rounds[1:]
    return engine.replay(
        ReplayCommand(
            answer.request.text,
            tuple(answer.ids),
            tuple(event.drafted + 1 for event in later),
            tuple(len(event.tokens) for event in later),
            answer.request.sampling,
        )
    )
