"""Memory of a second draft: it is set aside before the settings of the pair are chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from localspec.fit import memory
from localspec.fit.advisor import CONTEXT_SIZES, SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST, MemoryByDevice
from localspec.models.gguf import header
from localspec.models.gguf.header import Header


def without_draft_memory(
    machine: MachineProfile, request: SettingsRequest, target: Header, draft: str
) -> MachineProfile:
    """The same computer with less free memory, by what the draft takes beside `target`.

    An upper bound: with the longest context that may be chosen. Raises ModelFileError.
    """
    ctx = request.ctx or min(CONTEXT_SIZES[0], target.n_ctx_train or CONTEXT_SIZES[0])
    settings = replace(request.load.target_settings, n_ctx=ctx)
    load = replace(request.load, draft=draft, target_settings=settings)
    devices = machine.devices
    used = memory.estimate_pair(load, target, header.read_model(Path(draft)), devices).draft
    if used is None:  # it cannot draft, and is not loaded
        return machine
    cpu = _less_free(machine.cpu, used, used.output)
    return replace(machine, devices=tuple(_less_free(each, used) for each in devices), cpu=cpu)


def _less_free(device: Device, used: MemoryByDevice, output: int = 0) -> Device:
    if device.free is None:
        return device
    name = HOST if device.kind == "cpu" else device.name
    return replace(device, free=max(0, device.free - used.of(name).total - output))
