"""The text of a message's parts, in any of the APIs.

Of a document it is what was read of it. A part that is no text stays in a client's
history for ever. So in earlier messages and in results of tools it becomes a line of text
in its place, and only in the question that is to be answered it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.json_bodies import to_unicode
from localspec.serve.request_documents import find_document, read_document
from localspec.serve.requests import ContentPart

_TEXTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_NAMES = {
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "file",
}
_MAX_NAME = 64


def join_parts(
    content: str | Sequence[ContentPart] | None, param: str, *, is_asked: bool = True
) -> str:
    """The text of a string, of an array of parts, or of null, which says nothing.

    `is_asked`: whether they are of the question that is to be answered. Then ApiError is
    raised for a part that is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return to_unicode(content)
    pieces: list[str] = []
    was_line = False
    for i, part in enumerate(content):
        text = read_part(part, f"{param}[{i}]", is_asked=is_asked)
        is_line = part.type not in _TEXTS
        if pieces and (is_line or was_line) and not pieces[-1].endswith("\n"):
            pieces.append("\n")
        pieces.append(text)
        was_line = is_line
    return "".join(pieces)


def read_part(part: ContentPart, param: str, *, is_asked: bool) -> str:
    """The text of one part; a line in its place if it has none. Raises ApiError."""
    if part.type in _TEXTS:
        if part.text is None:
            raise invalid(f"{param}.text", "it is missing")
        return to_unicode(part.text)
    text = _find_text(part)
    if text is not None:
        return text
    try:
        document = find_document(part, param)
        if document is not None:
            return read_document(document)
    except ApiError:
        if is_asked:
            raise
        return describe_unread(part.type)
    if is_asked:
        raise unsupported(f"{param}.type", "only text is supported here")
    return describe_unread(part.type)


def describe_unread(type_: str | None) -> str:
    """The line in the place of a part or an item without text."""
    name = to_unicode(type_ or "part")[:_MAX_NAME]
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
