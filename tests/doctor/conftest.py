"""Folders of their own for the checks."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LOCALSPEC_MODELS_DIR", raising=False)
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
