"""Hidden states of a target, and a head's passes: every number is checked before llama.cpp is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from llama_cpp import llama_cpp_ext

from localspec.engine.llama import hidden_states
from localspec.engine.llama.context import LlamaBatch, LlamaContext
from localspec.engine.llama.head_context import HeadContext
from localspec.engine.llama.hidden_states import LayerHiddenStates
from localspec.errors import EngineError
from localspec.machine import ggml
from tests.engine.llama.opening import Open
from tests.heads import TAPS
from tests.sessions import SETTINGS, loaded, say
from tests.support.zoo import Zoo


@pytest.fixture
def target(opened: Open) -> LlamaContext:
    return opened("deep")


@pytest.fixture
def head(zoo: Zoo, target: LlamaContext) -> Iterator[HeadContext]:
    opened = HeadContext(zoo["eagle3"], SETTINGS, target, target_width=3 * 64)
    yield opened
    opened.close()


def test_states_are_of_every_token_of_the_last_read(target: LlamaContext) -> None:
    tapped = LayerHiddenStates(target.handle, target.model, TAPS)
    assert tapped.width == 3 * 64
    target.decode([5, 6, 7], 1)
    together = tapped.states(3)
    target.truncate(0)
    alone = []
    for token in (5, 6, 7):
        target.decode([token], 0)
        alone.append(tapped.states(1))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-2)


def test_the_order_is_the_one_asked_for(target: LlamaContext) -> None:
    tapped = LayerHiddenStates(target.handle, target.model, TAPS)
    other = LayerHiddenStates(target.handle, target.model, TAPS[::-1])
    target.decode([5, 6], 1)
    low, middle, high = np.split(tapped.states(2), 3, axis=1)
    np.testing.assert_array_equal(other.states(2), np.concatenate([high, middle, low], axis=1))


@pytest.mark.parametrize("layers", [(), (1, 2, 4), (-1, 1, 2), (1, 2, 99)])
def test_layers_that_llama_cpp_would_abort_on(
    target: LlamaContext, layers: tuple[int, ...]
) -> None:
    with pytest.raises(EngineError, match="no layer"):
        LayerHiddenStates(target.handle, target.model, layers)


def test_an_architecture_that_llama_cpp_would_abort_on(opened: Open) -> None:
    target = opened("sliding")
    with pytest.raises(EngineError, match="gemma3"):
        LayerHiddenStates(target.handle, target.model, (0,))


@pytest.fixture
def old_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A llama.cpp without the functions that heads need."""
    hidden_states.load_function.cache_clear()
    with monkeypatch.context() as build:
        build.setattr(hidden_states, "C", SimpleNamespace(_lib=object()))
        yield
    hidden_states.load_function.cache_clear()


@pytest.mark.usefixtures("old_build")
def test_a_build_without_the_functions_says_so(target: LlamaContext) -> None:
    with pytest.raises(hidden_states.HeadsUnsupportedError, match="cannot run heads") as refused:
        LayerHiddenStates(target.handle, target.model, TAPS)
    assert "--draft none" in refused.value.hint


@pytest.mark.usefixtures("old_build")
@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("deep", "eagle3"), "EAGLE-3"),
        (("deep", "dspark"), "DSpark"),
        (("deep", "dflash"), "DFlash"),
        (("mimo", "mimo"), "MTP"),
    ],
)
def test_on_such_a_build_a_pair_runs_plain_and_says_so(
    zoo: Zoo, pair: tuple[str, str], kind: str
) -> None:
    with loaded(zoo[pair[0]], zoo[pair[1]]) as session:
        (notice,) = [one for one in session.ready.notices if one.code == "no-heads"]
        assert f"cannot run {kind} heads: it lacks llama_" in notice.message
        assert session.ready.draft is None
        assert set(say(session, "the one ", max_tokens=20).speculation["by_source"]) <= {"lookup"}


def test_the_functions_are_called_as_llama_cpp_python_calls_those_that_it_has() -> None:
    """It binds two of the four, for Linux, macOS and Windows."""
    source = inspect.getsource(llama_cpp_ext)
    known = [name for name in ggml.HEAD_FUNCTIONS if f'"{name}"' in source]
    assert known == ["llama_set_embeddings_nextn", "llama_get_embeddings_nextn"]
    for name in known:
        gnu, microsoft = ggml.HEAD_FUNCTIONS[name]
        assert f'"{gnu}"' in source and f'"{microsoft}"' in source


@pytest.mark.parametrize("n", [3, 40])
def test_a_position_has_as_many_axes_as_the_model(n: int) -> None:
    """llama.cpp reads four numbers for each row without a token, wherever a model turns by axes."""
    batch = LlamaBatch(40, tokens=False, width=8, axes=4)
    for past in (0, 7):
        batch.set_positions(n, past, 0)
        found = np.ctypeslib.as_array(batch.struct.pos, (4, n))
        text = np.arange(past, past + n)
        np.testing.assert_array_equal(found, [text, text, text, np.zeros(n)])


def test_a_head_refuses_states_of_another_width(head: HeadContext) -> None:
    for wrong in (np.zeros((2, 64), np.float32), np.zeros((0, 192), np.float32)):
        with pytest.raises(EngineError, match="no states of shape"):
            head.encode(wrong)
    with pytest.raises(EngineError, match="no states of shape"):
        head.decode([1, 2], 1, np.zeros((2, 192), np.float32))
    with pytest.raises(EngineError, match="cannot decode 3 rows"):
        head.decode([1, 2, 3], 1, np.zeros((2, 64), np.float32))


def test_a_head_gives_the_last_rows_however_many_are_asked_for(head: HeadContext) -> None:
    """llama.cpp gives the first ones where only the last is wanted: all are asked for."""
    states = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    every = head.decode([5, 6, 7, 8], 4, states).copy()
    head.truncate(0)
    last = head.decode([5, 6, 7, 8], 1, states)
    np.testing.assert_allclose(last, every[-1:], rtol=0, atol=0.01)
    assert not np.allclose(every[0], every[-1], atol=0.1)


def test_a_token_that_the_head_does_not_know_harms_nothing(head: HeadContext) -> None:
    states = np.zeros((1, 64), np.float32)
    padding = head.decode([head.n_vocab + 5], 1, states).copy()
    head.truncate(0)
    np.testing.assert_array_equal(padding, head.decode([0], 1, states))


def test_encoding_works_wherever_the_memory_stands(head: HeadContext) -> None:
    states = np.random.default_rng(0).standard_normal((3, 192)).astype(np.float32)
    before = head.encode(states)
    head.decode([5, 6, 7], 0, before)
    np.testing.assert_array_equal(head.encode(states), before)
    assert head.n_past == 3


def test_a_closed_head_says_so(head: HeadContext) -> None:
    head.close()
    with pytest.raises(EngineError, match="closed"):
        head.encode(np.zeros((1, 192), np.float32))
    head.close()
