"""Reads the file of a picture or of audio, up to the most bytes that one may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from localspec import data_files
from localspec.errors import LocalspecError, NotFoundError, StorageError
from localspec.sanitize import sanitize


def read_media_file(
    path: Path,
    name: str,
    *,
    n_max: int,
    too_large: Callable[[int, str], LocalspecError],
    is_folder: LocalspecError,
) -> bytes:
    """The bytes of a file; `name` is its shown name.

    Raises NotFoundError, StorageError, what `too_large` makes of the number of bytes, or
    `is_folder`.
    """
    try:
        with data_files.open_regular(path) as file:
            data = file.read(n_max + 1)
            if len(data) > n_max:
                raise too_large(path.stat().st_size, name)
            return data
    except (FileNotFoundError, ValueError):  # ValueError: no file can have that name
        shown_path = sanitize(str(path), multiline=False)
        raise NotFoundError(
            f"There is no file {shown_path}.", "Check the path."
        ) from None
    except OSError as error:
        if path.is_dir():
            raise is_folder from None
        raise StorageError(
            f"{name} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
