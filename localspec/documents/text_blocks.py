"""Headings, paragraphs, lists and tables of a document, as Markdown in sections."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.documents.document import Document, make_text_document
from localspec.documents.reader_limits import CharacterBudget, UnreadableDocumentError

_SPACES = re.compile(r"[ \t\r\f\v\u00a0]+")
_SPACES_AROUND_LINE_END = re.compile(r" ?\n ?")
_FENCE = re.compile(r"^`{3,}", re.MULTILINE)
_DEEPEST_HEADING = 6
_DEEPEST_ITEM = 12
MAX_COLUMNS = 1000
"""That a cell may span, or be repeated in."""


class TextBlocks:
    """Collects blocks; `finish` makes the document.

    A heading, a paragraph and a table are blocks with a blank line between them; the
    items of a list follow each other.
    """

    def __init__(self) -> None:
        self._budget = CharacterBudget()
        self._lines: list[str] = []
        self._headings: list[tuple[int, int, str]] = []
        """The line, the level and the text of each."""
        self._was_item = False
        self._code_lines: list[str] = []
        """Those of `add_code_line` since the last other block."""

    def add_heading(self, level: int, text: str) -> None:
        text = squeeze(text).replace("\n", " ")
        if not text:
            return
        level = max(1, min(level, _DEEPEST_HEADING))
        self._separate()
        self._headings.append((len(self._lines), level, text))
        self._add(f"{'#' * level} {text}")

    def add_paragraph(self, text: str) -> None:
        text = squeeze(text)
        if text:
            self._separate()
            self._add(text)

    def add_item(self, depth: int, text: str, marker: str = "-") -> None:
        """An item of a list, whose `depth` is 0 outside other lists."""
        text = squeeze(text)
        if not text:
            return
        if not self._was_item:
            self._separate()
        indent = "  " * max(0, min(depth, _DEEPEST_ITEM))
        self._add(f"{indent}{marker} {text}".replace("\n", f"\n{indent}  "))
        self._was_item = True

    def add_table(self, rows: Sequence[Sequence[str]]) -> None:
        """A table, of which the first row is taken for its heading."""
        lines = []
        for row in rows:
            cells = [squeeze(cell).replace("\n", " ") for cell in row]
            if any(cells):
                shown = " | ".join(cell.replace("|", "\\|") for cell in cells)
                lines.append(f"| {shown} |")
                if len(lines) == 1:
                    lines.append("|" + " --- |" * len(cells))
        if lines:
            self._separate()
            self._add("\n".join(lines))

    def add_code(self, text: str) -> None:
        """Text whose spaces and line ends stay as they are."""
        text = text.strip("\n")
        if text.strip():
            fence = max(_FENCE.findall(text), default="``") + "`"
            self._separate()
            self._add(f"{fence}\n{text}\n{fence}")

    def add_code_line(self, text: str) -> None:
        """Lines of code that follow each other are one block."""
        self._code_lines.append(text)

    def _end_code(self) -> None:
        lines = self._code_lines
        self._code_lines = []
        if lines:
            self.add_code("\n".join(lines))

    def _separate(self) -> None:
        self._end_code()
        self._was_item = False
        if self._lines:
            self._lines.append("")

    def _add(self, text: str) -> None:
        self._budget.take(len(text) + 1)
        self._lines += text.split("\n")

    @property
    def title(self) -> str:
        """The first heading; empty without one."""
        return self._headings[0][2] if self._headings else ""

    @property
    def text(self) -> str:
        self._end_code()
        return "\n".join(self._lines)

    def finish(self, name: str) -> Document:
        """The document in sections, or in lines if fewer than two headings divide it.

        Sections begin at the highest level that has two headings or more, and at the
        levels above it. A document with one title and five chapters has six sections:
        the title, and what stands before the first chapter, is one.
        """
        self._end_code()
        if not self._lines:
            raise UnreadableDocumentError("has no text.")
        starts = self._find_section_starts()
        if len(starts) < 2:
            return make_text_document(name, self.text)
        if starts[0][0] > 0:
            starts.insert(0, (0, ""))
        parts = []
        ends = [line for line, _ in starts[1:]]
        ends.append(len(self._lines))
        for (line, _), end in zip(starts, ends, strict=True):
            parts.append("\n".join(self._lines[line:end]).strip("\n"))
        return Document(
            name=name,
            unit="section",
            n_parts=len(parts),
            numbers=tuple(range(1, len(parts) + 1)),
            parts=tuple(parts),
            titles=tuple(title for _, title in starts),
        )

    def _find_section_starts(self) -> list[tuple[int, str]]:
        for level in range(1, _DEEPEST_HEADING + 1):
            starts = []
            n_at_level = 0
            for line, at, title in self._headings:
                if at <= level:
                    starts.append((line, title))
                if at == level:
                    n_at_level += 1
            if n_at_level >= 2:
                return starts
        return []


class OpenTables:
    """The tables around a place in a document, the innermost last.

    A table within a cell becomes text of that cell: a row `a`, `b` is `a; b`.
    """

    def __init__(self) -> None:
        self._tables: list[list[list[str]]] = []

    @property
    def is_open(self) -> bool:
        return bool(self._tables)

    def begin_table(self) -> None:
        self._tables.append([])

    def begin_row(self) -> None:
        if self._tables:
            self._tables[-1].append([])

    def begin_cell(self) -> None:
        if self._tables and self._tables[-1]:
            self._tables[-1][-1].append("")

    def add_text(self, text: str) -> None:
        """Text of the newest cell; dropped where there is none."""
        rows = self._tables[-1]
        if rows and rows[-1]:
            before = rows[-1][-1]
            rows[-1][-1] = f"{before} {text}" if before else text

    def end_table(self, blocks: TextBlocks) -> None:
        if not self._tables:
            return
        rows = self._tables.pop()
        if not self._tables:
            blocks.add_table(rows)
            return
        for row in rows:
            self.add_text("; ".join(filter(None, row)))


def squeeze(text: str) -> str:
    """Spaces in a row as one; line ends stay."""
    return _SPACES_AROUND_LINE_END.sub("\n", _SPACES.sub(" ", text)).strip()


def format_number(number: int, form: str) -> str:
    """Of an item in a list; `form` is Word's name of it: `lowerLetter`, `upperRoman`."""
    if form in ("lowerLetter", "upperLetter") and 0 < number <= 26:
        letter = chr(ord("a") + number - 1)
        return letter if form == "lowerLetter" else letter.upper()
    if form in ("lowerRoman", "upperRoman") and 0 < number < 40:
        tens, ones = divmod(number, 10)
        names = ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
        roman = "x" * tens + names[ones]
        return roman if form == "lowerRoman" else roman.upper()
    return str(number)


def write_raised(text: str) -> str:
    """Text above its line: `^2` for a power or the number of a note; `th` as it is."""
    if text[:1].isdecimal() or text[:1] in ("-", "−", "+"):
        return f"^{text}"
    return text
