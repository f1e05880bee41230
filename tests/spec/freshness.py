"""Whether a head that has been through rounds and turns computes what a fresh one does."""

from collections.abc import Sequence
from contextlib import closing

import numpy as np
from msgspec.structs import replace

from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters import make as make_drafter
from localspec.spec.drafters.block_head import BlockHeadRunner, lattice_logits
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Draft, Drafter, DraftStopPolicy, Logits
from localspec.spec.verifiers import make_verifier
from tests.support.fake_models import PLAIN, job, run
from tests.support.heads_beside import Beside
from tests.support.tinygguf import EOS

HOT = replace(PLAIN, temperature=2.0, seed=3, logit_bias=((EOS, -100.0),))
"""Heads of random weights are often right with this, because draft and target have the
same noise: none, some and all of a draft's tokens are accepted, and each leaves another
memory behind.
"""
_NEAR = 0.05
"""Logits differ by so much if they come from passes of different widths."""


class Compared:
    """Drafts as the one head does, and checks that a fresh one computes the same rows."""

    def __init__(self, fresh: Beside) -> None:
        self._fresh = fresh
        self._runner = fresh.followed()
        self.compared = 0

    def begin(self, one: Drafter) -> None:
        self._one = one
        self.compared = 0

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft = self._one.propose(tokens, limit, stop_policy)
        target = self._fresh.target
        target.truncate(0)
        for start in range(0, len(tokens) - 1, target.n_batch):
            target.decode(list(tokens[:-1][start : start + target.n_batch]), 0)
        rows = self._rows(tokens, draft.tokens, limit)
        assert draft.logits is not None
        for mine, theirs in zip(draft.logits, rows, strict=True):
            assert mine is not None
            np.testing.assert_allclose(mine, theirs, atol=_NEAR)
            second, first = np.partition(theirs, -2)[-2:]
            if isinstance(self._runner, BlockHeadRunner) and first - second < 2 * _NEAR:
                break  # DSpark's next row goes on from this one's likeliest token
        self.compared += len(rows)
        return draft

    def _rows(
        self, tokens: Sequence[int], drafted: list[int], limit: int
    ) -> list[Logits]:
        runner = self._runner
        assert runner.is_ready(tokens)
        if isinstance(runner, BlockHeadRunner):  # a row sees all of its block
            whole = min(limit, runner.head.block_size - runner.head.first_draft_row)
            block = list(
                runner.draft_block(tokens[-1], whole)[0][: len(drafted)].copy()
            )
            if (k := runner.head.top_k) == 0:
                return block
            pairs = zip(block, drafted, strict=True)
            before = [0, *(int((row[:k] == token).argmax()) for row, token in pairs)]
            candidates = zip(block, before, strict=False)
            n = runner.head.n_vocab
            return [lattice_logits(row, k, at, n) for row, at in candidates]
        rows = [runner.first_logits(tokens[-1]).copy()]
        return rows + [runner.next_logits(token).copy() for token in drafted[:-1]]


def check_rows(one: Beside, fresh: Beside, text: str) -> None:
    """Compare over four turns.

    They are the text, the chat as it goes on, another end, and an old turn edited.
    """
    with closing(one), closing(fresh):
        runner = one.followed()
        reader = PrefixCache(one.target)
        compared = Compared(fresh)
        verifier = make_verifier("coupled", 0)
        prompt = one.target.vocabulary.tokenize(text)
        for turn in range(4):
            what = job(prompt, 24, sampling=HOT, draft_length=4)
            inputs = DrafterInputs(
                draft_cache=None,
                verifier=verifier,
                sampling=HOT,
                prompt_length=len(prompt),
                n_vocab=one.target.n_vocab,
                is_eog=what.is_eog,
                head_runner=runner,
                keep_logits=True,
            )
            kind = "dflash" if isinstance(runner, BlockHeadRunner) else "eagle3"
            compared.begin(make_drafter(kind, inputs))
            said = run(reader, compared, verifier, what).tokens
            assert compared.compared > 10
            if turn == 0:
                prompt = [*prompt, *said, 9, 8, 7]
            elif turn == 1:
                prompt = [*prompt[:-7], 40, 41]
            else:
                prompt = [*prompt[: len(prompt) // 2], 50, 51]
