"""How features join the tables of the core."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import extras


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of features, in the place of localspec's own."""
    monkeypatch.setattr(extras, "__path__", [str(tmp_path)])
    yield tmp_path
    for name in ("alpha", "beta"):
        sys.modules.pop(f"localspec.extras.{name}", None)
        extras.__dict__.pop(name, None)


def add_feature(folder: Path, name: str, source: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)


def test_rows_of_all_features_come_in_the_order_of_their_names(folder: Path) -> None:
    add_feature(folder, "beta", "WORDS = ('three',)")
    add_feature(folder, "alpha", "WORDS = ('one', 'two')")

    assert extras.rows("WORDS") == ["one", "two", "three"]


def test_a_feature_need_not_have_rows_for_a_table(folder: Path) -> None:
    add_feature(folder, "alpha", "WORDS = ('one',)")

    assert extras.rows("COMMANDS") == []


def test_without_features_every_table_is_as_the_core_has_it(folder: Path) -> None:
    assert extras.rows("WORDS") == []
