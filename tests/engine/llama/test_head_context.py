"""Passes of heads: what llama.cpp cannot take is refused before, and rows are the right ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.engine.llama.batch import LlamaBatch
from localspec.engine.llama.head_context import BlockHeadContext, HeadContext
from localspec.engine.llama.hidden_states import FinalHiddenStates
from localspec.errors import EngineError
from tests.engine.llama.conftest import Open
from tests.support import fitted_heads, head_models
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

STATES = np.random.default_rng(0).standard_normal((4, 192)).astype(np.float32)


@pytest.fixture
def head(zoo: Zoo, opened: Open) -> Iterator[HeadContext]:
    target = opened("deep")
    with closing(HeadContext(zoo["eagle3"], SETTINGS, target, target_width=3 * 64)) as head:
        yield head


def test_a_position_has_as_many_axes_as_the_model() -> None:
    """llama.cpp reads four numbers for each row without a token, wherever a model turns by axes."""
    batch = LlamaBatch(40, tokens=False, width=8, axes=4)
    for n, past in ((3, 0), (3, 7), (40, 7)):
        batch.set_positions(n, past, 0)
        found = np.ctypeslib.as_array(batch.struct.pos, (4, n))
        text = np.arange(past, past + n)
        np.testing.assert_array_equal(found, [text, text, text, np.zeros(n)])


def test_a_head_refuses_states_of_another_width_and_says_that_it_is_closed(
    head: HeadContext,
) -> None:
    for wrong in (STATES[:2, :64], STATES[:0]):
        with pytest.raises(EngineError, match="no states of shape"):
            head.encode(wrong)
    with pytest.raises(EngineError, match="no states of shape"):
        head.decode([1, 2], 1, STATES[:2])
    with pytest.raises(EngineError, match="cannot decode 3 rows"):
        head.decode([1, 2, 3], 1, STATES[:2, :64])
    head.close()
    with pytest.raises(EngineError, match="closed"):
        head.encode(STATES[:1])


def test_rows_are_of_the_last_tokens_and_encoding_changes_no_memory(head: HeadContext) -> None:
    """llama.cpp gives the first rows where only the last is wanted: all are asked for."""
    states = head.encode(STATES)
    every = head.decode([5, 6, 7, 8], 4, states).copy()
    np.testing.assert_array_equal(head.encode(STATES), states)
    assert head.n_past == 4
    head.truncate(0)
    last = head.decode([5, 6, 7, 8], 1, states)
    np.testing.assert_allclose(last, every[-1:], rtol=0, atol=0.01)
    assert not np.allclose(every[0], every[-1], atol=0.1)


def test_a_token_that_the_head_does_not_know_harms_nothing(head: HeadContext) -> None:
    padding = head.decode([head.n_vocab + 5], 1, STATES[:1, :64]).copy()
    head.truncate(0)
    np.testing.assert_array_equal(padding, head.decode([0], 1, STATES[:1, :64]))


def test_a_model_without_a_layer_of_mtp_is_not_asked(opened: Open) -> None:
    """llama.cpp would give garbage for its states, and abort where the layer was not loaded."""
    deep, mimo = opened("deep"), opened("mimo")
    with pytest.raises(EngineError, match="no MTP layers"):
        FinalHiddenStates(deep.handle, deep.model)
    with pytest.raises(EngineError, match="no MTP layer"):
        HeadContext(None, SETTINGS, mimo, target_width=64)


def test_positions_along_several_axes_are_those_along_one(zoo: Zoo, tmp_path: Path) -> None:
    """M-RoPE, as heads of such targets have it: a text has the same position on each axis."""
    model = head_models.block()
    model.keys["rope.dimension_sections"] = [16, 0, 0, 0]
    rows = []
    for path in (zoo["dflash"], model.write(tmp_path / "axes.gguf")):
        with closing(fitted_heads.opened(zoo["deep"], path)) as pair:
            runner = pair.followed()
            assert isinstance(runner, BlockHeadRunner)
            for start in range(0, 60, 30):
                pair.target.decode(range(5 + start, 35 + start), 0)
            rows.append(runner.draft_block(7, 5)[0].copy())
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)


def test_what_would_be_silently_wrong_is_refused(zoo: Zoo) -> None:
    """More rows than a block has lose the Markov matrices, without a word from llama.cpp."""
    with closing(fitted_heads.opened(zoo["deep"], zoo["dspark"])) as pair:
        head = pair.head
        assert isinstance(head, BlockHeadContext)
        head.inject(STATES[:3])
        rows, confidences = head.draft_block(5, 6)
        assert len(rows) == 6
        assert confidences is not None and ((confidences > 0) & (confidences < 1)).all()
        assert head.n_past == 3
        with pytest.raises(EngineError, match="a block has 6 rows"):
            head.draft_block(5, 7)
        with pytest.raises(EngineError, match="no states of shape"):
            head.inject(STATES[:3, :64])
