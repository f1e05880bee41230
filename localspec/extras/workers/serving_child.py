"""Child process of a worker: serves this computer's devices by llama.cpp's RPC server.

llama.cpp's server aborts on many malformed requests, which ends this process only.

Its arguments are the parent's pid, the side library, a port of 127.0.0.1, threads, the
memory limit in bytes (0: none), and names of devices. Before it listens, it writes the
devices (`WorkerDevice`) as a line of JSON. For each line on stdin it writes them again.
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
from localspec.extras.workers import side_library
from localspec.extras.workers.wire import WorkerDevice
from localspec.machine import cpu_and_ram, installed_llama_cpp
from localspec.machine.ggml import GgmlLibrary
from localspec.protocol.json_values import to_plain

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
    replies = os.fdopen(out, "w", encoding="ascii")
    _write_devices(ggml, chosen, replies)

    def answer_questions() -> None:
        for _ in sys.stdin.buffer:
            _write_devices(ggml, chosen, replies)
        os._exit(0)  # the parent is gone

    threading.Thread(target=answer_questions, daemon=True).start()
    _limit_memory(int(limit))
    endpoint = f"127.0.0.1:{port}".encode()
    devices = (ctypes.c_void_p * len(chosen))(*chosen)
    no_cache = None
    serve(endpoint, no_cache, int(threads), len(chosen), devices)
    sys.exit(1)  # it returns only if it cannot listen


def _load_server(ggml: GgmlLibrary, library: Path) -> Any:
    registry = ggml.backend_load(os.fsencode(library))
    if not registry:
        error = side_library.load_error(library)
        sys.exit(f"{error.message} {error.hint}")
    address = ggml.backend_reg_get_proc_address(
        registry, b"ggml_backend_rpc_start_server"
    )
    parameter_types = (
        ctypes.c_char_p,  # endpoint
        ctypes.c_char_p,  # folder of the cache
        ctypes.c_size_t,  # threads
        ctypes.c_size_t,  # number of devices
        ctypes.c_void_p,  # devices
    )
    return ctypes.CFUNCTYPE(None, *parameter_types)(address)


def _choose_devices(ggml: GgmlLibrary, names: list[str]) -> list[int]:
    """The named devices; by default all GPUs, or the CPU without one."""
    devices = {ggml.describe(device)["name"]: device for device in ggml.devices()}
    for name in names:
        if name not in devices:
            sys.exit(f"no device {name}; there are: {', '.join(devices)}")
    if names:
        return [devices[name] for name in names]
    kinds = {device: ggml.kind(device) for device in devices.values()}
    gpus = [device for device, kind in kinds.items() if kind in ("gpu", "igpu")]
    cpus = [device for device, kind in kinds.items() if kind == "cpu"]
    return gpus or cpus[:1]


def _limit_memory(limit: int) -> None:
    """Limit the CPU's memory to what is used now and `limit` bytes more; 0: no limit.

    An allocation beyond it fails, which llama.cpp's client reports.
    """
    if not limit or sys.platform != "linux":
        return
    import resource  # noqa: PLC0415  not on Windows

    with suppress(OSError, ValueError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        for line in status.splitlines():
            if line.startswith("VmData:"):  # `VmData:    123456 kB`
                used = 1024 * int(line.split()[1])
                resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))


def _write_devices(ggml: GgmlLibrary, devices: list[int], replies: TextIO) -> None:
    found: list[WorkerDevice] = []
    for device in devices:
        described = ggml.describe(device)
        free = described["free"]
        if described["type"] == "cpu":
            # ggml reports all of the computer's memory as free.
            free = cpu_and_ram.read_host_memory().available
        found.append(
            WorkerDevice(
                name=described["name"],
                description=described["description"],
                kind=described["type"],
                free=free,
                total=described["total"],
            )
        )
    replies.write(json.dumps(to_plain(found)) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
