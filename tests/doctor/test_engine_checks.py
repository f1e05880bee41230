"""Checks of the llama.cpp build, its threads, and devices."""

from pathlib import Path

import pytest

from localspec import paths
from localspec.doctor import checks
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
        (), False, "libllama.so", "", ("llama_get_embeddings_nextn",)
    )
    monkeypatch.setattr(memory_probe, "query_llama_cpp", lambda: info)
    found = by_id(checks.check_engine())["no-heads"]
    assert found.level == "notice" and "lacks llama_get_embeddings_nextn" in found.what
    assert found.fix


def test_a_load_failure_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for why, id_, fix in [
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
    ]:

        def broken(why: str = why) -> memory_probe.LlamaCppInfo:
            raise ProbeError(why)

        monkeypatch.setattr(memory_probe, "query_llama_cpp", broken)
        found = by_id(checks.check_engine())[id_]
        assert found.level == "error" and (
            fix in found.fix or "uv pip install" in found.fix
        )


def test_a_build_for_another_cpu_is_an_error_before_it_crashes() -> None:
    features = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
    found = by_id(
        checks._check_cpu_features(features, frozenset({"pni", "avx2", "fma"}))
    )
    assert (
        found["other-cpu"].level == "error"
        and "lacks: AVX512;" in found["other-cpu"].what
    )
    assert (
        "LLAMAFILE" not in found["other-cpu"].what and "FMA" in found["slow-build"].what
    )
    matching = by_id(
        checks._check_cpu_features(features, frozenset({"pni", "avx2", "avx512f"}))
    )
    assert set(matching) == {"features"}
    assert set(by_id(checks._check_cpu_features(features, frozenset()))) == {"features"}


def test_thread_counts_are_told_with_their_reason(tmp_path: Path) -> None:
    found = checks._describe_threads()
    assert "until a model is measured" in found
    (tmp_path / "target.gguf").write_bytes(b"")
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    key = make_key(LoadCommand(str(tmp_path / "target.gguf")))
    store.write_costs(key, MeasuredCosts(1.0, {"1": 1.0}, threads=3, threads_batch=4))
    found = checks._describe_threads()
    assert "3 a token, 4 for prompts and drafts (measured)" in found


def test_a_device_is_described_with_memory_users_display_and_driver() -> None:
    gib = 1 << 30
    card = Device("CUDA0", "NVIDIA GeForce RTX 4090", free=20 * gib, total=24 * gib)
    assert (
        checks._format_device(card)
        == "CUDA0 NVIDIA GeForce RTX 4090: 20.0 GiB of 24.0 GiB free"
    )
    assert "unknown of unknown" in checks._format_device(Device("Vulkan0"))
    used = Device(
        "CUDA0",
        free=gib,
        total=gib,
        used_by_others=gib,
        drives_display=True,
        driver="570",
    )
    assert (
        "1.00 GiB used by other programs, drives the display, driver 570"
        in checks._format_device(used)
    )
