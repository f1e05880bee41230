"""Workers without llama.cpp: addresses, and what a preflight refuses."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from localspec.errors import EngineError, InUseError, UsageError
from localspec.extras.workers import preflight, server, side_library, wire
from localspec.extras.workers.address import WorkerAddress, parse_addresses
from localspec.extras.workers.preflight import WorkerReport
from localspec.extras.workers.source import list_devices
from localspec.fit import machine_profile, placement
from localspec.fit.advisor import SettingsRequest
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, HardwareSpeed
from localspec.launch.start import find_remote_devices
from localspec.machine import installed_llama_cpp
from localspec.machine.device import HOST, Device
from localspec.protocol.events import Notice
from localspec.protocol.wire import ContextSettings, LoadCommand, LoadEvent

GIB = 1 << 30
CPU = wire.WorkerDevice("CPU", "A CPU", "cpu", free=8 * GIB, total=16 * GIB)


def test_addresses_that_llama_cpp_would_abort_on() -> None:
    for text, reason in [
        ("a,b,c", "at most 2"),
        ("a,a:50052", "twice"),
        ("[::1]:50052", "IPv6"),
        ("a:0", "no worker's address"),
        ("a b", "no worker's address"),
        ("http://a", "no worker's address"),
    ]:
        with pytest.raises(UsageError, match=reason):
            parse_addresses(text)


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[WorkerAddress]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        answer(connection)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        yield WorkerAddress(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def refusing() -> Iterator[WorkerAddress]:
    """A port that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield WorkerAddress(*taken.getsockname())


def worker(status: wire.WorkerStatus) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        assert stream.readline() == wire.GREETING
        connection.sendall(json.dumps(to_builtins(status)).encode() + b"\n")
        while line := stream.readline():
            if line == wire.DATA:
                stream.read(wire.DATA_BYTES)
            connection.sendall(wire.PONG)

    return answer


def status(
    version: str | None = None,
    *,
    busy: bool = False,
    devices: tuple[wire.WorkerDevice, ...] = (CPU,),
) -> wire.WorkerStatus:
    return wire.WorkerStatus(version or installed_llama_cpp.version(), busy, devices)


def http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def check_that_it_is_no_worker(wrong: wire.WorkerStatus) -> None:
    with (
        listening(worker(wrong)) as address,
        pytest.raises(UsageError, match="not a localspec"),
    ):
        preflight.check(address)


@pytest.mark.parametrize(
    "values", [{"free": "x"}, {"total": float("nan")}, {"name": 5}, {"free": -1}]
)
def test_values_that_no_device_has(values: dict[str, Any]) -> None:
    check_that_it_is_no_worker(status(devices=(replace(CPU, **values),)))


@pytest.mark.parametrize("values", [{"llama_cpp": 5}, {"memory_limit": "x"}])
def test_values_that_no_worker_sends(values: dict[str, Any]) -> None:
    check_that_it_is_no_worker(replace(status(), **values))


def test_bytes_that_drip_have_one_timeout_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drip(connection: socket.socket) -> None:
        with suppress(OSError):  # the other end has closed it
            for byte in b" " * 100 + b"\n":
                connection.sendall(bytes([byte]))
                threading.Event().wait(0.01)

    monkeypatch.setattr(preflight, "_REPLY_SECONDS", 0.1)
    with (
        listening(drip) as address,
        pytest.raises(EngineError, match="does not answer"),
    ):
        preflight.check(address)
    with listening(drip) as address:
        line = socket.create_connection((address.host, address.port), 0.1)
        with line, pytest.raises(TimeoutError):
            server._receive(line, 100)


def test_what_llama_cpp_would_abort_on_is_refused() -> None:
    kind: Any
    for answer, kind, reason in [
        (worker(status("0.2.1")), UsageError, r"has llama-cpp-python 0\.2\.1"),
        (worker(status(busy=True)), InUseError, "in use"),
        (worker(status(devices=())), EngineError, "no device"),
        (http, UsageError, "not a localspec worker"),
        (lambda connection: None, (UsageError, EngineError), "127"),
    ]:
        with listening(answer) as address:
            with pytest.raises(kind, match=reason) as caught:
                preflight.check(address)
            assert str(address) in caught.value.message
            assert caught.value.hint


def test_a_worker_that_is_not_there() -> None:
    with refusing() as address:
        with pytest.raises(EngineError, match="cannot be reached: connection refused"):
            preflight.check(address)
        assert preflight.find_silent([str(address)]) == (str(address),)
    unknown = WorkerAddress("no-such-host.invalid")
    with pytest.raises(EngineError, match=rf"{unknown.host}:50052 cannot be reached"):
        preflight.check(unknown)


def test_unusable_workers_of_the_settings_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    side_library.built_file().parent.mkdir(parents=True)
    side_library.built_file().touch()
    notices: list[LoadEvent] = []
    with refusing() as closed, listening(worker(status())) as here:
        gone = str(closed)
        settings = ContextSettings(remote_hosts=(gone, str(here)))
        load = LoadCommand("t", target_settings=settings)
        with pytest.raises(EngineError, match="cannot be reached"):
            find_remote_devices(SettingsRequest(load), notices.append)
        optional = SettingsRequest(load, can_skip_remote=True)
        request, devices = find_remote_devices(optional, notices.append)
        assert request.load.target_settings.remote_hosts == (str(here),)
        assert {device.link.host for device in devices if device.link} == {str(here)}
        side_library.built_file().unlink()
        monkeypatch.setenv("PATH", "")
        request, devices = find_remote_devices(optional, notices.append)
        assert request.load.target_settings.remote_hosts == () == devices
    unreachable, _, no_library = notices
    assert isinstance(unreachable, Notice)
    assert isinstance(no_library, Notice)
    assert f"The worker {gone} cannot be reached" in unreachable.message
    assert "no C++ compiler" in no_library.message
    assert unreachable.hint == no_library.hint == "Going on without it."


def request(command: int, body: bytes = b"") -> bytes:
    """As llama.cpp's client sends it: 6 is SET_TENSOR, 10 and 16 compute a graph."""
    return bytes([command]) + len(body).to_bytes(8, "little") + body


def weights_of_layer(n: int) -> bytes:
    return b"\0" * 200 + f"blk.{n}.attn_q.weight".encode() + b"\0" * 300


@given(st.lists(st.integers(1, 700)))
def test_passes_and_layers_are_counted_however_the_bytes_arrive(
    sizes: list[int],
) -> None:
    # Behind the description of the tensor, its weights look like another's name.
    text_like = b"\0" * 400 + b"blk.7."
    requests = [
        request(6, weights_of_layer(3)),
        request(6, weights_of_layer(14)),
        request(6, weights_of_layer(3)),
        request(6, text_like),
        request(6),
        request(0, b"x" * 12),
        request(10, weights_of_layer(14) * 9),
    ]
    requests += [request(16, b"g" * 4)] * 5
    stream = b"".join(requests)
    meter = wire.RequestMeter()

    for size in sizes:
        meter.feed(memoryview(stream[:size]))
        stream = stream[size:]
    meter.feed(memoryview(stream))

    assert meter.n_passes == 6
    assert meter.layers == {3, 14}


def test_layers_go_to_the_workers_first_and_a_draft_stays_here() -> None:
    """As llama.cpp places them with the devices of machine/llama_params.py."""
    gpu = Device("CUDA0", "A card", "gpu", free=8 * GIB, total=8 * GIB, backend="CUDA")
    host = Device("CPU", "A CPU", "cpu", free=8 * GIB, total=16 * GIB)
    here = MachineProfile(
        (gpu,), host, HardwareSpeed((gpu,), {HOST: TYPICAL_CPU_SPEED})
    )
    limited = wire.WorkerStatus("1", False, (CPU, CPU), memory_limit=10 * GIB)
    report = WorkerReport(
        WorkerAddress("box"), limited, round_trip_ms=1.0, bytes_per_second=1e8
    )

    machine = machine_profile.with_remote(here, list(list_devices(report)))

    names = [device.name for device in machine.devices]
    assert names == ["RPC0[box:50052]", "RPC1[box:50052]", "CUDA0"]
    assert [device.free for device in machine.devices[:2]] == [8 * GIB, 2 * GIB]
    target = ContextSettings(remote_hosts=("box:50052",))
    assert placement.offload_devices(target, machine.devices) == machine.devices
    assert placement.offload_devices(ContextSettings(), machine.devices) == (gpu,)
    linked = [device.name for device in machine.hardware.devices if device.link]
    assert linked == ["RPC0[box:50052]", "RPC1[box:50052]"]
