"""Whether a head that has been through rounds and turns computes what a fresh one does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.engine.accept import verifier
from localspec.engine.drafters import Needs
from localspec.engine.drafters.blocks import BlockCompanion, BlockDrafter
from localspec.engine.drafters.companion import Companion, HeadDrafter
from localspec.engine.loop import Job, Step, generate
from localspec.engine.protocols import Draft, Drafter, Gauge, Logits
from localspec.engine.reader import Reader
from tests.beside import Beside
from tests.fakes import GREEDY

_NEAR = 0.05
"""Of logits that differ by how wide the passes were from which they come."""


class Compared:
    """Drafts as the one head does, and checks that a fresh one computes the same rows."""

    def __init__(self, fresh: Beside) -> None:
        self._fresh, self._companion = fresh, fresh.followed()
        self.compared = 0

    def begin(self, one: Drafter) -> None:
        """The next answer's drafter."""
        self._one, self.compared = one, 0

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        draft = self._one.propose(tokens, limit, ahead, gauge)
        fresh = self._fresh
        fresh.target.forget(0)
        for start in range(0, len(tokens) - 1, fresh.target.n_batch):
            end = min(start + fresh.target.n_batch, len(tokens) - 1)
            fresh.target.read(list(tokens[start:end]), 0)
        rows = self._rows(tokens, draft.tokens, limit)
        assert draft.rows is not None
        for mine, theirs in zip(draft.rows, rows, strict=True):
            assert mine is not None
            np.testing.assert_allclose(mine, theirs, atol=_NEAR)
            if isinstance(self._companion, BlockCompanion) and _doubtful(theirs):
                break  # DSpark's next row goes on from this one's likeliest token
        self.compared += len(rows)
        return draft

    def _rows(self, tokens: Sequence[int], guessed: list[int], limit: int) -> list[Logits]:
        companion = self._companion
        assert companion.ready(tokens)
        if isinstance(companion, BlockCompanion):
            head = companion.head
            whole = min(limit, head.size - head.first)  # a row sees all of its block
            return list(companion.begin(tokens[-1], whole)[0][: len(guessed)].copy())
        rows = [companion.begin(tokens[-1]).copy()]
        return rows + [companion.after(guess).copy() for guess in guessed[:-1]]


def check_rows(one: Beside, fresh: Beside, text: str) -> None:
    """Over four turns: the text, the chat as it goes on, another end, and an old turn edited."""
    companion, reader, judge = one.followed(), Reader(one.target), verifier("coupled", 0)
    prompt = one.target.vocabulary.tokenize(text)
    try:
        drafter: Compared | None = None
        for turn in range(4):
            needs = Needs(
                reader=None,
                verifier=judge,
                sampling=GREEDY,
                start=len(prompt),
                n_vocab=one.target.n_vocab,
                is_end=_never,
                companion=companion,
                keep_rows=True,
            )
            drafter = drafter or Compared(fresh)
            drafter.begin(_drafter(companion, needs))
            job = Job(prompt, GREEDY, 30, 4, _never, lambda: False)
            steps = [s for s in generate(reader, drafter, judge, job) if isinstance(s, Step)]
            assert drafter.compared > 20
            said = [token for step in steps for token in step.tokens]
            prompt = {
                0: [*prompt, *said, 9, 8, 7],
                1: [*prompt[:-7], 40, 41],
                2: [*prompt[: len(prompt) // 2], 50, 51],
            }.get(turn, [])
    finally:
        one.close()
        fresh.close()


def _doubtful(row: Logits) -> bool:
    """Whether last bits decide which token is the likeliest."""
    second, first = np.partition(row, -2)[-2:]
    return bool(first - second < 2 * _NEAR)


def _drafter(companion: Companion | BlockCompanion, needs: Needs) -> Drafter:
    if isinstance(companion, BlockCompanion):
        return BlockDrafter(companion, needs, "a block")
    return HeadDrafter(companion, needs, "a head")


def _never(_: int) -> bool:
    return False
