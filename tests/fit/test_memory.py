"""fit/memory.py: the estimate against the probe, real loads and published logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.fit import hparams, memory, model_buffers
from localspec.fit.context_params import ContextParams
from localspec.machine import llama_params
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST, MemoryByDevice, MemoryEstimate
from localspec.machine.probe import MemoryProbe
from localspec.models import synthetic_header
from localspec.models.gguf.header import Header
from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import pretend_gpu
from tests.families import FAMILIES, write_ghost

MIB = 1024**2
GIB = 1024**3
SETTINGS = ContextSettings(n_ctx=4096, n_threads=1)
MIXTURES = [name for name, family in FAMILIES.items() if family.small.experts]
HYBRIDS = ("qwen35", "qwen35moe", "lfm2", "granitehybrid", "mamba2")


@pytest.fixture(scope="module")
def probe() -> Iterator[MemoryProbe]:
    with MemoryProbe() as one:
        yield one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ghosts")


def header(name: str, *, small: bool = False) -> Header:
    family = FAMILIES[name]
    return synthetic_header.build(family.small if small else family.full, family.quantisation)


def header_only(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_ghost(FAMILIES[name].full, FAMILIES[name].quantisation, path)
    return path


def cards(count: int, backend: str = "CUDA") -> list[Device]:
    return [
        replace(card, name=f"{backend}{i}", backend=backend, free=24 * GIB, total=24 * GIB)
        for i, card in enumerate(pretend_gpu.devices(count))
    ]


def load_command(path: Path | str, **settings: object) -> LoadCommand:
    return LoadCommand(str(path), target_settings=replace(SETTINGS, **settings))  # type: ignore[arg-type]


def both(
    probe: MemoryProbe, folder: Path, name: str, devices: list[Device], **settings: object
) -> tuple[MemoryEstimate, MemoryEstimate]:
    """The estimate and the exact memory of the probe."""
    load = load_command(header_only(folder, name), **settings)
    return memory.estimate_pair(load, header(name), None, devices), probe.estimate_memory(
        load, devices
    )


def parts(memory_: MemoryByDevice) -> dict[str, tuple[int, int, int]]:
    """Without unused devices."""
    return {
        name: (part.weights, part.kv, part.compute)
        for name, part in memory_.on.items()
        if part.total
    }


def assert_close(estimate: MemoryEstimate, exact: MemoryEstimate) -> None:
    """Weights and KV caches are equal; compute buffers are within the error bound."""
    for name in set(exact.target.on) | set(estimate.target.on):
        mine, theirs = estimate.of(name), exact.of(name)
        assert (mine.weights, mine.kv) == (theirs.weights, theirs.kv)
        assert abs(mine.compute - theirs.compute) <= estimate.error


# One device: exact to the byte.


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_type": "q8_0", "n_ubatch": 64},
        {"flash_attn": "off", "n_ubatch": 256},
        {"kv_type": "f32", "swa_full": False},
    ],
)
@pytest.mark.parametrize("name", FAMILIES)
def test_without_a_card(
    probe: MemoryProbe, folder: Path, name: str, settings: dict[str, object]
) -> None:
    estimate, exact = both(probe, folder, name, [], n_gpu_layers=0, **settings)
    assert estimate.target == exact.target
    assert estimate.method == "analytic"


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan", "Metal"])
@pytest.mark.parametrize("name", FAMILIES)
def test_wholly_on_a_card(probe: MemoryProbe, folder: Path, name: str, backend: str) -> None:
    estimate, exact = both(probe, folder, name, cards(1, backend), kv_type="q8_0")
    assert parts(estimate.target) == parts(exact.target)


@pytest.fixture(params=["shown", "hidden"])
def amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A CPU with AMX and one without: llama.cpp repacks weights only without AMX."""
    monkeypatch.delenv("LOCALSPEC_AMX", raising=False)
    if request.param == "hidden" and llama_params.has_amx.__wrapped__():
        pytest.skip("this CPU has AMX, which ggml would use")
    monkeypatch.setenv("LOCALSPEC_AMX", request.param)
    for known in (
        caches := (llama_params.has_amx, model_buffers._repacked_types, model_buffers.estimate)
    ):
        known.cache_clear()
    yield request.param
    for known in caches:
        known.cache_clear()


@pytest.mark.parametrize(
    ("backend", "layers"), [("", 0), ("CUDA", 0), ("CUDA", 9), ("Metal", 0), ("Metal", 9)]
)
def test_repacked_weights(tmp_path: Path, amx: str, backend: str, layers: int) -> None:
    """Tied embeddings of a repacked type are loaded twice."""
    model = with_table(header("llama-tied"), "Q4_0")
    path = tmp_path / "model.gguf"
    write_ghost(model, "", path)
    load, devices = load_command(path, n_gpu_layers=layers), cards(1, backend) if backend else []
    with MemoryProbe() as probe:
        exact = probe.estimate_memory(load, devices)
    estimate = memory.estimate_pair(load, model, None, devices)
    assert_close(estimate, exact)
    sizes = [tensor.n_bytes for tensor in model.tensors]
    table = next(t.n_bytes for t in model.tensors if t.name == "token_embd.weight")
    twice = layers > 0 or (amx == "hidden" and backend != "CUDA")
    total = sum(part.weights for part in exact.target.on.values())
    assert total == pytest.approx(sum(sizes) + twice * table, rel=1e-3)


def with_table(model: Header, type_name: str) -> Header:
    """The same model with token embeddings of another type."""
    number, (_, block, block_bytes) = next(
        (number, entry) for number, entry in GGML_TYPES.items() if entry[0] == type_name
    )
    tensors: list[TensorInfo] = []
    at = 0
    for tensor in model.tensors:
        if tensor.name == "token_embd.weight":
            size = tensor.n_elements // block * block_bytes
            tensor = tensor._replace(type=number, n_bytes=size)  # noqa: PLW2901
        tensors.append(tensor._replace(offset=at))
        at += -(-tensor.n_bytes // 32) * 32
    return replace(model, tensors=tuple(tensors))


# Several devices and partial offload: within the error bound.


@pytest.mark.parametrize(
    ("backend", "layers"), [("CUDA", 0), ("CUDA", 1), ("CUDA", 9), ("Metal", 9)]
)
@pytest.mark.parametrize("name", FAMILIES)
def test_partly_on_a_card(
    probe: MemoryProbe, folder: Path, name: str, backend: str, layers: int
) -> None:
    """Metal has no pinned memory, so the CPU's weights may be repacked."""
    assert_close(*both(probe, folder, name, cards(1, backend), n_gpu_layers=layers))


@pytest.mark.parametrize("name", MIXTURES)
def test_experts_in_the_computers_memory(probe: MemoryProbe, folder: Path, name: str) -> None:
    assert_close(*both(probe, folder, name, cards(1), cpu_moe=True))


@pytest.mark.parametrize("split", [(), (3.0, 1.0)])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4-e", "qwen3moe", "qwen35"])
def test_over_two_cards(
    probe: MemoryProbe, folder: Path, name: str, split: tuple[float, ...]
) -> None:
    estimate, exact = both(probe, folder, name, cards(2), tensor_split=split)
    assert_close(estimate, exact)
    assert {"CUDA0", "CUDA1"} <= parts(estimate.target).keys()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_really_loaded(tmp_path: Path, count: int) -> None:
    """With several GPUs the estimate is an upper bound of the real load."""
    path = pretend_gpu.real(tmp_path, "llama")
    devices = pretend_gpu.devices(count)
    load = load_command(path)
    taken, _ = pretend_gpu.loaded(load, pretend_gpu.cards(devices))
    estimate = memory.estimate_pair(load, header("llama", small=True), None, devices)
    for name in taken.on:
        assert 0 <= estimate.of(name).total - taken.of(name).total <= estimate.error


def test_a_pair(probe: MemoryProbe, folder: Path) -> None:
    load = replace(
        load_command(header_only(folder, "llama")),
        draft=str(header_only(folder, "llama-tied")),
        draft_settings=ContextSettings(n_ubatch=128, n_threads=1),
    )
    devices = cards(1)
    estimate = memory.estimate_pair(load, header("llama"), header("llama-tied"), devices)
    exact = probe.estimate_memory(load, devices)
    assert estimate.draft is not None and exact.draft is not None
    assert parts(estimate.target) == parts(exact.target)
    assert parts(estimate.draft) == parts(exact.draft)
    assert estimate.output == exact.output


# Published logs of real GPUs.


def logged(n_ctx: int) -> MemoryByDevice:
    """Llama 3.1 8B Q4_K_M as in the logs: 512 rows of logits, no flash attention."""
    card = Device("CUDA0", free=24 * GIB, total=24 * GIB, backend="CUDA")
    params = ContextParams(
        n_ctx, n_ctx, 512, 512, 0, kv_type=1, flash_attn=False, v_token_major=False
    )
    return memory.estimate_model(hparams.from_header(header("llama")), params, SETTINGS, [card], {})


@pytest.mark.parametrize(("n_ctx", "kv", "compute"), [(512, 64.00, 258.50), (8192, 1024.0, 560.0)])
def test_logs_of_real_cards(n_ctx: int, kv: float, compute: float) -> None:
    memory_ = logged(n_ctx)
    card, host = memory_.of("CUDA0"), memory_.of(HOST)
    assert card.weights / MIB == pytest.approx(4403.49, abs=0.01)
    assert host.weights / MIB == pytest.approx(281.81, abs=0.01)
    assert card.kv / MIB == pytest.approx(kv, abs=0.01)
    assert card.compute / MIB == pytest.approx(compute, rel=0.01)


# Invariants.


@pytest.mark.parametrize("name", FAMILIES)
def test_more_context_never_takes_less(name: str) -> None:
    model = header(name)
    totals = [
        memory.estimate_pair(load_command("x", n_ctx=n), model, None, cards(1)).target.total
        for n in (512, 2048, 8192, 32768)
    ]
    assert totals == sorted(totals)


def test_layers_go_to_the_card_from_the_back() -> None:
    model = header("llama")
    on_card = [
        memory.estimate_pair(load_command("x", n_gpu_layers=n), model, None, cards(1)).of("CUDA0")
        for n in (0, 1, 2, 33)
    ]
    assert [part.kv for part in on_card] == [0, 0, 16 * MIB, 512 * MIB]
    assert on_card[1].weights / MIB == pytest.approx(410.99, abs=0.01)  # the output alone


def test_integrated_graphics_only_where_there_is_no_card() -> None:
    card, shared = cards(2)
    shared = replace(shared, kind="igpu")
    estimate = memory.estimate_pair(load_command("x"), header("llama"), None, [shared, card])
    assert set(parts(estimate.target)) == {HOST, card.name}
    estimate = memory.estimate_pair(load_command("x"), header("llama"), None, [shared])
    assert set(parts(estimate.target)) == {HOST, shared.name}


def test_one_card_of_two() -> None:
    load = load_command("x", split_mode="none", main_gpu=1)
    estimate = memory.estimate_pair(load, header("llama"), None, cards(2))
    assert set(parts(estimate.target)) == {HOST, "CUDA1"}


@pytest.mark.parametrize("name", HYBRIDS)
def test_a_draft_without_rollback_is_not_used(name: str) -> None:
    load = replace(load_command("x"), draft="y")
    estimate = memory.estimate_pair(load, header("llama"), header(name), cards(1))
    assert estimate.draft is None
    assert "not used" in estimate.note


def test_a_drafts_context_is_cut_to_its_own() -> None:
    load = replace(load_command("x", n_ctx=131072), draft="y")
    estimate = memory.estimate_pair(load, header("llama"), header("qwen3"), [])
    assert estimate.draft is not None
    assert estimate.draft.of(HOST).kv == 36 * 2 * 1024 * 2 * 40960


def test_snapshots_are_counted() -> None:
    """A hybrid target has a state for each token that can be rolled back."""
    model = header("lfm2")
    short, long = (
        memory.estimate_pair(replace(load_command("x"), draft_max=n), model, None, []).of(HOST).kv
        for n in (1, 9)
    )
    assert long - short == 8 * 10 * 2 * 2048 * 4  # ten layers, two steps of 2048 floats each


def test_an_unverified_architecture_has_a_larger_error() -> None:
    known = header("llama")
    renamed = {key.replace("llama.", "olmo2."): value for key, value in known.keys.items()} | {
        "general.architecture": "olmo2"
    }
    unknown = replace(known, architecture="olmo2", keys=renamed)
    first = memory.estimate_pair(load_command("x"), known, None, [])
    second = memory.estimate_pair(load_command("x"), unknown, None, [])
    assert second.error > 64 * MIB > first.error
    assert second.target.of(HOST).weights == first.target.of(HOST).weights


def test_an_absurd_context_is_refused() -> None:
    with pytest.raises(UsageError):
        memory.estimate_pair(load_command("x", n_ctx=10**9), header("llama"), None, [])
