"""The text of a Word document (DOCX); runs in the child process."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.text_blocks import (
    MAX_COLUMNS,
    OpenTables,
    TextBlocks,
    format_number,
    write_raised,
)
from localspec.documents.xml_events import XmlHandler, parse

_DOCUMENT = "word/document.xml"
_STYLES = "word/styles.xml"
_NUMBERING = "word/numbering.xml"
_NOTES = ("word/footnotes.xml", "word/endnotes.xml")
_HEADING_NAME = re.compile(r"heading (\d)", re.IGNORECASE)
_SKIPPED = frozenset(("Fallback", "instrText", "delText", "del", "moveFrom"))
"""`Fallback` repeats what is before it, for older programs."""
_SIGNS = {"tab": " ", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "den": "/"}
"""What stands for an element that begins; `den` is what a fraction is divided by."""
_PLACEHOLDER = re.compile(r"%(\d)")
_MAX_LEVELS = 9  # The levels of a list, as Word has them.
_NO_NUMBER = "none"  # As LibreOffice has it for headings.
_MAX_BASES = 20  # Styles that are based on each other.
_CODE_NAMES = frozenset(("source code", "html preformatted", "preformatted text"))
"""Names of the styles in which Word, LibreOffice and pandoc write code."""


def read(name: str, archive: Archive) -> Document:
    """Raises UnreadableDocumentError."""
    styles = _WordStylesHandler()
    if _STYLES in archive:
        parse(archive.chunks(_STYLES), styles)
    numbering = _NumberingHandler()
    if _NUMBERING in archive:
        parse(archive.chunks(_NUMBERING), numbering)
    body = _BodyHandler(styles.resolve(), numbering)
    parse(archive.chunks(_DOCUMENT), body)
    for notes in _NOTES:
        if notes in archive:
            parse(archive.chunks(notes), body)
    return body.blocks.finish(name)


class _WordStyle(Struct, frozen=True):
    """What a style of paragraphs says of their text; None: what the one below it says."""

    based_on: str = ""
    level: int | None = None  # That of a heading, from 1; 0: it is none.
    is_title: bool = False  # Which styles that are based on it are not.
    list_id: str | None = None  # Empty: its paragraphs are in no list.
    depth: int | None = None  # The level in that list.
    is_code: bool | None = None


class _WordStylesHandler(XmlHandler):
    """Reads the styles; their ids are in the language of the program."""

    def __init__(self) -> None:
        self._styles: dict[str, _WordStyle] = {}
        self._id = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        value = attributes.get("val", "")
        if tag == "style":
            self._id = attributes.get("styleId", "")
            self._styles[self._id] = _WordStyle()
        elif not self._id:
            return
        elif tag == "name":
            self._read_name(value)
        elif tag == "basedOn":
            self._change(based_on=value)
        elif tag == "numId":
            self._change(list_id="" if value == "0" else value)
        elif not value.isdecimal():
            return
        elif tag == "ilvl":
            self._change(depth=min(int(value[:2]), _MAX_LEVELS - 1))
        elif tag == "outlineLvl" and self._styles[self._id].level is None:
            level = int(value[:2]) + 1
            if level > _MAX_LEVELS:  # So "TOC Heading" says that it is none.
                level = 0
            self._change(level=level)

    def end(self, tag: str) -> None:
        if tag == "style":
            self._id = ""

    def _read_name(self, name: str) -> None:
        match = _HEADING_NAME.fullmatch(name)
        if match is not None:
            self._change(level=int(match[1]))
        elif name.lower() == "title":
            self._change(is_title=True)
        elif name.lower() in _CODE_NAMES:
            self._change(is_code=True)

    def _change(self, **fields: Any) -> None:
        self._styles[self._id] = replace(self._styles[self._id], **fields)

    def resolve(self) -> dict[str, _WordStyle]:
        """Each style with what it has from those that it is based on."""
        return {id_: self._resolve(style) for id_, style in self._styles.items()}

    def _resolve(self, style: _WordStyle) -> _WordStyle:
        resolved = style
        for _ in range(_MAX_BASES):  # They may be based on each other.
            base = self._styles.get(style.based_on)
            if base is None:
                break
            resolved = _fill_gaps(resolved, base)
            style = base
        return resolved


def _fill_gaps(style: _WordStyle, base: _WordStyle) -> _WordStyle:
    missing: dict[str, Any] = {}
    for name in ("level", "list_id", "depth", "is_code"):
        if getattr(style, name) is None:
            missing[name] = getattr(base, name)
    return replace(style, **missing)


class _WordListLevel(Struct):
    form: str = "bullet"
    text: str = ""  # Such as `%1.%2.`
    first: int = 1


class _NumberingHandler(XmlHandler):
    """Reads what is before the items of lists: a dash, or a number in some form.

    Lists of one definition share their numbers, unless one of them begins anew.
    """

    def __init__(self) -> None:
        self._levels: dict[str, list[_WordListLevel]] = {}
        """Id of a definition -> its levels."""
        self._definitions: dict[str, str] = {}
        """Id of a list -> that of its definition."""
        self._new_starts: dict[tuple[str, int], int] = {}
        """Id of a list and a level -> its first number there, until it was used."""
        self._counters: dict[str, dict[int, int]] = {}
        """Definition -> the last number at each level."""
        self._id = ""
        self._list = ""
        self._level = 0  # The level of which a list says how it begins.

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        value = attributes.get("val", "")
        if tag == "abstractNum":
            self._id = attributes.get("abstractNumId", "")
            self._levels[self._id] = []
        elif tag == "num":
            self._id = ""
            self._list = attributes.get("numId", "")
        elif tag == "abstractNumId" and self._list:
            self._definitions[self._list] = value
        elif tag == "lvlOverride":
            self._level = _to_number(attributes.get("ilvl", ""))
        elif tag == "startOverride" and self._list:
            self._new_starts[self._list, self._level] = _to_number(value)
        elif self._id and tag == "lvl":
            self._levels[self._id].append(_WordListLevel())
        elif self._id and self._levels[self._id]:
            level = self._levels[self._id][-1]
            if tag == "numFmt":
                level.form = value
            elif tag == "lvlText":
                level.text = value
            elif tag == "start":
                level.first = _to_number(value)

    def next_marker(self, list_id: str, depth: int) -> str:
        """What is before the next item of a list: `-`, its number, or nothing.

        With `%1.%2.` as the text of the second level, the third item below the second
        one gets `2.3.`
        """
        definition = self._definitions.get(list_id, "")
        levels = self._levels.get(definition, [])
        if depth >= len(levels) or levels[depth].form == "bullet":
            return "-"
        counters = self._counters.setdefault(definition, {})
        new_start = self._new_starts.pop((list_id, depth), None)
        if new_start is not None:
            counters[depth] = new_start
        elif depth in counters:
            counters[depth] += 1
        else:
            counters[depth] = levels[depth].first
        for deeper in range(depth + 1, _MAX_LEVELS):
            counters.pop(deeper, None)

        def write_number(match: re.Match[str]) -> str:
            level = int(match[1]) - 1
            if not 0 <= level < len(levels):
                return ""
            if levels[level].form == _NO_NUMBER:
                return ""
            number = counters.get(level, levels[level].first)
            return format_number(number, levels[level].form)

        marker = _PLACEHOLDER.sub(write_number, levels[depth].text).strip()
        if not marker and levels[depth].form != _NO_NUMBER:
            return f"{counters[depth]}."
        return marker


def _to_number(text: str) -> int:
    """0 for what is no number."""
    return int(text[:6]) if text.isdecimal() else 0


class _WordParagraph(Struct):
    """A paragraph that is being read."""

    pieces: list[str]
    style: str = ""
    outline_level: int | None = None
    list_id: str | None = None  # Empty: it is in no list, whatever its style says.
    depth: int | None = None  # The level in its list.


class _BodyHandler(XmlHandler):
    def __init__(
        self, styles: dict[str, _WordStyle], numbering: _NumberingHandler
    ) -> None:
        self.blocks = TextBlocks()
        self._styles = styles
        self._numbering = numbering
        self._n_skipped = 0  # Open elements whose text is not shown.
        self._n_properties = 0
        """Open elements of properties, which have tabs and other things by the names of text."""
        self._paragraphs: list[_WordParagraph] = []
        """Open ones: a text box in a paragraph has its own."""
        self._is_text = False
        self._tables = OpenTables()
        """The rows of each open table: a cell may hold a table."""
        self._spans: list[int] = []
        """The columns of each open cell."""
        self._note = ""  # The number of the note that is being read.
        self._is_raised = False  # Whether the next text is above its line.

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _SKIPPED or self._n_skipped:
            self._n_skipped += 1
        elif tag.endswith("Pr"):
            self._n_properties += 1
        elif self._n_properties:
            self._read_property(tag, attributes.get("val", ""))
        elif tag == "p":
            self._paragraphs.append(_WordParagraph([]))
        elif tag == "t":
            self._is_text = True
        elif tag in _SIGNS:
            self._add(_SIGNS[tag])
        elif tag == "sup":  # Of a formula.
            self._is_raised = True
        elif tag == "tbl":
            self._tables.begin_table()
        elif tag == "tr":
            self._tables.begin_row()
        elif tag == "tc":
            self._tables.begin_cell()
            self._spans.append(1)
        elif tag in ("footnoteReference", "endnoteReference"):
            self._add(f"[^{attributes.get('id', '')[:8]}]")
        elif tag in ("footnote", "endnote"):
            self._note = attributes.get("id", "")[:8]
            if attributes.get("type"):
                self._n_skipped = 1  # The line above all notes.

    def end(self, tag: str) -> None:
        if self._n_skipped:
            self._n_skipped -= 1
        elif tag.endswith("Pr"):
            self._n_properties -= 1
        elif self._n_properties:
            return
        elif tag == "t":
            self._is_text = False
        elif tag == "p" and self._paragraphs:
            self._end_paragraph(self._paragraphs.pop())
        elif tag in ("r", "sup"):
            self._is_raised = False
        elif tag == "tc" and self._spans:
            for _ in range(self._spans.pop() - 1):
                self._tables.begin_cell()
        elif tag == "tbl":
            self._tables.end_table(self.blocks)

    def add_text(self, text: str) -> None:
        if self._is_text and not self._n_skipped:
            if self._is_raised:
                text = write_raised(text)
                self._is_raised = False
            self._add(text)

    def _add(self, text: str) -> None:
        if self._paragraphs:
            self._paragraphs[-1].pieces.append(text)

    def _read_property(self, tag: str, value: str) -> None:
        if tag == "gridSpan" and self._spans and value.isdecimal():
            self._spans[-1] = min(int(value[:4]), MAX_COLUMNS)
        if not self._paragraphs:
            return
        paragraph = self._paragraphs[-1]
        if tag == "pStyle":
            paragraph.style = value
        elif tag == "vertAlign" and self._n_properties == 1:
            # Properties within properties are those of the sign at a paragraph's end.
            self._is_raised = value == "superscript"
        elif tag == "numId":
            paragraph.list_id = value
            if value == "0":
                paragraph.list_id = ""
        elif value.isdecimal() and tag == "ilvl":
            paragraph.depth = min(int(value[:2]), _MAX_LEVELS - 1)
        elif value.isdecimal() and tag == "outlineLvl":
            paragraph.outline_level = int(value[:2])

    def _end_paragraph(self, paragraph: _WordParagraph) -> None:
        text = "".join(paragraph.pieces)
        style = self._styles.get(paragraph.style, _WordStyle())
        level = style.level
        if style.is_title:
            level = 1
        outline = paragraph.outline_level
        if outline is not None and outline < _MAX_LEVELS:
            level = outline + 1
        list_id = paragraph.list_id
        if list_id is None:
            list_id = style.list_id
        depth = paragraph.depth
        if depth is None:
            depth = style.depth or 0
        marker = ""
        if list_id and text.strip():
            marker = self._numbering.next_marker(list_id, depth)
        if self._tables.is_open:
            self._tables.add_text(text)
        elif self._paragraphs:
            self._add(f" {text}")  # That of a text box, in the text around it.
        elif self._note:
            self.blocks.add_paragraph(f"[^{self._note}]: {text.strip()}")
        elif level:
            if marker not in ("", "-"):
                text = f"{marker} {text}"
            self.blocks.add_heading(level, text)
        elif marker:
            self.blocks.add_item(depth, text, marker)
        elif style.is_code:
            self.blocks.add_code_line(text)
        else:
            self.blocks.add_paragraph(text)
