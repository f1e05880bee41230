"""Child process of the memory probe: reads and writes one JSON object per line.

llama.cpp aborts on some malformed headers.  A crash ends this process only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from localspec import child_process
from localspec.errors import UsageError
from localspec.machine import installed_llama_cpp, llama_params, probed_model
from localspec.machine.buffer_log import BufferLog
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.probed_model import ModelOpenError, ProbedHead, ProbedModel, ProbedMtpHead
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
                return self._handle_devices()
            return self._handle_count(request)
        except ModelOpenError as error:  # the first logged error is the cause
            return {"failed": self._errors[0] if self._errors else str(error)}
        except UsageError as error:
            return {"failed": error.message}
        except (LookupError, AttributeError, ValueError) as error:
            return {"failed": str(error)}

    def _handle_devices(self) -> dict[str, Any]:
        return {
            "devices": [self._ggml.describe(device) for device in self._ggml.devices()],
            "offloads": bool(C.llama_supports_gpu_offload()),
            "library": str(C._lib._name),
            "lacking": probed_model.missing_head_functions(C),
            "features": C.llama_print_system_info().decode("utf-8", "replace"),
        }

    def _handle_count(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Opens both models at once, as the engine does."""
        load: LoadCommand = from_json(LoadCommand, request["load"])
        head_kind: str = request["head"]
        with ExitStack() as stack:
            role = llama_params.target_role(load, load_mtp=head_kind == "mtp")
            target = stack.enter_context(closing(ProbedModel(C, load.target, role)))
            reply: dict[str, Any] = {"target": self._take_counts(), "draft": None}
            if load.draft is None:
                return reply
            if head_kind:
                role = llama_params.head_role(load, target.n_ctx)
                draft: ProbedModel = (
                    ProbedHead(C, load.draft, role, target)
                    if request["separate"]
                    else ProbedMtpHead(C, role, target)
                )
            else:
                draft = ProbedModel(C, load.draft, llama_params.draft_role(load, target.n_ctx))
            stack.enter_context(closing(draft))
            counts = self._take_counts()
            return reply if draft.is_recurrent else reply | {"draft": counts}

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
