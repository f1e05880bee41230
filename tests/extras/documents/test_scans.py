"""A PDF without text, whose pages are pictures, is offered to a model that sees."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.documents import reading
from localspec.documents.reading import (
    Scan,
    ScannedDocumentError,
    parse_file_request,
    read_file,
    read_scanned_file,
)
from localspec.documents.scan_reader import turn_jpeg
from localspec.errors import LocalspecError, UsageError
from localspec.models.pictures import PICTURE_MARK, check_picture
from localspec.serve import messages, prompts, responses
from localspec.serve.api_error import ApiError
from localspec.tui.dialogs.choices import ConfirmScreen
from tests.support.app_driver import Chat, said
from tests.support.chat_pictures import ready_to_see, seen
from tests.support.dialogue import Dialogue
from tests.support.document_files import make_pdf, write_pdf
from tests.support.picture_bytes import jpeg, shades
from tests.support.run_command import Done, localspec
from tests.support.scripted_engine import ScriptedEngine
from tests.support.vision_models import VisionFiles, VisionModels
from tests.support.zoo import Zoo

pytest.importorskip("pypdf")

PAGES = [jpeg(shades(4, 5)), jpeg(shades(5, 4)), jpeg(shades(6, 3))]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scan.pdf"
    path.write_bytes(make_pdf(PAGES))
    return path


def read(path: Path, choice: str = "") -> Scan:
    return read_scanned_file(parse_file_request(f"{path} {choice}"))


def test_the_pages_are_the_jpegs_as_they_are_stored(file: Path) -> None:
    scan = read(file)

    assert [each.data for each in scan.pictures] == PAGES
    names = [each.picture.name for each in scan.pictures]
    assert names == ["scan.pdf, page 1", "scan.pdf, page 2", "scan.pdf, page 3"]
    assert scan.label == "3 pages of scan.pdf"


def test_chosen_pages_alone_are_read(file: Path) -> None:
    scan = read(file, "pages 2-3")

    assert [each.data for each in scan.pictures] == PAGES[1:]
    assert scan.label == "pages 2-3 of scan.pdf"


def test_a_jpeg_that_is_packed_once_more_is_unpacked(file: Path) -> None:
    packed = zlib.compress(PAGES[0])
    file.write_bytes(make_pdf([packed], filters="[ /FlateDecode /DCTDecode ]"))

    assert read(file).pictures[0].data == PAGES[0]


@pytest.mark.parametrize(
    ("filters", "what"),
    [
        ("/CCITTFaxDecode", "a fax (CCITT) picture"),
        ("/JBIG2Decode", "a JBIG2 picture"),
        ("/JPXDecode", "a JPEG 2000 picture"),
        ("[ ]", "a picture that is no JPEG"),
        ("[ /DCTDecode /FlateDecode ]", "a picture that is no JPEG"),
        ("[ /Crypt /DCTDecode ]", "a picture that is no JPEG"),
    ],
)
def test_another_encoding_is_named(file: Path, filters: str, what: str) -> None:
    file.write_bytes(make_pdf(PAGES, filters=filters))

    with pytest.raises(UsageError) as refused:
        read(file)

    assert f"page 1 is {what}; only JPEG" in refused.value.message
    assert "ocrmypdf" in refused.value.hint


def test_a_page_of_several_pictures_is_named(file: Path) -> None:
    file.write_bytes(make_pdf(PAGES, draws="/Im0 Do /Im0 Do"))

    with pytest.raises(UsageError, match="page 1 is several pictures"):
        read(file)


def test_a_blank_page_is_left_out(file: Path) -> None:
    file.write_bytes(make_pdf([PAGES[0], "", PAGES[2]]))

    assert read(file).numbers == (1, 3)


def test_more_pages_than_a_message_has_pictures_are_to_be_chosen(file: Path) -> None:
    file.write_bytes(make_pdf([PAGES[0]] * 21))

    with pytest.raises(UsageError, match="has 21 pages; a message has at most 20"):
        read(file)

    assert len(read(file, "pages 2-21").pictures) == 20


@pytest.mark.parametrize(
    ("matrix", "rotate", "orientation"),
    [
        ("612 0 0 792 0 0", 0, 1),
        ("612 0 0 792 0 0", 90, 6),
        ("612 0 0 792 0 0", 180, 3),
        ("612 0 0 792 0 0", 270, 8),
        ("612 0 0 792 0 0", -90, 8),
        ("612 0 0 -792 0 792", 0, 4),
        ("-612 0 0 792 612 0", 0, 2),
        ("-612 0 0 -792 612 792", 0, 3),
        ("0 -792 612 0 0 792", 0, 6),
        ("0 792 -612 0 612 0", 0, 8),
        ("0 792 -612 0 612 0", 90, 1),
        ("0 -792 -612 0 612 792", 0, 5),
        ("0 792 612 0 0 0", 0, 7),
        ("1 0 0 1 0 0 cm 612 3 -3 792 0 0", 0, 1),
    ],
)
def test_a_page_is_shown_as_a_reader_shows_it(
    file: Path, matrix: str, rotate: int, orientation: int
) -> None:
    file.write_bytes(make_pdf(PAGES[:1], matrix=matrix, rotate=rotate))

    assert read(file).pictures[0].picture.orientation == orientation


def test_what_a_camera_said_of_the_turning_is_left_out() -> None:
    """A PDF ignores it."""
    taken = jpeg(shades(4, 5), orientation=6)

    assert turn_jpeg(taken, 1) == PAGES[0]
    assert check_picture(turn_jpeg(taken, 8), "page").orientation == 8


def test_a_jpeg_that_is_cut_is_named_by_its_page(file: Path) -> None:
    file.write_bytes(make_pdf([PAGES[0], PAGES[1][:40]]))

    with pytest.raises(LocalspecError, match=r"scan\.pdf, page 2 is incomplete"):
        read(file)


def test_pages_that_are_all_one_picture_have_a_limit(file: Path) -> None:
    """Eight pages of the same 10 MB, stored once."""
    comment = b"\xff\xfe\xff\xff" + bytes(0xFFFD)
    large = PAGES[0][:2] + comment * 150 + PAGES[0][2:]
    picture = b"/Type /XObject /Subtype /Image /Filter /DCTDecode"
    content = b"q 612 0 0 792 0 0 cm /Im0 Do Q"
    page = (
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R "
        b"/Resources << /XObject << /Im0 3 0 R >> >> >>"
    )
    kids = b" ".join(b"%d 0 R" % number for number in range(5, 13))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count 8 >>" % kids,
        b"<< %s /Length %d >>\nstream\n%s\nendstream" % (picture, len(large), large),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        *[page] * 8,
    ]
    file.write_bytes(write_pdf(objects, root=1))

    with pytest.raises(UsageError, match="pictures of more than 64"):
        read(file)


@pytest.mark.parametrize(
    "data",
    [
        make_pdf(PAGES)[:700],
        make_pdf([b"no JPEG"]),
        make_pdf(PAGES, draws="/Im0 Do " + "[" * 100_000),
        make_pdf(["text"]),
        b"%PDF-1.7\n",
    ],
    ids=["cut", "no JPEG", "deep", "text", "empty"],
)
def test_a_hostile_scan_ends_in_one_line(
    data: bytes, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 4)
    file.write_bytes(data)

    with pytest.raises(LocalspecError) as refused:
        read(file)

    assert refused.value.message.startswith("scan.pdf")


def test_text_is_read_as_text(file: Path) -> None:
    file.write_bytes(make_pdf([PAGES[0], "words"]))

    assert "words" in read_file(parse_file_request(str(file))).text
    file.write_bytes(make_pdf(PAGES))
    with pytest.raises(ScannedDocumentError):
        read_file(parse_file_request(str(file)))


# --- the app


class SeeingEngine(ScriptedEngine):
    """A picture has 256 tokens."""

    def __init__(self) -> None:
        super().__init__(lambda: seen("A", " scan."), ready=ready_to_see())

    def count(self, count: Any) -> int:
        return 8 + 256 * sum(len(each.images) for each in count.messages)


def pending(chat: Chat) -> list[str]:
    return [each.name for each in chat.screen.session.pending_pictures]


async def test_the_app_asks_before_it_attaches_the_pages(file: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await chat.send(f"/read {file}")
        await chat.reaches(ConfirmScreen)
        await chat.sees("scan.pdf has no text", "3 pages as pictures, 768 tokens")
        assert pending(chat) == []

        await chat.press("y")
        await chat.sees("+ scan.pdf, page 1")

        assert pending(chat) == [f"scan.pdf, page {number}" for number in (1, 2, 3)]


async def test_the_pages_may_be_declined(file: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await chat.send(f"/read {file} page 2")
        await chat.reaches(ConfirmScreen)
        await chat.press("escape")

        assert pending(chat) == []


async def test_a_model_that_does_not_see_keeps_the_error(file: Path) -> None:
    async with Chat(ScriptedEngine(said)) as chat:
        await chat.send(f"/read {file}")
        await chat.sees("its 3 pages are pictures, as of a scan", "a model that sees")

        assert pending(chat) == []


# --- the command line


@pytest.fixture
def vision(vision_models: VisionModels) -> VisionFiles:
    return vision_models["gemma3"]


OPTIONS = (
    *("--spec", "lookup", "--temperature", "0", "--max-tokens", "4"),
    *("--ctx", "1024", "--threads", "1"),
)


def run(model: Path, *more: str | Path) -> Done:
    return localspec("run", model, *OPTIONS, "-p", "hi", *more)


def test_run_sends_the_pages_and_says_so(vision: VisionFiles, file: Path) -> None:
    sight = ("--image-model", vision.projector)
    plain = run(vision.model, *sight, "--json")
    done = run(vision.model, *sight, "--json", "--file", f"{file} pages 1-2")

    assert (done.code, done.err.count("\n")) == (0, 2)
    assert "scan.pdf has no text: the model gets 2 pages of it as pictures." in done.err
    n_more = done.document["prompt_tokens"] - plain.document["prompt_tokens"]
    assert f"The pictures take {n_more} tokens." in done.err


def test_run_without_a_projector_keeps_the_error(zoo: Zoo, file: Path) -> None:
    done = run(zoo["chatty"], "--file", file)

    assert done.code == 2
    assert "its 3 pages are pictures, as of a scan." in done.err
    assert "a model that sees" in done.err


@pytest.fixture
def chat(vision: VisionFiles) -> Iterator[Dialogue]:
    sight = ("--image-model", vision.projector)
    with Dialogue("run", vision.model, *OPTIONS, *sight, "--private") as chat:
        yield chat


def test_the_linear_chat_asks(chat: Dialogue, file: Path) -> None:
    chat.until("\n> ")
    chat.type(f"/read {file}\r")
    chat.until("Attach 3 pages as pictures, ")
    chat.until("Type y or n, and Enter:")
    chat.type("n\r")
    chat.until("scan.pdf is not attached.")
    chat.until("\n> ")

    chat.type(f"/read {file} page 2\r")
    chat.until("Attach 1 page as a picture, ")
    chat.type("y\r")
    chat.until("Attached to your next message: page 2 of scan.pdf.")
    chat.until("\n> ")


# --- the server


ENCODED = base64.b64encode(make_pdf(PAGES)).decode()
URL = f"data:application/pdf;base64,{ENCODED}"
DOORS: list[tuple[Any, str, dict[str, Any]]] = [
    (
        messages.parse_chat,
        "messages",
        {
            "type": "document",
            "title": "old.pdf",
            "source": {
                "type": "base64",
                "media_type": "application/pdf",
                "data": ENCODED,
            },
        },
    ),
    (
        prompts.parse_chat,
        "messages",
        {"type": "file", "file": {"file_data": URL, "filename": "old.pdf"}},
    ),
    (
        responses.parse_chat,
        "input",
        {"type": "input_file", "file_data": URL, "filename": "old.pdf"},
    ),
]


def pose(
    parse: Any, field: str, *parts: dict[str, Any], earlier: bool = False
) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"role": "user", "content": list(parts)}]
    if earlier:
        said.append({"role": "assistant", "content": "Yes."})
        said.append({"role": "user", "content": "And?"})
    return {field: said}


@pytest.mark.parametrize(("parse", "field", "part"), DOORS, ids=["m", "c", "r"])
def test_a_seeing_model_gets_the_pages_at_each_door(
    parse: Any, field: str, part: dict[str, Any]
) -> None:
    message = parse(pose(parse, field, part), sees=True).messages[0]

    pages = "\n".join(f"[Page {n}]\n{PICTURE_MARK}" for n in (1, 2, 3))
    assert message.content == f"old.pdf\n{pages}"
    assert [Path(each.path).read_bytes() for each in message.images] == PAGES


@pytest.mark.parametrize(("parse", "field", "part"), DOORS, ids=["m", "c", "r"])
def test_another_model_keeps_the_error_at_each_door(
    parse: Any, field: str, part: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match=r"as of a scan\..*a model that sees") as refused:
        parse(pose(parse, field, part), sees=False)

    assert refused.value.status == 400


@pytest.mark.parametrize(("parse", "field", "part"), DOORS, ids=["m", "c", "r"])
def test_a_request_has_twenty_pictures_with_its_pages(
    parse: Any, field: str, part: dict[str, Any]
) -> None:
    with pytest.raises(ApiError, match="at most 20 pictures"):
        parse(pose(parse, field, *[part] * 7), sees=True)


def test_a_document_in_an_earlier_message_stays_a_picture() -> None:
    parse, field, part = DOORS[0]

    chat = parse(pose(parse, field, part, earlier=True), sees=True)

    assert len(chat.messages[0].images) == 3
