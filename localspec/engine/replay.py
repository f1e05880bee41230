"""What the target alone says of an answer's tokens, in passes of given widths.

No drafting, verifying or committing: only reading, so that a bug in those shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.engine.margin import choice, margin
from localspec.engine.protocols import Interrupted, Law, Logits
from localspec.engine.reader import Reader
from localspec.engine.sampling import law
from localspec.errors import UsageError
from localspec.protocol.wire import Replay, Replayed, Sampling


def replay(
    target: Reader, prompt: list[int], asked: Replay, cancelled: Callable[[], bool]
) -> Replayed:
    """Read the prompt into an empty memory, then the tokens pass by pass; the memory ends empty.

    Without tokens nothing is read, so the next answer starts as from fresh.  Where it was
    cancelled, what is known by then.
    """
    _check(asked, target)
    found = _Found()
    target.model.forget(0)
    try:
        if asked.tokens:
            for place, row, recent in _rows(target, prompt, asked, cancelled):
                found.add(row, asked.sampling, recent, place, asked.tokens[place])
    except Interrupted:
        pass
    finally:
        target.model.forget(0)
    return found.replayed()


def _rows(
    target: Reader, prompt: list[int], asked: Replay, cancelled: Callable[[], bool]
) -> Iterator[tuple[int, Logits, Sequence[int]]]:
    """For each token its place, the row of logits that it follows from, and all before it."""
    text, batch = list(prompt), target.model.n_batch
    for place, padding, emitted in _passes(asked):
        target.align(text)
        for _ in target.skim(text, batch - len(padding), cancelled):
            pass
        if cancelled():
            return
        fresh = text[target.n_read :]
        # As many rows as the real pass asked for: the output's shape is part of the computation.
        rows = target.read([*fresh, *padding], len(padding) + 1)
        for i in range(emitted):
            yield place + i, rows[i], text
            text.append(asked.tokens[place + i])


def _passes(asked: Replay) -> Iterator[tuple[int, list[int], int]]:
    """Each pass: the place of its first token, what is read beside the newest, how many count.

    Guesses that were rejected are not known.  A row depends on the tokens up to its own only, so
    any others do: the answer's next, then its last again and again.
    """
    yield 0, [], 1
    place = 1
    for width, emitted in zip(asked.widths, asked.emitted, strict=True):
        following = list(asked.tokens[place : place + width - 1])
        rest = width - 1 - len(following)
        yield place, following + [asked.tokens[-1]] * rest, emitted
        place += emitted


@dataclass
class _Found:
    best: list[int] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    below: list[float] = field(default_factory=list)
    above: list[float] = field(default_factory=list)

    def add(
        self, row: Logits, sampling: Sampling, text: Sequence[int], place: int, token: int
    ) -> None:
        recent = list(text[-sampling.repeat_last_n :]) if sampling.repeat_penalty != 1.0 else []
        said = law(row, sampling, recent)
        best = choice(said, sampling, place)
        mine = said.prob(token)
        self.best.append(best)
        self.margin.append(margin(row, sampling, recent, place, best))
        self.probability.append(mine)
        self.below.append(float(said.probs[said.ids < token].sum()))
        self.above.append(_above(said, token, mine))

    def replayed(self) -> Replayed:
        return Replayed(
            tuple(self.best),
            tuple(self.margin),
            tuple(self.probability),
            tuple(self.below),
            tuple(self.above),
        )


def _above(said: Law, token: int, mine: float) -> float:
    likelier = (said.probs > mine) | ((said.probs == mine) & (said.ids < token))
    return float(said.probs[likelier].sum())


def _check(asked: Replay, target: Reader) -> None:
    widths, emitted = asked.widths, asked.emitted
    whole = len(widths) == len(emitted) and sum(emitted) + 1 == max(1, len(asked.tokens))
    fits = all(0 < n <= width for width, n in zip(widths, emitted, strict=False))
    known = all(0 <= token < target.model.n_vocab for token in asked.tokens)
    if not (whole and fits and known):
        raise UsageError("These passes and tokens do not fit together.")
