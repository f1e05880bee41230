"""The devices of workers, as the core uses them (machine/remote_devices.py)."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from localspec.errors import EngineError, Hint
from localspec.extras.workers import preflight, side_library
from localspec.extras.workers.preflight import WorkerReport
from localspec.machine.device import HOST, Device, DeviceLink
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.remote_devices import OnUnusable, RemoteDeviceSource
from localspec.protocol.events import EngineExit

_LOST_CONNECTION = "remote rpc server crashed|rpc handshake failed|failed to connect to"


class WorkerDevices(RemoteDeviceSource):
    def find_devices(
        self, hosts: Sequence[str], on_unusable: OnUnusable | None = None
    ) -> tuple[Device, ...]:
        reports = preflight.check_all(hosts, on_unusable)
        return tuple(device for report in reports for device in list_devices(report))

    def prepare(self, notify: Callable[[str], None]) -> None:
        side_library.find_or_build(notify)

    def register(self, ggml: GgmlLibrary, host: str) -> list[int]:
        """llama.cpp aborts if the worker cannot be reached: the preflight comes first."""
        backend = ggml.backend_reg_by_name(b"RPC")
        if not backend:
            backend = ggml.backend_load(os.fsencode(side_library.require()))
        if not backend:
            raise EngineError(
                "llama.cpp cannot load its RPC backend.",
                "Reinstall llama-cpp-python, and try again.",
            )
        name = b"ggml_backend_rpc_add_server"
        address = ggml.backend_reg_get_proc_address(backend, name)
        add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
        registry = add_server(host.encode())
        if not registry:
            raise EngineError(
                f"The worker {host} has no device to offer.", "See its own screen."
            )
        ggml.backend_register(registry)
        n_devices = ggml.backend_reg_dev_count(registry)
        return [ggml.backend_reg_dev_get(registry, i) for i in range(n_devices)]

    def find_silent(self, hosts: Sequence[str]) -> tuple[str, ...]:
        return preflight.find_silent(hosts)

    def explain_exit(self, engine_exit: EngineExit, hosts: Sequence[str]) -> EngineExit:
        """Name the worker that is gone, if that ended the engine."""
        log = " ".join(engine_exit.log).lower()
        lost_connection = re.search(_LOST_CONNECTION, log) is not None
        if not lost_connection and engine_exit.how != "hang":
            return engine_exit
        silent = preflight.find_silent(hosts)
        if silent:
            what = f"{' and '.join(silent)} does not answer"
        elif lost_connection:
            what = f"{' or '.join(hosts)} dropped the model"
        else:
            return engine_exit
        hint = Hint(
            f"The worker {what}. Start it again, or leave {{workers}} out; the model is "
            "loaded anew."
        )
        return replace(engine_exit, how="worker", hint=hint)


def list_devices(report: WorkerReport) -> Iterator[Device]:
    """Named as in llama.cpp's log.  A limit applies to all devices together."""
    link = DeviceLink(
        str(report.address), report.round_trip_ms, report.bytes_per_second
    )
    left = report.status.memory_limit
    for index, device in enumerate(report.status.devices):
        free = device.free
        if left is not None:
            free = min(free, left)
            left -= free
        yield Device(
            f"RPC{index}[{report.address}]",
            f"{device.description} of {report.address.host}",
            kind="gpu",
            free=free,
            total=device.total,
            backend=HOST if device.kind == "cpu" else "RPC",
            link=link,
        )


SOURCE = WorkerDevices()
