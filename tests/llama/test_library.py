"""llama.cpp's layout is checked; its log lines and return codes become errors."""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.errors import (
    LocalspecError,
    ModelFileError,
    OutOfMemoryError,
    UsageError,
)
from localspec.llama import library
from localspec.llama.context import LlamaContext
from localspec.llama.library import LOG
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from tests.support.run_command import ROOT, localspec
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="links need a right there"
)


def beside(folder: Path, old: str, new: str) -> dict[str, str]:
    found = importlib.util.find_spec("llama_cpp")
    assert found is not None and found.submodule_search_locations
    real = Path(found.submodule_search_locations[0])
    fake = folder / "llama_cpp"
    fake.mkdir()
    for entry in real.iterdir():
        if entry.name not in ("llama_cpp.py", "__pycache__"):
            (fake / entry.name).symlink_to(entry)
    source = (real / "llama_cpp.py").read_text(encoding="utf-8")
    assert old in source
    (fake / "llama_cpp.py").write_text(source.replace(old, new), encoding="utf-8")
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('        ("n_outputs_max", ctypes.c_uint32),\n', "", "of different releases"),
        (
            "def llama_log_set(",
            "def llama_log_set_as_it_was(",
            "has no attribute 'llama_log_set'",
        ),
    ],
    ids=["lacks-a-field", "lacks-a-function"],
)
def test_another_layout_is_not_run(
    zoo: Zoo, tmp_path: Path, old: str, new: str, message: str
) -> None:
    done = localspec("run", zoo["parrot"], "-p", "a", env=beside(tmp_path, old, new))
    assert done.code == 9, done.err
    assert message in done.err and "Reinstall it" in done.err


ERROR = 4
INFO = 2
PATH = Path("folder") / "big.gguf"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    LOG.lines.clear()
    yield
    LOG.lines.clear()


def said(*lines: str) -> None:
    LOG.lines.extend((ERROR, line) for line in lines)


def test_errors_of_a_pass_that_was_to_stop_and_failed_are_logged_at_its_end(
    capfd: pytest.CaptureFixture[str],
) -> None:
    LOG.begin_stoppable_pass(lambda: True)
    LOG._on_log(ERROR, b"process_ubatch: failed to allocate\n", None)
    assert capfd.readouterr().err == ""
    LOG.end_stoppable_pass(is_stopped=False)
    assert capfd.readouterr().err == "process_ubatch: failed to allocate\n"
    assert LOG.errors() == ["process_ubatch: failed to allocate"]


@pytest.mark.parametrize("is_stop_requested", [True, False])
def test_errors_of_other_passes_are_logged_at_once(
    is_stop_requested: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """An abort of the process may follow, so they cannot wait."""

    def fail() -> None:
        LOG._on_log(ERROR, b"process_ubatch: failed\n", None)

    LOG.begin_stoppable_pass(lambda: is_stop_requested)
    if is_stop_requested:  # The pass that is to stop is another thread's.
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
    else:
        fail()
    written = capfd.readouterr().err
    LOG.end_stoppable_pass(is_stopped=True)
    assert written == "process_ubatch: failed\n"


LOAD_ERRORS: list[tuple[str, type[LocalspecError], str, str]] = [
    (
        "ggml_cuda_buffer: cudaMalloc failed: out of memory",
        OutOfMemoryError,
        "",
        "smaller",
    ),
    (
        "llama_model_load: mmap failed: Cannot allocate memory",
        OutOfMemoryError,
        "",
        "smaller",
    ),
    (
        "alloc_tensor_range: unable to allocate CPU buffer",
        OutOfMemoryError,
        "",
        "smaller",
    ),
    (
        "load: tensor 'x' data is not within the file bounds",
        ModelFileError,
        "",
        "incomplete",
    ),
    (
        "gguf_init_from_file: failed to read key-value pairs",
        ModelFileError,
        "",
        "incomplete",
    ),
    ("load: unknown model architecture: 'x'", ModelFileError, "", "newer llama.cpp"),
    (
        "load: missing tensor 'output.weight'",
        ModelFileError,
        "",
        "not a complete model",
    ),
    (
        "check_dims: tensor 'a.weight' not found",
        ModelFileError,
        "",
        "not a complete model",
    ),
    ("something never seen before", ModelFileError, "", "Download it again"),
    ("", ModelFileError, "gave no reason", "Download it again"),
    (
        "load: error loading model: invalid value for main_gpu: 1 (available devices: 1)",
        UsageError,
        "--main-gpu 1 is not there: llama.cpp finds 1 GPU",
        "doctor",
    ),
    (
        "load: device Vulkan0 does not support split buffers",
        UsageError,
        "cannot split rows",
        "",
    ),
    (
        "load: error loading model: LLAMA_SPLIT_MODE_TENSOR not implemented for "
        "architecture 'mamba'",
        UsageError,
        "this architecture (mamba)",
        "--split layer",
    ),
    (
        "llama_prepare_model_devices: LLAMA_SPLIT_MODE_TENSOR needs >= 1 devices",
        UsageError,
        "no GPU",
        "--split layer",
    ),
]


@pytest.mark.parametrize(
    ("line", "kind", "message", "hint"), LOAD_ERRORS, ids=range(len(LOAD_ERRORS))
)
def test_a_load_that_failed(
    line: str, kind: type[LocalspecError], message: str, hint: str
) -> None:
    LOG.lines.append((INFO, "out of memory is only talked about"))
    if line:
        said(line)
    error = library.load_error(PATH)
    assert type(error) is kind
    assert message in error.message and hint in error.hint
    assert "folder" not in error.message
    assert ("big.gguf" in error.message) == (kind is not UsageError)


def test_a_context_that_tensors_cannot_be_split_in() -> None:
    for line, message in (
        ("SPLIT_MODE_TENSOR requires flash_attn to be enabled", "flash attention"),
        (
            "simultaneous use of SPLIT_MODE_TENSOR and KV cache quantization not "
            "implemented",
            "quantised KV cache",
        ),
    ):
        LOG.lines.clear()
        said(f"llama_init_from_model: {line}")
        error = library.context_error(PATH)
        assert isinstance(error, UsageError)
        assert message in error.message
        assert "--split layer" in error.hint


def test_a_context_that_failed() -> None:
    said("llama_init_from_model: failed to allocate buffer for kv cache")
    assert isinstance(library.context_error(PATH), OutOfMemoryError)
    LOG.lines.clear()
    said("llama_init_from_model: V cache quantization requires flash_attn")
    error = library.context_error(PATH)
    assert isinstance(error, UsageError)
    assert "requires flash_attn" in error.message


METAL = (
    "ggml_metal_synchronize: error: command buffer 0 failed with status 5",
    "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "process_ubatch: failed to compute graph, compute status: -1",
)


@pytest.mark.parametrize(
    ("code", "lines", "message"),
    [
        (1, (), "no space"),
        (2, (), "aborted"),
        (-1, (), "rejected"),
        (-2, (), "out of memory"),
        (-77, (), "code -77"),
        (-3, METAL, "ran out of memory"),
    ],
)
def test_a_decode_that_failed(code: int, lines: tuple[str, ...], message: str) -> None:
    said(*lines)
    error = library.decode_error(code)
    assert message in error.message
    assert isinstance(error, OutOfMemoryError) == ("out of memory" in message)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.9999])
def test_a_real_file_cut_short(tmp_path: Path, share: float) -> None:
    whole = (package_data_dir() / "demo" / "demo-draft.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(
        ModelFileError, match=r"cut\.gguf cannot be loaded: "
    ) as failure:
        LlamaContext(path, ModelRole(SETTINGS, 1, 0))
    assert "incomplete" in failure.value.hint


def test_log_lines_that_are_no_text_or_come_in_parts() -> None:
    LOG._on_log(ERROR, b"bad \xff\x1b[31m red\n", None)
    LOG._on_log(ERROR, b"first half, ", None)
    LOG._on_log(5, b"second half\n", None)  # continues the line, at its level
    assert LOG.errors() == ["bad \ufffd red", "first half, second half"]
