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
        devices: list[Device] = []
        for report in preflight.check_all(hosts, on_unusable):
            devices += list_devices(report)
        return tuple(devices)

    def prepare(self, notify: Callable[[str], None]) -> None:
        side_library.find_or_build(notify)

    def register(self, ggml: GgmlLibrary, host: str) -> list[int]:
        """Register the devices of a worker that the preflight has reached.

        llama.cpp aborts if it cannot be reached.
        """
        backend = ggml.backend_reg_by_name(b"RPC")
        if not backend:
            library = side_library.require()
            backend = ggml.backend_load(os.fsencode(library))
            if not backend:
                raise side_library.load_error(library)
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
    """A worker's devices, named as in llama.cpp's log.

    The worker's memory limit holds for all its devices together: with a limit of 10 GiB,
    two devices with 8 GiB each have 8 and 2 GiB.
    """
    address = report.address
    link = DeviceLink(str(address), report.round_trip_ms, report.bytes_per_second)
    left = report.status.memory_limit
    for index, device in enumerate(report.status.devices):
        free = device.free
        if left is not None:
            free = min(free, left)
            left -= free
        backend = HOST if device.kind == "cpu" else "RPC"
        yield Device(
            name=f"RPC{index}[{address}]",
            description=f"{device.description} of {address.host}",
            kind="gpu",
            free=free,
            total=device.total,
            backend=backend,
            link=link,
        )


SOURCE = WorkerDevices()
