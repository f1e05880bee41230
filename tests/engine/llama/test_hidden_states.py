"""Hidden states of a target, and a head's passes: every number is checked before llama.cpp is."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from llama_cpp import llama_cpp_ext

from localspec.engine.llama import hidden_states
from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.hidden_states import LayerHiddenStates
from localspec.errors import EngineError
from localspec.machine import ggml
from tests.engine.llama.opening import Open
from tests.support.head_models import TAPS
from tests.support.sessions import loaded, say
from tests.support.zoo import Zoo


@pytest.fixture
def target(opened: Open) -> LlamaContext:
    return opened("deep")


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
