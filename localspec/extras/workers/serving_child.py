"""Child process of a worker: serves this computer's devices by llama.cpp's RPC server.

llama.cpp's server aborts on many malformed requests; that ends this process only.  Arguments:
parent pid, side library, port on 127.0.0.1, threads, memory limit in bytes (0: none), device names.
Writes one line of JSON, the devices, before it listens; each line on stdin asks for them again.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from localspec import child_process
from localspec.machine import cpu_and_ram, installed_llama_cpp
from localspec.machine.ggml import GgmlLibrary

os.environ.setdefault("GGML_NO_BACKTRACE", "1")
installed_llama_cpp.preload_cuda_libraries()
installed_llama_cpp.skip_package_init()
import llama_cpp.llama_cpp as C  # noqa: E402, N812


def main() -> None:
    parent, library, port, threads, limit, *names = sys.argv[1:]
    child_process.set_up_child(int(parent))
    out = child_process.take_over_stdout()
    C.llama_backend_init()
    ggml = GgmlLibrary(C._lib)
    serve = _load_server(ggml, Path(library))
    chosen = _choose_devices(ggml, names)
    replies = os.fdopen(out, "w", encoding="utf-8")
    _write_devices(ggml, chosen, replies)

    def answer_questions() -> None:
        for _ in sys.stdin.buffer:
            _write_devices(ggml, chosen, replies)
        os._exit(0)  # the worker is gone

    threading.Thread(target=answer_questions, daemon=True).start()
    _limit_memory(int(limit))
    devices = (ctypes.c_void_p * len(chosen))(*chosen)
    serve(f"127.0.0.1:{port}".encode(), None, int(threads), len(chosen), devices)
    sys.exit(1)  # it returns only if it cannot listen


def _load_server(ggml: GgmlLibrary, library: Path) -> Any:
    registry = ggml.backend_load(os.fsencode(library))
    if not registry:
        sys.exit(f"{library.name} cannot be loaded")
    address = ggml.backend_reg_get_proc_address(
        registry, b"ggml_backend_rpc_start_server"
    )
    types = (
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    )
    return ctypes.CFUNCTYPE(None, *types)(address)


def _choose_devices(ggml: GgmlLibrary, names: list[str]) -> list[int]:
    """The named devices; by default all GPUs, or the CPU without one."""
    devices = {ggml.describe(device)["name"]: device for device in ggml.devices()}
    if names:
        if missing := [name for name in names if name not in devices]:
            sys.exit(f"no device {missing[0]}; there are: {', '.join(devices)}")
        return [devices[name] for name in names]
    kinds = {device: ggml.kind(device) for device in devices.values()}
    gpus = [device for device, kind in kinds.items() if kind in ("gpu", "igpu")]
    return gpus or [device for device, kind in kinds.items() if kind == "cpu"][:1]


def _limit_memory(limit: int) -> None:
    """An allocation beyond it fails, which the client reports; of the CPU's memory
    only.
    """
    if limit and sys.platform == "linux":
        import resource  # noqa: PLC0415  not on Windows

        with suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            used = 1024 * next(
                int(line.split()[1]) for line in lines if "VmData" in line
            )
            resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))


def _write_devices(ggml: GgmlLibrary, devices: list[int], replies: TextIO) -> None:
    described = [ggml.describe(device) for device in devices]
    # ggml reports all of it as free
    available = cpu_and_ram.read_host_memory().available
    for each in described:
        if each["type"] == "cpu":
            each["free"] = available
    replies.write(json.dumps(described) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
