"""Whether a speculated answer is the plain one, and where it is not, why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.bench.answers import Answer, Engine, answer, replayed
from localspec.protocol.events import Token
from localspec.protocol.wire import Generate, Sampling


@dataclass(frozen=True, slots=True)
class Way:
    """How to guess."""

    spec: str
    draft_length: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of a speculated answer that is not the plain one's."""

    prompt: int
    way: Way
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

    def near_tie(self, limit: float) -> bool:
        """Whether the last bits of a wide pass explain it."""
        return self.replayed and self.margin is not None and self.margin <= limit


@dataclass(frozen=True, slots=True)
class Compared:
    """The answers to one prompt: the plain one against those of each way of guessing."""

    prompt: int
    answers: int
    tokens: int
    drafted: int
    divergences: tuple[Divergence, ...]


@dataclass(slots=True)
class Sums:
    """Comparisons of one kind, folded."""

    prompts: int = 0
    answers: int = 0
    equal: int = 0
    """Prompts whose answers were all the same."""
    tokens: int = 0
    drafted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def add(self, found: Compared) -> None:
        self.prompts += 1
        self.answers += found.answers
        self.equal += not found.divergences
        self.tokens += found.tokens
        self.drafted += found.drafted
        self.divergences += found.divergences


def compare(
    engine: Engine,
    ways: Sequence[Way],
    prompt: int,
    text: str,
    sampling: Sampling,
    *,
    tokens: int,
) -> Compared:
    """One prompt, plain and in every way of guessing."""
    plain = answer(engine, Generate(text, sampling, tokens, spec="off"))
    others = [(way, answer(engine, _request(plain.request, way))) for way in ways]
    different = [(way, other) for way, other in others if other.ids != plain.ids]
    return Compared(
        prompt=prompt,
        answers=len(others),
        tokens=sum(len(other.ids) for _, other in others),
        drafted=sum(other.drafted for _, other in others),
        divergences=_explained(engine, prompt, plain, different),
    )


def _request(plain: Generate, way: Way) -> Generate:
    return Generate(
        plain.text,
        plain.sampling,
        plain.max_tokens,
        spec=way.spec,
        draft_length=way.draft_length,
    )


def _explained(
    engine: Engine, prompt: int, plain: Answer, different: list[tuple[Way, Answer]]
) -> tuple[Divergence, ...]:
    if not different:
        return ()
    alone = replayed(engine, plain)  # its passes are of one token each
    sound = list(alone.best) == plain.ids
    found = []
    for way, other in different:
        again = replayed(engine, other)
        pairs = zip(plain.ids, other.ids, strict=False)
        same = [mine == theirs for mine, theirs in pairs]
        position = same.index(False) if False in same else len(same)
        both = position < len(same)
        found.append(
            Divergence(
                prompt=prompt,
                way=way,
                position=position,
                width=other.width_at(position),
                margin=alone.margin[position] if both else None,
                replayed=sound and list(again.best) == other.ids,
                plain=_at(plain, position),
                speculative=_at(other, position),
            )
        )
    return tuple(found)


def _at(said: Answer, position: int) -> Token | None:
    tokens = said.tokens
    return tokens[position] if position < len(tokens) else None
