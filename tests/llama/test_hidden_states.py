"""Hidden states of a target: the right rows, and a refusal where llama.cpp would abort."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from localspec.llama import hidden_states
from localspec.llama.context import LlamaContext
from localspec.llama.hidden_states import LayerHiddenStates
from tests.llama.conftest import Open
from tests.support.head_models import TAPS
from tests.support.sessions import loaded, say
from tests.support.zoo import Zoo


@pytest.fixture
def target(opened: Open) -> LlamaContext:
    return opened("deep")


def test_states_are_of_every_token_of_the_last_pass_and_in_the_order_of_the_layers(
    target: LlamaContext,
) -> None:
    source = LayerHiddenStates(target.handle, target.model, TAPS)
    reversed_ = LayerHiddenStates(target.handle, target.model, TAPS[::-1])
    assert source.width == 3 * 64
    target.decode([5, 6, 7], 1)
    together = source.states(3)
    low, middle, high = np.split(together, 3, axis=1)
    np.testing.assert_array_equal(
        reversed_.states(3), np.concatenate([high, middle, low], axis=1)
    )
    target.truncate(0)
    alone = []
    for token in (5, 6, 7):
        target.decode([token], 0)
        alone.append(source.states(1))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-2)


@pytest.fixture
def old_build(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A llama.cpp without the functions that heads need."""
    hidden_states.load_function.cache_clear()
    with monkeypatch.context() as build:
        build.setattr(hidden_states, "C", SimpleNamespace(_lib=object()))
        yield
    hidden_states.load_function.cache_clear()


@pytest.mark.usefixtures("old_build")
@pytest.mark.parametrize(
    ("target", "head", "kind"),
    [
        ("deep", "eagle3", "EAGLE-3"),
        ("deep", "dspark", "DSpark"),
        ("deep", "dflash", "DFlash"),
        ("mimo", "mimo", "MTP"),
    ],
)
def test_on_a_build_without_the_functions_a_pair_runs_plain_and_says_so(
    zoo: Zoo, target: str, head: str, kind: str
) -> None:
    with loaded(zoo[target], zoo[head]) as session:
        (notice,) = [one for one in session.ready.notices if one.code == "no-heads"]
        assert f"cannot run {kind} heads: it lacks llama_" in notice.message
        assert "--draft none" in notice.hint
        assert session.ready.draft is None
        assert set(
            say(session, "the one ", max_tokens=20).speculation["by_source"]
        ) <= {"lookup"}
