"""A CPU-only build on a computer with a GPU, which is reported until it is dismissed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.doctor import llama_build
from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import RunCommand, SystemHardware

NVIDIA = SystemHardware("Linux", "x86_64", "570.86.15", 8.9)
Computer = Callable[[SystemHardware, str], None]


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    """Simulates a computer with this hardware and these ggml libraries."""

    def simulate(hardware: SystemHardware, libraries: str) -> None:
        folder = tmp_path / "lib"
        folder.mkdir()
        for name in libraries.split():
            (folder / name).touch()
        monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))

        def detect(run: RunCommand | None = None) -> SystemHardware:
            return hardware

        monkeypatch.setattr(llama_cpp_builds, "detect_hardware", detect)

    return simulate


def test_an_unused_gpu_is_reported_with_the_line_that_fixes_it(
    computer: Computer,
) -> None:
    computer(NVIDIA, "libggml.so libggml-base.so libggml-cpu.so libllama.so")
    found = llama_build.find_unused_gpu()
    assert found is not None
    assert (found.id, found.level) == ("cpu-only-build", "warning")
    assert "NVIDIA driver (570.86.15)" in found.what
    assert "\n" not in found.fix
    assert "cuda" in found.fix or "cu125" in found.fix


@pytest.mark.parametrize(
    ("hardware", "libraries"),
    [
        (NVIDIA, "libggml-base.so libggml-cpu.so libggml-cuda.so"),
        # The backends of a single library are unknown.
        (NVIDIA, "libllama.so"),
        (SystemHardware("Linux", "x86_64"), "libggml-base.so libggml-cpu.so"),
        (SystemHardware("Darwin", "arm64"), "libggml-base.dylib libggml-metal.dylib"),
        # No GPU build supports this driver.
        (SystemHardware("Linux", "x86_64", "390.157", 6.1), "libggml-base.so"),
    ],
)
def test_a_suitable_build_is_not_reported(
    computer: Computer, hardware: SystemHardware, libraries: str
) -> None:
    computer(hardware, libraries)
    assert llama_build.find_unused_gpu() is None


def test_a_dismissed_finding_is_reported_by_doctor_only(
    computer: Computer, tmp_path: Path
) -> None:
    computer(NVIDIA, "libggml-base.so libggml-cpu.so")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dismissed.json").write_text("{no")
    assert llama_build.find_unused_gpu() is not None, "a damaged file counts as empty"
    llama_build.dismiss()
    assert llama_build.find_unused_gpu() is None
    assert llama_build.find_mismatch() is not None


def test_a_finding_stays_dismissed_beside_a_wrong_item(
    computer: Computer, tmp_path: Path
) -> None:
    computer(NVIDIA, "libggml-base.so libggml-cpu.so")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dismissed.json").write_text(
        f'[null, "{llama_build.CPU_ONLY}"]'
    )
    assert llama_build.find_unused_gpu() is None
