"""Child process of the memory probe: reads and writes one JSON object per line.

llama.cpp aborts on some malformed headers, and simulated GPUs depend on its internal structs.  A
crash ends this process only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import Any

from localspec import child_process
from localspec.errors import UsageError
from localspec.machine import installed_llama_cpp, llama_params, probed_model, simulated_gpu
from localspec.machine.device import Device
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.memory_breakdown import UnknownLayoutError
from localspec.machine.memory_by_device import MemoryByDevice
from localspec.machine.probed_model import ModelOpenError, ProbedHead, ProbedModel, ProbedMtpHead
from localspec.machine.simulated_gpu import (
    ALLOCATION_RULES,
    AllocationRules,
    SimulatedGpu,
    SimulatedGpuSpec,
)
from localspec.protocol.json_dataclasses import from_json
from localspec.protocol.wire import LoadCommand

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
installed_llama_cpp.preload_cuda_libraries()
import llama_cpp.llama_cpp as C  # noqa: E402, N812

_MAX_ADDRESS_SPACE = 8 * 1024**3
"""Limit in bytes: recurrent states are really allocated."""
_MAX_CPU_SECONDS = 30
"""Limit for one request."""
_LOG_LEVEL_ERROR = 4
"""GGML_LOG_LEVEL_ERROR."""
_MAX_ERRORS = 20


class ProbeServer:
    """Handles requests.  Simulated GPUs are never freed, as llama.cpp may keep their addresses."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._log = C.llama_log_callback(self._on_log)
        C.llama_log_set(self._log, None)
        C.llama_backend_init()
        self._ggml = GgmlLibrary(C._lib)
        self._simulated_gpus: dict[SimulatedGpuSpec, SimulatedGpu] = {}

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Errors are returned in the field `failed`."""
        self._errors.clear()
        try:
            if request["op"] == "devices":
                return self._handle_devices()
            if request["op"] == "selftest":
                return {"ok": simulated_gpu.passes_selftest(C, request["model"])}
            return self._handle_project(request)
        except ModelOpenError as error:  # the first logged error is the cause
            return {"failed": self._errors[0] if self._errors else str(error)}
        except UsageError as error:
            return {"failed": error.message}
        except (UnknownLayoutError, LookupError, AttributeError, ValueError) as error:
            return {"failed": str(error)}

    def _handle_devices(self) -> dict[str, Any]:
        return {
            "devices": [self._ggml.describe(device) for device in self._ggml.devices()],
            "offloads": bool(C.llama_supports_gpu_offload()),
            "library": str(C._lib._name),
            "lacking": probed_model.missing_head_functions(C),
            "features": C.llama_print_system_info().decode("utf-8", "replace"),
        }

    def _handle_project(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Opens both models at once, as the engine does."""
        load: LoadCommand = from_json(LoadCommand, request["load"])
        devices = self._find_devices(request["devices"])
        head_kind: str = request.get("head", "")
        with ExitStack() as stack:
            role = llama_params.target_role(load, load_mtp=head_kind == "mtp")
            target = stack.enter_context(
                closing(ProbedModel(C, load.target, role, devices=devices))
            )
            memory = target.memory_by_device()
            reply = {"target": asdict(memory), "draft": None, "doubt": target.error_bound()}
            if load.draft is None:
                return reply
            role = llama_params.draft_role(load, target.n_ctx)
            split = () if role.settings.tensor_split else self._free_split(devices, memory)
            options: dict[str, Any] = {"devices": devices, "split": split}
            if head_kind:
                draft = self._open_head(load, target, request["layers"], options)
                # The target now has buffers for hidden states.
                reply["target"] = asdict(target.memory_by_device())
            else:
                draft = ProbedModel(C, load.draft, role, **options)
            stack.enter_context(closing(draft))
            if draft.is_recurrent:
                return reply | {"dropped": True}
            error = target.error_bound() + draft.error_bound()
            return reply | {"draft": asdict(draft.memory_by_device()), "doubt": error}

    def _open_head(
        self,
        load: LoadCommand,
        target: ProbedModel,
        layers: Sequence[int],
        options: Mapping[str, Any],
    ) -> ProbedModel:
        """A head in a file, which reads `layers` of the target; without layers, its MTP layer."""
        role = llama_params.head_role(load, target.n_ctx)
        if not layers:
            probed_model.enable_mtp_state(C, target)
            return ProbedMtpHead(C, role, target)
        probed_model.enable_hidden_states(C, target, layers)
        assert load.draft is not None
        return ProbedHead(C, load.draft, role, target, **options)

    def _find_devices(self, requested: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
        """Addresses of the devices; creates simulated GPUs."""
        if requested is None:
            return None
        real = {self._ggml.describe(device)["name"]: device for device in self._ggml.devices()}
        addresses = []
        for device in (from_json(Device, body) for body in requested):
            if device.kind in ("cpu", "accel"):
                continue
            if device.simulated:
                addresses.append(self._simulate_gpu(device).address)
            elif device.name in real:
                addresses.append(real[device.name])
            else:
                raise LookupError(f"llama.cpp has no device {device.name}")
        return addresses

    def _simulate_gpu(self, device: Device) -> SimulatedGpu:
        total = device.total or device.free or 0
        spec = SimulatedGpuSpec(
            device.name,
            device.description,
            total,
            total if device.free is None else device.free,
            device.kind == "igpu",
            ALLOCATION_RULES.get(device.backend, AllocationRules()),
        )
        if spec not in self._simulated_gpus:
            self._simulated_gpus[spec] = SimulatedGpu(C._lib, spec)
        return self._simulated_gpus[spec]

    def _free_split(self, devices: list[int] | None, used: MemoryByDevice) -> tuple[float, ...]:
        """Memory the target leaves free by device: llama.cpp splits the draft's layers by it."""
        addresses = self._default_devices() if devices is None else devices
        if len(addresses) < 2:
            return ()
        shared = [self._ggml.describe(address) for address in addresses]
        if not all(device["free"] for device in shared):
            return ()
        return tuple(
            float(max(1, device["free"] - used.of(device["name"]).total)) for device in shared
        )

    def _default_devices(self) -> list[int]:
        """The choice of llama.cpp: each GPU once, integrated ones only if there is no other."""
        by_kind: dict[str, list[int]] = {"gpu": [], "igpu": []}
        seen: set[str] = set()
        for device in self._ggml.devices():
            props = self._ggml.describe(device)
            if props["type"] in by_kind and props["id"] not in seen:
                by_kind[props["type"]].append(device)
                seen |= {props["id"]} if props["id"] else set()
        return by_kind["gpu"] or by_kind["igpu"]

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        if level == _LOG_LEVEL_ERROR and len(self._errors) < _MAX_ERRORS:
            self._errors.append(text.decode("utf-8", "replace").strip())


def _limit_memory() -> None:
    """Not with a GPU driver, which reserves large address ranges."""
    if sys.platform != "win32" and not C.llama_supports_gpu_offload():
        import resource  # noqa: PLC0415  not on Windows

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))


def _limit_time() -> None:
    """The system ends this process after _MAX_CPU_SECONDS, even if the parent is gone."""
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not on Windows

        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + _MAX_CPU_SECONDS
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _write_reply(out: int, body: Mapping[str, Any]) -> None:
    rest = memoryview(json.dumps(body, separators=(",", ":")).encode() + b"\n")
    while rest:
        rest = rest[os.write(out, rest) :]


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    out = child_process.take_over_stdout()
    server = ProbeServer()
    _limit_memory()
    _write_reply(out, {"re": 0})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_time()
        _write_reply(out, {"re": request["id"]} | server.handle(request))


if __name__ == "__main__":
    main()
