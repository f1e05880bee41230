"""A draft grown guess by guess, each from a row of logits that the last one led to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.engine.drafters import Needs
from localspec.engine.protocols import Draft, Gauge, Law, Logits
from localspec.engine.sampling import InvalidNumbersError, confidence, law

Row = Callable[[int | None], tuple[Logits, float | None]]
"""Logits after a guess; after the text and what stands ahead, for None.

With them how sure the drafter is of its likeliest token; None: as the logits tell.
"""


class Chain:
    """Draws guesses as the verifier wants them, until they end or no more are wanted.

    `n_vocab` tokens are the drafter's; only those that the target knows are drafted.
    """

    def __init__(self, needs: Needs, source: str, n_vocab: int) -> None:
        self._needs, self._source = needs, source
        self._n_vocab = min(n_vocab, needs.n_vocab)

    def grow(
        self,
        tokens: Sequence[int],
        ahead: Sequence[int],
        limit: int,
        gauge: Gauge | None,
        row: Row,
    ) -> Draft:
        """At most `limit` guesses to follow `tokens` and `ahead`; their time is not known here."""
        needs = self._needs
        guessed: list[int] = []
        laws: list[Law] = []
        rows: list[Logits] = []
        place = len(tokens) - needs.start + len(ahead)
        for i in range(limit):
            logits, sure = row(guessed[-1] if guessed else None)
            if len(logits) > self._n_vocab:
                logits = logits[: self._n_vocab]
            try:
                said = law(logits, needs.sampling, self._recent(tokens, [*ahead, *guessed]))
            except InvalidNumbersError:  # a broken draft costs speed, never the answer
                break
            if gauge is not None and not gauge.wanted(_sure(logits, said, sure)):
                break
            if needs.keep_rows:
                rows.append(logits.copy())
            token = needs.verifier.guess(said, place + i)
            laws.append(said)
            guessed.append(token)
            if needs.is_end(token) or (gauge is not None and not gauge.more(token)):
                break
        return Draft(guessed, laws, self._source, rows=rows if needs.keep_rows else None)

    def _recent(self, tokens: Sequence[int], guessed: list[int]) -> Sequence[int]:
        sampling = self._needs.sampling
        if sampling.repeat_penalty == 1.0:
            return ()
        return [*tokens[-sampling.repeat_last_n :], *guessed]


def _sure(logits: Logits, said: Law, told: float | None) -> float:
    return confidence(logits, said) if told is None else min(max(told, 0.0), 1.0)
