"""The text of an OpenDocument file; runs in the child process."""

from __future__ import annotations

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.reader_limits import UnreadableDocumentError
from localspec.documents.text_blocks import OpenTables, TextBlocks
from localspec.documents.xml_events import XmlHandler, parse

_CONTENT = "content.xml"
_MANIFEST = "META-INF/manifest.xml"
_SKIPPED = frozenset(
    (
        *("annotation", "annotation-end", "tracked-changes", "title", "desc"),
        *("note-citation", "forms", "scripts", "automatic-styles", "script"),
    )
)
_MAX_SPACES = 100


def read(name: str, archive: Archive) -> Document:
    """Raises UnreadableDocumentError."""
    if _MANIFEST in archive:
        manifest = _ManifestHandler()
        parse(archive.chunks(_MANIFEST), manifest)
        if _CONTENT in manifest.encrypted:
            raise UnreadableDocumentError(
                "is encrypted.", "Save it without a password."
            )
    handler = _ContentHandler()
    parse(archive.chunks(_CONTENT), handler)
    return handler.blocks.finish(name)


class _ManifestHandler(XmlHandler):
    """Collects the paths of encrypted files."""

    def __init__(self) -> None:
        self.encrypted: set[str] = set()
        self._path = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "file-entry":
            self._path = attributes.get("full-path", "")
        elif tag == "encryption-data":
            self.encrypted.add(self._path)


class _ContentHandler(XmlHandler):
    def __init__(self) -> None:
        self.blocks = TextBlocks()
        self._n_skipped = 0  # Open elements whose text is not shown.
        self._texts: list[list[str]] = []
        """The pieces of each open paragraph: a note in one has paragraphs of its own."""
        self._heading_level = 1
        self._n_lists = 0
        self._is_item_start = False
        self._tables = OpenTables()
        """The rows of each open table: a cell may hold a table."""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _SKIPPED or self._n_skipped:
            self._n_skipped += 1
        elif tag in ("p", "h"):
            self._texts.append([])
            if tag == "h":
                self._heading_level = _to_number(attributes.get("outline-level"))
        elif tag == "list":
            self._n_lists += 1
        elif tag == "list-item":
            self._is_item_start = True
        elif tag == "table":
            self._tables.begin_table()
        elif tag == "table-row":
            self._tables.begin_row()
        elif tag == "table-cell":
            self._tables.begin_cell()
        elif tag == "s":
            n_spaces = min(_MAX_SPACES, _to_number(attributes.get("c")))
            self.add_text(" " * n_spaces)
        elif tag == "tab":
            self.add_text(" ")
        elif tag == "line-break":
            self.add_text("\n")
        elif tag == "note":
            self.add_text(" (")

    def end(self, tag: str) -> None:
        if self._n_skipped:
            self._n_skipped -= 1
        elif tag in ("p", "h") and self._texts:
            self._end_paragraph(is_heading=tag == "h")
        elif tag == "list":
            self._n_lists -= 1
        elif tag == "table":
            self._tables.end_table(self.blocks)
        elif tag == "note":
            self.add_text(")")

    def add_text(self, text: str) -> None:
        if self._texts and not self._n_skipped:
            self._texts[-1].append(text)

    def _end_paragraph(self, *, is_heading: bool) -> None:
        text = "".join(self._texts.pop())
        if self._texts:
            self._texts[-1].append(text)  # That of a note, in the text around it.
        elif self._tables.is_open:
            self._tables.add_text(text)
        elif is_heading:
            self.blocks.add_heading(self._heading_level, text)
        elif self._n_lists and self._is_item_start:
            self.blocks.add_item(self._n_lists - 1, text)
            self._is_item_start = False
        else:
            self.blocks.add_paragraph(text)


def _to_number(text: str | None) -> int:
    """The positive number of an attribute; 1 without a usable one."""
    if text is None or not text.isdecimal() or len(text) > 6:
        return 1
    return max(1, int(text))
