"""A head that does not read along; the others are in the laws of tests/spec/laws.py."""

import numpy as np
import pytest

from localspec.spec.drafters.autoregressive_head import HeadRunner
from tests.support.fake_heads import FakeHead

ROOM = 9


@pytest.mark.parametrize("first_position", [0, 1])
def test_a_head_that_does_not_read_along_reads_the_end_of_the_text(
    first_position: int,
) -> None:
    """Also after the text is cut, within what it has read and before that, and goes on."""
    head = FakeHead(1)
    runner = HeadRunner(head, "eagle3", ROOM, first_position)
    runner.reads_along = False
    rng = np.random.default_rng(0)
    text: list[int] = []

    def read(n: int) -> None:
        for start in range(0, n, ROOM):
            part = min(ROOM, n - start)
            tokens = [int(token) for token in rng.integers(6, size=part)]
            runner.on_decode(tokens, np.array(tokens, np.float32)[:, np.newaxis] + 1)
            text.extend(tokens)

    read(5 * ROOM + 4)
    assert not head.memory, "nothing is read before a draft"
    assert [
        runner.count_new(each) for each in ([*text, 1, 2], text[:3], [7, *text])
    ] == [
        2,
        0,
        len(text) + 1,
    ]
    for cut, more in (
        (0, 0),
        (2, 3),
        (2, 0),
        (2 * ROOM, 5),
        (3, ROOM - 1),
        (1, 3 * ROOM),
    ):
        if cut:
            del text[runner.limit_truncation(len(text) - cut) :]
            runner.on_truncate(len(text))
        read(max(more, 1))
        assert runner.is_ready([*text, 5])
        runner.first_logits(5)
        n = len(head.memory)
        assert 2 <= n <= ROOM + 2 and head.memory == [*text, 5][-n:]
        assert head.tokens_before == text[-n:]
