"""The starter in its package: found, verified, opened without a model, never imported."""

import os
from pathlib import Path

import pytest

from localspec.models import model_lookup
from localspec.models.local_files import inventory
from tests.support.run_command import ROOT

pytestmark = pytest.mark.long


def test_its_file_is_the_one_of_the_catalogue(
    smollm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = str(smollm.parents[1])
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{packages}")
    monkeypatch.setenv("LOCALSPEC_STARTER", "1")
    starter = model_lookup.resolve("smollm2-135m").target.require_path()
    inventory.verify_packaged(starter)
    (model,) = inventory.list_packaged()
    assert (model.path, model.verified) == (starter, True)
    assert model_lookup.default_pair_id() == "smollm2-135m+eagle3"
