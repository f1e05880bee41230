"""Passes of heads: their rows are right, and what llama.cpp cannot take is refused."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.head_context import HeadContext
from localspec.spec.drafters.block_head import BlockHeadRunner
from tests.llama.conftest import Open
from tests.support import head_models, heads_beside
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

STATES = np.random.default_rng(0).standard_normal((4, 192)).astype(np.float32)


@pytest.fixture
def head(zoo: Zoo, opened: Open) -> Iterator[HeadContext]:
    target = opened("deep")
    with closing(
        HeadContext(zoo["eagle3"], SETTINGS, target, target_width=3 * 64)
    ) as head:
        yield head


def test_rows_are_of_the_last_tokens_and_encoding_changes_no_memory(
    head: HeadContext,
) -> None:
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


def test_positions_along_several_axes_are_those_along_one(
    zoo: Zoo, tmp_path: Path
) -> None:
    """A text has the same position on each axis of M-RoPE, which some heads have."""
    model = head_models.block()
    model.keys["rope.dimension_sections"] = [16, 0, 0, 0]
    rows = []
    for path in (zoo["dflash"], model.write(tmp_path / "axes.gguf")):
        with closing(heads_beside.opened(zoo["deep"], path)) as pair:
            runner = pair.followed()
            assert isinstance(runner, BlockHeadRunner)
            for start in range(0, 60, 30):
                pair.target.decode(range(5 + start, 35 + start), 0)
            rows.append(runner.draft_block(7, 5)[0].copy())
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)
