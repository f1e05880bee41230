"""machine/probe.py: a load without data counts the buffers that a real load allocates."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from localspec.fit import memory
from localspec.machine.buffer_log import BufferLog
from localspec.machine.memory_by_device import HOST, DeviceMemory
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.models import synthetic_header
from localspec.models.gguf import header as headers
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import real_loads
from tests.families import FAMILIES, write_ghost
from tests.real_loads import real
from tests.zoo import Zoo

SETTINGS = ContextSettings(n_ctx=2048, n_threads=1)
MIB = 1 << 20


@pytest.fixture(scope="module")
def probe() -> Iterator[MemoryProbe]:
    with MemoryProbe() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def load_command(path: Path, **settings: object) -> LoadCommand:
    return LoadCommand(str(path), target_settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_load_takes_what_was_counted(
    probe: MemoryProbe, folder: Path, name: str, kv_type: str
) -> None:
    """Weights, KV cache and compute buffers as printed by a load with data."""
    path = real(folder, name)
    load = load_command(path, n_gpu_layers=0, kv_type=kv_type)
    target = headers.read(path)
    estimate = memory.estimate_pair(load, target, None, [])
    exact = memory.replace_counted(estimate, load, (target, None), probe.count_buffers(load))
    (used,) = real_loads.load(load).values()
    mine = exact.target.of(HOST)
    assert exact.method == "exact"
    for counted, allocated in zip(astuple(mine), astuple(used), strict=True):
        assert abs(counted - allocated) <= 0.011 * MIB * 2  # printed in 0.01 MiB, on two lines


def test_settings_are_the_engines(probe: MemoryProbe, zoo: Zoo) -> None:
    """A draft has a context no longer than in training."""
    load = LoadCommand(
        str(zoo["target"]), str(zoo["cousin"]), replace(SETTINGS, n_ctx=4096), SETTINGS
    )
    counted = probe.count_buffers(replace(load, draft_settings=ContextSettings()))
    assert counted.draft is not None
    assert counted.target.kv == pytest.approx(4 * counted.draft.kv, rel=0.02)  # 4096 and 1024


def test_a_sliding_window_keeps_no_more_than_it_needs(probe: MemoryProbe, folder: Path) -> None:
    path = real(folder, "gemma3")
    short, long, full = (
        probe.count_buffers(load_command(path, n_ctx=n, swa_full=whole)).target.kv
        for n, whole in ((4096, False), (8192, False), (8192, True))
    )
    assert long < 1.8 * short
    assert full > 2 * long


def test_a_recurrent_draft_is_not_used(probe: MemoryProbe, zoo: Zoo) -> None:
    load = LoadCommand(str(zoo["target"]), str(zoo["recurrent"]), SETTINGS, SETTINGS)
    assert probe.count_buffers(load).draft is None


def test_a_split_model_is_one(probe: MemoryProbe, folder: Path, tmp_path: Path) -> None:
    whole = headers.read(real(folder, "llama"))
    half = len(whole.tensors) // 2
    for number, tensors in enumerate((whole.tensors[:half], whole.tensors[half:])):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(whole.tensors)}
        start = tensors[0].offset
        part = replace(
            whole,
            keys=dict(whole.keys) | keys,
            tensors=tuple(t._replace(offset=t.offset - start) for t in tensors),
        )
        write_ghost(part, "", tmp_path / f"x-{number + 1:05d}-of-00002.gguf")
    parts = probe.count_buffers(load_command(tmp_path / "x-00001-of-00002.gguf"))
    assert parts == probe.count_buffers(load_command(real(folder, "llama")))


# Inputs.


def test_the_cpu_is_listed(probe: MemoryProbe) -> None:
    (cpu,) = [device for device in probe.query_info()["devices"] if device["type"] == "cpu"]
    assert cpu["name"] == HOST
    assert cpu["total"] >= cpu["free"] > 0
    assert cpu["caps"]["mmap_support"] in (True, False)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_ctx": 10**9}, "out of range"),
        ({"kv_type": "q8_0", "flash_attn": "off"}, "requires flash_attn"),
        ({"kv_type": "q9"}, "KV type"),
        ({"tensor_split": (0.0, -1.0)}, "Invalid tensor split"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    probe: MemoryProbe, zoo: Zoo, settings: dict[str, object], match: str
) -> None:
    with pytest.raises(ProbeError, match=match):
        probe.count_buffers(load_command(zoo["target"], **settings))
    probe.count_buffers(load_command(zoo["target"]))


@pytest.mark.parametrize("name", ["absent", "future", "vocabulary-only", "torn"])
def test_a_file_that_cannot_be_is_refused(
    probe: MemoryProbe, zoo: Zoo, tmp_path: Path, name: str
) -> None:
    path = tmp_path / f"{name}.gguf"
    if name == "torn":
        path.write_bytes(zoo["target"].read_bytes()[:5000])
    elif name != "absent":
        path = zoo[name]
    with pytest.raises(ProbeError):
        probe.count_buffers(load_command(path))
    probe.count_buffers(load_command(zoo["target"]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.block_count", 0),
        ("llama.attention.head_count", 0),
        ("llama.embedding_length", 2**31),
        ("llama.attention.head_count_kv", 3),
        ("llama.rope.dimension_count", 7),
        ("llama.expert_count", 5000),
        ("llama.context_length", "long"),
    ],
)
def test_a_hostile_header_kills_no_more_than_the_child(
    probe: MemoryProbe, key: str, value: int | str
) -> None:
    """The next request succeeds."""
    family = FAMILIES["llama"]
    good = synthetic_header.build(family.small, "Q8_0")
    bad = replace(good, keys=dict(good.keys) | {key: value})
    path = probe.write_header_only_file(bad)
    assert key in bad.keys
    try:
        probe.count_buffers(load_command(path))
    except ProbeError as error:
        assert str(error)
    assert probe.count_buffers(load_command(probe.write_header_only_file(good))).target.kv > 0


def _fake_child(body: str) -> Sequence[str]:
    return [
        sys.executable,
        "-c",
        f"import os, sys, time\nprint('{{\"re\": 0}}', flush=True)\n{body}",
    ]


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("sys.stdin.readline(); os.abort()", "crashed"),
        ("sys.stdin.readline(); print('GGML_ASSERT(x) failed', file=sys.stderr); os._exit(1)", "x"),
        ("time.sleep(60)", "no reply from llama.cpp within 1 s"),
        ("sys.stdin.readline(); print('nonsense', flush=True); time.sleep(60)", "invalid reply"),
        ("sys.stdin.readline(); print('[1]', flush=True); time.sleep(60)", "invalid reply"),
    ],
)
def test_a_child_that_fails_is_an_error_with_a_reason(body: str, match: str) -> None:
    with MemoryProbe(lambda: _fake_child(body), timeout=1) as broken:
        for _ in range(2):  # a new process each time
            with pytest.raises(ProbeError, match=match):
                broken.query_info()


# Header-only files.


def test_a_header_only_file_is_sparse_and_deleted_with_the_probe(tmp_path: Path) -> None:
    header = synthetic_header.build(FAMILIES["llama"].full, "Q4_K_M")
    with MemoryProbe() as probe:
        path = probe.write_header_only_file(header)
        assert path == probe.write_header_only_file(header)
        assert path.stat().st_size == header.size > 4 * 10**9
        if sys.platform != "win32":
            assert path.stat().st_blocks * 512 < 1_000_000
        kept = probe.write_header_only_file(header, tmp_path)
    assert not path.exists()
    assert kept.exists()


# The log.


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
    assert on["CUDA0"] == DeviceMemory(round(4403.49 * MIB) + MIB, 72 * MIB, round(258.5 * MIB))
    assert on[HOST] == DeviceMemory(round(281.81 * MIB), 0, round(21.01 * MIB))
    assert log.kv_total == 64 * MIB
