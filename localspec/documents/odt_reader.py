"""The text of an OpenDocument file; runs in the child process."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.reader_limits import UnreadableDocumentError
from localspec.documents.text_blocks import (
    MAX_COLUMNS,
    OpenTables,
    TextBlocks,
    format_number,
)
from localspec.documents.xml_events import XmlHandler, parse

_CONTENT = "content.xml"
_STYLES = "styles.xml"
_MANIFEST = "META-INF/manifest.xml"
_SKIPPED = frozenset(
    (
        *("annotation", "annotation-end", "tracked-changes", "title", "desc"),
        *("note-citation", "forms", "scripts", "script"),
    )
)
_SIGNS = {"tab": " ", "line-break": "\n", "note": " ("}
"""What stands for an element that begins."""
_MAX_SPACES = 100
_MAX_BASES = 20  # Styles that are based on each other.
_MAX_LEVELS = 10  # The levels of a list, as OpenDocument has them.
_TITLE = "Title"
_CODE_NAMES = frozenset(
    (
        *("Preformatted_20_Text", "Preformatted Text", "Source_Code"),
        *("Source_20_Code", "HTML_20_Preformatted"),
    )
)
"""The names of the styles in which LibreOffice and pandoc write code."""


def read(name: str, archive: Archive) -> Document:
    """Raises UnreadableDocumentError."""
    if _MANIFEST in archive:
        manifest = _ManifestHandler()
        parse(archive.chunks(_MANIFEST), manifest)
        if _CONTENT in manifest.encrypted:
            raise UnreadableDocumentError(
                "is encrypted.", "Save it without a password."
            )
    styles = _OdtStylesHandler()
    if _STYLES in archive:
        parse(archive.chunks(_STYLES), styles)
    handler = _ContentHandler(styles, archive)
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


class _OdtListLevel(Struct, frozen=True):
    """What is before the items of a list, at one of its levels."""

    form: str = ""  # `1`, `a`, `A`, `i` or `I`; empty for a sign.
    prefix: str = ""
    suffix: str = ""
    n_shown: int = 1  # With 2 the number of the level above is shown, too.
    first: int = 1


_SIGN = _OdtListLevel()


class _OdtStylesHandler(XmlHandler):
    """Reads the styles of paragraphs and lists, in either file that has some."""

    def __init__(self) -> None:
        self._based_on: dict[str, str] = {}
        """Style of paragraphs -> the one that it is based on."""
        self._unnamed: set[str] = set()
        """Styles of single paragraphs, which no person has named."""
        self._levels: dict[str, dict[int, _OdtListLevel]] = {}
        """Style of lists -> its levels, from 1."""
        self._list = ""

    def start(
        self, tag: str, attributes: dict[str, str], *, is_unnamed: bool = False
    ) -> None:
        name = attributes.get("name", "")
        if tag == "style":
            self._based_on[name] = attributes.get("parent-style-name", "")
            if is_unnamed:
                self._unnamed.add(name)
        elif tag == "list-style":
            self._list = name
            self._levels[name] = {}
        elif tag == "list-level-style-number" and self._list:
            level = _to_number(attributes.get("level"))
            self._levels[self._list][level] = _OdtListLevel(
                attributes.get("num-format", ""),
                attributes.get("num-prefix", ""),
                attributes.get("num-suffix", ""),
                n_shown=_to_number(attributes.get("display-levels")),
                first=_to_number(attributes.get("start-value")),
            )

    def end(self, tag: str) -> None:
        if tag == "list-style":
            self._list = ""

    def is_title(self, style: str) -> bool:
        """Other named styles, such as that of the author, may be based on it."""
        if style in self._unnamed:
            style = self._based_on.get(style, "")
        return style == _TITLE

    def is_based_on(self, style: str, names: Collection[str]) -> bool:
        """Whether a style is one of these, or has come from one."""
        for _ in range(_MAX_BASES):  # They may be based on each other.
            if style in names:
                return True
            style = self._based_on.get(style, "")
        return False

    def find_level(self, style: str, level: int) -> _OdtListLevel:
        return self._levels.get(style, {}).get(level, _SIGN)


class _FormulaHandler(XmlHandler):
    """Reads MathML: what its program wrote it as, such as TeX, else its signs."""

    def __init__(self) -> None:
        self._is_formula = False
        self._is_annotation = False
        self._signs: list[str] = []
        self._annotation: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._annotation or self._signs).strip()

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "math":
            self._is_formula = True
        elif tag == "annotation":
            self._is_annotation = True

    def end(self, tag: str) -> None:
        if tag == "annotation":
            self._is_annotation = False

    def add_text(self, text: str) -> None:
        if self._is_annotation:
            self._annotation.append(text)
        elif self._is_formula:
            self._signs.append(text.strip())


class _OpenList(Struct):
    style: str
    n_items: int = 0


class _ContentHandler(XmlHandler):
    def __init__(self, styles: _OdtStylesHandler, archive: Archive) -> None:
        self.blocks = TextBlocks()
        self._styles = styles
        self._archive = archive
        self._is_in_styles = False
        self._n_skipped = 0  # Open elements whose text is not shown.
        self._texts: list[list[str]] = []
        """The pieces of each open paragraph: a note in one has paragraphs of its own."""
        self._style = ""  # That of the outermost open paragraph.
        self._heading_level = 1
        self._lists: list[_OpenList] = []
        """Those that are open, the innermost last."""
        self._is_item_start = False
        self._tables = OpenTables()
        """The rows of each open table: a cell may hold a table."""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag in _SKIPPED or self._n_skipped:
            self._n_skipped += 1
        elif tag == "automatic-styles":
            self._is_in_styles = True
        elif self._is_in_styles:
            self._styles.start(tag, attributes, is_unnamed=True)
        elif tag in ("p", "h"):
            if not self._texts:
                self._style = attributes.get("style-name", "")
            self._texts.append([])
            if tag == "h":
                self._heading_level = _to_number(attributes.get("outline-level"))
        elif tag == "list":
            self._begin_list(attributes)
        elif tag == "list-item":
            self._begin_item(attributes)
        elif tag == "table":
            self._tables.begin_table()
        elif tag == "table-row":
            self._tables.begin_row()
        elif tag in ("table-cell", "covered-table-cell"):
            self._begin_cell(attributes)
        elif tag == "s":
            n_spaces = min(_MAX_SPACES, _to_number(attributes.get("c")))
            self.add_text(" " * n_spaces)
        elif tag == "object":
            self._add_formula(attributes.get("href", ""))
        elif tag in _SIGNS:
            self.add_text(_SIGNS[tag])

    def end(self, tag: str) -> None:
        if self._n_skipped:
            self._n_skipped -= 1
        elif tag == "automatic-styles":
            self._is_in_styles = False
        elif self._is_in_styles:
            self._styles.end(tag)
        elif tag in ("p", "h") and self._texts:
            self._end_paragraph(is_heading=tag == "h")
        elif tag == "list" and self._lists:
            self._lists.pop()
        elif tag == "table":
            self._tables.end_table(self.blocks)
        elif tag == "note":
            self.add_text(")")

    def add_text(self, text: str) -> None:
        if self._texts and not self._n_skipped:
            self._texts[-1].append(text)

    def _add_formula(self, href: str) -> None:
        """The formula that another document within the file is; nothing for a chart."""
        path = f"{href.removeprefix('./').rstrip('/')}/{_CONTENT}"
        if path in self._archive:
            formula = _FormulaHandler()
            parse(self._archive.chunks(path), formula)
            self.add_text(formula.text)

    def _begin_list(self, attributes: dict[str, str]) -> None:
        """A list without a style has that of the list around it."""
        style = attributes.get("style-name", "")
        if not style and self._lists:
            style = self._lists[-1].style
        opened = _OpenList(style)
        level = self._styles.find_level(style, len(self._lists) + 1)
        opened.n_items = level.first - 1
        self._lists.append(opened)

    def _begin_item(self, attributes: dict[str, str]) -> None:
        self._is_item_start = True
        if not self._lists:
            return
        self._lists[-1].n_items += 1
        if "start-value" in attributes:
            self._lists[-1].n_items = _to_number(attributes["start-value"])

    def _begin_cell(self, attributes: dict[str, str]) -> None:
        """The text of a cell that is repeated is that of its last copy."""
        n_repeated = _to_number(attributes.get("number-columns-repeated"))
        for _ in range(min(n_repeated, MAX_COLUMNS)):
            self._tables.begin_cell()

    def _end_paragraph(self, *, is_heading: bool) -> None:
        text = "".join(self._texts.pop())
        if self._texts:
            self._texts[-1].append(text)  # That of a note, in the text around it.
        elif self._tables.is_open:
            self._tables.add_text(text)
        elif is_heading:
            self.blocks.add_heading(self._heading_level, text)
        elif self._lists and self._is_item_start:
            self.blocks.add_item(len(self._lists) - 1, text, self._write_marker())
            self._is_item_start = False
        elif self._styles.is_title(self._style):
            self.blocks.add_heading(1, text)
        elif self._styles.is_based_on(self._style, _CODE_NAMES):
            self.blocks.add_code_line(text)
        else:
            self.blocks.add_paragraph(text)

    def _write_marker(self) -> str:
        """What is before the item: `-`, or its number.

        If the second level shows two, the third item below the second one gets `2.3.`
        """
        innermost = self._lists[-1]
        depth = len(self._lists)
        level = self._styles.find_level(innermost.style, depth)
        if not level.form:
            return "-"
        numbers: list[str] = []
        for n, opened in enumerate(self._lists, 1):
            form = self._styles.find_level(innermost.style, n).form
            if form and n > depth - level.n_shown:
                numbers.append(_format_number(opened.n_items, form))
        return f"{level.prefix}{'.'.join(numbers)}{level.suffix}".strip()


_FORMS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman"}


def _format_number(number: int, form: str) -> str:
    return format_number(number, _FORMS.get(form, "decimal"))


def _to_number(text: str | None) -> int:
    """The positive number of an attribute; 1 without a usable one."""
    if text is None or not text.isdecimal() or len(text) > 6:
        return 1
    return max(1, int(text))
