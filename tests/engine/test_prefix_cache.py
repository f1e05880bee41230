"""A reader keeps what two texts share and reads only the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine import prefix_cache
from localspec.engine.prefix_cache import (
    BranchCache,
    ConversationSnapshots,
    PrefixCache,
    common_prefix_length,
)
from tests.support.fake_models import (
    BranchingModel,
    CheckpointModel,
    HistoryModel,
    Stop,
    StubbornModel,
)


def never() -> bool:
    return False


def read_all(reader: PrefixCache, text: Sequence[int]) -> list[float]:
    """Read the text, however it comes; the logits after its last token."""
    reader.rewind_to(text)
    for _ in reader.prefill(text, never):
        pass
    return [float(x) for x in reader.decode(text[reader.n_cached :], 1)[0]]


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=14)
KINDS = st.sampled_from([HistoryModel, StubbornModel, CheckpointModel])


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.lists(TOKENS, min_size=1, max_size=6), st.integers(1, 5), KINDS)
def test_whatever_was_read_before_the_logits_are_of_the_text(
    texts: list[list[int]], n_batch: int, kind: type[HistoryModel]
) -> None:
    model = kind(1, n_batch=n_batch)
    reader = PrefixCache(
        model, model.save_checkpoint if isinstance(model, CheckpointModel) else None
    )
    for text in texts:
        logits = read_all(reader, text)
        assert model.memory == text
        assert reader.n_cached == len(text)
        assert logits == model.row(text).tolist()


@settings(deadline=None, derandomize=True, max_examples=80)
@given(TOKENS, TOKENS)
def test_what_is_shared_is_not_read_again(first: list[int], second: list[int]) -> None:
    model = HistoryModel(1, n_batch=32)
    reader = PrefixCache(model)
    read_all(reader, first)
    model.reads.clear()
    read_all(reader, second)
    shared = min(common_prefix_length(first, second), len(second) - 1)
    assert model.reads == [len(second) - shared]


def test_a_memory_that_cannot_be_cut_goes_back_to_a_mark() -> None:
    """The end of a prompt may be spelt otherwise by the next, so one stands before it."""
    model = CheckpointModel(1, n_batch=32)
    reader = PrefixCache(model, model.save_checkpoint)
    read_all(reader, [1] * 20)
    assert model.reads == [12, 8]
    read_all(reader, [1] * 30)
    model.reads.clear()
    read_all(reader, [*[1] * 20, 2, 2])  # another answer, or none at all: after the first prompt
    assert model.reads == [2], "it stood there when the second prompt came"
    model.reads.clear()
    read_all(reader, [*[1] * 15, 2])
    assert model.reads == [4]


@settings(deadline=None, derandomize=True, max_examples=80)
@given(TOKENS, st.data())
def test_one_growing_text_with_guesses_read_between(text: list[int], data: st.DataObject) -> None:
    """As in an answer: the same list all along, and guesses that did not happen."""
    model = HistoryModel(1, n_batch=32)
    reader = PrefixCache(model)
    for _ in range(4):
        known = reader.rewind_to(text)
        assert model.memory == text[:known]
        fresh = text[known:]
        guesses = data.draw(st.lists(st.integers(0, 2), max_size=3))
        rows = reader.decode([*fresh, *guesses], len(guesses) + 1)
        assert rows[-1].tolist() == model.row([*text, *guesses]).tolist()
        text += data.draw(TOKENS)[:4]


def test_rewinding_gives_how_many_tokens_are_kept() -> None:
    model = HistoryModel(1)
    reader = PrefixCache(model)
    assert reader.rewind_to([1, 2, 3]) == 0
    reader.decode([1, 2, 3], 1)
    assert reader.rewind_to([1, 2, 3, 4]) == 3
    assert reader.rewind_to([1, 2, 3]) == 2
    assert reader.rewind_to([1, 2, 3, 4]) == 2
    assert reader.rewind_to([1, 5]) == 1
    assert reader.rewind_to([1]) == 0, "the last token is always left to read"
    assert model.memory == []
    stubborn = PrefixCache(StubbornModel(1))
    stubborn.decode([1, 2, 3], 1)
    assert stubborn.rewind_to([1, 2, 3, 4]) == 3
    assert stubborn.rewind_to([1, 2, 4]) == stubborn.n_cached == 0


@pytest.mark.parametrize(
    ("n", "room", "n_batch", "reads"),
    [
        (12, 4, 4, [4, 4]),
        (13, 4, 4, [4, 4, 4]),
        (11, 2, 4, [4, 4, 2]),
        (11, 9, 4, [4, 4]),
        (4, 4, 4, []),
        (5, 1, 1, [1, 1, 1, 1]),
    ],
)
def test_a_prefill_reads_whole_batches_until_the_rest_has_room(
    n: int, room: int, n_batch: int, reads: list[int]
) -> None:
    model = HistoryModel(1, n_batch=n_batch)
    reader = PrefixCache(model)
    text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1][:n]
    reader.rewind_to(text)
    done = list(reader.prefill_until(text, room, never))
    assert model.reads == reads
    assert done == [sum(reads[: i + 1]) for i in range(len(reads))]
    assert 0 < n - reader.n_cached <= min(room, n_batch)
    assert model.memory == text[: reader.n_cached]
    stopped = PrefixCache(HistoryModel(1, n_batch=n_batch))
    assert list(stopped.prefill_until(text, room, Stop(after=2))) == done[:2]


@settings(deadline=None, derandomize=True, max_examples=80)
@given(TOKENS, TOKENS, st.integers(0, 14))
def test_common_prefix(a: list[int], b: list[int], start: int) -> None:
    n = common_prefix_length(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
    assert common_prefix_length(a, b, min(start, n)) == n


N_TOKENS = 6
"""Instead of MIN_TOKENS, for short texts."""
SIZE = {"n_vocab": 16, "n_ctx": 512, "n_batch": 512}


class Savable(BranchingModel):
    """As a llama_context: a copy of its memory has a size by token."""

    fails = False

    def state_bytes(self) -> int:
        return 10 * self.n_past

    def save_state(self) -> Any:
        return tuple(self.memory)

    def restore_state(self, state: Any, n_past: int) -> bool:
        self.memory = [] if self.fails else list(state)
        return not self.fails


TEXTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()), min_size=2, max_size=20
)
"""Turns: of which conversation, by how many tokens it grows, whether a restore fails."""


@given(TEXTS, st.integers(0, 900))
def test_whoever_comes_back_the_memory_is_that_of_the_text(
    turns: list[tuple[int, int, bool]], max_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
        model = Savable(1, **SIZE)
        cache = BranchCache(model)
        snapshots = ConversationSnapshots([cache], max_bytes)
        texts = [[first, first] for first in (3, 4, 5, 6)]
        for conversation, n_new, model.fails in turns:
            text = texts[conversation]
            text += [7 + conversation] * n_new
            snapshots.switch_to(text)
            assert snapshots.n_bytes <= max_bytes
            kept = cache.rewind_to(text)
            cache.decode(text[kept:], 1)
            assert model.memory == text
            branch = cache.add_branch([9, 9]) if n_new % 2 else None  # as overlap leaves them
            if branch:
                cache.decode_branches([(branch, 9)])


def test_a_conversation_comes_back_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
    caches = [BranchCache(Savable(seed, **SIZE)) for seed in (1, 2)]
    snapshots = ConversationSnapshots(caches, 10_000)
    texts = [[first] * 20 for first in (3, 4, 5)]
    for text in (*texts, texts[0] + [8], texts[1] + [8], texts[2] + [8]):
        snapshots.switch_to(text)
        for cache in caches:
            kept = cache.rewind_to(text)
            assert (kept == 20) == (len(text) == 21)
            cache.decode(text[kept:], 1)
    assert snapshots.n_bytes == 2 * 2 * 10 * 21, "the current one is not kept twice"


def test_the_oldest_conversation_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "MIN_TOKENS", N_TOKENS)
    cache = BranchCache(Savable(1, **SIZE))
    snapshots = ConversationSnapshots([cache], 2 * 10 * 20)
    kept = []
    for first in (3, 4, 5, 6, 5, 3):
        text = [first] * 20
        snapshots.switch_to(text)
        kept.append(cache.rewind_to(text))
        cache.decode(text[kept[-1] :], 1)
    assert kept == [0, 0, 0, 0, 19, 0]
