"""Simulated GPUs for tests, and models loaded on them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from localspec.engine.llama.library import C
from localspec.machine import llama_params, probed_model
from localspec.machine.device import Device
from localspec.machine.memory_by_device import MemoryByDevice
from localspec.machine.probed_model import ProbedModel
from localspec.machine.simulated_gpu import SimulatedGpu, SimulatedGpuSpec
from localspec.models import draft_heads
from localspec.models.gguf import header
from localspec.protocol.wire import LoadCommand

GIB = 1024**3
_cards: list[SimulatedGpu] = []
"""llama.cpp may keep an address, so these objects are never freed."""


def devices(count: int = 1, total: int = 4 * GIB) -> list[Device]:
    """Devices for MemoryProbe.estimate_memory."""
    return [
        Device(
            f"CUDA{i}", "a simulated GPU", free=total, total=total, backend="CUDA", simulated=True
        )
        for i in range(count)
    ]


def cards(specs: Sequence[Device]) -> list[SimulatedGpu]:
    """Simulated GPUs that hold data and refuse allocations beyond their memory."""
    gpus = [
        SimulatedGpu(
            C._lib, SimulatedGpuSpec(d.name, d.description, d.total or 0, d.free or 0, empty=False)
        )
        for d in specs
    ]
    _cards.extend(gpus)
    return gpus


def loaded(
    load: LoadCommand, on: Sequence[SimulatedGpu]
) -> tuple[MemoryByDevice, MemoryByDevice | None]:
    """Memory of both models, loaded with data and closed again."""
    addresses = [card.address for card in on]
    with ExitStack() as stack:
        kind = _kind(load)
        role = llama_params.target_role(load, load_mtp=kind == "mtp")
        target = ProbedModel(C, load.target, role, devices=addresses, data=True)
        stack.enter_context(closing(target))
        draft = None
        if load.draft is not None:
            draft = _draft(load, target, kind, addresses)
            stack.enter_context(closing(draft))
        memories = target.memory_by_device(), draft.memory_by_device() if draft else None
        for card in on:
            used = sum(memory.of(card.spec.name).total for memory in memories if memory)
            assert used == card.used, "llama.cpp allocated another amount than it reports"
    return memories


def _kind(load: LoadCommand) -> str:
    if load.draft is None:
        return "model"
    return draft_heads.draft_kind_for_target(
        header.read(Path(load.target)), header.read(Path(load.draft))
    )


def _draft(load: LoadCommand, target: ProbedModel, kind: str, addresses: list[int]) -> ProbedModel:
    assert load.draft is not None
    role = llama_params.head_role(load, target.n_ctx)
    if kind == "mtp":
        probed_model.enable_mtp_state(C, target)
        return probed_model.ProbedMtpHead(C, role, target)
    if kind != "model":
        probed_model.enable_hidden_states(
            C, target, draft_heads.target_layers(header.read(Path(load.draft)))
        )
        return probed_model.ProbedHead(C, load.draft, role, target, devices=addresses, data=True)
    role = llama_params.draft_role(load, target.n_ctx)
    return ProbedModel(C, load.draft, role, devices=addresses, data=True)


def real(folder: Path, name: str) -> Path:
    """A small model of a family with random weights, written once."""
    from tests.families import FAMILIES, write_real  # noqa: PLC0415

    path = folder / f"{name}.gguf"
    if not path.exists():
        write_real(FAMILIES[name].small, FAMILIES[name].quantisation, path)
    return path
