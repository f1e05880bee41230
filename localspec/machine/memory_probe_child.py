"""Child process of the memory probe: reads and writes one JSON object per line.

llama.cpp aborts on some malformed headers.  A crash ends this process only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from localspec import child_process
from localspec.errors import UsageError
from localspec.machine import ggml, installed_llama_cpp, llama_params
from localspec.machine.device import BufferLog
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.llama_params import ModelRole
from localspec.protocol.json_dataclasses import from_json
from localspec.protocol.wire import LoadCommand

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
installed_llama_cpp.preload_cuda_libraries()
installed_llama_cpp.skip_package_init()
import llama_cpp.llama_cpp as C  # noqa: E402, N812

# Limit in bytes: recurrent states are really allocated.
_MAX_ADDRESS_SPACE = 8 * 1024**3
_MAX_CPU_SECONDS = 30  # Limit for one request.
_LOG_LEVEL_ERROR = 4  # GGML_LOG_LEVEL_ERROR.
_MAX_ERRORS = 20


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

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Errors are returned in the field `failed`."""
        self._errors.clear()
        try:
            if request["op"] == "devices":
                return {
                    "devices": [
                        self._ggml.describe(device) for device in self._ggml.devices()
                    ],
                    "offloads": bool(C.llama_supports_gpu_offload()),
                    "library": str(C._lib._name),
                    "lacking": ggml.list_missing_head_functions(C._lib),
                    "features": C.llama_print_system_info().decode("utf-8", "replace"),
                }
            with ExitStack() as stack:
                return self._handle_count(request, stack)
        except ModelOpenError as error:  # the first logged error is the cause
            return {"failed": self._errors[0] if self._errors else str(error)}
        except UsageError as error:
            return {"failed": error.message}
        except (LookupError, AttributeError, ValueError) as error:
            return {"failed": str(error)}

    def _handle_count(
        self, request: Mapping[str, Any], stack: ExitStack
    ) -> dict[str, Any]:
        """Opens both models at once, as the engine does."""
        load: LoadCommand = from_json(LoadCommand, request["load"])
        head_kind: str = request["head"]
        role = llama_params.target_role(load, load_mtp=head_kind == "mtp")
        target = _open_model(load.target, role, stack)
        context = _create_context(target, role, stack)
        reply: dict[str, Any] = {"target": self._take_counts(), "draft": None}
        if load.draft is None:
            return reply
        n_ctx = int(C.llama_n_ctx(context))
        if not head_kind:
            role = llama_params.draft_role(load, n_ctx)
            draft = _open_model(load.draft, role, stack)
            _create_context(draft, llama_params.limit_to_trained(C, draft, role), stack)
            return reply | {"draft": self._take_counts()}
        role = replace(llama_params.head_role(load, n_ctx), load_mtp=head_kind == "mtp")
        head = _open_model(load.draft, role, stack) if request["separate"] else target
        _create_context(head, role, stack, target=context)
        return reply | {"draft": self._take_counts()}

    def _take_counts(self) -> dict[str, Any]:
        """Bytes of the buffers logged since the last call."""
        log, self._buffers = self._buffers, BufferLog()
        by_device = log.by_device()
        return {
            "compute": {name: part.compute for name, part in by_device.items()},
            "kv": log.kv_total + sum(part.kv for part in by_device.values()),
        }

    def _on_log(self, level: int, text: bytes, _: Any) -> None:
        line = text.decode("utf-8", "replace").strip()
        self._buffers.read(line)
        if level == _LOG_LEVEL_ERROR and len(self._errors) < _MAX_ERRORS:
            self._errors.append(line)


def _open_model(path: str, role: ModelRole, stack: ExitStack) -> Any:
    params = llama_params.model_params(C, role.settings).params
    # Without data llama.cpp aborts in other load modes.
    params.no_alloc, params.load_mode = True, C.LLAMA_LOAD_MODE_NONE
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
    with os.fdopen(out, "w", encoding="utf-8") as replies:
        for line in sys.stdin.buffer:
            child_process.limit_resources(cpu_seconds=_MAX_CPU_SECONDS)
            replies.write(json.dumps(server.handle(json.loads(line))) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
