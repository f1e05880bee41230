"""fit/memory.py: the estimate against llama.cpp's own count and recorded GPUs."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec import launch
from localspec.fit import memory, pair_shapes, shape
from localspec.fit.advisor import SettingsRequest
from localspec.fit.memory import MemoryEstimate
from localspec.fit.shape import ModelShape
from localspec.llama.head_context import BlockHeadContext
from localspec.llama.library import LOG
from localspec.machine import llama_params, memory_probe
from localspec.machine.device import HOST, Device, reserve_bytes
from localspec.models import draft_heads
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import GGML_TYPES, TensorInfo
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests.support import (
    gpu_counts,
    head_models,
    head_targets,
    heads_beside,
    headshapes,
    shapes,
    synthetic_header,
)
from tests.support.families import FAMILIES, header
from tests.support.long_cases import often
from tests.support.zoo import Zoo

MIB = 1024**2
GIB = 1024**3
SETTINGS = ContextSettings(n_ctx=4096, n_threads=1)
LOWEST = 0.96
HIGHEST = 1.06
HIGHEST_OF_LARGE_BATCHES = 1.11
"""The estimate relative to all bytes of the pair.

localspec itself uses batches of up to 512.
"""
TINY = 16 * MIB
"""Absolute error allowed for models as small as those of the tests."""


def cards(count: int, backend: str = "CUDA") -> list[Device]:
    return [
        Device(
            f"{backend}{i}",
            free=24 * GIB,
            total=24 * GIB,
            backend=backend,
            simulated=True,
        )
        for i in range(count)
    ]


def load_command(path: str, **settings: object) -> LoadCommand:
    return LoadCommand(path, target_settings=replace(SETTINGS, **settings))


def total(estimate: MemoryEstimate) -> int:
    return sum(estimate.total_by_device.values())


# This computer's memory: llama.cpp counts a load without data.


VARIANTS: list[dict[str, Any]] = [
    {},
    {"kv_type": "q8_0", "n_ubatch": 64},
    {"kv_type": "q8_0/f16", "n_ubatch": 128},
    {"flash_attn": "off", "n_ubatch": 256},
    {"kv_type": "f32", "swa_full": False, "n_ctx": 16384, "n_ubatch": 1024},
]


def cpu_loads(name: str, model: Header) -> Iterator[LoadCommand]:
    """One for each of the variants that the model can have."""
    for settings in VARIANTS:
        if settings.get("kv_type") == "q8_0/f16" and shape.from_header(model).is_mla:
            continue
        load = load_command(name, n_gpu_layers=0, **settings)
        # llama.cpp really allocates a recurrent state for each token of a draft: that of
        # a long one is counted once.
        draft_max = 2 if settings else 16
        yield replace(load, draft_max=draft_max)


@pytest.mark.parametrize("name", often(list(FAMILIES), list(FAMILIES)[::3]))
def test_the_estimate_without_a_card_is_near_llama_cpps_count(name: str) -> None:
    model = header(name)
    known = catalogue_shape(f"{name}-full")
    assert known is not None
    for load in cpu_loads(name, model):
        estimate = shapes.estimate_pair(load, model, None, [])

        counted = memory_probe.count_buffers(load, model)
        exact = shapes.replace_counted(estimate, load, (model, None), counted)

        # Two caches, printed in 0.01 MiB.
        assert abs(counted.target.kv - estimate.of(HOST).kv) <= 0.01 * MIB * 2
        assert estimate.method == "analytic"
        assert exact.method == "exact"
        assert exact.error == 0
        check_total(estimate, exact, load)
        assert abs(total(estimate) - total(exact)) <= estimate.error, load
        check_total(memory.estimate_pair(load, known, None, []), exact, load)


# GPUs that are not here: sizes recorded from llama.cpp.


ALIGNMENT = 256 << 10
"""Error of the weights and caches of a model on a device: tensors are padded."""


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="recorded on x86-64"
)
@pytest.mark.parametrize("from_catalogue", [False, True])
def test_recorded_gpus(from_catalogue: bool) -> None:
    """From a file, weights and KV cache are exact.

    The sum is within its bounds from a file and from the catalogue.
    """
    n_compared = 0
    for count in gpu_counts.read():
        models = catalogue_shapes(count.models) if from_catalogue else None
        if from_catalogue and models is None:
            continue  # A head, which has no shape in the catalogue.
        found = models or shapes.from_headers(*count.headers)
        # They were recorded before the draft had branches.
        load = replace(count.load, overlap=False)
        estimate = memory.estimate_pair(load, *found, count.devices)
        # Such a draft is split by what the target leaves on each card.
        is_split = load.draft is not None and len(count.devices) > 1
        for name in {*estimate.target.on, *count.exact.target.on}:
            mine = estimate.target.of(name)
            theirs = count.exact.target.of(name)
            if not from_catalogue:
                assert mine.weights == pytest.approx(theirs.weights, abs=ALIGNMENT), (
                    count
                )
            assert mine.kv == pytest.approx(theirs.kv, abs=ALIGNMENT), count
            off = estimate.of(name).total - count.exact.of(name).total
            # A fit leaves the reserve free: what a load may take more than estimated.
            if not is_split:
                assert off >= -reserve_bytes(Device(name)) / 2, (count, name)
            if not is_split and not from_catalogue:
                assert abs(off) <= estimate.error, (count, name)
        check_total(estimate, count.exact, load)
        n_compared += 1
    assert n_compared > 100


def catalogue_shapes(
    names: tuple[str, str | None],
) -> tuple[ModelShape, ModelShape | None] | None:
    """Of models of tests/support/families.py, as if they were entries of the catalogue."""
    target_name, draft_name = names
    target = catalogue_shape(target_name)
    if target is None:
        return None
    if draft_name is None:
        return target, None
    draft = catalogue_shape(draft_name)
    if draft is None:
        return None
    return target, draft


def catalogue_shape(name: str) -> ModelShape | None:
    family, _, size = name.rpartition("-")
    if family not in FAMILIES:
        return None
    one = FAMILIES[family]
    numbers = one.full if size == "full" else one.small
    n_bytes = (
        synthetic_header.build(numbers, one.quantisation).size + 40 * numbers.vocab
    )
    return pair_shapes.shape_from_numbers(numbers, one.quantisation, n_bytes)


def check_total(
    estimate: MemoryEstimate, exact: MemoryEstimate, load: LoadCommand
) -> None:
    """−4 % to +6 % of all bytes of the pair; in MiB if they are few."""
    size = total(exact)
    difference = total(estimate) - size
    batch = max(load.target_settings.n_ubatch, load.draft_settings.n_ubatch)
    highest = HIGHEST if batch <= 1024 else HIGHEST_OF_LARGE_BATCHES
    assert difference >= min((LOWEST - 1) * size, -TINY), load
    assert difference <= max((highest - 1) * size, 5 * TINY), load


def clear_caches() -> None:
    llama_params.has_amx.cache_clear()


@pytest.fixture(params=["shown", "hidden"])
def amx(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A CPU with AMX and one without: llama.cpp repacks weights only without AMX."""
    monkeypatch.delenv("LOCALSPEC_AMX", raising=False)
    if request.param == "hidden" and llama_params.has_amx.__wrapped__():
        pytest.skip("this CPU has AMX, which ggml would use")
    monkeypatch.setenv("LOCALSPEC_AMX", request.param)
    clear_caches()
    yield request.param
    clear_caches()


@pytest.mark.parametrize(
    ("backend", "layers"),
    [("", 0), ("CUDA", 0), ("CUDA", 9), ("Metal", 0), ("Metal", 9)],
)
def test_tied_embeddings_of_a_repacked_type_are_loaded_twice(
    amx: str, backend: str, layers: int
) -> None:
    model = with_table(header("llama-tied"), "Q4_0")
    load = load_command("x", n_gpu_layers=layers)
    devices = cards(1, backend) if backend else []

    estimate = shapes.estimate_pair(load, model, None, devices)

    expected = sum(tensor.n_bytes for tensor in model.tensors)
    is_repacked = amx == "hidden" and backend != "CUDA"
    if layers > 0 or is_repacked:
        expected += tensor_bytes(model, "token_embd.weight")
    found = sum(part.weights for part in estimate.target.on.values())
    assert found == pytest.approx(expected, rel=1e-3)


def tensor_bytes(model: Header, name: str) -> int:
    return next(tensor.n_bytes for tensor in model.tensors if tensor.name == name)


def with_table(model: Header, type_name: str) -> Header:
    """The same model with token embeddings of another type."""
    [number] = [n for n, type_ in GGML_TYPES.items() if type_.name == type_name]
    tensors: list[TensorInfo] = []
    at = 0
    for tensor in model.tensors:
        if tensor.name == "token_embd.weight":
            size = GGML_TYPES[number].row_bytes(tensor.n_elements)
            tensor = tensor._replace(type=number, n_bytes=size)  # noqa: PLW2901
        tensors.append(tensor._replace(offset=at))
        at += -(-tensor.n_bytes // 32) * 32
    return replace(model, tensors=tuple(tensors))


HEAD_SETTINGS = ContextSettings(
    n_ctx=512, n_threads=1, n_ubatch=64, flash_attn="on", n_gpu_layers=0
)
PAIRS = {
    "eagle3": ("deep", "eagle3"), "eagle3-narrow": ("deep", "eagle3-own"),
    "eagle3-reduced": ("deep", "eagle3-reduced"), "dflash": ("deep", "dflash"),
    "dflash2": ("deep", "dflash2"), "dspark": ("deep", "dspark"), "mtp": ("mimo", "mimo"),
    "assistant": ("gemma4", "assistant"),
}  # fmt: skip
"""A target and its head, as in tests/support/zoo.py."""
FULL = (*headshapes.HEADS, "mtp-qwen35")


def head_load(
    pair: tuple[Path, Path], settings: ContextSettings = HEAD_SETTINGS
) -> LoadCommand:
    target, head = pair
    return LoadCommand(
        str(target),
        str(head),
        target_settings=settings,
        draft_settings=replace(settings, n_ctx=None),
        draft_max=16,
    )


def counted(
    load: LoadCommand, headers: tuple[Header, Header]
) -> tuple[MemoryEstimate, MemoryEstimate]:
    """The estimate, and the same with llama.cpp's counts."""
    estimate = shapes.estimate_pair(load, *headers, [])
    return estimate, shapes.replace_counted(
        estimate, load, headers, memory_probe.count_buffers(load, *headers)
    )


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize(
    "settings", [{}, {"n_ubatch": 512, "flash_attn": "off", "kv_type": "f16"}]
)
def test_the_estimate_of_published_heads_is_near_llama_cpps_count(
    kind: str, settings: dict[str, object]
) -> None:
    target, head = headshapes.pair(kind)
    base = replace(HEAD_SETTINGS, n_ctx=8192, n_ubatch=512, kv_type="q8_0")
    load = head_load((Path("t"), Path("d")), replace(base, **settings))
    estimate, exact = counted(load, (target, head))
    assert 0.98 * total(exact) <= total(estimate) <= 1.1 * total(exact)
    assert abs(estimate.of(HOST).total - exact.of(HOST).total) <= estimate.error


def test_hidden_states_that_llama_cpp_cannot_count_are_added(zoo: Zoo) -> None:
    """With their whole size as the error: a layer may have kept its input anyway."""
    paths = (zoo["deep"], zoo["eagle3"])
    headers = (reader.read(paths[0]), reader.read(paths[1]))
    load = head_load(paths)
    estimate = shapes.estimate_pair(load, *headers, [])
    buffers = memory_probe.count_buffers(load, *headers)

    exact = shapes.replace_counted(estimate, load, headers, buffers)
    without = replace(buffers, has_hidden_states=False)
    guessed = shapes.replace_counted(estimate, load, headers, without)

    layer_bytes = 4 * 64 * headers[0].n_embd
    n_layers = len(draft_heads.target_layers(headers[1]))
    added = guessed.target.of(HOST).compute - exact.target.of(HOST).compute
    assert added == n_layers * layer_bytes
    assert exact.error == 0
    assert guessed.error == added


@pytest.mark.parametrize("kind", [*PAIRS, "mtp-alone"])
def test_real_passes_take_what_was_counted(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    """A pass that outputs hidden states reserves the graph again."""
    if kind == "mtp-alone":
        target = head_targets.without_layers(head_models.mimo2())
        layer = head_targets.layer_alone(head_models.mimo2())
        paths = (
            head_models.quantised(target).write(tmp_path / "target.gguf"),
            head_models.quantised(layer).write(tmp_path / "layer.gguf"),
        )
    else:
        paths = zoo[PAIRS[kind][0]], zoo[PAIRS[kind][1]]
    settings = replace(HEAD_SETTINGS, n_ubatch=32)
    _, found = counted(
        head_load(paths, settings), (reader.read(paths[0]), reader.read(paths[1]))
    )
    assert found.draft is not None
    pair = heads_beside.opened(*paths, n_ubatch=32)
    try:
        LOG.clear()
        pair.target.decode(list(range(5, 37)), 17)
        target_buffers = LOG.buffers.by_device() or pair.target._buffers
        LOG.clear()
        states = pair.source.states(32)
        if isinstance(pair.head, BlockHeadContext):
            pair.head.inject(states)
            pair.head.draft_block(5, pair.head.block_size - pair.head.first_draft_row)
        else:
            features = pair.head.encode(np.concatenate([states, states]))
            pair.head.decode([5] * 64, 64, features)
        head_buffers = LOG.buffers.by_device() or pair.head._buffers
    finally:
        pair.close()
    rounding = 0.01 * MIB
    off = found.target.of(HOST).compute - target_buffers[HOST].compute
    assert -rounding <= off <= found.error + rounding
    assert (
        abs(found.draft.of(HOST).compute - head_buffers[HOST].compute)
        <= found.error + rounding
    )


def test_ready_reports_the_estimated_memory(zoo: Zoo) -> None:
    pair = (zoo["deep"], zoo["eagle3"])
    plan = launch.choose_settings(SettingsRequest(head_load(pair)))
    assert plan is not None
    assert plan.load.draft is not None
    engine = launch.start_engine(SettingsRequest(plan.load))
    used = engine.ready.memory["used"]
    engine.close()
    estimate = plan.memory
    assert used is not None
    foretold = estimate.of(HOST).total + estimate.output
    assert -0.1 * MIB <= foretold - used <= estimate.error


def test_only_some_devices_are_used() -> None:
    """Integrated graphics only if there is no card, one card if nothing is split."""
    card, second = cards(2)
    shared = replace(second, kind="igpu")
    one = load_command("x", split_mode="none", main_gpu=1)
    for load, devices, used in (
        (load_command("x"), [shared, card], card),
        (load_command("x"), [shared], shared),
        (one, [card, second], second),
    ):
        estimate = shapes.estimate_pair(load, header("llama"), None, devices)
        names = {name for name, part in estimate.target.on.items() if part.total}
        assert names == {HOST, used.name}


def test_a_draft_is_split_by_what_the_target_leaves() -> None:
    """As in llama.cpp: it splits the draft by the memory then free on each GPU."""
    load = replace(load_command("x", tensor_split=(1, 5)), draft="y")
    draft = shapes.estimate_pair(
        load, header("llama"), header("llama-tied"), cards(2)
    ).draft
    assert draft is not None
    assert draft.of("CUDA0").kv > draft.of("CUDA1").kv


def test_an_unverified_architecture_has_a_larger_error() -> None:
    known = header("llama")
    renamed = {
        key.replace("llama.", "olmo2."): value for key, value in known.keys.items()
    } | {"general.architecture": "olmo2"}
    unknown = replace(known, architecture="olmo2", keys=renamed)
    first = shapes.estimate_pair(load_command("x"), known, None, [])
    second = shapes.estimate_pair(load_command("x"), unknown, None, [])
    assert second.error > 64 * MIB > first.error > 0
    assert second.target.of(HOST).weights == first.target.of(HOST).weights
