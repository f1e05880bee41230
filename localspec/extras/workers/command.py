"""`localspec worker`: offer this computer's devices to localspec on another one."""

from __future__ import annotations

import ipaddress
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import click

from localspec import child_process
from localspec.cli import global_options
from localspec.cli.global_options import FiniteRange, flag, number_option, text_option
from localspec.cli.options import CommandArguments, read_arguments
from localspec.cli.terminal import ProgressLine, echo, notify
from localspec.errors import EngineError, UsageError
from localspec.extras.workers import side_library
from localspec.extras.workers.address import DEFAULT_PORT
from localspec.extras.workers.server import WorkerServer, WorkerSettings
from localspec.units import count, gb, gib

_REPORT_SECONDS = 2.0


class WorkerArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `worker`."""

    port: int
    listen: str
    is_open: bool
    device: tuple[str, ...]
    memory: float | None
    threads: int | None
    until_eof: bool
    via_ssh: str | None


@click.command("worker")
@number_option(
    "--port", "Port to listen on; 0: any that is free.", 0, 65535, default=DEFAULT_PORT
)
@click.option(
    "--listen",
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address of this computer; others than 127.0.0.1 need --i-know-it-is-open.",
)
@flag(
    "--i-know-it-is-open",
    "is_open",
    about="Listen where other computers can connect, without any protection.",
)
@text_option("--device", "NAME", "Offer only this device; repeatable.", multiple=True)
@number_option(
    "--memory",
    "Memory that may be used.  [default: what is free]",
    type=FiniteRange(0.1, 100_000),
    metavar="GB",
)
@number_option("--threads", "CPU threads.", 1)
@flag("--until-eof", about="End when standard input ends: for ssh.")
@text_option(
    "--via-ssh",
    "HOST",
    "Start the worker on HOST through ssh, and tunnel its port to this computer.",
)
def command(**given: Any) -> int:
    """Offer this computer's devices to localspec on another computer.

    llama.cpp's RPC protocol has no password and no encryption: whoever reaches the port
    can take over the process. So the worker listens on 127.0.0.1, and other computers
    reach it through ssh:

    \b
    localspec worker --via-ssh gpu-box          on the computer with the chat
    localspec run big-model --workers 127.0.0.1:50052
    """
    arguments = read_arguments(WorkerArguments, given)
    listen = arguments.listen
    settings = WorkerSettings(
        host=listen,
        port=arguments.port,
        devices=arguments.device,
        memory=arguments.memory,
        threads=arguments.threads,
    )
    if arguments.via_ssh is not None:
        return _run_via_ssh(arguments.via_ssh, settings)
    _refuse_open_address(listen, is_open=arguments.is_open)
    server = WorkerServer(settings, side_library.find_or_build(notify), notify)
    threading.Thread(target=server.serve, daemon=True).start()
    for device in server.devices:
        notify(f"{device.name}: {device.description}, {gib(device.free)} free")
    echo(f"{listen}:{server.port}")
    # With --until-eof the other computer has started it, and shows how it is used.
    if not arguments.until_eof:
        explain_use(listen, server.port)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if arguments.until_eof:
        threading.Thread(target=_wait_for_eof, args=(stopped,), daemon=True).start()
    try:
        _show_activity(server, stopped)
    except KeyboardInterrupt:
        return 130
    finally:
        server.close()
    return 0


def explain_use(listen: str, port: int) -> None:
    """Show what to type on the other computer.

    It reaches a loopback address through ssh only.
    """
    if _is_loopback(listen):
        here = f"127.0.0.1:{port}"
        tunnel = f"ssh -N -L {port}:{here} {socket.gethostname()}"
        use = f"and there: localspec run … --workers {here}  (Ctrl+C ends the worker)"
        notify(f"On the other computer: {tunnel}", use)
        return
    host = socket.gethostname() if listen in ("0.0.0.0", "::") else listen
    notify(
        f"On the other computer: localspec run … --workers {host}:{port}  (Ctrl+C ends)"
    )


def _is_loopback(address: str) -> bool:
    """Whether a name or address is only this computer's own."""
    try:
        found = socket.getaddrinfo(address, None, socket.AF_INET)
    except (OSError, UnicodeError):
        return False
    for _family, _kind, _protocol, _name, socket_address in found:
        if not ipaddress.ip_address(socket_address[0]).is_loopback:
            return False
    return True


def _refuse_open_address(address: str, *, is_open: bool) -> None:
    """Raises UsageError."""
    if is_open or _is_loopback(address):
        return
    raise UsageError(
        f"On {address} other computers could connect, and llama.cpp's "
        "RPC protocol protects nothing: whoever connects can take over this process.",
        "Use ssh (localspec worker --via-ssh on the other computer). In a network where you trust "
        "everyone: --i-know-it-is-open",
    )


def _show_activity(server: WorkerServer, stopped: threading.Event) -> None:
    line = ProgressLine(quiet=not global_options.can_redraw(), interval=60)
    before = server.activity
    while not stopped.wait(_REPORT_SECONDS):
        now = server.activity
        what = "nobody connected"
        if now.client:
            layers = count(now.n_layers, "layer")
            rate = (now.n_passes - before.n_passes) / _REPORT_SECONDS
            what = f"{now.client} connected · {layers} · {rate:.0f} passes/s"
        moved = f"{gb(now.received)} received, {gb(now.sent)} sent"
        line.show(f"{what} · {moved}")
        before = now
    line.clear()


def _wait_for_eof(stopped: threading.Event) -> None:
    with suppress(OSError, ValueError):
        while sys.stdin.buffer.read(4096):
            pass
    stopped.set()


def _run_via_ssh(host: str, settings: WorkerSettings) -> int:
    """Run a worker on `host`, and a tunnel to it from the same port here.

    Both end with this process. Raises EngineError.
    """
    ssh = shutil.which("ssh")
    if ssh is None:
        raise EngineError(
            "There is no ssh on this computer.", "Install OpenSSH's client."
        )
    port = settings.port or DEFAULT_PORT
    tunnel = f"127.0.0.1:{port}:127.0.0.1:{port}"
    remote = ["localspec", "worker", "--until-eof", "--port", str(port)]
    if settings.memory:
        remote += ["--memory", str(settings.memory)]
    if settings.threads:
        remote += ["--threads", str(settings.threads)]
    for device in settings.devices:
        remote += ["--device", device]
    command = [ssh, "-o", "ExitOnForwardFailure=yes", "-L", tunnel]
    # ssh's options end with --, so that a host name is never read as one.
    command += ["--", host, shlex.join(remote)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    notify(
        f"Use it here: localspec run … --workers 127.0.0.1:{port}  (Ctrl+C ends both)"
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        return 130
    finally:
        child_process.terminate(process, grace_seconds=5.0)
    raise EngineError(
        f"The worker on {host} ended (ssh: exit code {code}).",
        "Is localspec installed there, and on the path of a shell that ssh starts?",
    )
