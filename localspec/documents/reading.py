"""Reads a file: plain text here, other formats in a process of their own."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any, Literal

from msgspec import Struct, to_builtins

from localspec import child_process, paths
from localspec.documents.document import (
    EVERYTHING,
    UNITS,
    Document,
    PartSelection,
    PartUnit,
    ScannedPages,
    format_numbers,
    make_text_document,
    parse_ranges,
)
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.install_hints import DOCUMENT_PACKAGES, install_command
from localspec.models.audio_files import is_audio_name
from localspec.models.pictures import PictureData, accept_picture, is_picture_name
from localspec.protocol.json_values import from_json, parse_object
from localspec.sanitize import sanitize
from localspec.text_decoding import decode_text
from localspec.units import count, size_limit

MAX_TEXT_BYTES = 4 * 1024 * 1024
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024
READ_SECONDS = 30
"""Time for one document, from the start of its process."""

FileKind = Literal["text", "pdf", "zip", "html", "old office"]
"""What a file's first bytes and its name tell; the child looks into zip files."""
_RTF = b"{\\rtf"
_MAGIC: tuple[tuple[bytes, FileKind], ...] = (
    (b"%PDF-", "pdf"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # An empty one.
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "old office"),
    (_RTF, "old office"),
)
_PDF_START = 1024
"""A PDF may begin with other bytes, this many at most."""
_HTML_SUFFIXES = (".html", ".htm", ".xhtml")
_MEDIA_KINDS: dict[str, FileKind] = {
    "application/pdf": "pdf",
    "text/html": "html",
    "application/xhtml+xml": "html",
}
_UNIT_WORDS: dict[str, PartUnit | None] = {"part": None}
for _unit in UNITS:
    _UNIT_WORDS[_unit] = _unit
_CHOICE = re.compile(
    rf"\s(?:(all)|({'|'.join(_UNIT_WORDS)})s?(?:\s+([-–,\d\s]+))?)$",
    re.IGNORECASE,
)
_CHILD = "localspec.documents.reading_child"
_CPU_LIMIT_SIGNAL = getattr(signal, "SIGXCPU", 0)
"""Ends the child on systems that limit its time."""
_SOURCE = re.compile(r"\ssource$", re.IGNORECASE)


class FileRequest(Struct, frozen=True, kw_only=True):
    """A file to read, and which parts of it."""

    path: str  # As typed: `~` may be in it.
    selection: PartSelection | None = None
    """None: all, if there is room for it."""
    as_source: bool = False  # HTML as it is, not the text of the page.
    is_question: bool = False  # Whether the parts are to be listed, to choose some.


class ScannedDocumentError(UsageError):
    """A PDF whose pages are pictures: a model that sees may read those."""


class Scan(Struct, frozen=True):
    """Pages of a PDF that are pictures, without those that are blank."""

    name: str
    n_pages: int  # The pages of the whole document.
    numbers: tuple[int, ...]
    pictures: tuple[PictureData, ...]
    """One for each number."""

    @property
    def label(self) -> str:
        """`3 pages of scan.pdf`, or `pages 3-5 of scan.pdf`."""
        if len(self.numbers) == self.n_pages:
            return f"{count(self.n_pages, 'page')} of {self.name}"
        unit = "page" if len(self.numbers) == 1 else "pages"
        return f"{unit} {format_numbers(self.numbers)} of {self.name}"


def parse_file_request(typed: str) -> FileRequest:
    """A path, and what to read of it: `report.pdf pages 3-10`, `page.html source`.

    A file whose name has such an ending is that file. Raises UsageError.
    """
    rest = typed.strip()
    if os.path.exists(os.path.expanduser(paths.parse_typed_path(rest))):
        return FileRequest(path=paths.parse_typed_path(rest))
    selection: PartSelection | None = None
    is_question = False
    choice = _CHOICE.search(rest)
    if choice is not None:
        if choice[1]:
            selection = EVERYTHING
        elif choice[3]:
            selection = _parse_selection(choice[2], choice[3])
        else:
            is_question = True
        rest = rest[: choice.start()].rstrip()
    source = _SOURCE.search(rest)
    if source is not None:
        rest = rest[: source.start()].rstrip()
    return FileRequest(
        path=paths.parse_typed_path(rest),
        selection=selection,
        as_source=source is not None,
        is_question=is_question,
    )


def _parse_selection(unit: str, numbers: str) -> PartSelection:
    """Raises UsageError."""
    ranges = parse_ranges(numbers)
    if ranges is None:
        raise UsageError(
            f"{unit} {numbers.strip()}: these are no numbers of parts.",
            "For example: pages 3-10, 12",
        )
    return PartSelection(_UNIT_WORDS[unit.lower()], ranges)


def read_file(request: FileRequest) -> Document:
    """The document, or those of its parts that the request names.

    Raises LocalspecError if it cannot be read, which takes up to `READ_SECONDS`:
    ScannedDocumentError if a model that sees may read it, by `read_scanned_file`.
    """
    data, kind = _load_file(request)
    if request.as_source:
        kind = "text"
    return read_data(data, _name_file(request), kind, request.selection)


def read_scanned_file(request: FileRequest) -> Scan:
    """The pages that are pictures. Raises LocalspecError, as for `read_file`."""
    data, _ = _load_file(request)
    return read_scan(data, _name_file(request), request.selection)


def _name_file(request: FileRequest) -> str:
    return sanitize(PurePath(request.path).name, multiline=False)


def _load_file(request: FileRequest) -> tuple[bytes, FileKind]:
    """The bytes of a file, and one more than may be read if there are too many."""
    name = sanitize(request.path, multiline=False)
    path = Path(os.path.expanduser(request.path))
    hint = "Check the path."
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise UsageError(f"{name} is not a file.", "Give the path of a text file.")
        with path.open("rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
            kind = find_kind(data, path.name)
            if kind != "text":
                data += file.read(MAX_DOCUMENT_BYTES + 1 - len(data))
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", hint) from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{name} cannot be read: {error}.", hint) from error
    return data, kind


def find_kind(data: bytes, name: str, media_type: str = "") -> FileKind:
    """`name` and `media_type` tell HTML from other text; the first bytes tell the rest."""
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    suffix = PurePath(name).suffix.lower()
    kind = _MEDIA_KINDS.get(media_type.lower(), "text")
    is_named_pdf = kind == "pdf" or suffix == ".pdf"
    if is_named_pdf and b"%PDF-" in data[:_PDF_START]:
        return "pdf"
    if kind == "html" or suffix in _HTML_SUFFIXES:
        return "html"
    return "text"


class ReadingProcesses:
    """The processes that read documents for one part of the program, which may end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self.is_stopped = False

    def add(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(process)
            if self.is_stopped:
                process.kill()

    def remove(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)

    def stop(self) -> None:
        """End what is being read; from now on nothing is read."""
        with self._lock:
            self.is_stopped = True
            for process in self._running:
                process.kill()


_own_processes = ReadingProcesses()
atexit.register(_own_processes.stop)


def read_data(
    data: bytes,
    name: str,
    kind: FileKind,
    selection: PartSelection | None = None,
    processes: ReadingProcesses = _own_processes,
) -> Document:
    """The document of a file's bytes. `name` is shown, and so is sanitized.

    Raises LocalspecError: StorageError also if `processes` were stopped.
    """
    _check_length(data, name, kind)
    if kind == "old office":
        raise UsageError(*_describe_old_office(name, data))
    if kind != "text":
        reply = _read_in_child(data, name, kind, selection, processes)
        return from_json(Document, reply["document"])
    try:
        text, note = decode_text(data)
    except ValueError as error:
        hint = "Files of text, PDF, DOCX, ODT, EPUB and HTML can be read."
        if is_picture_name(name):
            hint = "A model that sees takes pictures: /image in a chat, --image in run."
        elif is_audio_name(name):
            hint = "A model that hears takes audio: /audio in a chat, --audio in run."
        raise UsageError(f"{name} is not a text file.", hint) from error
    text = text.replace("\r\n", "\n").rstrip("\n")
    if note:
        note = f"{note} (it is not UTF-8)"
    document = make_text_document(name, text, note)
    return document if selection is None else document.select(selection)


def read_scan(
    data: bytes,
    name: str,
    selection: PartSelection | None = None,
    processes: ReadingProcesses = _own_processes,
) -> Scan:
    """The pages of a PDF for which `read_data` has raised ScannedDocumentError.

    Raises LocalspecError, also for pages that are no pictures that can be shown.
    """
    _check_length(data, name, "pdf")
    reply = _read_in_child(data, name, "scan", selection, processes)
    read = from_json(ScannedPages, reply["scan"])
    pictures = []
    for page in read.pages:
        shown = f"{name}, page {page.number}"
        pictures.append(accept_picture(page.data, shown))
    numbers = tuple(page.number for page in read.pages)
    return Scan(name, read.n_pages, numbers, tuple(pictures))


def _check_length(data: bytes, name: str, kind: FileKind) -> None:
    max_bytes = MAX_TEXT_BYTES if kind == "text" else MAX_DOCUMENT_BYTES
    if len(data) > max_bytes:
        what = "text file" if kind == "text" else "document"
        raise UsageError(
            f"{name} is too large.",
            f"Give the path of a {what} of up to {size_limit(max_bytes)}.",
        )


def _describe_old_office(name: str, data: bytes) -> tuple[str, str]:
    """Message and hint. Word saves a document with a password in such a file, too."""
    if data.startswith(_RTF):
        return f"{name} is in the format RTF.", "Save it as DOCX or PDF."
    if "EncryptedPackage".encode("utf-16-le") in data:
        return f"{name} is encrypted.", "Save it without a password."
    return (
        f"{name} is in the format of old Office programs.",
        "Save it as DOCX or PDF.",
    )


# --- the child process


def _read_in_child(
    data: bytes,
    name: str,
    kind: FileKind | Literal["scan"],
    selection: PartSelection | None,
    processes: ReadingProcesses,
) -> dict[str, Any]:
    """The last line that the child wrote: `document` or `scan`."""
    if kind in ("pdf", "scan") and importlib.util.find_spec("pypdf") is None:
        raise UsageError(
            "PDF files need one more package: pypdf.",
            f"Install it: {install_command(*DOCUMENT_PACKAGES)}",
        )
    request = {
        "name": name,
        "kind": kind,
        "selection": to_builtins(selection),
        "seconds": READ_SECONDS,
    }
    child_input = json.dumps(request).encode() + b"\n" + data
    lines, is_late = _run_child(child_input, processes)
    if processes.is_stopped:
        raise StorageError(f"{name} was not read to its end.", "Try it again.")
    reply: dict[str, Any] = {}
    for line in lines:
        reply = line
    if "document" in reply or "scan" in reply:
        return reply
    if "problem" in reply:
        problem = sanitize(str(reply["problem"]), multiline=False)
        hint = sanitize(str(reply.get("hint", "")), multiline=False)
        if reply.get("is_scan"):
            raise ScannedDocumentError(f"{name} {problem}", hint)
        raise UsageError(f"{name} {problem}", hint)
    if is_late or reply.get("n_parts"):
        raise _too_slow(name, reply)
    raise UsageError(
        f"{name} cannot be read: it is damaged, or its reader ended.",
        "Open it with another program, and save it as plain text.",
    )


def _run_child(
    child_input: bytes, processes: ReadingProcesses
) -> tuple[Iterator[dict[str, Any]], bool]:
    """The lines that the child wrote, and whether its time was up. It has ended then."""
    parent = str(child_process.parent_pid_for_child())
    try:
        process = child_process.start([sys.executable, "-P", "-m", _CHILD, parent])
    except OSError as error:
        raise StorageError(
            f"No process can be started: {error.strerror}.", "Close other programs."
        ) from error
    processes.add(process)
    is_late = False
    try:
        output, _ = process.communicate(child_input, timeout=READ_SECONDS)
    except subprocess.TimeoutExpired:
        is_late = True
        process.kill()
        output, _ = process.communicate()
    finally:
        processes.remove(process)
        if process.poll() is None:  # Ctrl+C, say
            process.kill()
            process.wait()
    if process.returncode == -_CPU_LIMIT_SIGNAL:
        is_late = True
    return _parse_lines(output), is_late


def _parse_lines(output: bytes) -> Iterator[dict[str, Any]]:
    """The whole lines; the child may have been killed while it wrote."""
    for line in output.split(b"\n")[:-1]:
        try:
            yield parse_object(line)
        except ValueError:
            return


def _too_slow(name: str, progress: dict[str, Any]) -> UsageError:
    """`progress` is the last that the child has written of it."""
    message = f"{name} takes more than {READ_SECONDS} s to read"
    n_parts = int(progress.get("n_parts", 0))
    n_read = int(progress.get("n_read", 0))
    unit = str(progress.get("unit", "page"))
    if n_read:
        return UsageError(
            f"{message}: {n_read:,} of {count(n_parts, unit)} in that time.",
            f"Choose {unit}s, for example: {unit}s 1-{max(1, n_read // 2)}",
        )
    return UsageError(f"{message}.", "Open it, and save it as plain text.")
