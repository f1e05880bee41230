"""Folders of their own for the checks."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCALSPEC_MODELS_DIR", raising=False)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
