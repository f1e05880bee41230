"""PDF files that other programs wrote: ReportLab, fpdf2, and img2pdf of a fax."""

from pathlib import Path

import pytest

from localspec.documents.reading import FileRequest, read_file, read_scanned_file

pytest.importorskip("pypdf")

INPUTS = Path(__file__).parent / "inputs"


@pytest.mark.parametrize("name", ["fpdf2.pdf", "reportlab.pdf"])
def test_a_pdf_of_another_program_is_read(name: str) -> None:
    document = read_file(FileRequest(path=str(INPUTS / name)))

    expected = (INPUTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"{document.text}\n" == expected


def test_a_fax_of_another_program_is_a_picture() -> None:
    pytest.importorskip("PIL")

    scan = read_scanned_file(FileRequest(path=str(INPUTS / "img2pdf-fax.pdf")))

    (picture,) = scan.pictures
    assert picture.picture.shown_size == (1240, 1754)
