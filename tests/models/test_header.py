"""Files that are no GGUF, told in their own words before llama.cpp opens them."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import pytest

from localspec.errors import AccessError, LocalspecError, ModelFileError, NotFoundError
from localspec.models import header
from localspec.paths import data
from tests.zoo import Zoo


def head(version: int = 3, tensors: int = 5, keys: int = 7, order: str = "<") -> bytes:
    return b"GGUF" + struct.pack(f"{order}IQQ", version, tensors, keys) + bytes(64)


def failure_of(path: Path) -> LocalspecError:
    with pytest.raises(LocalspecError) as failure:
        header.check(path)
    assert failure.value.hint
    assert failure.value.message.isprintable()
    return failure.value


def written(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", ["demo-target.gguf", "demo-draft.gguf"])
def test_the_demo_pair_passes(name: str) -> None:
    header.check(data() / "demo" / name)


@pytest.mark.parametrize("name", ["target", "recurrent", "hostile", "nan", "duplicate"])
def test_any_gguf_passes(zoo: Zoo, name: str) -> None:
    """Only the start is looked at: the rest is llama.cpp's to judge."""
    header.check(zoo[name])


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_that_can_be_run_pass(tmp_path: Path, version: int) -> None:
    header.check(written(tmp_path, head(version)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"GGUF", "is incomplete: 4 bytes"),
        (head()[:23], "is incomplete: 23 bytes"),
        (b"GGU", "a text file"),
        (b"hello, I am no model\n", "is a text file"),
        ("é\n".encode(), "is a text file"),
        (bytes(100), "is not a GGUF file"),
        (b"ggml" + bytes(60), "is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n", "git-lfs pointer"),
        (b"PK\x03\x04" + bytes(60), "PyTorch archive"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"<!doctype html><html>", "is a web page"),
        (b"<html><body>Sign in", "is a web page"),
        (head(version=1), "GGUF v1"),
        (head(version=99), "GGUF v99"),
        (head(version=3, order=">"), "byte order of another kind of computer"),
        (head(tensors=2**63), "damaged header"),
        (head(keys=2**40), "damaged header"),
        (head(tensors=0), "vocabulary only"),
    ],
)
def test_what_it_is_instead(tmp_path: Path, content: bytes, words: str) -> None:
    error = failure_of(written(tmp_path, content))
    assert isinstance(error, ModelFileError)
    assert words in error.message
    assert error.message.startswith("model.gguf ")


def test_a_vocabulary_only(zoo: Zoo) -> None:
    assert "vocabulary only" in failure_of(zoo["vocabulary-only"]).message


def test_a_missing_file(tmp_path: Path) -> None:
    error = failure_of(tmp_path / "absent.gguf")
    assert isinstance(error, NotFoundError)
    assert "absent.gguf" in error.message


def test_a_directory(tmp_path: Path) -> None:
    error = failure_of(tmp_path)
    assert isinstance(error, ModelFileError)
    assert "is a directory" in error.message


def test_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tmp_path / "gone.gguf")
    assert isinstance(failure_of(link), NotFoundError)


def test_a_link_to_itself(tmp_path: Path) -> None:
    link = tmp_path / "loop.gguf"
    link.symlink_to(link)
    assert isinstance(failure_of(link), AccessError)


def test_a_name_that_no_file_can_have() -> None:
    assert isinstance(failure_of(Path("a" * 5000 + ".gguf")), AccessError)


@pytest.mark.skipif(sys.platform == "win32", reason="no FIFO there")
@pytest.mark.timeout(20)
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a regular file" in failure_of(tmp_path / "pipe.gguf").message


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device")
def test_a_device_is_no_model() -> None:
    assert "not a regular file" in failure_of(Path("/dev/zero")).message


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, head())
    path.chmod(0)
    assert isinstance(failure_of(path), AccessError)


def test_a_hostile_name_is_shown_clean(tmp_path: Path) -> None:
    path = written(tmp_path, b"text", "\x1b]0;owned\x07bad\u202e.gguf")
    assert failure_of(path).message.startswith("bad\ufffd.gguf ")
    assert failure_of(tmp_path / "\x1b[2Jgone.gguf").message.endswith("gone.gguf.")
