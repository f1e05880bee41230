"""Documents that are zip files: which one it is, and who reads it; in the child process."""

from __future__ import annotations

from localspec.documents.archive import Archive
from localspec.documents.document import Document
from localspec.documents.reader_limits import UnreadableDocumentError

_DOCX = "word/document.xml"
_MAX_TYPE = 200  # Bytes of the member that names the type.
_OTHERS = {
    "xl/workbook.xml": ("an Excel workbook", "Save the sheet as CSV."),
    "ppt/presentation.xml": ("a PowerPoint presentation", "Save it as PDF."),
}
_OTHER_TYPES = {
    "application/vnd.oasis.opendocument.spreadsheet": (
        "a spreadsheet",
        "Save the sheet as CSV.",
    ),
    "application/vnd.oasis.opendocument.presentation": (
        "a presentation",
        "Save it as PDF.",
    ),
}


def read(name: str, data: bytes) -> Document:
    """Raises UnreadableDocumentError."""
    archive = Archive(data)
    if _DOCX in archive:
        from localspec.documents import docx_reader  # noqa: PLC0415  one of the readers

        return docx_reader.read(name, archive)
    media_type = ""
    if "mimetype" in archive:
        first = next(archive.chunks("mimetype"), b"")
        media_type = first[:_MAX_TYPE].decode("ascii", "replace").strip()
    if media_type == "application/epub+zip" or "META-INF/container.xml" in archive:
        from localspec.documents import epub_reader  # noqa: PLC0415

        return epub_reader.read(name, archive)
    if media_type.startswith("application/vnd.oasis.opendocument.text"):
        from localspec.documents import odt_reader  # noqa: PLC0415

        return odt_reader.read(name, archive)
    what, hint = _OTHER_TYPES.get(media_type, ("", ""))
    for member, described in _OTHERS.items():
        if member in archive:
            what, hint = described
    if what:
        raise UnreadableDocumentError(f"is {what}, which cannot be read here.", hint)
    raise UnreadableDocumentError(
        "is a zip file and no document.", "Unpack it, and give a file that is in it."
    )
