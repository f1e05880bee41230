"""A model that brings a layer to predict one token more drafts for itself with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import launch
from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.head_context import HeadContext
from localspec.engine.llama.hidden_states import FinalHiddenStates
from localspec.engine.session import Session
from localspec.errors import EngineError
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import GenerateCommand, ProbeCommand, SamplingParams
from tests import beside, heads
from tests.engine.freshness import check_rows
from tests.fakes import GREEDY
from tests.sessions import SETTINGS, loaded, require_same_logits_at_every_width, say
from tests.support.zoo import Zoo

PROMPT = "the one "
TAUGHT = 120


@pytest.fixture(scope="module")
def taught(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose own layer is mostly right about what it says to PROMPT."""
    path = zoo["mimo"]
    require_same_logits_at_every_width(path)
    with loaded(path) as session:
        said = say(session, PROMPT, spec="off", max_tokens=TAUGHT).ids
    text = [*beside.ids(path, PROMPT), *said]
    folder = tmp_path_factory.mktemp("taught")
    return beside.taught_inside(heads.quantised(heads.mimo2()), text, folder)


@pytest.fixture(scope="module", params=["mimo", "taught"])
def session(request: pytest.FixtureRequest, zoo: Zoo, taught: Path) -> Iterator[Session]:
    path = taught if request.param == "taught" else zoo["mimo"]
    with loaded(path, path) as session:
        yield session


def test_greedy_speculation_says_what_plain_decoding_says(session: Session) -> None:
    plain = say(session, PROMPT, spec="off", max_tokens=60)
    for length in range(1, 9):
        said = say(session, PROMPT, spec="model", draft_length=length, max_tokens=60)
        assert said.ids == plain.ids
        assert set(said.speculation["by_source"]) == {"mtp"}


@pytest.mark.parametrize("spec", ["mtp", "auto"])
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_a_text_whatever_speculates(session: Session, spec: str, seed: int) -> None:
    sampling = SamplingParams(temperature=0.8, seed=seed)
    plain = say(session, PROMPT, spec="off", sampling=sampling, max_tokens=50)
    assert say(session, PROMPT, spec=spec, sampling=sampling, max_tokens=50).ids == plain.ids


def test_a_taught_layer_is_mostly_right(taught: Path) -> None:
    """A wrong row, state or position loses no token, only this."""
    with loaded(taught, taught) as session:
        one = say(session, PROMPT, spec="model", draft_length=1, max_tokens=TAUGHT - 4)
        three = say(session, PROMPT, spec="model", draft_length=3, max_tokens=TAUGHT - 4)
        list(session.probe(ProbeCommand(0.2)))
        again = say(session, PROMPT, spec="model", draft_length=3, max_tokens=TAUGHT - 4)
    assert one.speculation["acceptance_rate"] > 0.7
    assert three.speculation["acceptance_rate"] > 0.4
    assert again.speculation["acceptance_rate"] == three.speculation["acceptance_rate"]


@pytest.mark.parametrize("times", [1, 9])
def test_its_rows_are_those_of_a_fresh_layer(taught: Path, times: int) -> None:
    check_rows(beside.opened(taught, taught), beside.opened(taught, taught), PROMPT * times)


def test_a_sliding_window_says_the_same_far_beyond_its_slots(taught: Path) -> None:
    with loaded(taught, taught, replace(SETTINGS, n_ctx=1024)) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=700)
        said = say(session, PROMPT, spec="model", draft_length=8, max_tokens=700)
    assert len(said.ids) == 700
    assert said.ids == plain.ids


def test_an_answer_may_be_closed_after_any_event(taught: Path) -> None:
    with loaded(taught, taught) as session:
        wanted = say(session, PROMPT * 9, spec="off", max_tokens=30).ids
        for stop_after in range(1, 9):
            events = session.generate(GenerateCommand(PROMPT * 9, GREEDY, spec="model"))
            for _, _ in zip(range(stop_after), events, strict=False):
                pass
            events.close()  # type: ignore[attr-defined]
            assert say(session, PROMPT * 9, spec="model", max_tokens=30).ids == wanted


def test_it_is_found_by_itself_and_can_be_left_out(zoo: Zoo) -> None:
    path = str(zoo["mimo"])
    found = launch.resolve_pair(path, "auto")
    assert found.draft == found.target == zoo["mimo"]
    assert launch.resolve_pair(path, "none").draft is None
    assert launch.resolve_pair(path, str(zoo["eagle3"])).draft == zoo["eagle3"]


def test_a_model_without_such_a_layer_is_not_asked(zoo: Zoo) -> None:
    """llama.cpp would give garbage for its states, and abort where the layer was not loaded."""
    deep = LlamaContext(zoo["deep"], ModelRole(SETTINGS, 1, 0))
    mimo = LlamaContext(zoo["mimo"], ModelRole(SETTINGS, 1, 0))
    try:
        with pytest.raises(EngineError, match="no MTP layers"):
            FinalHiddenStates(deep.handle, deep.model)
        with pytest.raises(EngineError, match="no MTP layer"):
            HeadContext(None, SETTINGS, mimo, target_width=64)
    finally:
        deep.close()
        mimo.close()
