"""Writes small documents of each format, as the programs that make them do."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence

WORD_NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_ODT_NAMESPACES = (
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" '
    'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" '
    'xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
)


def make_zip(
    members: Mapping[str, str | bytes], compression: int = zipfile.ZIP_DEFLATED
) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            # Not with the time of now: tests have the same names each time.
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return file.getvalue()


# --- PDF


SMALL_FORM = "/Width 8 /Height 8 /ColorSpace /DeviceGray /BitsPerComponent 8"
"""What a PDF says of a small picture, but for its filter."""


def make_pdf(
    pages: Sequence[str | bytes],
    *,
    compress: bool = True,
    matrix: str = "612 0 0 792 0 0",
    rotate: int = 0,
    form: str = f"{SMALL_FORM} /Filter /DCTDecode",
    draws: str = "/Im0 Do",
) -> bytes:
    """A PDF with a page for each text; a page of bytes is a picture's, as of a scan.

    `matrix`, `rotate`, `form` and `draws` are of such pages.
    """
    objects: list[bytes] = []

    def add(body: bytes) -> int:
        objects.append(body)
        return len(objects)

    catalog = add(b"")
    tree = add(b"")
    font = add(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    kids = []
    for page in pages:
        if isinstance(page, bytes):
            picture = add(
                _stream(
                    page,
                    b"/Type /XObject /Subtype /Image %s" % form.encode("latin-1"),
                )
            )
            content = add(_stream(f"q {matrix} cm {draws} Q".encode()))
            resources = b"/XObject << /Im0 %d 0 R >>" % picture
        else:
            content = add(_text_stream(page, compress=compress))
            resources = b"/Font << /F1 %d 0 R >>" % font
        kids.append(
            add(
                b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 612 792] "
                b"/Rotate %d /Contents %d 0 R /Resources << %s >> >>"
                % (tree, rotate if isinstance(page, bytes) else 0, content, resources)
            )
        )
    references = b" ".join(b"%d 0 R" % kid for kid in kids)
    objects[tree - 1] = b"<< /Type /Pages /Kids [%s] /Count %d >>" % (
        references,
        len(kids),
    )
    objects[catalog - 1] = b"<< /Type /Catalog /Pages %d 0 R >>" % tree
    return write_pdf(objects, root=catalog)


def write_pdf(objects: Sequence[bytes], *, root: int) -> bytes:
    """The file of these objects, numbered from 1."""
    data = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(data)
    data += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        data += b"%010d 00000 n \n" % place
    data += b"trailer\n<< /Size %d /Root %d 0 R >>\n" % (len(objects) + 1, root)
    data += b"startxref\n%d\n%%%%EOF\n" % start
    return bytes(data)


def _text_stream(text: str, *, compress: bool) -> bytes:
    lines = []
    for line in text.split("\n"):
        escaped = line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
        lines.append(f"({escaped}) Tj T*")
    content = f"BT /F1 12 Tf 14 TL 72 720 Td {' '.join(lines)} ET".encode("latin-1")
    if compress:
        return _stream(zlib.compress(content), b"/Filter /FlateDecode")
    return _stream(content)


def _stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (
        len(content),
        entries,
        content,
    )


# --- Word, OpenDocument


def word_paragraph(text: str, style: str = "", properties: str = "") -> str:
    """`properties`: further XML of the paragraph's properties."""
    if style:
        properties = f'<w:pStyle w:val="{style}"/>{properties}'
    return (
        f"<w:p><w:pPr>{properties}</w:pPr><w:r><w:t xml:space='preserve'>{text}</w:t>"
        "</w:r></w:p>"
    )


def make_docx(body: str, **members: str) -> bytes:
    """`body` is the XML inside `w:body`; `members` are other files in `word/`."""
    files: dict[str, str] = {
        "[Content_Types].xml": "<Types/>",
        "word/document.xml": wrap_word("document", f"<w:body>{body}</w:body>"),
    }
    for name, content in members.items():
        files[f"word/{name}.xml"] = content
    return make_zip(files)


def wrap_word(tag: str, content: str) -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
        f'<w:{tag} xmlns:w="{WORD_NAMESPACE}">{content}</w:{tag}>'
    )


WORD_STYLES = wrap_word(
    "styles",
    '<w:style w:type="paragraph" w:styleId="berschrift1">'
    '<w:name w:val="heading 1"/><w:pPr><w:outlineLvl w:val="0"/></w:pPr></w:style>'
    '<w:style w:type="paragraph" w:styleId="berschrift2"><w:name w:val="heading 2"/>'
    "</w:style>",
)
"""As a German Word writes them."""


def make_odt(body: str, **members: str) -> bytes:
    """`body` is the XML inside `office:text`."""
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?><office:document-content {_ODT_NAMESPACES}>'
        f"<office:body><office:text>{body}</office:text></office:body>"
        "</office:document-content>"
    )
    files = {
        "mimetype": "application/vnd.oasis.opendocument.text",
        "content.xml": content,
        **members,
    }
    return make_zip(files)


# --- EPUB


def make_epub(
    chapters: Sequence[str], *, encrypted: Sequence[int] = (), folder: str = "OEBPS"
) -> bytes:
    """A book of XHTML pages; `encrypted` are the numbers of those that are, from 0."""
    items = []
    order = []
    files: dict[str, str] = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": (
            '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
            f'<rootfiles><rootfile full-path="{folder}/book.opf"/></rootfiles></container>'
        ),
    }
    for number, chapter in enumerate(chapters):
        name = f"chapter {number}.xhtml"
        items.append(
            f'<item id="c{number}" href="chapter%20{number}.xhtml" '
            'media-type="application/xhtml+xml"/>'
        )
        order.append(f'<itemref idref="c{number}"/>')
        files[f"{folder}/{name}"] = (
            '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>'
            f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{chapter}</body></html>'
        )
    files[f"{folder}/book.opf"] = (
        '<package xmlns="http://www.idpf.org/2007/opf"><manifest>'
        f"{''.join(items)}</manifest><spine>{''.join(order)}</spine></package>"
    )
    if encrypted:
        references = "".join(
            f'<CipherReference URI="{folder}/chapter%20{number}.xhtml"/>'
            for number in encrypted
        )
        files["META-INF/encryption.xml"] = f"<encryption>{references}</encryption>"
    return make_zip(files)
