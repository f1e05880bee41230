"""Pictures and audio in requests: their bytes are there; addresses are not fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

from msgspec import Struct

from localspec.errors import AudioError, PictureError
from localspec.launch import sight
from localspec.models.audio_files import MAX_AUDIO_BYTES, accept_audio
from localspec.models.pictures import (
    MAX_BYTES,
    MAX_REQUEST_PICTURES,
    PICTURE_FILES,
    PictureData,
    accept_picture,
)
from localspec.protocol.wire import PictureRef
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.requests import ContentPart
from localspec.units import size_limit

PICTURE_PARTS = ("image_url", "input_image", "image")
"""The types of parts that are pictures: of chat completions, responses and messages."""
AUDIO_PARTS = ("input_audio",)
"""The types of parts that are audio: of chat completions and of responses."""
_DATA_URL = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_NAME = "the picture"
_AUDIO_NAME = "the audio"
_BLANKS = re.compile(r"\s+")
_KEPT_CONVERSIONS = 64
_TOO_MANY = f"a request has at most {MAX_REQUEST_PICTURES} pictures and audio files"


class RequestPictures:
    """Takes the pictures and audio of one request.

    They become files of this process: the engine gets their paths and hashes.
    """

    def __init__(self, *, sees: bool, hears: bool = False) -> None:
        """`sees`, `hears`: whether the model takes pictures, and audio."""
        self.sees = sees
        self.hears = hears
        self._n_taken = 0

    def take(self, part: ContentPart, param: str) -> PictureRef:
        """The picture of a part.

        Raises ApiError for one that cannot be read, or that is one too many.
        """
        encoded = _find_encoded(part, param)
        self._count(param)
        if len(encoded.text) > _encoded_length(MAX_BYTES):
            raise invalid(encoded.field, f"a picture may have {size_limit(MAX_BYTES)}")
        data = _decode(encoded.text, encoded.field)
        try:
            return _CONVERSIONS.accept(data)
        except PictureError as error:
            problem = f"{error.message} {error.hint}".strip()
            raise invalid(encoded.field, problem) from None

    def take_audio(self, part: ContentPart, param: str) -> PictureRef:
        """The audio of a part: {"data": Base64, "format": "wav"}. Its bytes tell what it is.

        Raises ApiError for audio that cannot be read, or that is one too many.
        """
        field = f"{param}.input_audio"
        if not isinstance(part.input_audio, dict):
            raise invalid(field, "it is missing, or no object")
        text = part.input_audio.get("data")
        field = f"{field}.data"
        if not isinstance(text, str):
            raise invalid(field, "it is missing, or no text")
        self._count(param)
        head = _DATA_URL.match(text)
        if head is not None and head[0].lower().endswith(";base64,"):
            text = text[head.end() :]
        if len(text) > _encoded_length(MAX_AUDIO_BYTES):
            raise invalid(field, f"audio may have {size_limit(MAX_AUDIO_BYTES)}")
        try:
            return sight.put_audio(accept_audio(_decode(text, field), _AUDIO_NAME))
        except AudioError as error:
            problem = f"{error.message} {error.hint}".strip()
            raise invalid(field, problem) from None

    def _count(self, param: str) -> None:
        self._n_taken += 1
        if self._n_taken > MAX_REQUEST_PICTURES:
            raise TooManyPicturesError(param, _TOO_MANY)

    def take_pages(
        self, pages: Sequence[PictureData], param: str
    ) -> tuple[PictureRef, ...]:
        """The pages of a scan. Raises ApiError if there is no room for all of them."""
        if self._n_taken + len(pages) > MAX_REQUEST_PICTURES:
            raise invalid(param, f"{_TOO_MANY}, and a scan has one for each page")
        self._n_taken += len(pages)
        return tuple(map(sight.put_picture, pages))


class TooManyPicturesError(ApiError):
    """Unlike a picture that cannot be read, it is an error also in earlier messages."""

    def __init__(self, param: str, problem: str) -> None:
        super().__init__(400, f"{param}: {problem}", param=param)


class _EncodedPicture(Struct, frozen=True):
    text: str  # Base64.
    field: str  # Where it is in the request.


def _find_encoded(part: ContentPart, param: str) -> _EncodedPicture:
    if part.type == "image":
        return _find_in_source(part.source, f"{param}.source")
    field = f"{param}.image_url"
    url = part.image_url
    if isinstance(url, dict):
        url = url.get("url")
        field = f"{field}.url"
    if url is None and part.file_id is not None:
        problem = "files are not stored here; send the picture as a data URL"
        raise unsupported(f"{param}.file_id", problem)
    if not isinstance(url, str):
        raise invalid(field, "it is missing, or no text")
    head = _DATA_URL.match(url)
    if head is None:
        problem = "addresses are not fetched; send the picture as a data URL"
        raise unsupported(field, problem)
    if not head[0].lower().endswith(";base64,"):
        raise invalid(field, "a data URL is read in Base64 only")
    return _EncodedPicture(url[head.end() :], field)


def _find_in_source(source: Any, param: str) -> _EncodedPicture:
    """Anthropic's form."""
    if not isinstance(source, dict):
        raise invalid(param, "it is missing, or no object")
    if source.get("type") != "base64":
        problem = "addresses and files are not fetched; send the picture as base64"
        raise unsupported(f"{param}.type", problem)
    data = source.get("data")
    if not isinstance(data, str):
        raise invalid(f"{param}.data", "it is missing, or no text")
    return _EncodedPicture(data, f"{param}.data")


def _encoded_length(n_bytes: int) -> int:
    """Of Base64, with some line ends."""
    return n_bytes * 4 // 3 + 1024


def _decode(text: str, field: str) -> bytes:
    if not text.isascii():
        raise invalid(field, "it is not Base64")
    compact = _BLANKS.sub("", text).rstrip("=")
    padding = "=" * (-len(compact) % 4)
    try:
        return base64.b64decode(compact + padding, validate=True)
    except ValueError:
        raise invalid(field, "it is not Base64") from None


class _Conversions:
    """The pictures that were taken last, by the hash of what was received.

    An agent sends its pictures again with each request; converting one takes a process.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._converted: OrderedDict[str, bytes] = OrderedDict()

    def accept(self, received: bytes) -> PictureRef:
        """Raises PictureError, or StorageError."""
        key = hashlib.sha256(received).hexdigest()
        with self._lock:
            data = self._converted.get(key)
        if data is None:
            accepted = accept_picture(received, _NAME)
            data = accepted.data
            if data is not received:
                self._keep(key, data)
        path = PICTURE_FILES.put(data)
        return PictureRef(str(path), path.name)

    def _keep(self, key: str, data: bytes) -> None:
        with self._lock:
            self._converted[key] = data
            while len(self._converted) > _KEPT_CONVERSIONS:
                self._converted.popitem(last=False)


_CONVERSIONS = _Conversions()
