"""Drafts that are longer than what a hybrid's memory can roll back, in llama.cpp."""

import numpy as np
import pytest

from localspec.llama.library import C
from localspec.machine.device import HOST
from localspec.models.gguf import reader
from localspec.protocol.wire import DRAFT_MAX, ContextSettings, LoadCommand
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.verifiers import make_verifier
from tests.llama.conftest import Open
from tests.support import shapes
from tests.support.fake_models import OracleDrafter, job, plain, run
from tests.support.long_cases import often
from tests.support.zoo import Zoo

PROMPT = [5, 90, 7, 300, 8, 9]


@pytest.mark.parametrize("n_tokens", often({"600": 600, "5000": 5000}, ("600",)))
def test_the_text_is_plain_decodings(opened: Open, n_tokens: int) -> None:
    """Every 40th draft token is wrong: most drafts are, and far from their end."""
    verifier = make_verifier("coupled", 1)
    what = job(PROMPT, n_tokens, draft_length=DRAFT_MAX)
    sizes = {"n_ctx": n_tokens + 256, "n_ubatch": 512}
    expected = plain(PrefixCache(opened("hybrid", **sizes)), verifier, what).tokens
    model = opened("hybrid", outputs=DRAFT_MAX + 1, **sizes)
    cache = PrefixCache(model, model.save_checkpoint, model.rollback)
    rng = np.random.default_rng(2)
    wrong = [bool(rng.random() < 1 / 40) for _ in range(len(PROMPT) + n_tokens)]
    drafter = OracleDrafter([*PROMPT, *expected], model.n_vocab, wrong.__getitem__)

    got = run(cache, drafter, verifier, what)

    assert got.tokens == expected
    rejected = [len(step.draft.tokens) - step.accepted for step in got.steps]
    n_returns = len([n for n in rejected if n > model.rollback])
    assert n_returns > n_tokens / 120
    assert max(len(step.draft.tokens) for step in got.steps) == DRAFT_MAX


def test_the_checkpoint_takes_what_fit_counts_for_it(opened: Open, zoo: Zoo) -> None:
    """One state, however many are kept beside it for a rollback."""
    model = opened("hybrid")
    model.decode(PROMPT, 1)
    settings = ContextSettings(n_ctx=512, n_gpu_layers=0)
    load = LoadCommand(
        "hybrid", target_settings=settings, draft_max=DRAFT_MAX, snapshots=6
    )
    header = reader.read_model(zoo["hybrid"])

    estimate = shapes.estimate_pair(load, header, None, [])

    in_llama_cpp = C.llama_state_seq_get_size_ext(
        model.handle, 0, C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
    )
    # The rest is what llama.cpp writes about each layer.
    assert 0 <= in_llama_cpp - estimate.scratch[HOST] < 1024
