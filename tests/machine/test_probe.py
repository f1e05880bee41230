"""machine/probe.py: a load without data reports the memory that a real load uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.engine.llama.library import C
from localspec.machine import llama_params, simulated_gpu
from localspec.machine.memory_by_device import HOST
from localspec.machine.probe import MemoryProbe, ProbeError
from localspec.machine.probed_model import ModelOpenError, ProbedModel
from localspec.models import synthetic_header
from localspec.models.gguf import header as headers
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import pretend_gpu
from tests.families import FAMILIES, write_ghost
from tests.zoo import Zoo

SETTINGS = ContextSettings(n_ctx=2048, n_threads=1)
MIXTURES = [name for name, family in FAMILIES.items() if family.small.experts]


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
@pytest.mark.parametrize("layers", [None, -1, 0, 1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_header_only_file_needs_the_memory_of_the_model(
    probe: MemoryProbe, folder: Path, name: str, layers: int | None, kv_type: str
) -> None:
    """Exact to the byte, without a GPU and with one that has some of the layers."""
    path = pretend_gpu.real(folder, name)
    devices = pretend_gpu.devices(0 if layers is None else 1)
    load = load_command(path, n_gpu_layers=layers or 0, kv_type=kv_type)
    expected = probe.estimate_memory(load, devices)
    actual, _ = pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    assert expected.target == actual
    assert expected.method == "exact"


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_stay_in_the_computers_memory(probe: MemoryProbe, folder: Path, name: str) -> None:
    path = pretend_gpu.real(folder, name)
    devices = pretend_gpu.devices()
    load = load_command(path, cpu_moe=True)
    expected = probe.estimate_memory(load, devices).target
    assert expected == pretend_gpu.loaded(load, pretend_gpu.cards(devices))[0]
    whole = probe.estimate_memory(load_command(path), devices).target
    experts = sum(t.n_bytes for t in headers.read(path).tensors if "_exps." in t.name)
    assert whole.of("CUDA0").weights - expected.of("CUDA0").weights == pytest.approx(experts, 0.01)
    assert expected.of(HOST).weights - whole.of(HOST).weights == pytest.approx(experts, 0.01)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("layers", [-1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_several_cards(
    probe: MemoryProbe, folder: Path, name: str, layers: int, count: int
) -> None:
    """Exact, except for copies of activations with pipeline parallelism."""
    devices = pretend_gpu.devices(count)
    load = load_command(pretend_gpu.real(folder, name), n_gpu_layers=layers)
    expected = probe.estimate_memory(load, devices)
    actual, _ = pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    for device in (*actual.on, HOST):
        ours, theirs = expected.target.of(device), actual.of(device)
        assert (ours.weights, ours.kv) == (theirs.weights, theirs.kv)
        assert abs(ours.compute - theirs.compute) <= (expected.error if layers < 0 else 0)


def test_a_pair_is_the_sum_of_two(probe: MemoryProbe, folder: Path) -> None:
    target, draft = (pretend_gpu.real(folder, name) for name in ("llama", "llama-tied"))
    devices = pretend_gpu.devices()
    load = LoadCommand(str(target), str(draft), SETTINGS, SETTINGS)
    both = probe.estimate_memory(load, devices)
    assert (both.target, both.draft) == pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    assert both.target == probe.estimate_memory(replace(load, draft=None), devices).target
    assert both.draft is not None
    assert both.of("CUDA0").total == sum(
        model.of("CUDA0").total for model in (both.target, both.draft)
    )


def test_a_draft_is_split_by_what_the_target_leaves(probe: MemoryProbe, folder: Path) -> None:
    """As in llama.cpp: it splits the draft by the memory then free on each GPU."""
    target, draft = (pretend_gpu.real(folder, name) for name in ("llama", "llama-tied"))
    devices = [
        replace(device, free=free, total=free)
        for device, free in zip(pretend_gpu.devices(2), (64 << 20, 24 << 20), strict=True)
    ]
    settings = replace(SETTINGS, tensor_split=(1, 5))
    load = LoadCommand(str(target), str(draft), settings, SETTINGS)
    expected = probe.estimate_memory(load, devices).draft
    actual = pretend_gpu.loaded(load, pretend_gpu.cards(devices))[1]
    assert expected is not None and actual is not None
    for name in ("CUDA0", "CUDA1"):
        assert expected.of(name).weights == actual.of(name).weights


def test_settings_are_the_engines(probe: MemoryProbe, zoo: Zoo) -> None:
    """A draft has one row of logits, and a context no longer than in training."""
    load = LoadCommand(
        str(zoo["target"]), str(zoo["cousin"]), replace(SETTINGS, n_ctx=4096), SETTINGS
    )
    estimate = probe.estimate_memory(replace(load, draft_settings=ContextSettings()))
    n_vocab = headers.read(zoo["target"]).tokenizer.n_tokens
    assert estimate.draft is not None
    assert estimate.target.output == 17 * 4 * n_vocab
    assert estimate.draft.output == 4 * n_vocab
    assert estimate.target.of(HOST).kv == 4 * estimate.draft.of(HOST).kv  # 4096 and 1024


def test_a_sliding_window_keeps_no_more_than_it_needs(probe: MemoryProbe, folder: Path) -> None:
    path = pretend_gpu.real(folder, "gemma3")
    short, long, full = (
        probe.estimate_memory(load_command(path, n_ctx=n, swa_full=whole)).target.of(HOST).kv
        for n, whole in ((4096, False), (8192, False), (8192, True))
    )
    assert long < 1.8 * short
    assert full > 2 * long
    load = LoadCommand(
        str(path), str(path), load_command(path, n_ctx=8192).target_settings, SETTINGS
    )
    draft = probe.estimate_memory(replace(load, draft_settings=load.target_settings)).draft
    assert draft is not None
    assert draft.of(HOST).kv == long


def test_a_recurrent_draft_is_not_used(probe: MemoryProbe, zoo: Zoo) -> None:
    estimate = probe.estimate_memory(
        LoadCommand(str(zoo["target"]), str(zoo["recurrent"]), SETTINGS, SETTINGS)
    )
    assert estimate.draft is None
    assert "not used" in estimate.note


def test_a_split_model_is_one(probe: MemoryProbe, folder: Path, tmp_path: Path) -> None:
    whole = headers.read(pretend_gpu.real(folder, "llama"))
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
    parts = probe.estimate_memory(load_command(tmp_path / "x-00001-of-00002.gguf"))
    assert (
        parts.target
        == probe.estimate_memory(load_command(pretend_gpu.real(folder, "llama"))).target
    )


# Simulated GPUs.


def test_the_selftest_passes_and_is_remembered(tmp_path: Path) -> None:
    with MemoryProbe() as first:
        assert first.can_simulate_gpus()
    with MemoryProbe(lambda: [sys.executable, "-c", ""]) as second:
        assert second.can_simulate_gpus()


def test_a_simulated_gpu_has_the_logits_of_the_cpu(folder: Path) -> None:
    """Equal to the last bit, also with two GPUs: they use the kernels of the CPU.

    Compared without repacking: repacked weights have other kernels, which round differently (by
    0.05 of a logit here).
    """
    path = str(pretend_gpu.real(folder, "llama"))
    logits = []
    for count in (0, 1, 2):
        cards = pretend_gpu.cards(pretend_gpu.devices(count))
        role = llama_params.ModelRole(SETTINGS, 9, 0, repack=False)
        model = ProbedModel(C, path, role, devices=[card.address for card in cards], data=True)
        logits.append(simulated_gpu.read_last_logits(C, model))
        model.close()
        assert [card.used for card in cards] == [0] * count
    assert logits[0]
    for other in logits[1:]:
        assert other == logits[0]


@pytest.mark.parametrize("kib", [64, 1500, 3000])
def test_a_gpu_that_is_too_small_is_an_error(folder: Path, kib: int) -> None:
    """Too small for the weights, for the KV cache, for the compute buffer."""
    path = str(pretend_gpu.real(folder, "llama"))
    (card,) = pretend_gpu.cards(pretend_gpu.devices(1, total=kib * 1024))
    role = llama_params.ModelRole(SETTINGS, 9, 0)
    with pytest.raises(ModelOpenError):
        ProbedModel(C, path, role, devices=[card.address], data=True)
    assert card.used == 0


def test_a_small_simulated_gpu_still_gets_an_estimate(probe: MemoryProbe, folder: Path) -> None:
    load = load_command(pretend_gpu.real(folder, "llama"))
    small = probe.estimate_memory(load, pretend_gpu.devices(1, total=1024)).target
    assert small == probe.estimate_memory(load, pretend_gpu.devices()).target


# Inputs.


def test_the_cpu_is_listed(probe: MemoryProbe) -> None:
    (cpu,) = [device for device in probe.list_devices() if device["type"] == "cpu"]
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
        probe.estimate_memory(load_command(zoo["target"], **settings))
    probe.estimate_memory(load_command(zoo["target"]))


def test_an_unknown_device_is_refused(probe: MemoryProbe, zoo: Zoo) -> None:
    (device,) = pretend_gpu.devices()
    with pytest.raises(ProbeError, match="no device CUDA0"):
        probe.estimate_memory(load_command(zoo["target"]), [replace(device, simulated=False)])


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
        probe.estimate_memory(load_command(path))
    probe.estimate_memory(load_command(zoo["target"]))


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
        probe.estimate_memory(load_command(path))
    except ProbeError as error:
        assert str(error)
    assert probe.estimate_memory(load_command(probe.write_header_only_file(good))).target.total > 0


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
                broken.list_devices()


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


def test_forty_projections_take_less_than_a_second(probe: MemoryProbe) -> None:
    """The advisor needs about as many."""
    path = probe.write_header_only_file(synthetic_header.build(FAMILIES["llama"].full, "Q4_K_M"))
    probe.estimate_memory(load_command(path), pretend_gpu.devices())
    assert probe._child is not None
    child = psutil.Process(probe._child._process.pid)
    cpu_before = sum(child.cpu_times()[:2]) + time.process_time()
    for layers in range(33):
        probe.estimate_memory(load_command(path, n_gpu_layers=layers), pretend_gpu.devices())
    # CPU time, not wall time: other tests may use the cores.
    used = sum(child.cpu_times()[:2]) + time.process_time() - cpu_before
    assert used < 3  # 0.7 s of one core
