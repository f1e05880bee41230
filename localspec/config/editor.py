"""A person's own editor on config.toml."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from localspec import paths
from localspec.config import writing
from localspec.errors import NotFoundError

_USUAL = ("nano", "vi", "notepad")


def edit() -> Path:
    """Wait until the editor is left; a file that is not there begins with all values as comments.

    Raises NotFoundError where no editor is found, AccessError where nothing can be written.
    """
    path = paths.config()
    words = _words()
    if not path.exists():
        writing.replace(path, writing.template())
    try:
        subprocess.run([*words, str(path)], check=False)
    except OSError as error:
        what = f"{words[0]} cannot be started: {error.strerror}."
        raise NotFoundError(what, f"Set VISUAL or EDITOR, or open {path} yourself.") from error
    return path


def _words() -> list[str]:
    """$VISUAL, $EDITOR, or what is usually there."""
    for variable in ("VISUAL", "EDITOR"):
        if words := shlex.split(os.environ.get(variable, ""), posix=os.name != "nt"):
            return words
    found = next(filter(None, map(shutil.which, _USUAL)), None)
    if found is None:
        raise NotFoundError("There is no editor.", "Set VISUAL or EDITOR to one.")
    return [found]
