"""Documents that other programs wrote, against the text that is kept beside them.

`inputs/` has one text of headings, lists, code, a table, a note and a formula as pandoc
3.9 and LibreOffice 7.4 write it, and shorter ones of odfpy and ebooklib. Beside each is
what is read of it.
"""

from pathlib import Path

import pytest

from localspec.documents import html_reader, zip_readers

INPUTS = Path(__file__).parent / "inputs"
FILES = [path.name for path in sorted(INPUTS.iterdir()) if path.suffix != ".md"]


@pytest.mark.parametrize("name", FILES)
def test_a_document_of_another_program_is_read(name: str) -> None:
    path = INPUTS / name
    data = path.read_bytes()

    if path.suffix == ".html":
        document = html_reader.read(name, data)
    else:
        document = zip_readers.read(name, data)

    expected = (INPUTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"{document.text}\n" == expected
