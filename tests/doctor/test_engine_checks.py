"""Checks of the llama.cpp build, its threads, and devices."""

from pathlib import Path

import pytest

from localspec import paths
from localspec.doctor import checks
from localspec.doctor.findings import Finding
from localspec.machine import memory_probe
from localspec.machine.device import Device
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.machine.memory_probe import ProbeError
from localspec.protocol.wire import LoadCommand, MeasuredCosts
from tests.doctor.test_checks import by_id


def test_a_build_that_cannot_run_heads_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = memory_probe.LlamaCppInfo(
        devices=(),
        supports_gpu_offload=False,
        library_path="libllama.so",
        missing_head_functions=("llama_get_embeddings_nextn",),
    )
    monkeypatch.setattr(memory_probe, "query_llama_cpp", lambda: info)
    found = by_id(checks.check_engine())["no-heads"]
    assert found.level == "notice"
    assert "lacks llama_get_embeddings_nextn" in found.what
    assert found.fix


@pytest.mark.parametrize(
    ("error", "finding", "fix"),
    [
        (
            "libcudart.so.12: cannot open shared object file",
            "library-missing",
            "nvidia-cuda",
        ),
        ("libvulkan.so.1: cannot open shared object file", "library-missing", "Vulkan"),
        ("llama.cpp crashed: exit code -4", "illegal-instruction", "--no-binary"),
        (
            "ModuleNotFoundError: No module named 'llama_cpp'",
            "engine-fails",
            "pip install",
        ),
    ],
)
def test_a_load_failure_names_what_to_install(
    error: str, finding: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> memory_probe.LlamaCppInfo:
        raise ProbeError(error)

    monkeypatch.setattr(memory_probe, "query_llama_cpp", fail)
    found = by_id(checks.check_engine())[finding]
    assert found.level == "error"
    assert fix in found.fix or "uv pip install" in found.fix


FEATURES = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
"""What llama.cpp says of a build; the last two are no features of a CPU."""


def check_cpu(*flags: str) -> dict[str, Finding]:
    return by_id(checks._check_cpu_features(FEATURES, frozenset(flags)))


def test_a_build_for_another_cpu_is_an_error_before_it_crashes() -> None:
    other_cpu = check_cpu("pni", "avx2", "fma")["other-cpu"]
    assert other_cpu.level == "error"
    assert "lacks: AVX512;" in other_cpu.what
    assert "LLAMAFILE" not in other_cpu.what


def test_a_build_that_leaves_features_unused_is_slow() -> None:
    assert "FMA" in check_cpu("pni", "avx2", "fma")["slow-build"].what


def test_a_build_that_matches_its_cpu_has_no_problem() -> None:
    assert set(check_cpu("pni", "avx2", "avx512f")) == {"features"}


def test_nothing_is_said_of_a_cpu_whose_features_are_unknown() -> None:
    assert set(check_cpu()) == {"features"}


def test_thread_counts_are_shown_with_their_reason(tmp_path: Path) -> None:
    assert "until a model is measured" in checks._describe_threads()
    (tmp_path / "target.gguf").write_bytes(b"")
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    key = make_key(LoadCommand(str(tmp_path / "target.gguf")))
    store.write_costs(key, MeasuredCosts(1.0, {"1": 1.0}, threads=3, threads_batch=4))
    described = checks._describe_threads()
    assert "3 a token, 4 for prompts and drafts (measured)" in described


GIB = 1 << 30


def test_a_device_is_described_by_its_memory() -> None:
    card = Device("CUDA0", "NVIDIA GeForce RTX 4090", free=20 * GIB, total=24 * GIB)
    described = checks._format_device(card)
    assert described == "CUDA0 NVIDIA GeForce RTX 4090: 20.0 GB of 24.0 GB free"
    assert "unknown of unknown" in checks._format_device(Device("Vulkan0"))


def test_a_device_is_described_by_what_uses_it() -> None:
    used = Device(
        "CUDA0",
        free=GIB,
        total=GIB,
        used_by_others=GIB,
        drives_display=True,
        driver="570",
    )
    facts = "1.0 GB used by other programs, drives the display, driver 570"
    assert facts in checks._format_device(used)
