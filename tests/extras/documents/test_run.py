"""`localspec run --file`, and `/read` in the linear chat, with a PDF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dialogue import Dialogue
from tests.support.document_files import make_pdf
from tests.support.run_command import Done, localspec
from tests.support.zoo import Zoo

pytest.importorskip("pypdf")


@pytest.fixture
def report(tmp_path: Path) -> Path:
    file = tmp_path / "the report.pdf"
    file.write_bytes(make_pdf([f"text of page {number}" for number in range(1, 7)]))
    return file


@pytest.fixture
def book(tmp_path: Path) -> Path:
    file = tmp_path / "book.pdf"
    page = "some words of a long book\n" * 20
    file.write_bytes(make_pdf([page] * 30))
    return file


def ask(zoo: Zoo, *arguments: str) -> Done:
    options = (
        "--ctx",
        "1024",
        "--temperature",
        "0",
        "--max-tokens",
        "4",
        "--threads",
        "1",
    )
    return localspec("run", zoo["chatty"], "-p", "Hi?", *options, *arguments)


def test_a_document_goes_with_the_prompt(zoo: Zoo, report: Path) -> None:
    plain = ask(zoo, "--json").document
    with_pages = ask(zoo, "--json", "--file", f"{report} pages 2-3")

    n_more = with_pages.document["prompt_tokens"] - plain["prompt_tokens"]
    assert n_more > 20
    assert "Reading the report.pdf, pages 2-3 of 6, about 12 tokens." in with_pages.err


def test_several_documents_are_attached(zoo: Zoo, report: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("seven")

    done = ask(zoo, "--file", str(report), "--file", str(tmp_path / "a.txt"), "-q")

    assert (done.code, done.err) == (0, "")


def test_a_document_that_is_missing_ends_before_the_model_loads(zoo: Zoo) -> None:
    done = ask(zoo, "--file", "missing.pdf")

    assert done.code == 3
    assert "There is no file missing.pdf." in done.err


def test_a_prompt_that_is_too_long_names_parts_to_choose(zoo: Zoo, book: Path) -> None:
    done = ask(zoo, "--file", str(book))

    assert done.code == 13
    assert "--file 'book.pdf pages 1-15'" in done.err


@pytest.fixture
def chat(zoo: Zoo, report: Path) -> Iterator[Dialogue]:
    options = (
        "--ctx",
        "1024",
        "--temperature",
        "0",
        "--max-tokens",
        "4",
        "--threads",
        "1",
    )
    file = ("--file", f"{report} page 6")
    with Dialogue("run", zoo["chatty"], *options, *file, "--private") as chat:
        yield chat


def test_the_linear_chat_offers_the_parts_that_have_room(
    chat: Dialogue, book: Path
) -> None:
    chat.until("Attached to your next message: the report.pdf, page 6 of 6.")
    chat.until("\n> ")
    chat.line("/read -")

    chat.type(f"/read {book}\r")
    listed = chat.until("book.pdf has 30 pages, about ")
    assert "some words of a long book" in listed
    chat.until("Choose pages, such as pages 1-")
    chat.until(f"> /read {book} pages 1-")
    chat.type("\r")

    chat.until("Attached to your next message: book.pdf, page")
    chat.until("\n> ")
