"""The build for a computer and the installed one, with hardware as trees of files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import SystemHardware
from tests.machine.test_cpu_and_ram import grow

GIB = 1 << 30
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan 7 20:01:07 UTC 2025\nGCC 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs)\n"


def amd(memory: int, card: str = "card1") -> dict[str, str]:
    device = f"sys/class/drm/{card}/device"
    return {
        f"{device}/vendor": "0x1002\n",
        f"{device}/mem_info_vram_total": f"{memory}\n",
    }


def silent(command: Sequence[str]) -> str:
    raise AssertionError(f"{command} was started")


def detect(root: Path, run: llama_cpp_builds.RunCommand = silent) -> SystemHardware:
    return llama_cpp_builds.detect_hardware(root, "Linux", "x86_64", run)


WSL = "usr/lib/wsl/lib/nvidia-smi"


def test_nvidias_driver_and_its_oldest_card(tmp_path: Path) -> None:
    for n, (version, device, said, driver, compute) in enumerate(
        (
            (
                NVRM.format("570.86.15"),
                "dev/nvidia0",
                "570.86.15, 8.9",
                "570.86.15",
                8.9,
            ),
            (
                OPEN.format("570.86.15"),
                "dev/nvidia0",
                "a, 8.9\na, 6.1\n",
                "570.86.15",
                6.1,
            ),
            (NVRM.format("535.183.01"), "dev/nvidia0", "", "535.183.01", None),
            (
                NVRM.format("570.86.15"),
                "dev/nvidiactl",
                None,
                None,
                None,
            ),  # a container
            ("", WSL, "566.36, 8.9\n", "566.36", 8.9),
            ("", WSL, "NVIDIA-SMI has failed, because\n[N/A], [N/A]\n", None, None),
        )
    ):
        files = {device: "", "proc/driver/nvidia/version": version}
        run = silent if said is None else lambda _, said=said: said
        hardware = detect(grow(tmp_path / str(n), files), run)
        assert (hardware.nvidia_driver, hardware.compute_capability) == (
            driver,
            compute,
        )


def test_cards_of_amd_and_intel_count_with_memory_of_their_own(tmp_path: Path) -> None:
    assert detect(grow(tmp_path / "apu", amd(GIB // 2))).has_amd is False
    assert detect(grow(tmp_path / "card", amd(16 * GIB))).has_amd is True
    arc = {
        "sys/class/drm/card0/device/vendor": "0x8086",
        "sys/class/drm/card0/lmem_total_bytes": str(12 * GIB),
        "usr/share/vulkan/icd.d/intel_icd.x86_64.json": "{}",
    }
    hardware = detect(grow(tmp_path / "arc", arc))
    assert (hardware.has_intel, hardware.has_vulkan) == (True, True)


def test_the_driver_and_the_card_decide_which_cuda() -> None:
    for driver, compute, system, index in [
        ("580.95.05", 8.9, "Linux", "cu130"),
        ("580.95.05", 6.1, "Linux", "cu125"),  # CUDA 13 knows no Pascal
        ("580.95.05", None, "Linux", "cu125"),
        ("470.256.02", 8.6, "Linux", "cu118"),
        ("470.256.02", 5.2, "Linux", None),
        ("581.15", 8.9, "Windows", "cu130"),
    ]:
        choice = llama_cpp_builds.choose_build(
            SystemHardware(system, "amd64", driver, compute)
        )
        if index is None:
            assert choice.backend == "cpu"
        else:
            assert choice.backend == "cuda" and choice.wheel_index is not None
            assert choice.wheel_index.endswith(f"/{index}")
            assert {name[-4:] for name in choice.libraries} <= {
                "cu11",
                "cu12",
                ",<14",
                "l-py",
            }


def test_what_is_here_decides_which_backend() -> None:
    for hardware, backend in [
        (SystemHardware("Darwin", "arm64"), "metal"),
        (
            SystemHardware(
                "Linux", "x86_64", has_amd=True, has_rocm=True, has_vulkan=True
            ),
            "rocm",
        ),
        (SystemHardware("Linux", "x86_64", has_amd=True, has_vulkan=True), "vulkan"),
        (SystemHardware("Linux", "x86_64", has_intel=True, has_vulkan=True), "vulkan"),
        (
            SystemHardware(
                "Linux", "x86_64", "570.86", 8.9, has_amd=True, has_rocm=True
            ),
            "cuda",
        ),
        (SystemHardware("Linux", "aarch64", "570.86", 8.9), "cpu"),
    ]:
        choice = llama_cpp_builds.choose_build(hardware)
        assert choice.backend == backend and (choice.wheel_index is not None) == (
            backend != "cpu"
        )
        assert choice.reason


@pytest.mark.parametrize("asked", ["gpu", "CUDA", "metal"])
def test_a_build_that_does_not_exist_here_is_refused(asked: str) -> None:
    hardware = SystemHardware("Linux", "x86_64", "570.86", 8.9)
    for chosen in ("cpu", "vulkan"):
        assert llama_cpp_builds.choose_build(hardware, chosen).backend == chosen
    with pytest.raises(ValueError, match="LOCALSPEC_BACKEND"):
        llama_cpp_builds.choose_build(SystemHardware("Linux", "x86_64"), asked)


def test_only_a_wheel_will_do_and_nothing_else_is_touched() -> None:
    choice = llama_cpp_builds.choose_build(
        SystemHardware("Linux", "x86_64", "570.86.15", 8.9)
    )
    command = llama_cpp_builds.wheel_command(choice, "0.3.36", "python", None)
    assert command == [
        *("python", "-m", "pip", "install", "--force-reinstall", "--no-deps"),
        *("--extra-index-url", choice.wheel_index, "--only-binary", "llama-cpp-python"),
        "llama-cpp-python==0.3.36",
    ]
    with_uv = llama_cpp_builds.wheel_command(choice, "0.3.36", "python", "uv")
    assert with_uv[:5] == ["uv", "pip", "install", "--python", "python"]
    assert "--reinstall-package" in with_uv
    # Compiling uses no build from before.
    assert "--no-cache-dir" in llama_cpp_builds.source_command("1", "python", None)
    assert "--no-cache" in llama_cpp_builds.source_command("1", "python", "uv")
