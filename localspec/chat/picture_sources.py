"""Where a person's picture or audio comes from: a path that is typed or dragged.

Pictures come from the clipboard, too.

A terminal passes no picture on. A file that is dragged onto it arrives as its path, and
the clipboard's picture is read by a program of the system.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from localspec import paths
from localspec.errors import UsageError
from localspec.models.audio_files import is_audio_name
from localspec.models.pictures import MAX_BYTES, is_picture_name

_MAX_PASTED = 32_768
"""Characters of a paste that may be paths; a longer one is a text."""
_MAX_PATHS = 100
_PATH_BEGINNING = re.compile(r"""[/~"'\\]|file://|[A-Za-z]:[\\/]""")
"""The most characters of a path that a terminal pastes; a longer text is none."""
_TIMEOUT = 5.0
_POWERSHELL = (
    "Add-Type -AssemblyName System.Windows.Forms,System.Drawing;"
    "$i=[Windows.Forms.Clipboard]::GetImage();"
    "if($i){$m=New-Object IO.MemoryStream;"
    "$i.Save($m,[Drawing.Imaging.ImageFormat]::Png);"
    "[Console]::OpenStandardOutput().Write($m.ToArray(),0,$m.Length)}"
)
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "wl-paste": ("wl-paste", "--no-newline", "--type", "image/png"),
    "xclip": ("xclip", "-selection", "clipboard", "-t", "image/png", "-o"),
    "pngpaste": ("pngpaste", "-"),
    "powershell.exe": ("powershell.exe", "-NoProfile", "-STA", "-Command", _POWERSHELL),
}
"""Programs that write the clipboard's picture to their output, as PNG."""


def split_paths(text: str) -> list[Path]:
    """The paths of an argument: one, or several as in a shell. `~` is replaced.

    A path that exists is one, whatever spaces it has: `/image my photo.jpg`.
    """
    whole = _expand(text)
    if os.path.exists(whole):
        return [whole]
    words = _split_words(text)
    return [_expand(word) for word in words] or [whole]


def find_dropped_files(text: str) -> list[Path]:
    """The pictures and audio files that were dragged onto the terminal.

    Terminals paste the paths quoted, escaped, or as file:// addresses, in a line or in a
    line each. The text is a message, and the result empty, unless all of it is paths of
    existing pictures or audio files.
    """
    if not text.strip() or len(text) > _MAX_PASTED:
        return []
    found: list[Path] = []
    for line in text.strip().splitlines():
        line = line.strip()  # noqa: PLW2901
        if not line:
            continue
        if not _PATH_BEGINNING.match(line):
            return []
        whole = _expand(line)
        if _is_media_file(whole):
            found.append(whole)
            continue
        words = _split_words(line)
        if not words or len(found) + len(words) > _MAX_PATHS:
            return []
        for word in words:
            path = _expand(word)
            if not _is_media_file(path):
                return []
            found.append(path)
    return found


def _expand(text: str) -> Path:
    return Path(os.path.expanduser(paths.parse_typed_path(text)))


def _is_media_file(path: Path) -> bool:
    is_media = is_picture_name(path.name) or is_audio_name(path.name)
    if not path.is_absolute() or not is_media:
        return False
    return os.path.isfile(path)


def _split_words(text: str) -> list[str]:
    """Empty if a quotation mark is missing."""
    try:
        words = shlex.split(text, posix=os.name == "posix")
    except ValueError:
        return []
    return [word.strip('"') for word in words]


# --- the clipboard


def read_clipboard(environment: Mapping[str, str] = os.environ) -> bytes:
    """The clipboard's picture, as a PNG.

    Waits for other programs. Raises UsageError without a program that can read it, or
    without a picture.
    """
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        raise UsageError(
            "The clipboard is on your own computer, which SSH does not reach.",
            "Copy the file here, and type: /image PATH",
        )
    tools = _find_tools(environment)
    if not tools:
        raise UsageError("The clipboard cannot be read here.", _install_hint())
    for tool in tools:
        data = _run(_COMMANDS[tool])
        if data:
            return data
    raise UsageError(
        "There is no picture in the clipboard.",
        "Copy one, or give the path of a file: /image PATH",
    )


def _find_tools(environment: Mapping[str, str]) -> list[str]:
    """The programs of this system that are installed, the likeliest first."""
    names: list[str] = []
    if sys.platform == "darwin":
        names.append("pngpaste")
    elif sys.platform == "win32":
        names.append("powershell.exe")
    else:
        if environment.get("WAYLAND_DISPLAY"):
            names.append("wl-paste")
        if environment.get("DISPLAY"):
            names.append("xclip")
        if environment.get("WSL_DISTRO_NAME"):
            names.insert(0, "powershell.exe")
    return [name for name in names if shutil.which(name) is not None]


def _install_hint() -> str:
    if sys.platform == "darwin":
        return "Install pngpaste (brew install pngpaste), or drag the file here."
    if sys.platform == "win32":
        return "Drag the file here, or type: /image PATH"
    return "Install wl-clipboard (Wayland) or xclip (X11), or drag the file here."


def _run(command: tuple[str, ...]) -> bytes:
    """What the program writes; empty if it fails, or writes too much."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout if len(done.stdout) <= MAX_BYTES else b""
