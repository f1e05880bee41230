"""Negative numbers of pictures in a text: cuts, parts, and what reads the text alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.protocol.wire import SamplingParams
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.drafters.text_only import TextOnlyDrafter
from localspec.spec.picture_ids import (
    PicturelessText,
    find_cut,
    find_picture_end,
    has_pictures,
    is_later_row,
    last_tokens,
    list_row_ids,
    make_picture_id,
    split_at_pictures,
    without_pictures,
)
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Draft, DraftStopPolicy
from localspec.spec.sampling import bind_vocabulary, compute_distribution
from tests.support.fake_models import HistoryModel

texts = st.lists(
    st.one_of(
        st.integers(0, 20).map(lambda token: [token]),
        st.tuples(st.integers(0, 3), st.integers(1, 9)).map(
            lambda picture: list_row_ids(
                make_picture_id(picture[0]), 1 + picture[0] * 2
            )
        ),
    ),
    max_size=12,
)
"""Parts of texts: tokens, and pictures whose numbers of rows differ."""


def join(parts: list[list[int]]) -> list[int]:
    return [token for part in parts for token in part]


@given(texts)
def test_a_text_is_split_into_tokens_and_pictures(parts: list[list[int]]) -> None:
    text = join(parts)
    found = list(split_at_pictures(text))
    assert join([list(part) for part in found]) == text
    pictures = [part for part in parts if part[0] < 0]
    assert [list(part) for part in found if part[0] < 0] == pictures
    assert has_pictures(text) == bool(pictures)
    assert without_pictures(text) == join([part for part in parts if part[0] >= 0])


@given(texts)
def test_a_cut_is_never_inside_a_picture(parts: list[list[int]]) -> None:
    text = join(parts)
    start = 0
    for part in parts:
        for end in range(start, start + len(part)):
            assert find_cut(text, end) == (start if part[0] < 0 else end)
        if part[0] < 0:
            assert find_picture_end(text, start) == start + len(part)
        start += len(part)


@given(texts, st.integers(0, 30))
def test_the_last_tokens_are_those_of_the_text_alone(
    parts: list[list[int]], n: int
) -> None:
    text = join(parts)
    expected = without_pictures(text)
    assert last_tokens(text, n) == (expected[-n:] if n else [])


def test_a_missing_token_is_no_picture() -> None:
    assert not has_pictures([5, -1])
    assert not is_later_row(-1)
    assert [list(part) for part in split_at_pictures([5, -1, -2, -3, 6])] == [
        [5, -1],
        [-2, -3],
        [6],
    ]


@given(texts, st.lists(st.integers(0, 20), min_size=1, max_size=5))
def test_a_growing_text_keeps_its_list(parts: list[list[int]], more: list[int]) -> None:
    reader = PicturelessText()
    text = join(parts)
    first = reader.read(text)
    text += more
    assert reader.read(text) is first
    assert first == without_pictures(text)
    other = list(text)
    assert reader.read(other) == first
    assert reader.read(other) is not first


# --- who reads such texts


PICTURE = list_row_ids(make_picture_id(0), 4)
SAMPLINGS = (
    SamplingParams(temperature=0.7, repeat_penalty=1.5),
    SamplingParams(temperature=0.7, frequency_penalty=0.7, presence_penalty=0.3),
    SamplingParams(temperature=0.7, dry_multiplier=0.8),
    SamplingParams(temperature=0.7, repeat_penalty=1.5, logit_bias=((3, 2.0),)),
)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("has_vocabulary", [True, False])
def test_a_picture_changes_no_logit(
    sampling: SamplingParams, has_vocabulary: bool
) -> None:
    """numpy would take its number for a place from the end of the vocabulary."""
    if has_vocabulary:
        sampling = bind_vocabulary(sampling, lambda token: b"abcdefghijklmnop"[token:])
    logits = np.linspace(0, 3, 16).astype(np.float32)
    for text in ([5, 6, 5], [5, 6, 7, 2, 5, 6], [1, 2]):
        expected = compute_distribution(logits, sampling, text)
        found = compute_distribution(logits, sampling, [*PICTURE, *text])
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.probs, expected.probs)


def test_dry_repeats_no_sequence_across_a_picture() -> None:
    sampling = SamplingParams(temperature=1.0, dry_multiplier=9.0)
    logits = np.linspace(0, 3, 16).astype(np.float32)
    text = [5, *PICTURE, 6, 7, 5, *PICTURE, 6]
    found = compute_distribution(logits, sampling, text)
    expected = compute_distribution(logits, replace(sampling, dry_multiplier=0.0))
    np.testing.assert_array_equal(found.probs, expected.probs)


def test_a_copy_ends_before_a_picture() -> None:
    drafter = LookupDrafter()
    text = [5, 6, 7, 8, *PICTURE, 9, 5, 6, 7]
    assert drafter.propose(text, 6).tokens == [8]
    text = [5, 6, 7, *PICTURE, 9, 5, 6, 7]
    assert drafter.propose(text, 6).tokens == []


class _Recorder:
    def __init__(self) -> None:
        self.texts: list[Sequence[int]] = []

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        self.texts.append(tokens)
        return Draft([1])


def test_a_drafter_reads_the_text_alone() -> None:
    recorder = _Recorder()
    drafter = TextOnlyDrafter(recorder)
    text = [4, *PICTURE, 5]
    drafter.propose(text, 3)
    text += [6, 7]
    assert drafter.propose(text, 3).tokens == [1]
    first, second = recorder.texts
    assert first is second
    assert list(second) == [4, 5, 6, 7]


class _WholePictures(HistoryModel):
    """Fails where a pass ends inside a picture that fits into one."""

    def decode(self, tokens: Sequence[int], outputs: int) -> np.ndarray:
        tokens = list(tokens)
        parts = list(split_at_pictures(tokens))
        for part in parts:
            if part[0] < 0:
                whole = 1 + (-2 - part[0]) // 2 * 2
                assert not is_later_row(part[0]) or whole > self.n_batch
                assert len(part) == whole or whole > self.n_batch
        return super().decode([abs(token) % self.n_vocab for token in tokens], outputs)


@given(texts, st.integers(4, 9))
def test_no_pass_ends_inside_a_picture_that_fits(
    parts: list[list[int]], n_batch: int
) -> None:
    """Whatever is cached, and however much is to be left."""
    text = [1, *join(parts), 2]
    model = _WholePictures(1)
    model.n_batch = n_batch
    cache = PrefixCache(model, lambda **_: True)
    for end in range(1, len(text)):
        if is_later_row(text[end]):
            continue  # No text ends inside a picture.
        cache.rewind_to([*text[:end], 99])
        for _ in cache.prefill(text, lambda: False):
            pass
        for _ in cache.prefill_until(text, n_batch, lambda: False):
            pass
        assert len(text) - cache.n_cached <= n_batch
        assert not is_later_row(text[cache.n_cached]) or (
            find_picture_end(text, find_cut(text, cache.n_cached))
            - find_cut(text, cache.n_cached)
            > n_batch
        )
