"""Whether a head that has been through rounds and turns computes what a fresh one does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.autoregressive_head import HeadDrafter, HeadRunner
from localspec.engine.drafters.block_head import BlockDrafter, BlockHeadRunner
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Draft, Drafter, DraftStopPolicy, Logits
from localspec.engine.speculative_loop import GenerationJob, RoundResult, speculative_decode
from localspec.engine.verifiers import make_verifier
from tests.support.fake_models import GREEDY
from tests.support.fitted_heads import Beside

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
        self, tokens: Sequence[int], limit: int, stop_policy: DraftStopPolicy | None = None
    ) -> Draft:
        draft = self._one.propose(tokens, limit, stop_policy)
        fresh = self._fresh
        fresh.target.truncate(0)
        for start in range(0, len(tokens) - 1, fresh.target.n_batch):
            end = min(start + fresh.target.n_batch, len(tokens) - 1)
            fresh.target.decode(list(tokens[start:end]), 0)
        rows = self._rows(tokens, draft.tokens, limit)
        assert draft.logits is not None
        for mine, theirs in zip(draft.logits, rows, strict=True):
            assert mine is not None
            np.testing.assert_allclose(mine, theirs, atol=_NEAR)
            if isinstance(self._companion, BlockHeadRunner) and _doubtful(theirs):
                break  # DSpark's next row goes on from this one's likeliest token
        self.compared += len(rows)
        return draft

    def _rows(self, tokens: Sequence[int], guessed: list[int], limit: int) -> list[Logits]:
        head_runner = self._companion
        assert head_runner.is_ready(tokens)
        if isinstance(head_runner, BlockHeadRunner):
            head = head_runner.head
            whole = min(
                limit, head.block_size - head.first_draft_row
            )  # a row sees all of its block
            return list(head_runner.draft_block(tokens[-1], whole)[0][: len(guessed)].copy())
        rows = [head_runner.first_logits(tokens[-1]).copy()]
        return rows + [head_runner.next_logits(guess).copy() for guess in guessed[:-1]]


def check_rows(one: Beside, fresh: Beside, text: str) -> None:
    """Over four turns: the text, the chat as it goes on, another end, and an old turn edited."""
    head_runner, reader, verifier = (
        one.followed(),
        PrefixCache(one.target),
        make_verifier("coupled", 0),
    )
    prompt = one.target.vocabulary.tokenize(text)
    try:
        drafter: Compared | None = None
        for turn in range(4):
            needs = DrafterInputs(
                draft_cache=None,
                verifier=verifier,
                sampling=GREEDY,
                prompt_length=len(prompt),
                n_vocab=one.target.n_vocab,
                is_eog=_never,
                head_runner=head_runner,
                keep_logits=True,
            )
            drafter = drafter or Compared(fresh)
            drafter.begin(_drafter(head_runner, needs))
            job = GenerationJob(prompt, GREEDY, 30, 4, _never, lambda: False)
            steps = [
                s
                for s in speculative_decode(reader, drafter, verifier, job)
                if isinstance(s, RoundResult)
            ]
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


def _drafter(head_runner: HeadRunner | BlockHeadRunner, needs: DrafterInputs) -> Drafter:
    if isinstance(head_runner, BlockHeadRunner):
        return BlockDrafter(head_runner, needs)
    return HeadDrafter(head_runner, needs)


def _never(_: int) -> bool:
    return False
