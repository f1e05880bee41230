"""Reads XML of untrusted files event by event; runs in the child process.

No tree is built, and a file that declares entities is refused: with them, some hundred
bytes become gigabytes, or the text of another file.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.parsers import expat

from localspec.documents.reader_limits import (
    MAX_DEPTH,
    UnreadableDocumentError,
    too_deep,
)


class XmlHandler:
    """Receives the events of a document. Names are without their namespaces."""

    def start(self, tag: str, attributes: dict[str, str]) -> None: ...

    def end(self, tag: str) -> None: ...

    def add_text(self, text: str) -> None: ...


def parse(chunks: Iterable[bytes], handler: XmlHandler) -> None:
    """Raises UnreadableDocumentError, and what the handler raises."""
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise too_deep()
        plain = {key.rpartition("}")[2]: value for key, value in attributes.items()}
        handler.start(name.rpartition("}")[2], plain)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        handler.end(name.rpartition("}")[2])

    def refuse_entity(*_: object) -> None:
        raise UnreadableDocumentError(
            "declares XML entities, which documents do not need: it is refused."
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = handler.add_text
    parser.EntityDeclHandler = refuse_entity
    try:
        for chunk in chunks:
            parser.Parse(chunk, False)
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError) as error:
        raise UnreadableDocumentError(
            "is damaged: its XML cannot be read.",
            "Open it with another program, and save it again.",
        ) from error
