"""A context's rows of logits and its memory; no argument makes llama.cpp abort."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from localspec.errors import DoesNotFitError, LocalspecError, ModelFileError, UsageError
from localspec.llama.context import InterruptFlag, LlamaContext
from localspec.llama.library import LOG
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.protocol.wire import ContextSettings
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import DecodeInterrupted, Logits
from tests.llama.conftest import Open
from tests.support.sessions import require_same_logits_at_every_width
from tests.support.zoo import Zoo


def test_rows_are_of_the_last_tokens(opened: Open) -> None:
    model = opened("target")
    tokens = [5, 90, 7, 300, 8, 9]
    every = model.decode(tokens, len(tokens)).copy()
    for outputs in (0, 1, 3):
        model.truncate(0)
        rows = model.decode(tokens, outputs)
        assert rows.shape == (outputs, model.n_vocab)
        assert model.n_past == len(tokens)
        if outputs:
            # The last layers are as wide as the outputs: last bits may differ.
            np.testing.assert_allclose(rows, every[-outputs:], rtol=0, atol=0.01)
            assert not np.allclose(rows[0], every[-outputs - 1], atol=0.1)


def test_rows_of_different_passes_do_not_mix(opened: Open) -> None:
    """Views are kept by address and width; each must show its own pass."""
    model = opened("target")
    twin = opened("target")
    for width in (1, 3, 1, 6, 3, 1):
        tokens = list(range(model.n_past, model.n_past + width))
        np.testing.assert_array_equal(
            model.decode(tokens, width), twin.decode(tokens, width)
        )
        assert model.decode([5], 1).shape == (1, model.n_vocab)
        model.truncate(model.n_past - 1)


def test_settings_are_read_back(opened: Open) -> None:
    model = opened("target", n_ctx=300, cpu_moe=-1)  # which overrides no tensor here
    assert model.n_ctx >= 300
    assert (model.n_batch, model.n_threads) == (32, 1)
    plain = opened("target", n_ctx=300)
    np.testing.assert_array_equal(plain.decode([5, 6], 1), model.decode([5, 6], 1))
    plain.close()  # and once more at the end of the test
    assert opened("target", n_ctx=None).n_ctx == 1024, "what it was trained with"
    assert opened("vast", n_ctx=None).n_ctx == 8192, "and at most this"
    # smaller than a verify pass: raised
    wide = opened("target", outputs=17, n_ubatch=1)
    assert wide.n_batch >= 17
    assert len(wide.decode([5] * 17, 17)) == 17


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_graphs_that_are_switched_off_are_not_waited_for(
    opened: Open, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    model = opened("target")
    monkeypatch.setattr(LlamaContext, "memory_by_device", lambda _: {"CUDA0": 1})
    monkeypatch.delenv("GGML_CUDA_DISABLE_GRAPHS", raising=False)
    assert model.captured_after == 2
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", value)
    assert model.captured_after == 0


@pytest.mark.parametrize(
    ("name", "swa_full", "kept"),
    [
        ("target", True, 0),
        ("sliding", True, 0),
        ("hybrid", True, 0),
        ("sliding-f32", True, 1),
        ("sliding-f32", False, 1),
        ("sliding-f32", False, 5),
    ],
)
def test_a_wrong_guess_leaves_no_trace(
    opened: Open, zoo: Zoo, name: str, swa_full: bool, kept: int
) -> None:
    """Every kept row equals that of a twin that never saw a wrong token.

    This holds up to a full context. Random guesses of which a random part is kept, or (`kept`) the widest, nearly all of
    it wrong: a window that is not full has 256 slots, and the text goes round them four
    times.
    """
    is_exact = name != "sliding-f32"
    widest = 17
    if is_exact:
        require_same_logits_at_every_width(zoo[name])
    n_ctx = 256 if is_exact else 1024
    model, twin = (
        opened(name, outputs=widest, n_ctx=n_ctx, swa_full=swa_full) for _ in range(2)
    )
    rng = np.random.default_rng(kept)
    while model.n_past < model.n_ctx:
        width = min(widest, model.n_ctx - model.n_past)
        width = width if kept else int(rng.integers(1, width + 1))
        # at least the token it knew
        n = min(width, kept) or int(rng.integers(1, width + 1))
        tokens = [int(token) for token in rng.integers(3, model.n_vocab, width)]
        rows = model.decode(tokens, width)[:n].copy()
        past = model.n_past - width + n
        model.truncate(past)
        expected = twin.decode(tokens[:n], n)
        assert model.n_past == past == twin.n_past, "it would be read again"
        tolerance = 0 if is_exact else 0.01
        np.testing.assert_allclose(rows, expected, rtol=0, atol=tolerance)


DEMO = package_data_dir() / "demo" / "demo-target.gguf"
LONG = [int(token) for token in np.random.default_rng(0).integers(100, 300, 1200)]


def test_what_was_read_may_be_interrupted() -> None:
    settings = ContextSettings(n_ctx=1536, n_threads=2)
    with closing(LlamaContext(DEMO, ModelRole(settings, 8, 8))) as model:

        def read() -> Logits:
            cache = PrefixCache(model)
            for _ in cache.prefill(LONG, lambda: False):
                pass
            row: Logits = cache.decode(LONG[cache.n_cached :], 1)[0].copy()
            return row

        expected = read()
        model.truncate(0)
        model.is_interrupted = lambda: True
        with pytest.raises(DecodeInterrupted):
            read()
        assert model.n_past == 0
        model.is_interrupted = lambda: False
        np.testing.assert_array_equal(read(), expected)


def test_the_log_reports_no_error_of_a_pass_that_was_stopped(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Both ways of stopping one: polled in a long pass, and by a flag in any pass."""
    settings = ContextSettings(n_ctx=1536, n_threads=2)
    flag = InterruptFlag()
    with closing(LlamaContext(DEMO, ModelRole(settings, 8, 8))) as model:
        capfd.readouterr()
        LOG.clear()
        model.is_interrupted = lambda: True
        with pytest.raises(DecodeInterrupted):
            model.decode(LONG[:64], 1)
        model.watch(flag)
        flag.raise_()
        with pytest.raises(DecodeInterrupted):
            model.decode(LONG[:4], 1)
        assert (LOG.errors(), capfd.readouterr().err) == ([], "")


KEYS = {"kv_type": "q8_0", "flash_attn": "on"}
"""Heads are 16 wide, a block of q8_0 is 32."""
REFUSALS: list[tuple[str, dict[str, Any], type[LocalspecError], str, str]] = [
    # model, settings, error, a part of its message, and of its hint
    ("target", {"n_ctx": -1}, UsageError, "out of range", ""),
    ("target", {"n_ctx": 8 * 1024 + 1}, UsageError, "out of range", ""),
    # The file claims a trained context of 2^31 - 1: the file is no limit, memory is.
    (
        "vast",
        {"n_ctx": 2**31 - 1, "n_gpu_layers": 0},
        DoesNotFitError,
        "needs about",
        "",
    ),
    ("target", {"tensor_split": (-1.0, 2.0)}, UsageError, "Invalid tensor split", ""),
    ("target", {"tensor_split": (1.0,) * 1000}, UsageError, "Invalid tensor split", ""),
    (
        "target",
        {"tensor_split": (float("nan"),)},
        UsageError,
        "Invalid tensor split",
        "",
    ),
    ("target", KEYS, UsageError, "Cannot create a context for target.gguf", "--kv f16"),
    ("vocabulary-only", {}, ModelFileError, "'token_embd.weight' not found", ""),
    ("future", {}, ModelFileError, "unknown model architecture", ""),
]


@pytest.mark.parametrize(
    ("name", "settings", "kind", "message", "hint"), REFUSALS, ids=range(len(REFUSALS))
)
def test_what_cannot_be_loaded_says_why(
    opened: Open,
    name: str,
    settings: dict[str, Any],
    kind: type[LocalspecError],
    message: str,
    hint: str,
) -> None:
    with pytest.raises(kind) as failure:
        opened(name, **settings)
    assert message in failure.value.message and hint in failure.value.hint
