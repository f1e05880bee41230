"""The starter in its package: found, verified, opened without a model, never imported."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.models import model_lookup
from localspec.models.local_files import inventory
from tests.real.test_session import TWO_THREADS, parted_answers
from tests.support.run_command import ROOT

pytestmark = pytest.mark.long


@pytest.fixture
def starter(smollm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its package, installed."""
    packages = str(smollm.parents[1])
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{packages}")
    monkeypatch.setenv("LOCALSPEC_STARTER", "1")
    return model_lookup.resolve("smollm2-135m").target.require_path()


def test_its_file_is_the_one_of_the_catalogue(starter: Path) -> None:
    inventory.verify_packaged(starter)
    (model,) = inventory.list_packaged()
    assert model.path == starter
    assert model.verified
    assert model_lookup.default_pair_id() == "smollm2-135m+eagle3"


def test_no_drafter_changes_a_long_answer(starter: Path) -> None:
    """In exact mode: this CPU computes this weight type alike in passes of any width."""
    drafters = ("eagle3", "lookup", "auto")
    exact = replace(TWO_THREADS, exact=True)
    assert parted_answers(exact, 1, model_lookup.default_pair_id(), drafters) == []
