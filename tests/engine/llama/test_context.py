"""llama.cpp's rows of logits, and its memory when it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from localspec.engine.llama import LayerHiddenStates, LlamaContext, cache_states
from localspec.engine.llama.cache_states import CacheState
from localspec.engine.llama.library import C
from localspec.engine.pass_timing import compare_widths
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import DecodeInterrupted, HiddenStates, Logits
from localspec.paths import package_data_dir
from localspec.protocol.wire import ContextSettings, KvType
from tests import tinygguf
from tests.engine.llama.opening import OUTPUTS, Open
from tests.sessions import SETTINGS, require_same_logits_at_every_width
from tests.zoo import Zoo

# --- reading --------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [0, 1, 3, OUTPUTS])
def test_rows_are_of_the_last_tokens(opened: Open, outputs: int) -> None:
    model = opened("target")
    tokens = [5, 90, 7, 300, 8, 9]
    rows = model.decode(tokens, outputs)
    assert rows.shape == (outputs, model.n_vocab)
    assert model.n_past == len(tokens)
    if outputs:
        every = opened("target").decode(tokens, len(tokens))
        # The last layers are as wide as the outputs: last bits may differ.
        np.testing.assert_allclose(rows, every[-outputs:], rtol=0, atol=0.01)
        assert outputs == len(tokens) or not np.allclose(rows[0], every[-outputs - 1], atol=0.1)


def test_rows_of_different_reads_do_not_mix(opened: Open) -> None:
    """Views are kept by address and width; each must show its own read."""
    model, twin = opened("target"), opened("target")
    for width in (1, 3, 1, 6, 3, 1):
        tokens = list(range(model.n_past, model.n_past + width))
        np.testing.assert_array_equal(model.decode(tokens, width), twin.decode(tokens, width))
        assert model.decode([5], 1).shape == (1, model.n_vocab)
        model.truncate(model.n_past - 1)


def test_settings_are_read_back(opened: Open) -> None:
    model = opened("target", n_ctx=300)
    assert model.n_ctx >= 300
    assert model.n_batch == 32
    assert model.n_threads == 1


def test_experts_on_the_cpu_change_nothing_where_there_are_none(opened: Open) -> None:
    """The override is given to llama.cpp, and matches no tensor."""
    plain, overridden = opened("target"), opened("target", cpu_moe=True)
    np.testing.assert_array_equal(plain.decode([5, 6], 1), overridden.decode([5, 6], 1))


def test_a_tied_model(opened: Open) -> None:
    model = opened("tied")
    assert np.isfinite(model.decode([5, 6], 1)).all()
    assert model.model.n_bytes() > 50_000


def test_closing_twice_is_harmless(zoo: Zoo) -> None:
    model = LlamaContext(zoo["target"], SETTINGS, outputs=1, rollback=0)
    model.close()
    model.close()


# --- forgetting -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid"])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_guess_leaves_no_trace(opened: Open, zoo: Zoo, name: str, seed: int) -> None:
    """A twin is never told a wrong token: every kept row equals its row, up to a full context."""
    require_same_logits_at_every_width(zoo[name])
    widest = 17
    model, twin = (opened(name, outputs=widest, rollback=16, n_ctx=256) for _ in range(2))
    rng = np.random.default_rng(seed)
    while model.n_past < model.n_ctx:
        width = int(rng.integers(1, min(widest, model.n_ctx - model.n_past) + 1))
        kept = int(rng.integers(1, width + 1))  # the loop keeps at least the token it knew
        tokens = [int(token) for token in rng.integers(3, model.n_vocab, width)]
        rows = model.decode(tokens, width)[:kept].copy()
        model.truncate(model.n_past - width + kept)
        np.testing.assert_array_equal(rows, twin.decode(tokens[:kept], kept))
        assert model.n_past == twin.n_past


@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("kept", [1, 5])
def test_a_wrong_guess_leaves_no_trace_where_a_window_uses_its_slots_again(
    opened: Open, kept: int, swa_full: bool
) -> None:
    """A sliding window has 256 slots here if it is not full; the text goes round them four times.

    The widest guess there is, nearly all of it wrong: nothing that is forgotten took the place of
    what is still seen.  Only a full window keeps the order of the sums, to the last bit.
    """
    widest = 17
    model, twin = (
        opened("sliding-f32", outputs=widest, n_ctx=1024, swa_full=swa_full) for _ in range(2)
    )
    rng = np.random.default_rng(kept)
    while model.n_past + widest <= model.n_ctx:
        tokens = [int(token) for token in rng.integers(3, model.n_vocab, widest)]
        rows = model.decode(tokens, widest)[:kept].copy()
        past = model.n_past - widest + kept
        model.truncate(past)
        assert model.n_past == past, "it would be read again"
        np.testing.assert_allclose(rows, twin.decode(tokens[:kept], kept), rtol=0, atol=0.01)


@pytest.mark.parametrize("far", [1, 300, 500, 896])
def test_what_a_window_has_left_is_read_again(opened: Open, far: int) -> None:
    model, fresh = (opened("sliding-f32", n_ctx=1024, swa_full=False) for _ in range(2))
    tokens = [int(token) for token in np.random.default_rng(far).integers(3, 300, 900)]
    for at in range(0, 900, 10):
        model.decode(tokens[at : at + 10], 0)
    model.truncate(900 - far)
    assert model.n_past == (900 - far if far == 1 else 0)
    continued = _last_row(model, [*tokens[model.n_past : 900 - far], 5, 6])
    afresh = _last_row(fresh, [*tokens[: 900 - far], 5, 6])
    np.testing.assert_allclose(continued, afresh, rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["target", "sliding", "hybrid"])
@pytest.mark.parametrize("far", [1, 8, 12, 100])
def test_a_rollback_over_several_reads_leaves_no_trace(
    opened: Open, zoo: Zoo, name: str, far: int
) -> None:
    """Further than the last read: the whole of it, some before it, and beyond the window."""
    require_same_logits_at_every_width(zoo[name])
    model, fresh = opened(name), opened(name)
    tokens = [int(token) for token in np.random.default_rng(far).integers(3, 300, 160)]
    for at in range(0, 160, 8):
        model.decode(tokens[at : at + 8], 0)
    model.truncate(160 - far)
    assert model.n_past in (0, 160 - far)
    continued = _last_row(model, [*tokens[model.n_past : 160 - far], 5, 6])
    np.testing.assert_array_equal(continued, _last_row(fresh, [*tokens[: 160 - far], 5, 6]))


def _last_row(model: LlamaContext, tokens: list[int]) -> Logits:
    for at in range(0, len(tokens), 10):
        row = model.decode(tokens[at : at + 10], 1)
    return row


@pytest.mark.parametrize("name", ["target", "hybrid"])
def test_single_reads_are_taken_back_together(opened: Open, zoo: Zoo, name: str) -> None:
    """As a draft's are: one token a read, then several forgotten at once."""
    require_same_logits_at_every_width(zoo[name])
    model, fresh = opened(name), opened(name)
    for token in (5, 6, 7, 8, 9):
        model.decode([token], 1)
    model.truncate(2)
    model.decode([5, 6, 90][model.n_past :], 1)
    fresh.decode([5, 6, 90], 1)
    np.testing.assert_array_equal(model.decode([91], 1), fresh.decode([91], 1))


def test_a_hybrid_has_snapshots_and_a_recurrent_model_has_none(opened: Open) -> None:
    assert opened("hybrid", rollback=7).rollback == 7
    assert opened("hybrid", rollback=0).rollback == 0
    assert opened("recurrent").rollback == 0
    assert opened("target").rollback > 0


def test_probing_leaves_the_memory_empty(opened: Open) -> None:
    model = opened("hybrid")
    assert (model.n_past, model.decode_seconds) == (0, 0.0)


@pytest.mark.parametrize("name", ["hybrid", "recurrent"])
def test_a_memory_that_cannot_be_cut_is_emptied(opened: Open, name: str) -> None:
    model, fresh = opened(name), opened(name)
    model.decode(list(range(5, 35)), 0)
    model.truncate(3)
    assert model.n_past == 0
    np.testing.assert_array_equal(model.decode([5, 6], 1), fresh.decode([5, 6], 1))


def test_a_second_cut_before_the_next_read_empties_a_hybrid(opened: Open) -> None:
    """Its snapshot is used once: what is kept after that would be wrong."""
    model, fresh = opened("hybrid"), opened("hybrid")
    model.decode(list(range(5, 15)), 0)
    model.truncate(8)
    assert model.n_past == 8
    model.truncate(6)
    assert model.n_past == 0
    np.testing.assert_array_equal(model.decode([5, 6], 1), fresh.decode([5, 6], 1))


@pytest.mark.parametrize("name", ["target", "hybrid", "recurrent"])
def test_forgetting_what_was_never_read_changes_nothing(opened: Open, name: str) -> None:
    model, fresh = opened(name), opened(name)
    model.decode([5, 6], 0)
    fresh.decode([5, 6], 0)
    model.truncate(2)
    model.truncate(100)
    assert model.n_past == 2
    np.testing.assert_array_equal(model.decode([7], 1), fresh.decode([7], 1))


# --- long prompts, which a second context reads -------------------------------------------------

DEMO = package_data_dir() / "demo" / "demo-target.gguf"
LONG = [int(token) for token in np.random.default_rng(0).integers(100, 300, 1200)]
N_READ = 1100


@contextmanager
def reading(
    kv_type: KvType = "q8_0/f16", path: Path = DEMO, *, swa_full: bool = True
) -> Iterator[LlamaContext]:
    settings = ContextSettings(n_ctx=1536, n_threads=2, kv_type=kv_type, swa_full=swa_full)
    model = LlamaContext(path, settings, outputs=8, rollback=8)
    try:
        yield model
    finally:
        model.close()


def read(model: LlamaContext, n: int = N_READ) -> Logits:
    """The row after n tokens, as a session reads them, and that after one more."""
    cache = PrefixCache(model, plan_reading=model.plan_reading)
    cache.replace(LONG[: model.n_past])
    cache.rewind_to(LONG[:n])
    for _ in cache.prefill(LONG[:n], lambda: False):
        pass
    rows = [cache.decode(LONG[cache.n_cached : n], 1)[0].copy()]
    rows.append(model.decode(LONG[n : n + 1], 1)[0].copy())
    assert model.n_past == n + 1
    return np.stack(rows)


def error(rows: Logits, expected: Logits) -> float:
    """Relative to the spread of the logits."""
    return float((rows - expected).std() / expected.std())


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = tinygguf.Shape(n_embd=128, n_layer=6, n_head=2, n_head_kv=1, n_ctx=2048)
    model = replace(tinygguf.sliding(0, window=256, shape=shape), kind=Kind.Q8_0)
    return model.write(tmp_path_factory.mktemp("windowed") / "windowed.gguf")


def check_reading(path: Path, *, swa_full: bool = True, rotation: int = 64) -> None:
    with (
        reading("f16", path, swa_full=swa_full) as best,
        reading(path=path, swa_full=swa_full) as usual,
        reading(path=path, swa_full=swa_full) as model,
    ):
        usual._reader = None
        expected = read(best)
        assert error(read(model), expected) < 1.5 * error(read(usual), expected) < 0.2
        assert model._reader is not None and set(model._reader._rotations) == {rotation}
        assert compare_widths(model, 8) == 0
        model.truncate(0)
        again = read(model)
        model.truncate(0)
        np.testing.assert_array_equal(read(model), again)
        model.truncate(N_READ)
        np.testing.assert_array_equal(read(model), again, "another answer to the same prompt")


@pytest.mark.parametrize("rotation", [64, 0])
def test_what_a_second_context_read_is_what_the_first_would_read(
    monkeypatch: pytest.MonkeyPatch, rotation: int
) -> None:
    if not rotation:
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    check_reading(DEMO, rotation=rotation)


@pytest.mark.parametrize("swa_full", [True, False])
def test_so_it_is_with_a_sliding_window(windowed: Path, swa_full: bool) -> None:
    check_reading(windowed, swa_full=swa_full)


def test_a_window_kept_full_can_be_cut_after_that(windowed: Path) -> None:
    with reading(path=windowed) as model:
        expected = read(model)
        model.truncate(100)
        assert model.n_past == 100
        assert error(read(model), expected) < 0.1


def test_a_text_shorter_than_that_is_read_as_ever() -> None:
    with reading() as usual, reading() as model:
        usual._reader = None
        np.testing.assert_array_equal(read(model, 300), read(usual, 300))


@pytest.mark.parametrize("way", ["another state", "no memory"])
def test_where_it_cannot_be_had_the_first_context_reads(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    with reading() as usual, reading() as model:
        usual._reader = None
        if way == "another state":
            monkeypatch.setattr(CacheState, "parse", lambda data: None)
        else:
            monkeypatch.setattr(cache_states, "_MEMORY_FACTOR", 1e9)
        np.testing.assert_array_equal(read(model), read(usual))
        assert model._reader is None


def test_a_cache_too_large_is_read_on_by_the_first_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with reading() as model:
        expected = read(model)
        model.truncate(0)
        bytes_ = model.model.kv_bytes(600, "f16")
        monkeypatch.setattr(cache_states, "_MAX_CACHE_BYTES", bytes_)
        assert 0 < error(read(model), expected) < 0.1


def test_what_was_read_may_be_cut_copied_and_interrupted() -> None:
    with reading() as model:
        expected = read(model)
        begin(model)
        model.truncate(400)
        assert model.n_past == 400
        assert error(read(model), expected) < 0.1
        begin(model)
        state = model.save_state()
        model.truncate(0)
        assert model.restore_state(state, 512)
        assert error(read(model), expected) < 0.1
        begin(model)
        np.testing.assert_array_equal(read(model), expected)
        model.truncate(0)
        model.is_interrupted = lambda: True
        with pytest.raises(DecodeInterrupted):
            begin(model)
        assert model.n_past == 0
        model.is_interrupted = lambda: False
        np.testing.assert_array_equal(read(model), expected)


def begin(model: LlamaContext) -> None:
    """Read a part of the text, as if the rest were cancelled."""
    model.truncate(0)
    assert model.plan_reading(0, N_READ) == 0
    model.decode(LONG[:512], 0)


def test_a_heads_states_come_from_the_context_that_reads() -> None:
    def states_of(model: LlamaContext) -> HiddenStates:
        heard: list[HiddenStates] = []
        listener = Listener(heard)
        source = LayerHiddenStates(model.handle, model.model, [0, 1])
        model.set_listener(source, listener)
        read(model)
        return np.concatenate(heard)

    with reading() as usual, reading() as model:
        usual._reader = None
        states, expected = states_of(model), states_of(usual)
        assert states.shape == expected.shape == (N_READ + 1, 2 * model.model.n_embd)
        assert error(states, expected) < 0.1


class Listener:
    """Collects hidden states."""

    def __init__(self, heard: list[HiddenStates]) -> None:
        self._heard = heard

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        assert len(tokens) == len(states)
        self._heard.append(states)

    def on_truncate(self, n_past: int) -> None:
        pass

    def on_restore(self, state: HiddenStates) -> None:
        pass

    def limit_truncation(self, n_past: int) -> int:
        return n_past

    def newest_state(self) -> HiddenStates | None:
        return None


def test_threads_that_change_on_the_way_are_those_of_both_contexts() -> None:
    with reading() as model:
        begin(model)
        assert model._reader is not None
        assert C.llama_n_threads_batch(model._reader._handle) == 2
        model.set_n_threads(1, 1)
        model.decode(LONG[model.n_past : model.n_past + 64], 0)
        assert C.llama_n_threads_batch(model._reader._handle) == 1
