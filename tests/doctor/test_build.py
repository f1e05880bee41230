"""doctor/build.py: a CPU-only build beside a GPU, said until it is dismissed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import doctor
from localspec.doctor import build
from localspec.machine import backends, library
from localspec.machine.backends import Ask, Hardware

NVIDIA = Hardware("Linux", "x86_64", "570.86.15", 8.9)
Here = Callable[[Hardware, str], None]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """A computer with this hardware and these libraries of ggml's."""

    def put(hardware: Hardware, libraries: str) -> None:
        folder = tmp_path / "lib"
        folder.mkdir()
        for name in libraries.split():
            (folder / name).touch()
        monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))

        def detect(ask: Ask | None = None) -> Hardware:
            return hardware

        monkeypatch.setattr(backends, "detect", detect)

    return put


def test_a_gpu_that_cannot_be_used_is_said_with_the_line_that_changes_it(here: Here) -> None:
    here(NVIDIA, "libggml.so libggml-base.so libggml-cpu.so libllama.so")
    found = doctor.cpu_only_beside_gpu()
    assert found is not None
    assert (found.id, found.level) == ("cpu-only-build", "warning")
    assert "NVIDIA driver (570.86.15)" in found.what
    assert "\n" not in found.fix
    assert "cuda" in found.fix or "cu125" in found.fix


@pytest.mark.parametrize(
    ("hardware", "libraries"),
    [
        (NVIDIA, "libggml-base.so libggml-cpu.so libggml-cuda.so"),
        (NVIDIA, "ggml-base.dll ggml-cpu.dll ggml-vulkan.dll"),
        (NVIDIA, "libllama.so"),  # one big library: nothing is known
        (Hardware("Linux", "x86_64"), "libggml-base.so libggml-cpu.so"),
        (Hardware("Darwin", "arm64"), "libggml-base.dylib libggml-metal.dylib"),
        (Hardware("Linux", "x86_64", "390.157", 6.1), "libggml-base.so"),  # no build runs there
    ],
)
def test_nothing_is_said_where_nothing_is_wrong(
    here: Here, hardware: Hardware, libraries: str
) -> None:
    here(hardware, libraries)
    assert doctor.cpu_only_beside_gpu() is None


def test_what_was_dismissed_is_not_said_again_at_a_start_but_by_doctor(here: Here) -> None:
    here(NVIDIA, "libggml-base.so libggml-cpu.so")
    doctor.dismiss(build.CPU_ONLY)
    doctor.dismiss("another")
    assert doctor.cpu_only_beside_gpu() is None
    assert build.mismatch() is not None


def test_a_damaged_record_is_said_again(here: Here, tmp_path: Path) -> None:
    here(NVIDIA, "libggml-base.so libggml-cpu.so")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dismissed.json").write_text("{no")
    assert doctor.cpu_only_beside_gpu() is not None
    doctor.dismiss(build.CPU_ONLY)
    assert doctor.cpu_only_beside_gpu() is None


def test_outside_a_checkout_the_line_names_this_python(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_own_checkout", lambda: False)
    line = build.fix(backends.choose(NVIDIA))
    assert "--extra-index-url" in line
    assert "llama-cpp-python==" in line


def test_the_installed_llama_cpp_is_found_without_loading_it() -> None:
    folder = library.folder()
    assert folder is not None
    assert folder.name == "lib"
    assert library.gpu_parts() is not None
