"""DFlash and DSpark heads: a whole block of guesses in one pass, beside a real tiny target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.engine.llama.head_context import BlockHeadContext
from localspec.engine.session import Session
from localspec.errors import EngineError
from localspec.protocol.wire import GenerateCommand, ProbeCommand, SamplingParams
from tests import beside, heads
from tests.engine.freshness import check_rows
from tests.fakes import GREEDY
from tests.sessions import loaded, require_same_logits_at_every_width, say
from tests.support.zoo import Zoo

PROMPT = "the one "
TAUGHT = 120
KINDS = ("dflash", "dspark")


@pytest.fixture(scope="module")
def text(zoo: Zoo) -> list[int]:
    require_same_logits_at_every_width(zoo["deep"])
    with loaded(zoo["deep"]) as session:
        said = say(session, PROMPT, spec="off", max_tokens=TAUGHT).ids
    return [*beside.ids(zoo["deep"], PROMPT), *said]


@pytest.fixture(scope="module", params=KINDS)
def taught(
    request: pytest.FixtureRequest,
    zoo: Zoo,
    text: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A head that is often right about what the target says to PROMPT."""
    model = heads.block(markov=request.param == "dspark")
    for name in ("markov_w1", "markov_w2"):  # what they add is not fitted
        if request.param == "dspark":
            model.tensors[f"{name}.weight"][:] = 0.0
    return beside.taught(zoo["deep"], model, text, tmp_path_factory.mktemp("taught"))


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo["deep"], zoo[request.param]) as session:
        yield session


def test_greedy_speculation_says_what_plain_decoding_says(pair: Session) -> None:
    """Also where a longer draft is asked for than a block has rows."""
    plain = say(pair, PROMPT, spec="off", max_tokens=60)
    for length in range(1, 9):
        said = say(pair, PROMPT, spec="model", draft_length=length, max_tokens=60)
        assert said.ids == plain.ids
        assert 0 < max(event.drafted for event in said.rounds) <= min(length, 6)


@pytest.mark.parametrize("spec", ["model", "auto"])
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_is_a_text_whatever_speculates(pair: Session, spec: str, seed: int) -> None:
    sampling = SamplingParams(temperature=0.8, seed=seed)
    plain = say(pair, PROMPT, spec="off", sampling=sampling, max_tokens=50)
    assert say(pair, PROMPT, spec=spec, sampling=sampling, max_tokens=50).ids == plain.ids


@pytest.mark.parametrize("verify", ["match", "rejection", "block"])
def test_the_other_verifiers(pair: Session, verify: str) -> None:
    plain = say(pair, PROMPT, spec="off", max_tokens=40)
    assert say(pair, PROMPT, spec="model", verify=verify, max_tokens=40).ids == plain.ids
    sampling = SamplingParams(temperature=0.8, seed=2)
    drawn = say(pair, PROMPT, spec="model", verify=verify, sampling=sampling, max_tokens=40)
    assert len(drawn.ids) == 40


@pytest.mark.parametrize("target", ["hybrid", "mimo"])
@pytest.mark.parametrize("kind", KINDS)
def test_other_targets_roll_back(zoo: Zoo, target: str, kind: str) -> None:
    require_same_logits_at_every_width(zoo[target])
    with loaded(zoo[target], zoo[kind]) as session:
        plain = say(session, PROMPT, spec="off", max_tokens=60)
        assert say(session, PROMPT, spec="model", max_tokens=60).ids == plain.ids


# --- its rows are right -----------------------------------------------------------------------


def test_a_taught_head_is_often_right(zoo: Zoo, taught: Path) -> None:
    """A wrong row, state or position loses no token, only this."""
    with loaded(zoo["deep"], taught) as session:
        said = say(session, PROMPT, spec="model", draft_length=3, max_tokens=TAUGHT - 4)
        list(session.probe(ProbeCommand(0.2)))
        again = say(session, PROMPT, spec="model", draft_length=3, max_tokens=TAUGHT - 4)
        (measured,) = session.measured_costs()
    assert said.speculation["acceptance_rate"] > 0.3
    assert again.speculation["acceptance_rate"] == said.speculation["acceptance_rate"]
    assert measured.c


@pytest.mark.parametrize("name", ["dflash", "dspark"])
@pytest.mark.parametrize("times", [1, 9])
def test_its_rows_are_those_of_a_fresh_head(zoo: Zoo, name: str, times: int) -> None:
    one, fresh = (beside.opened(zoo["deep"], zoo[name]) for _ in range(2))
    check_rows(one, fresh, PROMPT * times)


def test_an_answer_may_be_closed_after_any_event(zoo: Zoo, taught: Path) -> None:
    with loaded(zoo["deep"], taught) as session:
        wanted = say(session, PROMPT * 9, spec="off", max_tokens=30).ids
        for stop_after in range(1, 9):
            events = session.generate(GenerateCommand(PROMPT * 9, GREEDY, spec="model"))
            for _, _ in zip(range(stop_after), events, strict=False):
                pass
            events.close()  # type: ignore[attr-defined]
            assert say(session, PROMPT * 9, spec="model", max_tokens=30).ids == wanted


def test_positions_along_several_axes_are_those_along_one(zoo: Zoo, tmp_path: Path) -> None:
    """M-RoPE, as heads of such targets have it: a text has the same position on each axis."""
    model = heads.block()
    model.keys["rope.dimension_sections"] = [16, 0, 0, 0]
    path = model.write(tmp_path / "axes.gguf")
    one, several = (beside.opened(zoo["deep"], head) for head in (zoo["dflash"], path))
    try:
        rows = []
        for pair in (one, several):
            head_runner = pair.followed()
            assert isinstance(head_runner, BlockHeadRunner)
            for start in range(0, 60, 30):
                pair.target.decode(range(5 + start, 35 + start), 0)
            rows.append(head_runner.draft_block(7, 5)[0].copy())
        np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)
    finally:
        one.close()
        several.close()


def test_what_would_be_silently_wrong_is_refused(zoo: Zoo) -> None:
    """More rows than a block has lose the Markov matrices, without a word from llama.cpp."""
    pair = beside.opened(zoo["deep"], zoo["dspark"])
    try:
        head = pair.head
        assert isinstance(head, BlockHeadContext)
        head.inject(np.zeros((3, 192), np.float32))
        rows, sure = head.draft_block(5, 6)
        assert len(rows) == 6
        assert sure is not None and ((sure > 0) & (sure < 1)).all()
        assert head.n_past == 3
        with pytest.raises(EngineError, match="a block has 6 rows"):
            head.draft_block(5, 7)
        with pytest.raises(EngineError, match="no states of shape"):
            head.inject(np.zeros((3, 64), np.float32))
    finally:
        pair.close()
