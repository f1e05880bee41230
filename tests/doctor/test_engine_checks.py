"""Checks of the llama.cpp build, its threads, and devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.doctor import checks
from localspec.doctor.findings import Finding
from localspec.machine import memory_probe
from localspec.machine.memory_probe import ProbeError


def by_id(found: Iterator[Finding]) -> dict[str, Finding]:
    return {one.id: one for one in found}


def test_the_engine_report_names_versions_library_and_cpu_features() -> None:
    found = by_id(checks.check_engine())
    assert "llama-cpp-python" in found["versions"].what and "libllama" in found["library"].what
    assert found["features"].level == "ok"
    assert found["heads"].what == "can draft with EAGLE-3, MTP, DFlash and DSpark heads"


def test_a_build_that_cannot_run_heads_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    info = memory_probe.LlamaCppInfo((), False, "libllama.so", "", ("llama_get_embeddings_nextn",))
    monkeypatch.setattr(memory_probe, "query_llama_cpp", lambda: info)
    found = by_id(checks.check_engine())["no-heads"]
    assert found.level == "notice" and "lacks llama_get_embeddings_nextn" in found.what
    assert found.fix


def test_a_load_failure_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for why, id_, fix in [
        ("libcudart.so.12: cannot open shared object file", "library-missing", "nvidia-cuda"),
        ("libvulkan.so.1: cannot open shared object file", "library-missing", "Vulkan"),
        ("llama.cpp crashed: exit code -4", "illegal-instruction", "--no-binary"),
        ("ModuleNotFoundError: No module named 'llama_cpp'", "engine-fails", "pip install"),
    ]:

        def broken(why: str = why) -> memory_probe.LlamaCppInfo:
            raise ProbeError(why)

        monkeypatch.setattr(memory_probe, "query_llama_cpp", broken)
        found = by_id(checks.check_engine())[id_]
        assert found.level == "error" and (fix in found.fix or "uv pip install" in found.fix)


def test_a_build_for_another_cpu_is_an_error_before_it_crashes() -> None:
    features = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
    found = by_id(checks._check_cpu_features(features, frozenset({"pni", "avx2", "fma"})))
    assert found["other-cpu"].level == "error" and "lacks: AVX512;" in found["other-cpu"].what
    assert "LLAMAFILE" not in found["other-cpu"].what and "FMA" in found["slow-build"].what
    matching = by_id(checks._check_cpu_features(features, frozenset({"pni", "avx2", "avx512f"})))
    assert set(matching) == {"features"}
    assert set(by_id(checks._check_cpu_features(features, frozenset()))) == {"features"}
