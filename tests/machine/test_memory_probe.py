"""A load without data counts the buffers that a real load allocates."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import astuple, replace

from localspec.machine import memory_probe
from localspec.machine.device import HOST, BufferLog, DeviceMemory
from localspec.machine.memory_probe import PairBuffers, ProbeError
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import real_loads, shapes, synthetic_header
from tests.support.families import FAMILIES, write_ghost
from tests.support.real_loads import real

SETTINGS = ContextSettings(n_ctx=2048, n_threads=1)
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def load_command(path: Path, **settings: object) -> LoadCommand:
    return LoadCommand(str(path), target_settings=replace(SETTINGS, **settings))


def count(load: LoadCommand) -> PairBuffers:
    """Of local files."""
    draft = reader.read_model(Path(load.draft)) if load.draft else None
    return memory_probe.count_buffers(load, reader.read_model(Path(load.target)), draft)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_load_takes_what_was_counted(folder: Path, name: str) -> None:
    """Weights, KV cache and compute buffers as printed by a load with data."""
    path = real(folder, name)
    target = reader.read(path)
    loads = [
        load_command(path, n_gpu_layers=0, kv_type=kv_type)
        for kv_type in ("f16", "q8_0")
    ]
    counts = [memory_probe.count_buffers(load, target) for load in loads]
    for load, counted in zip(loads, counts, strict=True):
        estimate = shapes.estimate_pair(load, target, None, [])
        exact = shapes.replace_counted(estimate, load, (target, None), counted)
        (used,) = real_loads.load(load).values()
        mine = exact.target.of(HOST)
        assert exact.method == "exact"
        for foretold, allocated in zip(
            astuple(mine)[:3], astuple(used)[:3], strict=True
        ):
            # printed in 0.01 MiB, two lines
            assert abs(foretold - allocated) <= 0.011 * MIB * 2


def test_a_split_model_is_one(folder: Path, tmp_path: Path) -> None:
    whole = reader.read(real(folder, "llama"))
    half = len(whole.tensors) // 2
    for number, tensors in enumerate((whole.tensors[:half], whole.tensors[half:])):
        keys = {
            "split.no": number,
            "split.count": 2,
            "split.tensors.count": len(whole.tensors),
        }
        start = tensors[0].offset
        part = replace(
            whole,
            keys=dict(whole.keys) | keys,
            tensors=tuple(t._replace(offset=t.offset - start) for t in tensors),
        )
        write_ghost(part, "", tmp_path / f"x-{number + 1:05d}-of-00002.gguf")
    parts = count(load_command(tmp_path / "x-00001-of-00002.gguf"))
    assert parts == count(load_command(real(folder, "llama")))


def test_a_hostile_header_kills_no_more_than_the_child() -> None:
    good = synthetic_header.build(FAMILIES["llama"].small, "Q8_0")
    for key, value in (
        ("llama.block_count", 0),
        ("llama.embedding_length", 2**31),
        ("llama.rope.dimension_count", 7),
        ("llama.context_length", "long"),
    ):
        assert key in good.keys or "expert" in key
        bad = replace(good, keys=dict(good.keys) | {key: value})
        try:
            memory_probe.count_buffers(load_command(Path("x")), bad)
        except ProbeError as error:
            assert str(error)


def test_a_child_that_fails_is_an_error_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for body, match in (
        ("sys.stdin.readline(); os.abort()", "crashed"),
        ("print('GGML_ASSERT(x) failed', file=sys.stderr); os._exit(1)", "x"),
        ("print('nonsense', flush=True)", "invalid reply"),
        ("print('[1]', flush=True)", "invalid reply"),
        ("print('{\"devices\": 1}', flush=True)", "invalid reply"),
        ("time.sleep(60)", "no reply from llama.cpp within 0.2 s"),
    ):
        if "sleep" in body:
            monkeypatch.setattr(memory_probe, "_START_SECONDS", 0.1)
            monkeypatch.setattr(memory_probe, "_REPLY_SECONDS", 0.1)
        code = f"import os, sys, time; {body}"
        monkeypatch.setattr(
            memory_probe, "_command", lambda code=code: [sys.executable, "-c", code]
        )
        with pytest.raises(ProbeError, match=match):
            memory_probe.query_llama_cpp()


def small_model() -> Header:
    return synthetic_header.build(FAMILIES["llama"].small, "Q8_0")


def warm_child() -> subprocess.Popen[bytes]:
    process = memory_probe._probe._process
    assert process is not None
    return process


def test_one_child_answers_setting_after_setting() -> None:
    model = small_model()
    first = memory_probe.count_buffers(load_command(Path("x")), model)
    pid = warm_child().pid
    larger = memory_probe.count_buffers(load_command(Path("x"), n_ctx=4096), model)
    assert warm_child().pid == pid
    assert larger.target.kv == 2 * first.target.kv


def test_an_answer_is_given_again_without_the_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_model()
    first = memory_probe.count_buffers(load_command(Path("x")), model)

    def fail(*_: object) -> None:
        raise AssertionError("the child was asked again")

    monkeypatch.setattr(memory_probe._probe, "ask", fail)
    assert memory_probe.count_buffers(load_command(Path("x")), model) == first


def test_a_child_that_was_killed_is_started_again() -> None:
    model = small_model()
    memory_probe.count_buffers(load_command(Path("x")), model)
    child = warm_child()
    child.kill()
    child.wait()
    counted = memory_probe.count_buffers(load_command(Path("x"), n_ctx=512), model)
    assert counted.target.kv > 0
    assert warm_child().pid != child.pid


def test_a_child_without_requests_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU's driver holds memory for it."""
    code = (
        "import sys; from localspec.machine import memory_probe_child as child; "
        "child._IDLE_SECONDS = 0.2; sys.argv = ['', '0']; child.main()"
    )
    monkeypatch.setattr(memory_probe, "_command", lambda: [sys.executable, "-c", code])
    memory_probe.query_llama_cpp()
    assert warm_child().wait(timeout=60) == 0


def test_ending_the_child_forgets_its_answers() -> None:
    memory_probe.count_buffers(load_command(Path("x")), small_model())
    child = warm_child()
    memory_probe.close()
    assert child.poll() is not None
    assert memory_probe._probe._process is None


def test_buffers_of_the_log_are_counted_by_device() -> None:
    log = BufferLog()
    for line in (
        "load_tensors:   CPU_Mapped model buffer size =   281.81 MiB",
        "load_tensors:        CUDA0 model buffer size =  4403.49 MiB",
        "load_tensors:        CUDA0 model buffer size =     1.00 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.49 MiB",
        "llama_kv_cache:      CUDA0 KV buffer size =    64.00 MiB",
        "llama_kv_cache: size =   64.00 MiB (   512 cells,  32 layers,  1/1 seqs)",
        "llama_memory_recurrent:      CUDA0 RS buffer size =     6.00 MiB",
        "llama_kv_cache_dsv4:      CUDA0 DSV4 csa state buffer size =     2.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   100.00 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   258.50 MiB",
        "sched_reserve:  CUDA_Host compute buffer size =    21.01 MiB",
        "llama_model_loader: - kv  17:  llama.vocab_size u32 = 1",
        # texts of a hostile file
        "llama_model_loader: - kv   0: general.name str = CPU model buffer size = 9999.00 MiB",
        "print_info: BOS token        = 1 'CPU model buffer size = 9999.00 MiB'",
    ):
        log.read(line)
    on = log.by_device()
    assert set(on) == {HOST, "CUDA0"}
    assert on["CUDA0"] == DeviceMemory(
        round(4403.49 * MIB) + MIB, 72 * MIB, round(258.5 * MIB)
    )
    assert on[HOST] == DeviceMemory(round(281.81 * MIB), 0, round(21.01 * MIB))
    assert log.kv_total == 64 * MIB
