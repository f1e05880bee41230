"""The text of an HTML page as Markdown; runs in the child process."""

from __future__ import annotations

import codecs
import re
from html.parser import HTMLParser

from localspec.documents.document import Document
from localspec.documents.reader_limits import MAX_DEPTH, UnreadableDocumentError
from localspec.documents.text_blocks import (
    MAX_COLUMNS,
    TextBlocks,
    squeeze,
    write_raised,
)
from localspec.text_decoding import decode_text

_SKIPPED = frozenset(("script", "style", "template", "svg", "noscript", "iframe"))
_VOID = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input"),
        *("link", "meta", "param", "source", "track", "wbr"),
    )
)
_BLOCKS = frozenset(
    (
        *("address", "article", "aside", "blockquote", "body", "dd", "details"),
        *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form"),
        *("head", "header", "hr", "html", "legend", "li", "main", "nav", "ol"),
        *("option", "p", "pre", "section", "summary", "table", "title", "ul"),
        *("caption", "tbody", "td", "tfoot", "th", "thead", "tr"),
        *("h1", "h2", "h3", "h4", "h5", "h6"),
    )
)
_PARAGRAPH = frozenset(("p",))
_ENDED_BY = {
    "li": frozenset(("p", "li")),
    "option": frozenset(("option",)),
    "dt": frozenset(("p", "dt", "dd")),
    "dd": frozenset(("p", "dt", "dd")),
    "td": frozenset(("p", "td", "th")),
    "th": frozenset(("p", "td", "th")),
    "tr": frozenset(("p", "td", "th", "tr")),
}
"""The open elements that the beginning of another one ends: many pages leave out the end."""
_CHARSET = re.compile(rb"""charset\s*=\s*["']?([A-Za-z0-9_.:-]{1,40})""")
_CHARSET_PLACE = 2048  # Bytes from the beginning within which it is declared.


def read(name: str, data: bytes) -> Document:
    """Raises UnreadableDocumentError."""
    blocks = TextBlocks()
    add_page(blocks, decode_page(data))
    return blocks.finish(name)


def decode_page(data: bytes) -> str:
    """By the encoding that the page declares, else as other text.

    Raises UnreadableDocumentError.
    """
    declared = _CHARSET.search(data[:_CHARSET_PLACE])
    if declared is not None:
        try:
            return data.decode(codecs.lookup(declared[1].decode()).name, "replace")
        except (LookupError, ValueError, TypeError, AttributeError):
            pass  # No encoding of text: as if nothing were declared.
    try:
        return decode_text(data).text
    except ValueError:
        raise UnreadableDocumentError("is not a page of text.") from None


def add_page(blocks: TextBlocks, page: str) -> None:
    """Add a page's text to the blocks. Raises UnreadableDocumentError."""
    parser = _PageParser(blocks)
    parser.feed(page)
    parser.close()
    parser.end_page()


class _PageParser(HTMLParser):
    """Collects the text of inline elements, and adds a block at the end of each one."""

    def __init__(self, blocks: TextBlocks) -> None:
        super().__init__(convert_charrefs=True)
        self._blocks = blocks
        self._open: list[str] = []
        """The elements that are open, the innermost last."""
        self._pieces: list[str] = []
        self._lists: list[int | None] = []
        """The number of the last item of each open list; None if it is not numbered."""
        self._rows: list[list[str]] | None = None  # Those of the outermost open table.
        self._n_open_tables = 0
        self._n_skipped = 0  # Open elements whose text is not shown.
        self._n_pre = 0
        self._is_item_start = False
        self._formula_start: int | None = None
        """So many pieces are before the formula that is open."""
        self._is_raised = False  # Whether the next text is above its line.
        self._span = 1  # The columns of the cell that is open.

    # --- what HTMLParser calls

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self._handle_void(tag, dict(attrs))
            return
        if tag in _SKIPPED:
            self._open.append(tag)
            self._n_skipped += 1
            return
        if tag not in _BLOCKS:
            # Of what else is within a line only the text counts.
            self._is_raised = tag == "sup"
            self._handle_formula(tag, dict(attrs))
            return
        ended = _ENDED_BY.get(tag, _PARAGRAPH)
        while self._open and self._open[-1] in ended:
            self._end_element(self._open[-1])
        self._end_block()
        if len(self._open) >= MAX_DEPTH:
            return  # What is in it is read as if it were beside it.
        self._open.append(tag)
        if tag == "pre":
            self._n_pre += 1
        elif tag == "ol":
            self._lists.append(0)
        elif tag == "ul":
            self._lists.append(None)
        elif tag == "li":
            self._is_item_start = True
            if self._lists and self._lists[-1] is not None:
                self._lists[-1] += 1
        elif tag == "table":
            self._n_open_tables += 1
            if self._rows is None:
                self._rows = []
        elif tag == "tr" and self._rows is not None and self._n_open_tables == 1:
            self._rows.append([])
        elif tag in ("td", "th") and self._rows and self._n_open_tables == 1:
            self._rows[-1].append("")
            self._span = _read_span(dict(attrs))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """`<p/>` opens and ends an element in XHTML."""
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._open:
            return
        while self._open:
            innermost = self._open[-1]
            self._end_element(innermost)
            if innermost == tag:
                break

    def handle_data(self, data: str) -> None:
        if self._n_skipped:
            return
        if not self._n_pre:
            data = data.replace("\n", " ")
        if self._is_raised:
            data = write_raised(data)
            self._is_raised = False
        self._pieces.append(data)

    # --- elements

    def _handle_void(self, tag: str, attributes: dict[str, str | None]) -> None:
        if self._n_skipped:
            return
        if tag == "br":
            self._pieces.append("\n")
        elif tag == "hr":
            self._end_block()
        elif tag == "img" and attributes.get("alt"):
            self._pieces.append(f"[{squeeze(attributes['alt'] or '')}]")

    def _handle_formula(self, tag: str, attributes: dict[str, str | None]) -> None:
        """A formula may be there twice: in signs, and as TeX, which says more."""
        if tag == "semantics":
            self._formula_start = len(self._pieces)
        elif tag == "annotation" and self._formula_start is not None:
            if attributes.get("encoding") == "application/x-tex":
                del self._pieces[self._formula_start :]
            self._formula_start = None

    def _end_element(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_block()
        self._open.pop()
        if tag in _SKIPPED:
            self._n_skipped -= 1
        elif tag == "pre":
            self._n_pre -= 1
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag in ("td", "th") and self._rows and self._n_open_tables == 1:
            self._rows[-1] += [""] * (self._span - 1)
            self._span = 1
        elif tag == "table":
            self._n_open_tables -= 1
            if self._n_open_tables == 0 and self._rows is not None:
                self._blocks.add_table(self._rows)
                self._rows = None

    def _end_block(self) -> None:
        """Add the text that was collected as a block of the innermost element."""
        text = "".join(self._pieces)
        self._pieces = []
        if not text.strip():
            return
        tag = self._open[-1] if self._open else ""
        if self._rows is not None:
            self._add_to_cell(text)
        elif self._n_pre:
            self._blocks.add_code(text)
        elif tag == "title":
            return  # It is shown above the window, and nearly always a heading, too.
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdecimal():
            self._blocks.add_heading(int(tag[1]), text)
        elif self._is_item_start:
            number = self._lists[-1] if self._lists else None
            marker = "-" if number is None else f"{number}."
            self._blocks.add_item(len(self._lists) - 1, text, marker)
        elif "blockquote" in self._open:
            self._blocks.add_paragraph("> " + squeeze(text).replace("\n", "\n> "))
        else:
            self._blocks.add_paragraph(text)
        self._is_item_start = False

    def _add_to_cell(self, text: str) -> None:
        assert self._rows is not None
        if not self._rows or not self._rows[-1]:
            # Text between the rows, such as a caption.
            self._blocks.add_paragraph(text)
            return
        before = self._rows[-1][-1]
        self._rows[-1][-1] = f"{before} {text}" if before else text

    def end_page(self) -> None:
        """End what is still open."""
        while self._open:
            self._end_element(self._open[-1])
        self._end_block()


def _read_span(attributes: dict[str, str | None]) -> int:
    """The columns that a cell takes."""
    value = attributes.get("colspan") or ""
    if not (value.isascii() and value.isdecimal()):
        return 1
    return max(1, min(int(value[:4]), MAX_COLUMNS))
