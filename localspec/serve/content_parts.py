"""The text, the pictures and the audio of a message's parts, in any of the APIs.

Of a document it is what was read of it. A part that cannot be read stays in a client's
history for ever. So in earlier messages and in results of tools it becomes a line of text
in its place, and only in the question that is to be answered it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from localspec.models.pictures import PICTURE_MARK, without_marks
from localspec.protocol.wire import PictureRef
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.json_bodies import to_unicode
from localspec.serve.request_documents import find_document, read_document
from localspec.serve.request_pictures import (
    AUDIO_PARTS,
    PICTURE_PARTS,
    RequestPictures,
    TooManyPicturesError,
)
from localspec.serve.requests import ContentPart

_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_NAMES = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
}
_MAX_NAME = 64
NO_PICTURES = RequestPictures(sees=False)
"""Of texts without pictures, whatever the model sees."""


class MessageContent(Struct, frozen=True):
    text: str
    images: tuple[PictureRef, ...] = ()
    """Pictures and audio: each has a `PICTURE_MARK` in the text, in their order."""


def join_parts(
    content: str | Sequence[ContentPart] | None,
    param: str,
    pictures: RequestPictures = NO_PICTURES,
    *,
    is_asked: bool = True,
) -> MessageContent:
    """What a string, an array of parts, or null, which says nothing, has.

    `is_asked`: whether they are of the question that is to be answered. Then ApiError is
    raised for a part that cannot be read.
    """
    if content is None:
        return MessageContent("")
    if isinstance(content, str):
        return MessageContent(_clean(content))
    pieces: list[str] = []
    images: list[PictureRef] = []
    was_line = False
    for i, part in enumerate(content):
        read = read_part(part, f"{param}[{i}]", pictures, is_asked=is_asked)
        is_media = part.type in (*PICTURE_PARTS, *AUDIO_PARTS) and bool(read.images)
        is_line = part.type not in _TEXTS and not is_media
        if pieces and (is_line or was_line) and not pieces[-1].endswith("\n"):
            pieces.append("\n")
        pieces.append(read.text)
        images += read.images
        was_line = is_line
    return MessageContent("".join(pieces), tuple(images))


def read_part(
    part: ContentPart,
    param: str,
    pictures: RequestPictures = NO_PICTURES,
    *,
    is_asked: bool,
) -> MessageContent:
    """What one part has; a line in its place if it cannot be read. Raises ApiError."""
    if part.type in _TEXTS:
        if part.text is None:
            raise invalid(f"{param}.text", "it is missing")
        return MessageContent(_clean(part.text))
    if part.type in PICTURE_PARTS and pictures.sees:
        return _read_media(part, param, pictures.take, is_asked=is_asked)
    if part.type in AUDIO_PARTS and pictures.hears:
        return _read_media(part, param, pictures.take_audio, is_asked=is_asked)
    text = _find_text(part)
    if text is not None:
        return MessageContent(without_marks(text))
    try:
        document = find_document(part, param)
        if document is not None:
            read = read_document(document, pictures)
            return MessageContent(read.text, read.images)
    except ApiError:
        if is_asked:
            raise
        return MessageContent(describe_unread(part.type))
    if is_asked and part.type in AUDIO_PARTS:
        raise unsupported(f"{param}.type", "the model does not hear")
    if is_asked:
        raise unsupported(f"{param}.type", "only text is supported here")
    return MessageContent(describe_unread(part.type))


def _read_media(
    part: ContentPart,
    param: str,
    take: Callable[[ContentPart, str], PictureRef],
    *,
    is_asked: bool,
) -> MessageContent:
    try:
        return MessageContent(PICTURE_MARK, (take(part, param),))
    except ApiError as error:
        if is_asked or isinstance(error, TooManyPicturesError):
            raise
        return MessageContent(describe_unread(part.type))


def _clean(text: str) -> str:
    """Text of a client, in which nothing stands for a picture."""
    return without_marks(to_unicode(text))


def describe_unread(type_: str | None) -> str:
    """The line in the place of a part or an item without text."""
    name = _clean(type_ or "part")[:_MAX_NAME]
    return f"[{_NAMES.get(name, name)}: not read by this model]"


def _find_text(part: ContentPart) -> str | None:
    """What other types of parts say in words; None without."""
    if part.type == "refusal" and isinstance(part.refusal, str):
        return to_unicode(part.refusal)
    if part.type == "tool_reference" and isinstance(part.tool_name, str):
        return f"[tool available: {to_unicode(part.tool_name)}]"
    if part.type == "document" and isinstance(part.source, dict):
        # Anthropic's: a plain text, or blocks of it.
        if part.source.get("type") == "text":
            return _with_title(part, part.source.get("data"))
        return _with_title(part, part.source.get("content"))
    if part.type == "search_result":
        return _with_title(part, part.content)
    return None


def _with_title(part: ContentPart, given: Any) -> str | None:
    texts = []
    if isinstance(given, str):
        texts.append(given)
    elif isinstance(given, list):
        for block in given:
            text = block.get("text") if isinstance(block, dict) else None
            if isinstance(block, ContentPart):
                text = block.text
            if isinstance(text, str):
                texts.append(text)
    if not texts:
        return None
    # A search result's source is its address.
    given_heads = (part.title, part.context, part.source)
    heads = [each for each in given_heads if isinstance(each, str)]
    return to_unicode("\n".join([*heads, *texts]))
