"""Fit of pairs with a head: memory by formulas, by the probe and after real passes, and speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec import launch
from localspec.engine.llama.head_context import BlockHeadContext
from localspec.engine.llama.library import LOG
from localspec.fit import machine_profile
from localspec.fit.advisor import SettingsRequest
from localspec.fit.memory import MemoryEstimate
from localspec.fit.speed import UseCase
from localspec.machine import memory_probe
from localspec.machine.device import HOST
from localspec.machine.memory_probe import ProbeError
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand
from tests import beside, heads, headshapes, shapes
from tests.support.tinygguf import Model

MIB = 1024**2
SETTINGS = ContextSettings(n_ctx=512, n_threads=1, n_ubatch=64, flash_attn="on", n_gpu_layers=0)
KINDS = ("eagle3", "eagle3-narrow", "eagle3-reduced", "dflash", "dspark", "mtp")
FULL = (*headshapes.HEADS, "mtp-qwen35")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


def tiny(folder: Path, kind: str) -> tuple[Path, Path]:
    """A target and its head, written once."""
    models: dict[str, Callable[[], Model]] = {
        "eagle3": heads.eagle3,
        "eagle3-narrow": lambda: heads.eagle3(n_embd=32),
        "eagle3-reduced": lambda: heads.eagle3(reduced=range(50)),
        "dflash": heads.block,
        "dspark": lambda: heads.block(markov=True),
    }
    target = folder / ("inside.gguf" if kind == "mtp" else "deep.gguf")
    if not target.exists():
        heads.quantised(heads.mimo2() if kind == "mtp" else heads.deep()).write(target)
    if kind == "mtp":
        return target, target
    path = folder / f"{kind}.gguf"
    if not path.exists():
        heads.quantised(models[kind]()).write(path)
    return target, path


def load_command(pair: tuple[Path, Path], settings: ContextSettings = SETTINGS) -> LoadCommand:
    return LoadCommand(str(pair[0]), str(pair[1]), settings, replace(settings, n_ctx=None), 16)


def counted(
    load: LoadCommand, headers: tuple[Header, Header]
) -> tuple[MemoryEstimate, MemoryEstimate]:
    """The estimate, and the same with llama.cpp's counts."""
    estimate = shapes.estimate_pair(load, *headers, [])
    return estimate, shapes.replace_counted(
        estimate, load, headers, memory_probe.count_buffers(load, *headers)
    )


def total(found: MemoryEstimate) -> int:
    assert found.draft is not None
    return found.target.total + found.draft.total


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("settings", [{}, {"n_ubatch": 512, "flash_attn": "off", "kv_type": "f16"}])
def test_of_heads_that_people_run(kind: str, settings: dict[str, object]) -> None:
    target, head = headshapes.pair(kind)
    base = replace(SETTINGS, n_ctx=8192, n_ubatch=512, kv_type="q8_0")
    load = load_command((Path("t"), Path("d")), replace(base, **settings))  # type: ignore[arg-type]
    estimate, exact = counted(load, (target, head))
    assert 0.98 * total(exact) <= total(estimate) <= 1.1 * total(exact)
    assert abs(estimate.of(HOST).total - exact.of(HOST).total) <= estimate.error


@pytest.mark.parametrize("kind", KINDS)
def test_real_passes_take_what_was_counted(folder: Path, kind: str) -> None:
    """The first pass that outputs hidden states reserves the graph again: within the error."""
    paths = tiny(folder, kind)
    settings = replace(SETTINGS, n_ubatch=32)
    _, found = counted(
        load_command(paths, settings), (reader.read(paths[0]), reader.read(paths[1]))
    )
    assert found.draft is not None
    pair = beside.opened(*paths, n_ubatch=32)
    try:
        LOG.clear()
        pair.target.decode(list(range(5, 37)), 17)
        target = LOG.allocated() or pair.target._buffers
        LOG.clear()
        states = pair.source.states(32)
        if isinstance(pair.head, BlockHeadContext):
            pair.head.inject(states)
            pair.head.draft_block(5, pair.head.block_size - pair.head.first_draft_row)
        else:
            features = pair.head.encode(np.concatenate([states, states]))
            pair.head.decode([5] * 64, 64, features)
        head = LOG.allocated() or pair.head._buffers
    finally:
        pair.close()
    rounding = 0.01 * MIB
    off = found.target.of(HOST).compute - target[HOST].compute
    assert -rounding <= off <= found.error + rounding
    assert abs(found.draft.of(HOST).compute - head[HOST].compute) <= found.error + rounding


@pytest.mark.parametrize("kind", KINDS)
def test_ready_reports_the_estimated_memory(folder: Path, kind: str) -> None:
    target, head = tiny(folder, kind)
    advice = launch.choose_settings(SettingsRequest(load_command((target, head))))
    assert advice is not None
    assert advice.fit.load.draft is not None
    engine = launch.start_engine(SettingsRequest(advice.fit.load))
    try:
        memory_ = engine.ready.memory
    finally:
        engine.close()
    estimate = advice.fit.memory_estimate
    used = memory_["used"]
    assert used is not None
    foretold = estimate.of(HOST).total + estimate.output
    assert -0.1 * MIB <= foretold - used <= estimate.error


def test_an_odd_head_is_no_reason_to_die(folder: Path) -> None:
    target = heads.quantised(heads.deep()).write(folder / "odd-target.gguf")
    head = heads.quantised(heads.eagle3(layers=(1, 2, 40))).write(folder / "odd.gguf")
    with pytest.raises(ProbeError, match="layer 40"):
        memory_probe.count_buffers(
            load_command((target, head)), reader.read(target), reader.read(head)
        )


def test_a_head_costs_what_it_takes() -> None:
    """Including hidden states: one batch for every target layer it reads."""
    target, head = headshapes.pair("eagle3-llama-8b-whole")
    load = LoadCommand("t", "d", ContextSettings(n_ctx=8192), ContextSettings())
    alone = shapes.estimate_pair(replace(load, draft=None), target, None, [])
    both = shapes.estimate_pair(load, target, head, [])
    states = 3 * 512 * 4096 * 4
    assert both.target.output - alone.target.output == states
    assert both.target.of(HOST).compute > alone.target.of(HOST).compute
    assert both.target.of(HOST).weights == alone.target.of(HOST).weights
    assert both.draft is not None
    assert 0 <= both.draft.of(HOST).weights - head.weight_bytes < 4096  # nothing twice


def test_its_own_layer_counts_once() -> None:
    target = headshapes.predicting()
    load = LoadCommand("t", "t", ContextSettings(n_ctx=8192), ContextSettings())
    alone = shapes.estimate_pair(replace(load, draft=None), target, None, [])
    both = shapes.estimate_pair(load, target, target, [])
    assert both.draft is not None
    assert both.draft.of(HOST).weights == 0
    more = both.target.of(HOST).weights - alone.target.of(HOST).weights
    layer = target.n_layer - 1
    assert more >= sum(t.n_bytes for t in target.tensors if t.name.startswith(f"blk.{layer}."))


@pytest.mark.parametrize("kind", FULL)
def test_speed_is_estimated_with_its_basis(kind: str) -> None:
    target, head = headshapes.pair(kind)
    advisor = shapes.advisor(target, head, machine_profile.with_gpu("RTX 4090"), UseCase("code"))
    speed = advisor.estimate_fit(LoadCommand("t", "d", ContextSettings(n_ctx=8192))).speed
    assert speed.plain is not None
    assert speed.speculative is not None
    assert speed.speculative[1] > speed.plain[1]
    assert "heads (code)" in speed.explanation


def test_a_head_is_cheaper_than_a_small_model_but_not_free() -> None:
    target, head = headshapes.pair("eagle3-llama-8b")
    machine = machine_profile.with_gpu("RTX 4090")
    load = LoadCommand("t", "d", ContextSettings(n_ctx=8192))
    speed = shapes.advisor(target, head, machine).estimate_fit(load).speed
    assert speed.costs is not None
    assert 0.03 < speed.costs.c < 0.2


def test_a_block_costs_one_pass_however_long_it_is() -> None:
    target, head = headshapes.pair("dspark-qwen3-8b")
    machine = machine_profile.with_gpu("RTX 4090")
    load = LoadCommand("t", "d", ContextSettings(n_ctx=8192))
    costs = shapes.advisor(target, head, machine).estimate_fit(load).speed.costs
    assert costs is not None
    assert costs.c == 0
    assert 0.1 < costs.host < 1
