"""Devices of other computers, which an extra provides.

The core places layers on them as on any other device, and counts the time of the way
there (`Device.link`). It knows a computer by its address (`remote_hosts` of the load
options and of `ContextSettings`). How it is asked, connected and missed is the extra's
business: its row in the table `REMOTE_DEVICES` names the option that takes the
addresses, and the import path of a `RemoteDeviceSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec import extras
from localspec.errors import LocalspecError
from localspec.machine.device import Device
from localspec.machine.ggml import GgmlLibrary
from localspec.protocol.events import EngineExit

OnUnusable = Callable[[LocalspecError], None]
"""Receives the reason why a computer cannot be used."""


class RemoteDeviceSource(Protocol):
    """What an extra does for the computers that its option names."""

    def find_devices(
        self, hosts: Sequence[str], on_unusable: OnUnusable | None = None
    ) -> tuple[Device, ...]:
        """Ask the computers for their devices.

        `on_unusable` receives the reason for each one that cannot be used. Without it,
        the reason is raised.
        """
        ...

    def prepare(self, notify: Callable[[str], None]) -> None:
        """Make what the engine needs to connect, which may take some seconds.

        Raises EngineError, StorageError.
        """
        ...

    def register(self, ggml: GgmlLibrary, host: str) -> list[int]:
        """In the engine: make the computer's devices known to ggml; return them.

        Raises EngineError.
        """
        ...

    def find_silent(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """The computers that do not answer any more."""
        ...

    def explain_exit(self, engine_exit: EngineExit, hosts: Sequence[str]) -> EngineExit:
        """The exit with its cause, if a lost computer ended the engine."""
        ...


def option_name() -> str:
    """The option that takes the addresses; also the code of notices about them.

    Empty without such an extra: then there are no addresses either.
    """
    names = [name for name, _ in extras.rows("REMOTE_DEVICES")]
    return names[0] if names else ""


def source() -> RemoteDeviceSource:
    """To be called only if there are addresses, so that there is an extra."""
    _, path = extras.rows("REMOTE_DEVICES")[0]
    found: RemoteDeviceSource = extras.load_object(path)
    return found


def find_devices(
    hosts: Sequence[str], on_unusable: OnUnusable | None = None
) -> tuple[Device, ...]:
    """As `RemoteDeviceSource.find_devices`; none of no computers."""
    return source().find_devices(hosts, on_unusable) if hosts else ()
