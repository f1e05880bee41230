"""The text of a Word document (DOCX); runs in the child process."""

from __future__ import annotations

import re

from msgspec import Struct

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.text_blocks import OpenTables, TextBlocks
from localspec.documents.xml_events import XmlHandler, parse

_DOCUMENT = "word/document.xml"
_STYLES = "word/styles.xml"
_NUMBERING = "word/numbering.xml"
_NOTES = ("word/footnotes.xml", "word/endnotes.xml")
_HEADING_NAME = re.compile(r"heading (\d)", re.IGNORECASE)
_SKIPPED = frozenset(("Fallback", "instrText", "delText", "del", "moveFrom"))
"""`Fallback` repeats what is before it, for older programs."""
_PLACEHOLDER = re.compile(r"%(\d)")
_MAX_LEVELS = 9  # Of a list, as Word has them.


def read(name: str, archive: Archive) -> Document:
    """Raises UnreadableDocumentError."""
    styles = _StylesHandler()
    if _STYLES in archive:
        parse(archive.chunks(_STYLES), styles)
    numbering = _NumberingHandler()
    if _NUMBERING in archive:
        parse(archive.chunks(_NUMBERING), numbering)
    body = _BodyHandler(styles.levels, numbering)
    parse(archive.chunks(_DOCUMENT), body)
    for notes in _NOTES:
        if notes in archive:
            parse(archive.chunks(notes), body)
    return body.blocks.finish(name)


class _StylesHandler(XmlHandler):
    """Finds which styles are headings; their ids are in the language of the program."""

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        """Id of a style -> level of its heading, from 1."""
        self._id = ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        value = attributes.get("val", "")
        if tag == "style":
            self._id = attributes.get("styleId", "")
        elif tag == "name" and self._id:
            match = _HEADING_NAME.fullmatch(value)
            if match is not None:
                self.levels[self._id] = int(match[1])
            elif value.lower() == "title":
                self.levels[self._id] = 1
        elif tag == "outlineLvl" and self._id and value.isdecimal():
            level = int(value[:2])
            if level < _MAX_LEVELS:
                self.levels.setdefault(self._id, level + 1)

    def end(self, tag: str) -> None:
        if tag == "style":
            self._id = ""


class _ListLevel(Struct):
    form: str = "bullet"
    text: str = ""  # Such as `%1.%2.`


class _NumberingHandler(XmlHandler):
    """Reads what is before the items of lists: a dash, or a number in some form."""

    def __init__(self) -> None:
        self._levels: dict[str, list[_ListLevel]] = {}
        """Id of a definition -> its levels."""
        self._definitions: dict[str, str] = {}
        """Id of a list -> that of its definition."""
        self._counters: dict[str, list[int]] = {}
        """Definition -> the last number at each level."""
        self._id = ""
        self._list = ""

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
        elif self._id and tag == "lvl":
            self._levels[self._id].append(_ListLevel())
        elif self._id and self._levels[self._id]:
            level = self._levels[self._id][-1]
            if tag == "numFmt":
                level.form = value
            elif tag == "lvlText":
                level.text = value

    def next_marker(self, list_id: str, depth: int) -> str:
        """What is before the next item of a list: `-`, or its number.

        With `%1.%2.` as the text of the second level, the third item below the second
        one gets `2.3.`
        """
        definition = self._definitions.get(list_id, "")
        levels = self._levels.get(definition, [])
        if depth >= len(levels) or levels[depth].form == "bullet":
            return "-"
        counters = self._counters.setdefault(definition, [0] * _MAX_LEVELS)
        counters[depth] += 1
        counters[depth + 1 :] = [0] * (_MAX_LEVELS - depth - 1)

        def write_number(match: re.Match[str]) -> str:
            level = int(match[1]) - 1
            if not 0 <= level < len(levels):
                return ""
            return _format_number(max(1, counters[level]), levels[level].form)

        marker = _PLACEHOLDER.sub(write_number, levels[depth].text).strip()
        return marker or f"{counters[depth]}."


def _format_number(number: int, form: str) -> str:
    if form in ("lowerLetter", "upperLetter") and number <= 26:
        letter = chr(ord("a") + number - 1)
        return letter if form == "lowerLetter" else letter.upper()
    if form in ("lowerRoman", "upperRoman") and number < 40:
        tens, ones = divmod(number, 10)
        names = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
        roman = "x" * tens + names[ones]
        return roman if form == "lowerRoman" else roman.upper()
    return str(number)


class _WordParagraph(Struct):
    """A paragraph that is being read."""

    pieces: list[str]
    style: str = ""
    outline_level: int | None = None
    list_id: str = ""
    depth: int = 0  # In its list.


class _BodyHandler(XmlHandler):
    def __init__(self, levels: dict[str, int], numbering: _NumberingHandler) -> None:
        self.blocks = TextBlocks()
        self._levels = levels
        self._numbering = numbering
        self._n_skipped = 0  # Open elements whose text is not shown.
        self._n_properties = 0
        """Open elements of properties, which have tabs and other things by the names of text."""
        self._paragraphs: list[_WordParagraph] = []
        """Open ones: a text box in a paragraph has its own."""
        self._is_text = False
        self._tables = OpenTables()
        """The rows of each open table: a cell may hold a table."""
        self._note = ""  # The number of the note that is being read.

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
        elif tag == "tab":
            self._add(" ")
        elif tag in ("br", "cr"):
            self._add("\n")
        elif tag == "noBreakHyphen":
            self._add("-")
        elif tag == "tbl":
            self._tables.begin_table()
        elif tag == "tr":
            self._tables.begin_row()
        elif tag == "tc":
            self._tables.begin_cell()
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
        elif tag == "tbl":
            self._tables.end_table(self.blocks)

    def add_text(self, text: str) -> None:
        if self._is_text and not self._n_skipped:
            self._add(text)

    def _add(self, text: str) -> None:
        if self._paragraphs:
            self._paragraphs[-1].pieces.append(text)

    def _read_property(self, tag: str, value: str) -> None:
        if not self._paragraphs:
            return
        paragraph = self._paragraphs[-1]
        if tag == "pStyle":
            paragraph.style = value
        elif tag == "numId":
            paragraph.list_id = value if value != "0" else ""  # 0 is no list.
        elif value.isdecimal() and tag == "ilvl":
            paragraph.depth = min(int(value[:2]), _MAX_LEVELS - 1)
        elif value.isdecimal() and tag == "outlineLvl":
            paragraph.outline_level = int(value[:2])

    def _end_paragraph(self, paragraph: _WordParagraph) -> None:
        text = "".join(paragraph.pieces)
        level = self._levels.get(paragraph.style)
        outline = paragraph.outline_level
        if outline is not None and outline < _MAX_LEVELS:
            level = outline + 1
        marker = ""
        if paragraph.list_id and text.strip():
            marker = self._numbering.next_marker(paragraph.list_id, paragraph.depth)
        if self._tables.is_open:
            self._tables.add_text(text)
        elif self._paragraphs:
            self._add(f" {text}")  # That of a text box, in the text around it.
        elif self._note:
            self.blocks.add_paragraph(f"[^{self._note}]: {text.strip()}")
        elif level is not None:
            number = "" if marker in ("", "-") else f"{marker} "
            self.blocks.add_heading(level, number + text)
        elif marker:
            self.blocks.add_item(paragraph.depth, text, marker)
        else:
            self.blocks.add_paragraph(text)
