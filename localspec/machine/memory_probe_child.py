"""Child process of the memory probe: reads and writes one JSON object per line.

llama.cpp aborts on some malformed headers. A crash ends this process only, and so does
`_IDLE_SECONDS` without a request.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec import child_process
from localspec.errors import UsageError
from localspec.machine import ggml, installed_llama_cpp, llama_params
from localspec.machine.device import BufferLog
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.llama_params import ModelRole
from localspec.machine.simulated_gpu import GpuDescription, SimulatedGpus
from localspec.protocol.json_values import from_json
from localspec.protocol.wire import LoadCommand

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
installed_llama_cpp.preload_cuda_libraries()
installed_llama_cpp.skip_package_init()
import llama_cpp.llama_cpp as C  # noqa: E402, N812

# Limit in bytes: recurrent states are really allocated.
_MAX_ADDRESS_SPACE = 8 * 1024**3
_MAX_CPU_SECONDS = 30  # Limit for one request.
_IDLE_SECONDS = 10.0
_LOG_LEVEL_ERROR = 4  # GGML_LOG_LEVEL_ERROR.
_MAX_ERRORS = 20


class CountRequest(Struct, frozen=True):
    """Count the buffers of a pair; answered with `memory_probe.PairBuffers`."""

    load: LoadCommand
    head: str
    """The kind of the draft if it is a head; else empty."""
    separate: bool
    """The head has a file of its own."""
    target_layers: tuple[int, ...]
    """Layers of the target whose inputs the head reads."""
    gpus: tuple[GpuDescription, ...]
    """GPUs that take the place of this computer's; empty: its own."""
    draft_gpus: tuple[GpuDescription, ...]
    """The same with the memory that the target leaves free."""


class ModelOpenError(Exception):
    """llama.cpp rejects the model or the settings."""


class ProbeServer:
    def __init__(self) -> None:
        self._errors: list[str] = []
        self._buffers = BufferLog()
        self._log = C.llama_log_callback(self._on_log)
        C.llama_log_set(self._log, None)
        C.llama_backend_init()
        self._ggml = GgmlLibrary(C._lib)
        self._simulated: SimulatedGpus | None = None

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Errors are returned in the field `failed`."""
        self._errors.clear()
        try:
            if request["op"] == "devices":
                return self._describe_llama_cpp()
            with ExitStack() as stack:
                return self._count(from_json(CountRequest, request), stack)
        except ModelOpenError as error:
            if self._errors:  # The first logged error is the cause.
                return {"failed": self._errors[0]}
            return {"failed": str(error)}
        except UsageError as error:
            return {"failed": error.message}
        except (LookupError, AttributeError, ValueError, OSError) as error:
            return {"failed": str(error)}

    def _describe_llama_cpp(self) -> dict[str, Any]:
        """The fields of memory_probe.LlamaCppInfo."""
        devices = [self._ggml.describe(device) for device in self._ggml.devices()]
        return {
            "devices": devices,
            "supports_gpu_offload": bool(C.llama_supports_gpu_offload()),
            "library_path": str(C._lib._name),
            "features": C.llama_print_system_info().decode("utf-8", "replace"),
            "missing_head_functions": ggml.list_missing_head_functions(C._lib),
        }

    def _count(self, request: CountRequest, stack: ExitStack) -> dict[str, Any]:
        """The fields of memory_probe.PairBuffers.

        Both models are open at once, as in the engine.
        """
        load = request.load
        has_mtp = request.head == "mtp"
        gpus = self._make_gpus(request.gpus)
        role = llama_params.target_role(load, load_mtp=has_mtp)
        target = _open_model(load.target, role, gpus, stack)
        context = _create_context(target, role, stack)
        has_hidden_states = True
        if request.target_layers:
            has_hidden_states = ggml.reserve_hidden_states(
                C._lib, context, request.target_layers
            )
        reply: dict[str, Any] = {
            "target": self._take_counts(),
            "draft": None,
            "has_hidden_states": has_hidden_states,
        }
        if load.draft is None:
            return reply
        n_ctx = int(C.llama_n_ctx(context))
        gpus = self._make_gpus(request.draft_gpus)
        if not request.head:
            role = llama_params.draft_role(load, n_ctx)
            draft = _open_model(load.draft, role, gpus, stack)
            role = llama_params.limit_to_trained(C, draft, role)
            _create_context(draft, role, stack)
        else:
            role = replace(llama_params.head_role(load, n_ctx), load_mtp=has_mtp)
            head = target
            if request.separate:
                head = _open_model(load.draft, role, gpus, stack)
            _create_context(head, role, stack, target=context)
        reply["draft"] = self._take_counts()
        return reply

    def _make_gpus(self, gpus: Sequence[GpuDescription]) -> Any:
        """llama_model_params.devices; None for this computer's own."""
        if not gpus:
            return None
        if self._simulated is None:
            self._simulated = SimulatedGpus(C._lib)
        return self._simulated.make_devices(gpus)

    def _take_counts(self) -> dict[str, Any]:
        """Bytes of the buffers logged since the last call, as `ModelBuffers`."""
        log = self._buffers
        self._buffers = BufferLog()
        by_device = log.by_device()
        # Without data the log has the total of a KV cache, but states by device.
        states = sum(memory.kv for memory in by_device.values())
        return {
            "compute": {name: memory.compute for name, memory in by_device.items()},
            "kv": log.kv_total + states,
        }

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        line = text.decode("utf-8", "replace").strip()
        self._buffers.read(line)
        if level == _LOG_LEVEL_ERROR and len(self._errors) < _MAX_ERRORS:
            self._errors.append(line)


def _open_model(path: str, role: ModelRole, gpus: Any, stack: ExitStack) -> Any:
    """`gpus`: simulated ones, or None."""
    params = llama_params.model_params(C, role.settings).params
    if gpus is not None:
        params.devices = ctypes.cast(gpus, ctypes.c_void_p)
    # Without data llama.cpp aborts in other load modes.
    params.no_alloc = True
    params.load_mode = C.LLAMA_LOAD_MODE_NONE
    params.load_mtp = role.load_mtp
    model = C.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelOpenError("llama.cpp cannot load the model")
    stack.callback(C.llama_model_free, model)
    return model


def _create_context(
    model: Any, role: ModelRole, stack: ExitStack, target: Any = None
) -> Any:
    """`target`: the context that a head reads."""
    trained = int(C.llama_model_n_ctx_train(model))
    n_ctx = role.settings.n_ctx or 0
    if target is None:
        n_ctx = llama_params.resolve_n_ctx(role.settings, trained, "this model")
    params = llama_params.context_params(C, model, role, n_ctx)
    if target is not None:
        params.ctx_other = target
        if role.load_mtp:
            params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
    context = C.llama_init_from_model(model, params)
    if not context:
        raise ModelOpenError("llama.cpp cannot create a context with these settings")
    stack.callback(C.llama_free, context)
    return context


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    out = child_process.take_over_stdout()
    server = ProbeServer()
    if not C.llama_supports_gpu_offload():  # a GPU driver reserves large address ranges
        child_process.limit_resources(address_space=_MAX_ADDRESS_SPACE)
    with os.fdopen(out, "w", encoding="ascii") as replies:
        idle = _exit_when_idle()
        for line in sys.stdin.buffer:
            idle.cancel()
            child_process.limit_resources(cpu_seconds=_MAX_CPU_SECONDS)
            reply = server.handle(json.loads(line))
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
            idle = _exit_when_idle()


def _exit_when_idle() -> threading.Timer:
    timer = threading.Timer(_IDLE_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()
    return timer


if __name__ == "__main__":
    main()
