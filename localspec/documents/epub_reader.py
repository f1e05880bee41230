"""The chapters of an EPUB book; runs in the child process."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.html_reader import add_page, decode_page
from localspec.documents.reader_limits import CharacterBudget, UnreadableDocumentError
from localspec.documents.text_blocks import TextBlocks
from localspec.documents.xml_events import XmlHandler, parse

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGE_TYPES = ("application/xhtml+xml", "text/html", "text/x-oeb1-document")
_MAX_CHAPTERS = 5_000


class _ContainerHandler(XmlHandler):
    """Finds the path of the book's description."""

    def __init__(self) -> None:
        self.package = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "rootfile" and not self.package:
            self.package = attributes.get("full-path", "")


class _PackageHandler(XmlHandler):
    """Reads the files of the book, and their order; the table of contents is no chapter."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        """Id of a page -> its path, from the description's folder."""
        self.order: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        is_contents = "nav" in attributes.get("properties", "").split()
        is_page = attributes.get("media-type") in _PAGE_TYPES
        if tag == "item" and is_page and not is_contents:
            self.pages[attributes.get("id", "")] = attributes.get("href", "")
        elif tag == "itemref":
            self.order.append(attributes.get("idref", ""))


class _EncryptionHandler(XmlHandler):
    """Collects the paths of encrypted files."""

    def __init__(self) -> None:
        self.encrypted: set[str] = set()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "CipherReference":
            self.encrypted.add(unquote(attributes.get("URI", "")))


def read(name: str, archive: Archive) -> Document:
    """Raises UnreadableDocumentError."""
    container = _ContainerHandler()
    parse(archive.chunks(_CONTAINER), container)
    package = _PackageHandler()
    parse(archive.chunks(container.package), package)
    encryption = _EncryptionHandler()
    if _ENCRYPTION in archive:
        parse(archive.chunks(_ENCRYPTION), encryption)
    folder = posixpath.dirname(container.package)
    budget = CharacterBudget()
    texts: list[str] = []
    titles: list[str] = []
    for id_ in package.order[:_MAX_CHAPTERS]:
        href = package.pages.get(id_)
        if href is None:
            continue
        path = posixpath.normpath(posixpath.join(folder, unquote(href)))
        if path in encryption.encrypted:
            raise UnreadableDocumentError(
                "is encrypted (DRM).", "Only the shop's own programs can read it."
            )
        if path not in archive:
            continue
        blocks = TextBlocks()
        add_page(blocks, decode_page(archive.read(path)))
        if blocks.text:
            budget.take(len(blocks.text))
            texts.append(blocks.text)
            titles.append(blocks.title)
    if not texts:
        raise UnreadableDocumentError("has no text.")
    return Document(
        name=name,
        unit="chapter",
        n_parts=len(texts),
        numbers=tuple(range(1, len(texts) + 1)),
        parts=tuple(texts),
        titles=tuple(titles),
    )
