"""doctor/: the findings of each check, and that they are safe to share."""

from __future__ import annotations

import getpass
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from localspec import paths
from localspec.doctor import checks, engine_checks
from localspec.doctor.findings import Finding, redact
from localspec.machine import ggml, memory_probe
from localspec.machine.device import Device
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.machine.memory_probe import ProbeError
from localspec.protocol.wire import LoadCommand, MeasuredCosts
from tests.support.zoo import Zoo


def by_id(found: Iterator[Finding]) -> dict[str, Finding]:
    return {one.id: one for one in found}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config" / "config.toml"))
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


# --- safe to share ------------------------------------------------------------------------


def test_home_and_name_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    what = "/home/ann/.cache and /home/ann, /media/ann/disk, /home/anna/x, \x1b[31mred"
    shown = redact(Finding("x", "disk", "ok", what, "'/home/ann/my venv/bin/python' -m pip"))
    assert shown.what == "~/.cache and ~, /media/<user>/disk, /home/anna/x, red"
    assert shown.fix == "'~/my venv/bin/python' -m pip"


def test_an_exception_in_a_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("first", "disk", "ok", "well")
        raise RuntimeError("no disk today")

    monkeypatch.setattr(checks, "AREAS", {"disk": broken})
    first, failed = checks.run_checks()
    assert (first.id, failed.id, failed.level) == ("first", "failed", "error")
    assert "no disk today" in failed.what


def test_a_token_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    monkeypatch.setenv("HF_ENDPOINT", "https://ann:password@mirror.example:8443/x?key=1")
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:password@proxy.example")
    shown = repr(checks.run_checks())
    assert "secret" not in shown
    assert "password" not in shown
    assert "https://mirror.example:8443 instead of huggingface.co" in shown


def test_every_finding_has_a_level_an_area_and_one_line() -> None:
    found = checks.run_checks()
    assert {one.area for one in found} == set(checks.AREAS)
    for one in found:
        assert one.what and "\n" not in one.what + one.fix
        assert one.level == "ok" or one.fix or one.level == "notice"
    assert "failed" not in {one.id for one in found}


# --- engine -------------------------------------------------------------------------------


def test_the_engine_report_names_versions_library_and_cpu_features() -> None:
    found = by_id(engine_checks.check_engine())
    assert "llama-cpp-python" in found["versions"].what
    assert "libllama" in found["library"].what
    assert found["features"].level == "ok"
    assert found["heads"].what == "can draft with EAGLE-3, MTP, DFlash and DSpark heads"


def test_thread_counts_are_told_with_their_reason(tmp_path: Path) -> None:
    found = engine_checks._describe_threads()
    assert "until a model is measured" in found
    (tmp_path / "target.gguf").write_bytes(b"")
    store = MeasurementStore(paths.data_dir() / "measured.sqlite")
    key = make_key(LoadCommand(str(tmp_path / "target.gguf")))
    store.write_costs(key, MeasuredCosts(1.0, {"1": 1.0}, threads=3, threads_batch=4))
    found = engine_checks._describe_threads()
    assert "3 a token, 4 for prompts and drafts (measured)" in found


def test_a_build_that_cannot_run_heads_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    info = memory_probe.LlamaCppInfo((), False, "libllama.so", "", ("llama_get_embeddings_nextn",))
    monkeypatch.setattr(memory_probe, "query_llama_cpp", lambda: info)
    found = by_id(engine_checks.check_engine())["no-heads"]
    assert found.level == "notice" and "lacks llama_get_embeddings_nextn" in found.what
    assert found.fix


def test_functions_that_a_build_lacks_are_named() -> None:
    from localspec.engine.llama.library import C  # noqa: PLC0415

    assert ggml.list_missing_head_functions(C._lib) == []
    assert ggml.list_missing_head_functions(object()) == list(ggml.HEAD_FUNCTIONS)


@pytest.mark.parametrize(
    ("why", "id_", "fix"),
    [
        ("libcudart.so.12: cannot open shared object file", "library-missing", "nvidia-cuda"),
        ("libamdhip64.so.7: cannot open shared object file", "library-missing", "ROCm"),
        ("libvulkan.so.1: cannot open shared object file", "library-missing", "Vulkan"),
        ("llama.cpp crashed: exit code -4", "illegal-instruction", "--no-binary"),
        ("llama.cpp crashed: exit code 3221225501", "illegal-instruction", "--no-binary"),
        ("ModuleNotFoundError: No module named 'llama_cpp'", "engine-fails", "pip install"),
    ],
)
def test_a_load_failure_names_what_to_install(
    why: str, id_: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> memory_probe.LlamaCppInfo:
        raise ProbeError(why)

    monkeypatch.setattr(memory_probe, "query_llama_cpp", broken)
    found = by_id(engine_checks.check_engine())[id_]
    assert found.level == "error"
    assert fix in found.fix or "uv pip install" in found.fix


def test_a_build_for_another_cpu_is_an_error_before_it_crashes() -> None:
    features = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | LLAMAFILE = 1 | REPACK = 1 |"
    found = by_id(engine_checks._check_cpu_features(features, frozenset({"pni", "avx2", "fma"})))
    assert found["other-cpu"].level == "error"
    assert "lacks: AVX512;" in found["other-cpu"].what
    assert "LLAMAFILE" not in found["other-cpu"].what
    assert "FMA" in found["slow-build"].what
    matching = by_id(
        engine_checks._check_cpu_features(features, frozenset({"pni", "avx2", "avx512f"}))
    )
    assert set(matching) == {"features"}
    assert set(by_id(engine_checks._check_cpu_features(features, frozenset()))) == {"features"}


def test_cpu_flags_are_read_from_proc_cpuinfo(tmp_path: Path) -> None:
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor\t: 0\nflags\t\t: fpu pni avx2\nbugs : x\n")
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    assert engine_checks._read_cpu_flags(x86) == {"fpu", "pni", "avx2"}
    assert "asimddp" in engine_checks._read_cpu_flags(arm)
    assert engine_checks._read_cpu_flags(tmp_path / "none") == frozenset()


def test_a_device_is_described_with_memory_users_display_and_driver() -> None:
    gib = 1 << 30
    card = Device("CUDA0", "NVIDIA GeForce RTX 4090", free=20 * gib, total=24 * gib)
    assert (
        engine_checks._format_device(card)
        == "CUDA0 NVIDIA GeForce RTX 4090: 20.0 GiB of 24.0 GiB free"
    )
    assert "unknown of unknown" in engine_checks._format_device(Device("Vulkan0"))
    used = Device(
        "CUDA0", free=gib, total=gib, used_by_others=gib, drives_display=True, driver="570"
    )
    assert (
        "1.00 GiB used by other programs, drives the display, driver 570"
        in engine_checks._format_device(used)
    )


# --- disk ---------------------------------------------------------------------------------


def test_folders_free_space_and_a_damaged_config(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("[screen")
    found = by_id(checks.check_disk())
    assert found["cache"].level == "ok"
    assert {"room", "little-room"} & set(found)
    assert found["config-damaged"].level == "error"


def test_a_cache_that_is_not_writable_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "file" / "below"))
    found = by_id(checks.check_disk())
    assert found["cache-refused"].fix
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "absent"))
    assert "models-folder" in by_id(checks.check_disk())


def test_incomplete_downloads_are_counted(tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--ann--m" / "blobs"
    blobs.mkdir(parents=True)
    part = blobs / ("a" * 64 + ".localspec.part")
    part.write_bytes(b"x" * 20_000_000)
    os.utime(part, (1, 1))
    found = by_id(checks.check_disk())
    assert found["leftovers"].what.startswith("20 MB in 1 incomplete download")
    assert list(blobs.parent.parent.glob(".localspec-*")) == []


# --- network ------------------------------------------------------------------------------


def test_network_settings(tmp_path: Path) -> None:
    def check(**environ: str) -> Mapping[str, Finding]:
        return by_id(checks.check_network({"HF_HOME": str(tmp_path), **environ}))

    assert set(check()) == {"endpoint", "no-token"}
    assert check(HF_HUB_OFFLINE="1")["offline"].level == "notice"
    assert "offline" not in check(HF_HUB_OFFLINE="0")
    option = check(HF_HUB_OFFLINE="1", LOCALSPEC_OPTION_HF_HUB_OFFLINE="--offline")["offline"]
    assert (option.what, option.fix) == (
        "offline: --offline was given",
        "leave it out, to download models",
    )
    assert check(HF_ENDPOINT="mirror")["endpoint-wrong"].level == "warning"
    assert check(HF_ENDPOINT="http://[half")["endpoint-wrong"].fix
    assert check(https_proxy="http://p")["proxy"].level == "ok"
    (tmp_path / "token").write_text("hf_x")
    assert check()["token"].what == f"hub token in {tmp_path / 'token'}"


# --- terminal -----------------------------------------------------------------------------


class FakeTerminal(io.StringIO):
    """Standard output with an encoding, on a terminal or not."""

    def __init__(self, name: str = "utf-8", tty: bool = True) -> None:
        super().__init__()
        self._name, self._tty = name, tty

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name

    def isatty(self) -> bool:
        return self._tty


def test_terminal_size_colours_and_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(terminal: FakeTerminal, **environ: str) -> dict[str, Finding]:
        return by_id(checks.check_terminal(environ, terminal))

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    found = check(FakeTerminal(), TERM="xterm-256color", TMUX="x", SSH_TTY="y")
    assert found["terminal"].what == "xterm-256color, 256 colours, in tmux, over SSH"
    assert found["small"].level == "notice"
    assert "pipe" in check(FakeTerminal(tty=False))["terminal"].what
    assert "small" not in check(FakeTerminal(tty=False))
    assert check(FakeTerminal("ascii"))["no-unicode"].level == "warning"
    assert check(FakeTerminal("UTF8"))["unicode"].level == "ok"
    assert "dumb" in check(FakeTerminal(), TERM="dumb")
    assert "NO_COLOR" in check(FakeTerminal(), NO_COLOR="1", TERM="x")["terminal"].what


# --- models -------------------------------------------------------------------------------


def test_unreadable_models_are_named(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    assert by_id(checks.check_models())["models"].what == "none installed"
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 200)
    found = by_id(checks.check_models())
    assert found["models"].what.startswith("1 installed, ")
    assert "broken.gguf" in found["unreadable"].what
