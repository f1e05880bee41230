"""The lists that conversion keeps in the data folder."""

from contextlib import closing
from pathlib import Path

from localspec.extras.convert import conversion
from localspec.paths import DataFile
from tests.support.own_files import FileUse


def list_conversion(file: DataFile) -> FileUse:
    path = Path("/m.gguf")
    return FileUse(
        write=lambda: conversion._add_to_list(file, path),
        read=lambda: conversion._is_listed(file, path),
    )


def hold_lock() -> bool:
    lock = conversion.take_lock()
    assert lock is not None
    with closing(lock):
        return True


DATA_FILES = {
    DataFile.CONVERSION_LOCK: FileUse(hold_lock, hold_lock),
    DataFile.SUGGESTED_CONVERSIONS: list_conversion(DataFile.SUGGESTED_CONVERSIONS),
    DataFile.USED_COPIES: list_conversion(DataFile.USED_COPIES),
}
