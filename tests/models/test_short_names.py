"""Files that are shown together have different names, as short as possible."""

from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models import model_names, short_names

CACHE = "/home/me/.cache/huggingface/hub"


def names_of(*paths: str) -> list[str]:
    return list(short_names.shorten(map(PurePath, paths)).values())


def test_a_name_that_no_other_file_has_is_enough() -> None:
    assert names_of("/models/a-Q8_0.gguf", "/models/b.gguf") == ["a-Q8_0", "b"]


def test_two_publishers_files_are_told_apart_by_publisher() -> None:
    path = "Twin-GGUF/Twin-Q8_0.gguf"
    assert names_of(f"bartowski/{path}", f"unsloth/{path}") == [
        "bartowski/Twin-Q8_0",
        "unsloth/Twin-Q8_0",
    ]


def test_a_folder_of_the_hubs_cache_stands_for_its_repository() -> None:
    paths = [
        f"{CACHE}/models--{owner}--Twin-GGUF/snapshots/{'a' * 40}/Twin-Q8_0.gguf"
        for owner in ("bartowski", "unsloth")
    ]
    assert names_of(*paths) == ["bartowski/Twin-Q8_0", "unsloth/Twin-Q8_0"]


def test_the_nearest_folder_that_differs_is_shown() -> None:
    assert names_of("/m/x/deep/same.gguf", "/m/y/deep/same.gguf") == [
        "x/same",
        "y/same",
    ]


def test_where_one_folder_is_not_enough_several_are_shown() -> None:
    paths = ("/a/p/m.gguf", "/a/q/m.gguf", "/b/p/m.gguf", "/b/q/m.gguf")
    assert names_of(*paths) == ["a/p/m", "a/q/m", "b/p/m", "b/q/m"]


def test_two_commits_of_one_file_are_told_apart_by_their_paths() -> None:
    paths = [
        f"{CACHE}/models--me--m-GGUF/snapshots/{commit * 40}/m.gguf" for commit in "ab"
    ]
    assert names_of(*paths) == paths


def test_splits_of_one_model_are_different_downloads_but_one_model() -> None:
    splits = [PurePath(f"me/big/b-0000{n}-of-00002.gguf") for n in (1, 2)]
    assert list(short_names.shorten(splits).values()) == [
        "b-00001-of-00002",
        "b-00002-of-00002",
    ]
    assert list(model_names.name_files(splits).values()) == [
        "b, part 1 of 2",
        "b, part 2 of 2",
    ]
    assert model_names.name_files(splits[:1]) == {splits[0]: "b"}


@pytest.mark.parametrize("ending", ["\x01", "\x02"])
def test_names_that_are_shown_alike_are_numbered(ending: str) -> None:
    paths = [PurePath(f"/m/a{mark}.gguf") for mark in ("\x01", "\x02")]
    names = short_names.shorten(paths)
    assert len(set(names.values())) == 2
    assert ending not in "".join(names.values())


_PART = st.sampled_from(["a", "b", "models--a--b", "snapshots", "a.gguf", "b\x01"])


@given(st.lists(st.lists(_PART, min_size=1, max_size=6), max_size=8))
def test_no_two_names_are_equal(paths: list[list[str]]) -> None:
    distinct = {PurePath(*parts) for parts in paths}
    names = short_names.shorten(distinct)
    assert names.keys() == distinct
    assert len(set(names.values())) == len(distinct)
