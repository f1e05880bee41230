"""What is read of Word, OpenDocument, EPUB and HTML files; in the reader's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.documents import zip_readers
from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.html_reader import read as read_html
from localspec.documents.reading import FileRequest, parse_file_request, read_file
from localspec.errors import UsageError
from tests.support.document_files import (
    WORD_STYLES,
    make_docx,
    make_epub,
    make_odt,
    make_zip,
    word_paragraph,
    wrap_word,
)


def read_zip(data: bytes) -> Document:
    return zip_readers.read("it", data)


# --- HTML


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>one<p>two", "one\n\ntwo"),
        ("<h2>Top</h2>a <b>bold</b> word", "## Top\n\na bold word"),
        ("a<br>b", "a\nb"),
        ("<ul><li>x<li>y<ul><li>z</ul></ul>", "- x\n- y\n  - z"),
        ("<ol><li>x</li><li>y</li></ol>", "1. x\n2. y"),
        ("<pre>  if a:\n    b</pre>", "```\n  if a:\n    b\n```"),
        ("<blockquote><p>said</p></blockquote>", "> said"),
        ("caf&eacute; &lt;b&gt;", "café <b>"),
        ("<script>if (a < b) {}</script>seen<style>p {}</style>", "seen"),
        ("<title>Home</title><body>text", "text"),
        ("<img src=a.png alt='A chart'>", "[A chart]"),
        ("<a name=x>never closed" * 500, ("never closed" * 500)),
        ("text <!-- not --> more", "text more"),
        ("<p>no end", "no end"),
        ("<td>no table</td>", "no table"),
        (
            "<math><semantics><mi>E</mi><mo>=</mo><mi>m</mi>"
            "<annotation encoding='application/x-tex'>E = m</annotation>"
            "</semantics></math> holds",
            "E = m holds",
        ),
        ("<math><mi>E</mi></math>", "E"),
        ("10<sup>-3</sup> m<sup>2</sup>, the 2<sup>nd</sup>", "10^-3 m^2, the 2nd"),
        (
            "<table><tr><td colspan=2>a<td>b<tr><td>1<td>2<td>3</table>",
            "| a |  | b |\n| --- | --- | --- |\n| 1 | 2 | 3 |",
        ),
    ],
)
def test_a_page_is_read_as_markdown(page: str, text: str) -> None:
    assert read_html("page.html", page.encode()).text == text


def test_a_table_of_a_page_has_rows_and_cells() -> None:
    page = (
        "<table><tr><th>name<th>n<tr><td>a|b<td>1"
        "<tr><td><table><tr><td>in</table><td></table>"
    )

    text = read_html("page.html", page.encode()).text

    assert text == "| name | n |\n| --- | --- |\n| a\\|b | 1 |\n| in |  |"


@pytest.mark.parametrize("declared", ["windows-1252", "no-such-code", "rot13", "hex"])
def test_a_page_is_decoded_as_it_declares_if_that_is_possible(declared: str) -> None:
    page = f"<meta charset={declared}><p>für".encode("cp1252")

    assert read_html("page.html", page).text == "für"


def test_headings_divide_a_page_into_sections() -> None:
    page = "<h1>Title</h1>intro<h2>One</h2>a<h3>deep</h3>b<h2>Two</h2>c"

    document = read_html("page.html", page.encode())

    assert document.unit == "section"
    assert document.titles == ("Title", "One", "Two")
    assert document.parts[1] == "## One\n\na\n\n### deep\n\nb"


def test_a_page_without_headings_is_divided_into_lines() -> None:
    document = read_html("page.html", b"<p>one<p>two")

    assert document.unit == "line"
    assert document.n_parts == 3


# --- Word


def test_a_word_document_has_headings_in_any_language() -> None:
    body = (
        word_paragraph("Bericht", "berschrift1")
        + word_paragraph("Anfang")
        + word_paragraph("Zahlen", "berschrift2")
        + word_paragraph("7 &amp; 8")
    )

    document = read_zip(make_docx(body, styles=WORD_STYLES))

    assert document.text == "# Bericht\n\nAnfang\n\n## Zahlen\n\n7 & 8"


def test_a_word_document_has_its_numbered_clauses() -> None:
    numbering = wrap_word(
        "numbering",
        '<w:abstractNum w:abstractNumId="7">'
        '<w:lvl w:ilvl="0"><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
        '<w:lvl w:ilvl="1"><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%1.%2)"/>'
        "</w:lvl></w:abstractNum>"
        '<w:num w:numId="2"><w:abstractNumId w:val="7"/></w:num>',
    )

    def item(text: str, level: int) -> str:
        place = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="2"/></w:numPr>'
        return word_paragraph(text, properties=place)

    body = item("Scope", 0) + item("who", 1) + item("what", 1) + item("Price", 0)

    document = read_zip(make_docx(body, numbering=numbering))

    assert document.text == "1. Scope\n  1.a) who\n  1.b) what\n2. Price"


def test_styles_of_a_word_document_make_headings_lists_and_code() -> None:
    """As python-docx and pandoc write them: the paragraphs name a style alone."""
    styles = wrap_word(
        "styles",
        '<w:style w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
        '<w:style w:styleId="Own"><w:name w:val="Own"/><w:basedOn w:val="H1"/></w:style>'
        '<w:style w:styleId="Steps"><w:name w:val="List Number"/><w:pPr><w:numPr>'
        '<w:numId w:val="2"/></w:numPr></w:pPr></w:style>'
        '<w:style w:styleId="T"><w:name w:val="Title"/></w:style>'
        '<w:style w:styleId="By"><w:name w:val="Author"/><w:basedOn w:val="T"/></w:style>'
        '<w:style w:styleId="TOC"><w:basedOn w:val="H1"/><w:pPr><w:outlineLvl w:val="9"/>'
        "</w:pPr></w:style>"
        '<w:style w:styleId="Loop"><w:basedOn w:val="Loop"/></w:style>'
        '<w:style w:styleId="Code"><w:name w:val="Source Code"/></w:style>',
    )
    numbering = wrap_word(
        "numbering",
        '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0">'
        '<w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/>'
        "</w:lvl></w:abstractNum>"
        '<w:num w:numId="2"><w:abstractNumId w:val="7"/></w:num>',
    )
    no_list = '<w:numPr><w:numId w:val="0"/></w:numPr>'
    body = (
        word_paragraph("Food", "T")
        + word_paragraph("A. Cook", "By")
        + word_paragraph("Contents", "TOC")
        + word_paragraph("Plan", "Own")
        + word_paragraph("buy", "Steps")
        + word_paragraph("cook", "Steps")
        + word_paragraph("aside", "Steps", no_list)
        + word_paragraph("turning", "Loop")
        + word_paragraph("if a:", "Code")
        + word_paragraph("    b", "Code")
    )

    document = read_zip(make_docx(body, styles=styles, numbering=numbering))

    assert document.text == (
        "# Food\n\nA. Cook\n\nContents\n\n# Plan\n\n"
        "1. buy\n2. cook\n\naside\n\nturning\n\n```\nif a:\n    b\n```"
    )


def test_headings_without_numbers_stay_without() -> None:
    """LibreOffice gives each heading a list whose items have no number."""
    numbering = wrap_word(
        "numbering",
        '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="1"/>'
        '<w:numFmt w:val="none"/><w:lvlText w:val="%1"/></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>',
    )
    styles = wrap_word(
        "styles",
        '<w:style w:styleId="H"><w:name w:val="Heading 1"/><w:pPr><w:numPr>'
        '<w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr></w:pPr></w:style>',
    )
    body = word_paragraph("One", "H") + word_paragraph("Two", "H")

    document = read_zip(make_docx(body, styles=styles, numbering=numbering))

    assert document.text == "# One\n\n# Two"


def test_a_list_of_a_word_document_may_begin_anew_or_go_on() -> None:
    numbering = wrap_word(
        "numbering",
        '<w:abstractNum w:abstractNumId="7"><w:lvl w:ilvl="0"><w:start w:val="3"/>'
        '<w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'
        '<w:num w:numId="2"><w:abstractNumId w:val="7"/></w:num>'
        '<w:num w:numId="3"><w:abstractNumId w:val="7"/>'
        '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num>',
    )
    body = ""
    for number in (1, 2, 3, 3):
        place = f'<w:numPr><w:ilvl w:val="0"/><w:numId w:val="{number}"/></w:numPr>'
        body += word_paragraph("x", properties=place)

    document = read_zip(make_docx(body, numbering=numbering))

    assert document.text == "3. x\n4. x\n1. x\n2. x"


def test_a_word_table_may_hold_a_table() -> None:
    inner = (
        f"<w:tbl><w:tr><w:tc>{word_paragraph('x')}</w:tc>"
        f"<w:tc>{word_paragraph('y')}</w:tc></w:tr></w:tbl>"
    )
    body = (
        f"<w:tbl><w:tr><w:tc>{word_paragraph('a')}</w:tc><w:tc>{word_paragraph('b')}"
        f"</w:tc></w:tr><w:tr><w:tc>{inner}</w:tc><w:tc>{word_paragraph('c')}</w:tc>"
        "</w:tr></w:tbl>"
    )

    document = read_zip(make_docx(body))

    assert document.text == "| a | b |\n| --- | --- |\n| x; y | c |"


def test_cells_of_a_word_table_that_are_wide_are_columns() -> None:
    wide = (
        f'<w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr>{word_paragraph("both")}</w:tc>'
    )
    cell = f"<w:tc>{word_paragraph('x')}</w:tc>"
    body = f"<w:tbl><w:tr>{wide}{cell}</w:tr><w:tr>{cell * 3}</w:tr></w:tbl>"

    document = read_zip(make_docx(body))

    assert document.text == "| both |  | x |\n| --- | --- | --- |\n| x | x | x |"


def test_powers_and_fractions_of_a_word_document_are_told() -> None:
    raised = '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr>'
    body = (
        f"<w:p><w:pPr>{raised}</w:pPr><w:r><w:t>5 m</w:t></w:r><w:r>{raised}<w:t>2</w:t>"
        f"</w:r><w:r><w:t>, 19</w:t></w:r><w:r>{raised}<w:t>th</w:t></w:r></w:p>"
        "<w:p><oMath><sSup><e><r><w:t>c</w:t></r></e><sup><r><w:t>2</w:t></r></sup></sSup>"
        "<r><w:t> and </w:t></r><f><num><r><w:t>1</w:t></r></num><den><r><w:t>3</w:t></r></den></f></oMath></w:p>"
    )

    assert read_zip(make_docx(body)).text == "5 m^2, 19th\n\nc^2 and 1/3"


def test_deleted_text_fields_and_repetitions_of_a_word_document_are_left_out() -> None:
    body = (
        "<w:p><w:r><w:t>kept</w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r>"
        "</w:del><w:r><w:instrText>PAGE</w:instrText></w:r>"
        "<w:r><w:tab/><w:t>end</w:t></w:r><w:r><x><Fallback><w:t>twice</w:t></Fallback>"
        "</x></w:r></w:p>"
    )

    assert read_zip(make_docx(body)).text == "kept end"


def test_the_notes_of_a_word_document_follow_its_text() -> None:
    notes = wrap_word(
        "footnotes",
        f'<w:footnote w:type="separator" w:id="-1">{word_paragraph("____")}</w:footnote>'
        f'<w:footnote w:id="1">{word_paragraph("See there.")}</w:footnote>',
    )
    body = '<w:p><w:r><w:t>Said</w:t><w:footnoteReference w:id="1"/></w:r></w:p>'

    document = read_zip(make_docx(body, footnotes=notes))

    assert document.text == "Said[^1]\n\n[^1]: See there."


# --- OpenDocument


def test_an_open_document_is_read_as_markdown() -> None:
    body = (
        '<text:h text:outline-level="2">Plan</text:h>'
        '<text:p>a<text:s text:c="2"/>b<text:note><text:note-citation>1'
        "</text:note-citation><text:note-body><text:p>see</text:p></text:note-body>"
        "</text:note></text:p>"
        "<text:list><text:list-item><text:p>x</text:p><text:list><text:list-item>"
        "<text:p>y</text:p></text:list-item></text:list></text:list-item></text:list>"
        "<table:table><table:table-row><table:table-cell><text:p>1</text:p>"
        "</table:table-cell><table:table-cell><text:p>2</text:p></table:table-cell>"
        "</table:table-row></table:table>"
    )

    document = read_zip(make_odt(body))

    assert document.text == (
        "## Plan\n\na b (see)\n\n- x\n  - y\n\n| 1 | 2 |\n| --- | --- |"
    )


def test_an_open_document_has_the_numbers_and_the_styles_that_it_shows() -> None:
    styles = (
        '<office:document-styles xmlns:office="o" xmlns:style="s" xmlns:text="t">'
        '<style:style style:name="Title"/>'
        '<style:style style:name="Author" style:parent-style-name="Title"/>'
        '<text:list-style style:name="Steps">'
        '<text:list-level-style-number text:level="1" style:num-format="1" '
        'style:num-suffix="."/>'
        '<text:list-level-style-number text:level="2" style:num-format="a" '
        'style:num-prefix="(" style:num-suffix=")" text:display-levels="2"/>'
        "</text:list-style></office:document-styles>"
    )
    item = "<text:list-item><text:p>{}</text:p>{}</text:list-item>"
    inner = f"<text:list>{item.format('who', '')}{item.format('what', '')}</text:list>"
    body = (
        '<text:p text:style-name="Title">Plan</text:p>'
        '<text:p text:style-name="Author">A. Cook</text:p>'
        '<text:list text:style-name="Steps">'
        f"{item.format('buy', '')}{item.format('cook', inner)}</text:list>"
        '<text:p text:style-name="Preformatted_20_Text">if a:</text:p>'
        '<text:p text:style-name="Preformatted_20_Text"><text:s text:c="4"/>b</text:p>'
    )

    document = read_zip(make_odt(body, **{"styles.xml": styles}))

    assert document.text == (
        "# Plan\n\nA. Cook\n\n1. buy\n2. cook\n  (2.a) who\n  (2.b) what\n\n```\nif a:\n    b\n```"
    )


def test_a_formula_of_an_open_document_is_read_as_it_was_written() -> None:
    formula = (
        '<math xmlns="m"><semantics><mi>E</mi><annotation>E = m c^{2}</annotation>'
        "</semantics></math>"
    )
    link = '<draw:object xmlns:draw="d" xmlns:xlink="x" xlink:href="./{}"/>'
    body = f"<text:p>So {link.format('F 1')} holds{link.format('Chart')}.</text:p>"

    document = read_zip(make_odt(body, **{"F 1/content.xml": formula}))

    assert document.text == "So E = m c^{2} holds."


def test_cells_of_an_open_document_that_are_covered_or_repeated_are_columns() -> None:
    cell = "<table:table-cell{}><text:p>{}</text:p></table:table-cell>"
    row = "<table:table-row>{}</table:table-row>"
    wide = cell.format(' table:number-columns-spanned="2"', "both")
    first = row.format(f"{wide}<table:covered-table-cell/>{cell.format('', 'c')}")
    repeated = '<table:table-cell table:number-columns-repeated="2"/>'
    second = row.format(f"{repeated}{cell.format('', 'z')}")

    document = read_zip(make_odt(f"<table:table>{first}{second}</table:table>"))

    assert document.text == "| both |  | c |\n| --- | --- | --- |\n|  |  | z |"


# --- EPUB


def test_a_book_has_chapters_in_the_order_of_its_spine() -> None:
    book = make_epub(["<h1>One</h1><p>a</p>", "<img alt=''/>", "<p>b</p>"])

    document = read_zip(book)

    assert document.unit == "chapter"
    assert document.parts == ("# One\n\na", "b")
    assert document.titles == ("One", "")


# --- which format it is, and choosing parts


def test_the_content_of_a_file_counts_not_its_name(tmp_path: Path) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(make_docx(word_paragraph("in truth of Word")))

    assert read_file(FileRequest(path=str(file))).text == "in truth of Word"


def test_chapters_of_a_book_are_chosen_by_number(tmp_path: Path) -> None:
    file = tmp_path / "a book.epub"
    file.write_bytes(make_epub([f"<p>text {number}</p>" for number in range(1, 8)]))

    document = read_file(parse_file_request(f"{file} chapters 2-3, 7"))

    assert document.text == "text 2\n\ntext 3\n\ntext 7"
    assert document.label == "a book.epub, chapters 2-3, 7 of 7"


def test_html_is_read_as_a_page_or_as_its_source(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<p>text")

    assert read_file(parse_file_request(f"{file}")).text == "text"
    assert read_file(parse_file_request(f"{file} source")).text == "<p>text"


@pytest.mark.parametrize("ending", ["", " pages 1-2", " all", " source", " parts"])
def test_a_file_of_that_very_name_is_read(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"notes{ending}"
    file.write_text("seven")

    assert parse_file_request(str(file)) == FileRequest(path=str(file))


def test_numbers_that_are_none_are_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no numbers") as refused:
        parse_file_request(f"{tmp_path}/a.pdf pages 9-3")

    assert "pages 3-10" in refused.value.hint


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ({"xl/workbook.xml": ""}, "an Excel workbook"),
        ({"ppt/presentation.xml": ""}, "a PowerPoint presentation"),
        (
            {"mimetype": "application/vnd.oasis.opendocument.spreadsheet"},
            "a spreadsheet",
        ),
        ({"a.txt": "x"}, "a zip file and no document"),
        ({}, "a zip file and no document"),
    ],
)
def test_another_kind_of_zip_file_is_refused_by_name(
    members: dict[str, str], what: str, tmp_path: Path
) -> None:
    file = tmp_path / "it"
    file.write_bytes(make_zip(members))

    with pytest.raises(UsageError, match=f"^it is {what}"):
        read_file(FileRequest(path=str(file)))


def test_an_archive_has_its_members() -> None:
    archive = Archive(make_zip({"a": "1", "b": "22"}))

    assert archive.names == ["a", "b"]
    assert archive.read("b") == b"22"
