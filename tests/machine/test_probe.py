"""The exact path: what a load without data promises is what a real one takes."""

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


def one(path: Path, **settings: object) -> LoadCommand:
    return LoadCommand(str(path), target_settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]


# --- the promise ------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("layers", [None, -1, 0, 1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_ghost_takes_what_the_model_takes(
    probe: MemoryProbe, folder: Path, name: str, layers: int | None, kv_type: str
) -> None:
    """Byte for byte; without a card, and with one that has some of the layers."""
    path = pretend_gpu.real(folder, name)
    devices = pretend_gpu.devices(0 if layers is None else 1)
    load = one(path, n_gpu_layers=layers or 0, kv_type=kv_type)
    promised = probe.estimate_memory(load, devices)
    taken, _ = pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    assert promised.target == taken
    assert promised.method == "exact"


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_stay_in_the_computers_memory(probe: MemoryProbe, folder: Path, name: str) -> None:
    path = pretend_gpu.real(folder, name)
    devices = pretend_gpu.devices()
    load = one(path, cpu_moe=True)
    promised = probe.estimate_memory(load, devices).target
    assert promised == pretend_gpu.loaded(load, pretend_gpu.cards(devices))[0]
    whole = probe.estimate_memory(one(path), devices).target
    experts = sum(t.n_bytes for t in headers.read(path).tensors if "_exps." in t.name)
    assert whole.of("CUDA0").weights - promised.of("CUDA0").weights == pytest.approx(experts, 0.01)
    assert promised.of(HOST).weights - whole.of(HOST).weights == pytest.approx(experts, 0.01)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("layers", [-1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_several_cards(
    probe: MemoryProbe, folder: Path, name: str, layers: int, count: int
) -> None:
    """Exact but for the copies of activations where all layers are on cards that take turns."""
    devices = pretend_gpu.devices(count)
    load = one(pretend_gpu.real(folder, name), n_gpu_layers=layers)
    promised = probe.estimate_memory(load, devices)
    taken, _ = pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    for device in (*taken.on, HOST):
        ours, theirs = promised.target.of(device), taken.of(device)
        assert (ours.weights, ours.kv) == (theirs.weights, theirs.kv)
        assert abs(ours.compute - theirs.compute) <= (promised.error if layers < 0 else 0)


def test_a_pair_is_the_sum_of_two(probe: MemoryProbe, folder: Path) -> None:
    target, draft = (pretend_gpu.real(folder, name) for name in ("llama", "llama-tied"))
    devices = pretend_gpu.devices()
    load = LoadCommand(str(target), str(draft), SETTINGS, SETTINGS)
    both = probe.estimate_memory(load, devices)
    assert (both.target, both.draft) == pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    assert both.target == probe.estimate_memory(replace(load, draft=None), devices).target
    assert both.draft is not None
    assert both.of("CUDA0").total == sum(
        ledger.of("CUDA0").total for ledger in (both.target, both.draft)
    )


def test_a_draft_is_split_by_what_the_target_leaves(probe: MemoryProbe, folder: Path) -> None:
    """As llama.cpp does: it asks each card what is free when the draft comes."""
    target, draft = (pretend_gpu.real(folder, name) for name in ("llama", "llama-tied"))
    devices = [
        replace(device, free=free, total=free)
        for device, free in zip(pretend_gpu.devices(2), (64 << 20, 24 << 20), strict=True)
    ]
    settings = replace(SETTINGS, tensor_split=(1, 5))
    load = LoadCommand(str(target), str(draft), settings, SETTINGS)
    promised = probe.estimate_memory(load, devices).draft
    taken = pretend_gpu.loaded(load, pretend_gpu.cards(devices))[1]
    assert promised is not None and taken is not None
    for name in ("CUDA0", "CUDA1"):
        assert promised.of(name).weights == taken.of(name).weights


def test_settings_are_the_engines(probe: MemoryProbe, zoo: Zoo) -> None:
    """A draft has one row of logits and no longer a context than it was trained with."""
    load = LoadCommand(
        str(zoo["target"]), str(zoo["cousin"]), replace(SETTINGS, n_ctx=4096), SETTINGS
    )
    told = probe.estimate_memory(replace(load, draft_settings=ContextSettings()))
    n_vocab = headers.read(zoo["target"]).tokenizer.n_tokens
    assert told.draft is not None
    assert told.target.output == 17 * 4 * n_vocab
    assert told.draft.output == 4 * n_vocab
    assert told.target.of(HOST).kv == 4 * told.draft.of(HOST).kv  # 4096 and 1024


def test_a_sliding_window_keeps_no_more_than_it_needs(probe: MemoryProbe, folder: Path) -> None:
    path = pretend_gpu.real(folder, "gemma3")
    short, long, full = (
        probe.estimate_memory(one(path, n_ctx=n, swa_full=whole)).target.of(HOST).kv
        for n, whole in ((4096, False), (8192, False), (8192, True))
    )
    assert long < 1.8 * short
    assert full > 2 * long
    load = LoadCommand(str(path), str(path), one(path, n_ctx=8192).target_settings, SETTINGS)
    draft = probe.estimate_memory(replace(load, draft_settings=load.target_settings)).draft
    assert draft is not None
    assert draft.of(HOST).kv == long


def test_a_recurrent_draft_is_not_kept(probe: MemoryProbe, zoo: Zoo) -> None:
    told = probe.estimate_memory(
        LoadCommand(str(zoo["target"]), str(zoo["recurrent"]), SETTINGS, SETTINGS)
    )
    assert told.draft is None
    assert "not kept" in told.note


def test_a_split_model_is_one(probe: MemoryProbe, folder: Path, tmp_path: Path) -> None:
    whole = headers.read(pretend_gpu.real(folder, "llama"))
    half = len(whole.tensors) // 2
    for number, tensors in enumerate((whole.tensors[:half], whole.tensors[half:])):
        keys = {"split.no": number, "split.count": 2, "split.tensors.count": len(whole.tensors)}
        begins = tensors[0].offset
        part = replace(
            whole,
            keys=dict(whole.keys) | keys,
            tensors=tuple(t._replace(offset=t.offset - begins) for t in tensors),
        )
        write_ghost(part, "", tmp_path / f"x-{number + 1:05d}-of-00002.gguf")
    parts = probe.estimate_memory(one(tmp_path / "x-00001-of-00002.gguf"))
    assert parts.target == probe.estimate_memory(one(pretend_gpu.real(folder, "llama"))).target


# --- cards that are not here -----------------------------------------------------------------


def test_the_selftest_passes_and_is_remembered(tmp_path: Path) -> None:
    with MemoryProbe() as first:
        assert first.can_simulate_gpus()
    with MemoryProbe(lambda: [sys.executable, "-c", ""]) as second:
        assert second.can_simulate_gpus()


def test_a_pretend_card_says_what_the_cpu_says(folder: Path) -> None:
    """To the last bit, and so do two that take turns: they use the CPU's kernels.

    Compared with a CPU that does not repack: repacked weights have kernels of their own, which
    round otherwise (5 hundredths of a logit here).
    """
    path = str(pretend_gpu.real(folder, "llama"))
    said = []
    for count in (0, 1, 2):
        cards = pretend_gpu.cards(pretend_gpu.devices(count))
        role = llama_params.ModelRole(SETTINGS, 9, 0, repack=False)
        model = ProbedModel(C, path, role, devices=[card.address for card in cards], data=True)
        said.append(simulated_gpu.read_last_logits(C, model))
        model.close()
        assert [card.used for card in cards] == [0] * count
    assert said[0]
    for other in said[1:]:
        assert other == said[0]


@pytest.mark.parametrize("kib", [64, 1500, 3000])
def test_too_small_a_card_is_said_not_died_of(folder: Path, kib: int) -> None:
    """Weights that do not fit, a cache that does not, a graph that does not."""
    path = str(pretend_gpu.real(folder, "llama"))
    (card,) = pretend_gpu.cards(pretend_gpu.devices(1, total=kib * 1024))
    role = llama_params.ModelRole(SETTINGS, 9, 0)
    with pytest.raises(ModelOpenError):
        ProbedModel(C, path, role, devices=[card.address], data=True)
    assert card.used == 0


def test_a_small_pretend_card_still_gets_a_projection(probe: MemoryProbe, folder: Path) -> None:
    load = one(pretend_gpu.real(folder, "llama"))
    small = probe.estimate_memory(load, pretend_gpu.devices(1, total=1024)).target
    assert small == probe.estimate_memory(load, pretend_gpu.devices()).target


# --- what it is given -------------------------------------------------------------------------


def test_the_cpu_is_listed(probe: MemoryProbe) -> None:
    (cpu,) = [device for device in probe.list_devices() if device["type"] == "cpu"]
    assert cpu["name"] == HOST
    assert cpu["total"] >= cpu["free"] > 0
    assert cpu["caps"]["mmap_support"] in (True, False)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"n_ctx": 10**9}, "makes no sense"),
        ({"kv_type": "q8_0", "flash_attn": "off"}, "requires flash_attn"),
        ({"kv_type": "q9"}, "KV type"),
        ({"tensor_split": (0.0, -1.0)}, "makes no sense"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    probe: MemoryProbe, zoo: Zoo, settings: dict[str, object], match: str
) -> None:
    with pytest.raises(ProbeError, match=match):
        probe.estimate_memory(one(zoo["target"], **settings))
    probe.estimate_memory(one(zoo["target"]))


def test_an_unknown_device_is_refused(probe: MemoryProbe, zoo: Zoo) -> None:
    (device,) = pretend_gpu.devices()
    with pytest.raises(ProbeError, match="no device CUDA0"):
        probe.estimate_memory(one(zoo["target"]), [replace(device, simulated=False)])


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
        probe.estimate_memory(one(path))
    probe.estimate_memory(one(zoo["target"]))


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
    """Whatever llama.cpp makes of it: the next answer is right."""
    family = FAMILIES["llama"]
    good = synthetic_header.build(family.small, "Q8_0")
    bad = replace(good, keys=dict(good.keys) | {key: value})
    path = probe.write_header_only_file(bad)
    assert key in bad.keys
    try:
        probe.estimate_memory(one(path))
    except ProbeError as error:
        assert str(error)
    assert probe.estimate_memory(one(probe.write_header_only_file(good))).target.total > 0


def _stand_in(body: str) -> Sequence[str]:
    return [
        sys.executable,
        "-c",
        f"import os, sys, time\nprint('{{\"re\": 0}}', flush=True)\n{body}",
    ]


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("sys.stdin.readline(); os.abort()", "died"),
        ("sys.stdin.readline(); print('GGML_ASSERT(x) failed', file=sys.stderr); os._exit(1)", "x"),
        ("time.sleep(60)", "no answer within"),
        ("sys.stdin.readline(); print('nonsense', flush=True); time.sleep(60)", "none"),
        ("sys.stdin.readline(); print('[1]', flush=True); time.sleep(60)", "none"),
    ],
)
def test_a_child_that_fails_is_an_error_with_a_reason(body: str, match: str) -> None:
    with MemoryProbe(lambda: _stand_in(body), timeout=1) as broken:
        for _ in range(2):  # a new one each time
            with pytest.raises(ProbeError, match=match):
                broken.list_devices()


# --- ghosts ---------------------------------------------------------------------------------


def test_a_ghost_weighs_nothing_and_goes_with_the_probe(tmp_path: Path) -> None:
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
    """A search asks as many."""
    path = probe.write_header_only_file(synthetic_header.build(FAMILIES["llama"].full, "Q4_K_M"))
    probe.estimate_memory(one(path), pretend_gpu.devices())
    assert probe._child is not None
    child = psutil.Process(probe._child._process.pid)
    began = sum(child.cpu_times()[:2]) + time.process_time()
    for layers in range(33):
        probe.estimate_memory(one(path, n_gpu_layers=layers), pretend_gpu.devices())
    # Of computing, not of waiting: the cores may be busy with other tests.
    used = sum(child.cpu_times()[:2]) + time.process_time() - began
    assert used < 3  # 0.7 s of one core
