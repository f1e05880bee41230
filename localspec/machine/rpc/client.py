"""Registers workers in the process that computes, and chooses the devices of a model.

For child processes only.  llama.cpp aborts if a worker cannot be reached: `preflight` comes first.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from localspec.errors import EngineError
from localspec.lazy_dataclass import dataclass
from localspec.machine.ggml import GgmlLibrary

_registered: dict[str, list[int]] = {}  # Devices by endpoint, in the order of registration.


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    array: Any  # llama_model_params.devices: the workers', then this computer's GPUs, then NULL.
    is_last_remote: bool  # The last device gets the output layer.


def choose_devices(library: Any, workers: tuple[str, ...]) -> DeviceChoice | None:
    """None where llama.cpp's own choice is right: no worker was ever registered.

    Otherwise always explicit, because llama.cpp would put every model on the workers first.
    Raises EngineError.
    """
    ggml = GgmlLibrary(library)
    for endpoint in workers:
        if endpoint not in _registered:
            _registered[endpoint] = _register(ggml, endpoint)
    if not _registered:
        return None
    remote = {device for devices in _registered.values() for device in devices}
    local = [each for each in ggml.devices() if each not in remote]
    gpus = [each for each in local if ggml.kind(each) == "gpu"]
    gpus = gpus or [each for each in local if ggml.kind(each) == "igpu"]
    chosen = [device for endpoint in workers for device in _registered[endpoint]] + gpus
    array = (ctypes.c_void_p * (len(chosen) + 1))(*chosen, None)
    return DeviceChoice(array, is_last_remote=bool(workers) and not gpus)


def _register(ggml: GgmlLibrary, endpoint: str) -> list[int]:
    from localspec.machine.rpc import side_library  # noqa: PLC0415  only with workers

    backend = ggml.backend_reg_by_name(b"RPC")
    backend = backend or ggml.backend_load(os.fsencode(side_library.require()))
    if not backend:
        raise EngineError(
            "llama.cpp cannot load its RPC backend.", "Reinstall llama-cpp-python, and try again."
        )
    address = ggml.backend_reg_get_proc_address(backend, b"ggml_backend_rpc_add_server")
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    registry = add_server(endpoint.encode())
    if not registry:
        raise EngineError(f"The worker {endpoint} has no device to offer.", "See its own screen.")
    ggml.backend_register(registry)
    return [
        ggml.backend_reg_dev_get(registry, i) for i in range(ggml.backend_reg_dev_count(registry))
    ]
