"""The library that workers build."""

from contextlib import suppress

from localspec.extras.workers import side_library
from localspec.paths import DataFile
from tests.support.own_files import FileUse


def build_library() -> None:
    path = side_library.built_file()
    with suppress(OSError):  # as of the test itself
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x7fELF" + bytes(100))


DATA_FILES = {
    DataFile.RPC_LIBRARIES: FileUse(
        build_library, side_library.find, find=side_library.built_file
    ),
}
