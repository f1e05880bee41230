"""llama.cpp's layout is checked before it is used; its log lines and return codes become errors."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.engine.llama import library
from localspec.engine.llama.context import LlamaContext
from localspec.engine.llama.library import LOG
from localspec.errors import LocalspecError, ModelFileError, OutOfMemoryError, UsageError
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from tests.cli.command import ROOT, localspec
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links need a right there")


def beside(folder: Path, old: str, new: str) -> dict[str, str]:
    """An environment in which the installed llama_cpp has one line otherwise."""
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None and found.submodule_search_locations
    real, fake = Path(found.submodule_search_locations[0]), folder / "llama_cpp"
    fake.mkdir()
    for entry in real.iterdir():
        if entry.name not in ("llama_cpp.py", "__pycache__"):
            (fake / entry.name).symlink_to(entry)
    source = (real / "llama_cpp.py").read_text(encoding="utf-8")
    assert old in source
    (fake / "llama_cpp.py").write_text(source.replace(old, new), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('        ("n_outputs_max", ctypes.c_uint32),\n', ""),
        ('        ("n_rs_seq", ctypes.c_uint32),\n', ""),
        ('        ("ctx_type", ', '        ("new", ctypes.c_int64),\n        ("ctx_type", '),
    ],
    ids=["lacks-a-field", "lacks-another", "has-one-more"],
)
def test_another_layout_is_not_run(zoo: Zoo, tmp_path: Path, old: str, new: str) -> None:
    done = localspec("run", zoo["parrot"], "-p", "a", env=beside(tmp_path, old, new))
    assert done.code == 9, done.err
    assert "and the llama.cpp library it loads are of different releases" in done.err
    assert "Reinstall it" in done.err


def test_a_function_that_is_gone(zoo: Zoo, tmp_path: Path) -> None:
    env = beside(tmp_path, "def llama_log_set(", "def llama_log_set_as_it_was(")
    done = localspec("run", zoo["parrot"], "-p", "a", env=env)
    assert done.code == 9
    assert "has no attribute 'llama_log_set'" in done.err
    assert "Reinstall it" in done.err


def test_the_same_files_in_another_place_run(zoo: Zoo, tmp_path: Path) -> None:
    env = beside(tmp_path, "def llama_log_set(", "def llama_log_set(  # as it is\n")
    assert localspec("run", zoo["parrot"], "-p", "a", env=env).code == 0


ERROR, INFO = 4, 2
PATH = Path("folder") / "big.gguf"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    LOG.lines.clear()
    yield
    LOG.lines.clear()


def said(*lines: str) -> None:
    LOG.lines.extend((ERROR, line) for line in lines)


@pytest.mark.parametrize(
    ("line", "kind", "hint"),
    [
        ("ggml_backend_cuda_buffer: cudaMalloc failed: out of memory", OutOfMemoryError, "smaller"),
        ("llama_model_load: mmap failed: Cannot allocate memory", OutOfMemoryError, "smaller"),
        ("alloc_tensor_range: unable to allocate CPU buffer", OutOfMemoryError, "smaller"),
        (
            "llama_model_load: tensor 'x' data is not within the file bounds",
            ModelFileError,
            "incom",
        ),
        ("gguf_init_from_file: failed to read key-value pairs", ModelFileError, "incomplete"),
        ("llama_model_load: unknown model architecture: 'x'", ModelFileError, "newer llama.cpp"),
        (
            "llama_model_load: missing tensor 'output.weight'",
            ModelFileError,
            "not a complete model",
        ),
        ("check_tensor_dims: tensor 'a.weight' not found", ModelFileError, "not a complete model"),
        ("something never seen before", ModelFileError, "Download it again"),
    ],
)
def test_a_load_that_failed(line: str, kind: type[LocalspecError], hint: str) -> None:
    said(line)
    error = library.load_error(PATH)
    assert type(error) is kind
    assert "big.gguf" in error.message
    assert "folder" not in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "llama_model_load: error loading model: invalid value for main_gpu: 1 "
            "(available devices: 1)",
            "--main-gpu 1 is not there: llama.cpp finds 1 GPU",
        ),
        (
            "llama_model_load: error loading model: device Vulkan0 does not support split buffers",
            "cannot split rows",
        ),
    ],
)
def test_settings_that_the_devices_refuse_are_not_blamed_on_the_file(line: str, words: str) -> None:
    said(line)
    error = library.load_error(PATH)
    assert isinstance(error, UsageError) and error.hint
    assert words in error.message


def test_a_load_without_a_reason_still_has_a_sentence() -> None:
    assert "gave no reason" in library.load_error(PATH).message
    LOG.lines.append((INFO, "out of memory is only talked about"))
    assert isinstance(library.load_error(PATH), ModelFileError)


def test_a_context_that_failed() -> None:
    said("llama_init_from_model: failed to allocate buffer for kv cache")
    assert isinstance(library.context_error(PATH), OutOfMemoryError)
    LOG.lines.clear()
    said("llama_init_from_model: V cache quantization requires flash_attn")
    error = library.context_error(PATH)
    assert isinstance(error, UsageError)
    assert "requires flash_attn" in error.message


@pytest.mark.parametrize(
    ("code", "words"),
    [(1, "no space"), (2, "aborted"), (-1, "rejected"), (-2, "out of memory"), (-77, "code -77")],
)
def test_a_decode_that_failed(code: int, words: str) -> None:
    assert words in library.decode_error(code).message


def test_a_decode_that_found_no_memory_on_the_device() -> None:
    """As ggml's Metal backend reports it."""
    said(
        "ggml_metal_synchronize: error: command buffer 0 failed with status 5",
        "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "process_ubatch: failed to compute graph, compute status: -1",
    )
    error = library.decode_error(-3)
    assert isinstance(error, OutOfMemoryError)
    assert "ran out of memory" in error.message


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3, 0.9, 0.9999])
def test_a_real_file_cut_short(tmp_path: Path, share: float) -> None:
    whole = (package_data_dir() / "demo" / "demo-draft.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelFileError, match=r"cut\.gguf cannot be loaded: ") as failure:
        LlamaContext(path, ModelRole(SETTINGS, 1, 0))
    assert "incomplete" in failure.value.hint


def test_the_log_survives_bytes_that_are_no_text() -> None:
    LOG._on_log(ERROR, b"bad \xff\x1b[31m red\n", None)
    assert LOG.errors() == ["bad \ufffd red"]


def test_a_continued_line_keeps_its_level() -> None:
    LOG._on_log(ERROR, b"first half, ", None)
    LOG._on_log(5, b"second half\n", None)
    assert LOG.errors() == ["first half, second half"]
