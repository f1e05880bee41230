"""Compares speculative answers with plain ones and explains every difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal

from localspec.bench.measurement import (
    AnswerCancelled,
    RecordedAnswer,
    record_answer,
)
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import Round, Token
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    GenerateCommand,
    ReplayCommand,
    ReplayResult,
)

ComparedPart = Literal["greedy", "seeded"]


@dataclass(frozen=True, slots=True)
class SpeculationVariant:
    spec: str
    draft_length: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token at which a speculative answer differs from the plain one."""

    prompt: int
    variant: SpeculationVariant
    position: int  # The answer's first token is 0.
    width: int  # Tokens in the pass that produced the speculative token.
    margin: float | None
    """Difference in logits between the plain token and the runner-up, in a one-token pass; None
    if one answer ends here and the other continues."""
    replayed: bool  # Both answers are reproduced by replaying their passes without speculation.
    plain: Token | None
    speculative: Token | None

    def is_near_tie(self, limit: float) -> bool:
        """True if rounding in a wide pass explains the difference; `limit` in logits."""
        return self.replayed and self.margin is not None and self.margin <= limit


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """The answers to one prompt: the plain one against each speculation variant."""

    part: ComparedPart
    answers: int
    tokens: int
    drafted: int
    divergences: tuple[Divergence, ...]


@dataclass(slots=True)
class ComparisonTotals:
    prompts: int = 0
    answers: int = 0
    equal: int = 0  # Prompts whose answers are all the same.
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
    recorder: AnswerRecorder,
    part: ComparedPart,
    prompt: int,
    plain_request: GenerateCommand,
    variants: Sequence[SpeculationVariant],
) -> PromptComparison:
    """Answers the prompt plain and with each variant, and explains the differences."""
    plain = recorder.record(plain_request)
    answers = {
        variant: recorder.record(
            replace(plain_request, spec=variant.spec, draft_length=variant.draft_length)
        )
        for variant in variants
    }
    different = {v: answer for v, answer in answers.items() if answer.ids != plain.ids}
    return PromptComparison(
        part=part,
        answers=len(answers),
        tokens=sum(len(answer.ids) for answer in answers.values()),
        drafted=sum(RoundTotals.of(answer.rounds).drafted for answer in answers.values()),
        divergences=_explain_divergences(recorder, prompt, plain, different),
    )


def _explain_divergences(
    recorder: AnswerRecorder,
    prompt: int,
    plain: RecordedAnswer,
    different: Mapping[SpeculationVariant, RecordedAnswer],
) -> tuple[Divergence, ...]:
    if not different:
        return ()
    plain_replay = recorder.replay(plain)  # passes of one token each
    plain_reproduced = list(plain_replay.best) == plain.ids
    divergences = []
    for variant, answer in different.items():
        replay = recorder.replay(answer)
        same = [a == b for a, b in zip(plain.ids, answer.ids, strict=False)]
        position = same.index(False) if False in same else len(same)
        both_continue = position < len(same)
        divergences.append(
            Divergence(
                prompt=prompt,
                variant=variant,
                position=position,
                width=_pass_width_at(answer, position),
                margin=plain_replay.margin[position] if both_continue else None,
                replayed=plain_reproduced and list(replay.best) == answer.ids,
                plain=next(iter(plain.tokens[position:]), None),
                speculative=next(iter(answer.tokens[position:]), None),
            )
        )
    return tuple(divergences)


# --- Recording an answer, and replaying its passes without speculation.


class AnswerRecorder:
    """Records and replays answers; raises AnswerCancelled once `should_stop` returns true."""

    def __init__(self, engine: Engine, should_stop: Callable[[], bool]) -> None:
        self._engine, self._should_stop = engine, should_stop

    def record(self, request: GenerateCommand) -> RecordedAnswer:
        """Generates from an empty KV cache: reused cells come from passes of other widths."""
        self._replay(ReplayCommand(request.text, (), (), ()))
        return record_answer(self._engine, request, self._should_stop)

    def replay(self, answer: RecordedAnswer) -> ReplayResult:
        """The target's logits for each token, in passes of the same widths, without speculation.

        The first round is the prompt's own pass, which a replay starts with.
        """
        later = _rounds_with_tokens(answer)[1:]
        return self._replay(
            ReplayCommand(
                answer.request.text,
                tuple(answer.ids),
                tuple(event.drafted + 1 for event in later),
                tuple(len(event.tokens) for event in later),
                answer.request.sampling,
            )
        )

    def _replay(self, command: ReplayCommand) -> ReplayResult:
        if self._should_stop():
            raise AnswerCancelled
        return self._engine.replay(command)


def _rounds_with_tokens(answer: RecordedAnswer) -> list[Round]:
    return [event for event in answer.rounds if event.tokens]


def _pass_width_at(answer: RecordedAnswer, position: int) -> int:
    """Tokens in the pass that produced this position; beyond the end, in the last pass."""
    end = 0
    for event in _rounds_with_tokens(answer):
        end += len(event.tokens)
        if position < end:
            break
    return event.drafted + 1
