"""Documents in requests: a file in base64 becomes its text, or the pictures of a scan.

They are Anthropic's `document` blocks and OpenAI's parts `file` and `input_file`. A
document stays in its chat, which comes anew with each request, so what was read is kept
for a while.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from msgspec import Struct

from localspec.documents.document import Document
from localspec.documents.reading import (
    FileKind,
    ReadingProcesses,
    Scan,
    ScannedDocumentError,
    find_kind,
    read_data,
    read_scan,
)
from localspec.errors import LocalspecError, UsageError
from localspec.launch import sight
from localspec.models.pictures import PICTURE_MARK, without_marks
from localspec.protocol.wire import PictureRef
from localspec.sanitize import sanitize
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.json_bodies import to_unicode
from localspec.serve.request_pictures import RequestPictures
from localspec.serve.requests import ContentPart

MAX_DOCUMENTS = 20  # In a request.
DOCUMENT_TYPES = ("document", "file", "input_file")
_MAX_KEPT = 64
_MAX_KEPT_CHARACTERS = 32_000_000
_MAX_NAME = 200
_DATA_URL = re.compile(r"data:([^;,]{0,200})((?:;[^;,]{0,200})*?);base64,")
_WHITESPACE = str.maketrans("", "", " \t\r\n")
_NOT_FETCHED = "documents are not fetched here; send the file in base64"
_NOT_STORED = "files are not stored here; send the file in base64"


_processes: ContextVar[ReadingProcesses] = ContextVar("processes")
"""Those of the server that parses a request."""
_unserved = ReadingProcesses()


@contextmanager
def reading_by(processes: ReadingProcesses) -> Iterator[None]:
    """Read the documents of a request with the processes of its server."""
    token = _processes.set(processes)
    try:
        yield
    finally:
        _processes.reset(token)


class EncodedDocument(Struct, frozen=True):
    """A document as a request has it."""

    data: str  # Base64, or a data URL.
    param: str  # The field that has it.
    name: str
    media_type: str = ""
    heads: tuple[str, ...] = ()  # Lines above the text: title, context.


def find_document(part: ContentPart, param: str) -> EncodedDocument | None:
    """The document of a part; None if it has none.

    Raises ApiError for one that the client does not send along.
    """
    if part.type == "document" and isinstance(part.source, dict):
        return _find_block(part, part.source, param)
    if part.type == "file" and isinstance(part.file, dict):
        return _find_file(part.file, f"{param}.file")
    if part.type == "input_file":
        fields = {
            "file_data": part.file_data,
            "filename": part.filename,
            "file_url": part.file_url,
            "file_id": part.file_id,
        }
        return _find_file(fields, param)
    return None


def _find_block(
    part: ContentPart, source: dict[str, Any], param: str
) -> EncodedDocument | None:
    kind = source.get("type")
    if kind == "url":
        raise unsupported(f"{param}.source.type", _NOT_FETCHED)
    if kind == "file":
        raise unsupported(f"{param}.source.type", _NOT_STORED)
    data = source.get("data")
    if kind != "base64" or not isinstance(data, str):
        return None
    heads = [part.title, part.context]
    return EncodedDocument(
        data,
        f"{param}.source.data",
        _to_text(part.title) or "the document",
        _to_text(source.get("media_type")),
        tuple(head for head in map(_to_text, heads) if head),
    )


def _find_file(fields: dict[str, Any], param: str) -> EncodedDocument | None:
    data = fields.get("file_data")
    if isinstance(data, str) and data:
        name = _to_text(fields.get("filename"))
        heads = (name,) if name else ()
        return EncodedDocument(
            data, f"{param}.file_data", name or "the file", heads=heads
        )
    if fields.get("file_url"):
        raise unsupported(f"{param}.file_url", _NOT_FETCHED)
    if fields.get("file_id"):
        raise unsupported(f"{param}.file_id", _NOT_STORED)
    return None


def _to_text(value: Any) -> str:
    return to_unicode(value) if isinstance(value, str) else ""


class DocumentContent(Struct, frozen=True):
    text: str
    images: tuple[PictureRef, ...] = ()
    """Pages of a scan, of which each has a `PICTURE_MARK` in the text, in their order."""


def read_document(given: EncodedDocument, pictures: RequestPictures) -> DocumentContent:
    """The document's text below its name, or its pages if it is a scan.

    Raises ApiError; takes up to half a minute, and twice that for a scan.
    """
    media_type = given.media_type
    encoded = given.data
    data_url = _DATA_URL.match(encoded)
    if data_url is not None:
        media_type = data_url[1]
        encoded = encoded[data_url.end() :]
    try:
        data = base64.b64decode(encoded.translate(_WHITESPACE), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(given.param, "it is not base64") from None
    name = sanitize(given.name[:_MAX_NAME], multiline=False)
    found: Document | Scan | LocalspecError
    found = _kept.read(data, name, find_kind(data, name, media_type))
    if isinstance(found, ScannedDocumentError):
        if pictures.sees:
            found = _kept.read(data, name, "scan")
        else:
            hint = sight.add_seeing_models(found.hint)
            found = ScannedDocumentError(found.message, hint)
    if isinstance(found, LocalspecError):
        problem = f"{found.message} {found.hint}".strip()
        raise ApiError(400, f"{given.param}: {problem}", param=given.param)
    if isinstance(found, Document):
        text = "\n".join([*given.heads, found.text])
        return DocumentContent(without_marks(text))
    lines = list(map(without_marks, given.heads))
    for number in found.numbers:
        lines += (f"[Page {number}]", PICTURE_MARK)
    images = pictures.take_pages(found.pictures, given.param)
    return DocumentContent("\n".join(lines), images)


class _KeptDocuments:
    """The last documents that were read, and those that could not be, by their bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Document | Scan | LocalspecError] = OrderedDict()
        self._n_characters = 0

    def read(
        self, data: bytes, name: str, kind: FileKind | Literal["scan"]
    ) -> Document | Scan | LocalspecError:
        digest = hashlib.sha256(data).hexdigest()
        key = f"{kind} {digest} {name}"
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found: Document | Scan | LocalspecError
        processes = _processes.get(_unserved)
        try:
            if kind == "scan":
                found = read_scan(data, name, processes=processes)
            else:
                found = read_data(data, name, kind, processes=processes)
        except UsageError as error:
            found = error
        except LocalspecError as error:
            return error  # Another time it may be read.
        with self._lock:
            self._keep(key, found)
        return found

    def _keep(self, key: str, found: Document | Scan | LocalspecError) -> None:
        if key in self._kept:
            return
        self._kept[key] = found
        self._n_characters += _count_characters(found)
        while self._kept and (
            len(self._kept) > _MAX_KEPT or self._n_characters > _MAX_KEPT_CHARACTERS
        ):
            _, oldest = self._kept.popitem(last=False)
            self._n_characters -= _count_characters(oldest)


def _count_characters(found: Document | Scan | LocalspecError) -> int:
    """A byte of a picture counts as a character."""
    if isinstance(found, LocalspecError):
        return 0
    if isinstance(found, Scan):
        return sum(len(each.data) for each in found.pictures)
    return sum(map(len, found.parts))


_kept = _KeptDocuments()


def count_documents(body: dict[str, Any]) -> int:
    """The documents in a request of any chat API.

    Such a request takes a process for each of them, so it is not read between others.
    Raises ApiError for too many.
    """
    n_documents = 0
    level: list[Any] = [body.get("messages"), body.get("input"), body.get("system")]
    while level:
        below: list[Any] = []
        for value in level:
            if isinstance(value, list):
                below += value
            elif isinstance(value, dict):
                if value.get("type") in DOCUMENT_TYPES:
                    n_documents += 1
                # Messages have parts, and results of tools have parts of their own.
                below += (value.get("content"), value.get("output"))
        level = below
    if n_documents > MAX_DOCUMENTS:
        field = "input" if body.get("input") else "messages"
        raise invalid(field, f"it has more than {MAX_DOCUMENTS} documents")
    return n_documents
