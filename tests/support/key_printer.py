"""Prints the keys and pastes that arrive, through the app's driver: `key_printer FILE`."""

import sys
from pathlib import Path

from textual import events
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from localspec.tui.key_parser import PlacedKey
from localspec.tui.terminal import driver_class


class KeyPrinter(App[None]):
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, log: Path) -> None:
        super().__init__(driver_class(LinuxDriver))
        self._key_file = log

    def on_mount(self) -> None:
        self._write("ready")

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, PlacedKey):
            self._write(f"{event.key} at {event.us_key}")
        elif isinstance(event, events.Key):
            self._write(event.key)
        elif isinstance(event, events.Paste):
            self._write(f"paste {event.text!r}")
        else:
            await super().on_event(event)
            return
        if isinstance(event, events.Key) and event.key == "f11":
            self.exit()

    def _write(self, line: str) -> None:
        with self._key_file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


if __name__ == "__main__":
    KeyPrinter(Path(sys.argv[1])).run()
