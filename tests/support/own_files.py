"""How the tests write and read a file of the program."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct


class FileUse(Struct, frozen=True):
    """How the program writes and reads a file. `read` is true of what `write` wrote."""

    write: Callable[[], object]
    read: Callable[[], object]
    find: Callable[[], Path] | None = None
    """The file to damage in a folder of files."""
