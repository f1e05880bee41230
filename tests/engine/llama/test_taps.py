"""Hidden states of a target, and a head's passes: every number is checked before llama.cpp is."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from localspec.engine.llama import Head, Llama, Taps, taps
from localspec.errors import EngineError
from tests.engine.llama.opening import Open
from tests.heads import TAPS
from tests.sessions import SETTINGS
from tests.zoo import Zoo


@pytest.fixture
def target(opened: Open) -> Llama:
    return opened("deep")


@pytest.fixture
def head(zoo: Zoo, target: Llama) -> Iterator[Head]:
    opened = Head(zoo["eagle3"], SETTINGS, target, taken_width=3 * 64)
    yield opened
    opened.close()


def test_states_are_of_every_token_of_the_last_read(target: Llama) -> None:
    tapped = Taps(target.context, target.weights, TAPS)
    assert tapped.width == 3 * 64
    target.read([5, 6, 7], 1)
    together = tapped.states(3)
    target.forget(0)
    alone = []
    for token in (5, 6, 7):
        target.read([token], 0)
        alone.append(tapped.states(1))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-2)


def test_the_order_is_the_one_asked_for(target: Llama) -> None:
    tapped = Taps(target.context, target.weights, TAPS)
    other = Taps(target.context, target.weights, TAPS[::-1])
    target.read([5, 6], 1)
    low, middle, high = np.split(tapped.states(2), 3, axis=1)
    np.testing.assert_array_equal(other.states(2), np.concatenate([high, middle, low], axis=1))


@pytest.mark.parametrize("layers", [(), (1, 2, 4), (-1, 1, 2), (1, 2, 99)])
def test_layers_that_llama_cpp_would_abort_on(target: Llama, layers: tuple[int, ...]) -> None:
    with pytest.raises(EngineError, match="no layer"):
        Taps(target.context, target.weights, layers)


def test_an_architecture_that_llama_cpp_would_abort_on(opened: Open) -> None:
    target = opened("sliding")
    with pytest.raises(EngineError, match="gemma3"):
        Taps(target.context, target.weights, (0,))


def test_a_build_without_the_functions_says_so(
    target: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    taps.function.cache_clear()
    with monkeypatch.context() as build:
        build.setattr(taps, "C", SimpleNamespace(_lib=object()))
        with pytest.raises(taps.NoHeadsError, match="cannot run heads") as refused:
            Taps(target.context, target.weights, TAPS)
    assert "--draft none" in refused.value.hint
    Taps(target.context, target.weights, TAPS)


def test_a_head_refuses_states_of_another_width(head: Head) -> None:
    for wrong in (np.zeros((2, 64), np.float32), np.zeros((0, 192), np.float32)):
        with pytest.raises(EngineError, match="no states of shape"):
            head.encode(wrong)
    with pytest.raises(EngineError, match="no states of shape"):
        head.read([1, 2], 1, np.zeros((2, 192), np.float32))
    with pytest.raises(EngineError, match="cannot read 3 rows"):
        head.read([1, 2, 3], 1, np.zeros((2, 64), np.float32))


def test_a_head_gives_the_last_rows_however_many_are_asked_for(head: Head) -> None:
    """llama.cpp gives the first ones where only the last is wanted: all are asked for."""
    states = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    every = head.read([5, 6, 7, 8], 4, states).copy()
    head.forget(0)
    last = head.read([5, 6, 7, 8], 1, states)
    np.testing.assert_array_equal(last, every[-1:])
    assert not np.allclose(every[0], every[-1], atol=0.1)


def test_a_token_that_the_head_does_not_know_harms_nothing(head: Head) -> None:
    states = np.zeros((1, 64), np.float32)
    padding = head.read([head.n_vocab + 5], 1, states).copy()
    head.forget(0)
    np.testing.assert_array_equal(padding, head.read([0], 1, states))


def test_encoding_works_wherever_the_memory_stands(head: Head) -> None:
    states = np.random.default_rng(0).standard_normal((3, 192)).astype(np.float32)
    before = head.encode(states)
    head.read([5, 6, 7], 0, before)
    np.testing.assert_array_equal(head.encode(states), before)
    assert head.n_past == 3


def test_a_closed_head_says_so(head: Head) -> None:
    head.close()
    with pytest.raises(EngineError, match="closed"):
        head.encode(np.zeros((1, 192), np.float32))
    head.close()
