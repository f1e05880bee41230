"""A PDF without text, whose pages are pictures, is offered to a model that sees."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import product
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
from localspec.tui.dialogs.document_parts import DocumentPartsScreen
from tests.support.app_driver import Chat, said
from tests.support.chat_pictures import SeeingEngine, seen
from tests.support.dialogue import Dialogue
from tests.support.document_files import SMALL_FORM, make_pdf, write_pdf
from tests.support.picture_bytes import jpeg, shades
from tests.support.run_command import Done, localspec
from tests.support.scripted_engine import ScriptedEngine
from tests.support.vision_models import VisionFiles, VisionModels
from tests.support.zoo import Zoo

pytest.importorskip("pypdf")

PACKED = f"{SMALL_FORM} /Filter /FlateDecode"
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
    file.write_bytes(
        make_pdf([packed], form=f"{SMALL_FORM} /Filter [ /FlateDecode /DCTDecode ]")
    )

    assert read(file).pictures[0].data == PAGES[0]


@pytest.mark.parametrize(
    ("filters", "what"),
    [
        ("/JBIG2Decode", "a JBIG2 picture"),
        ("/JPXDecode", "a JPEG 2000 picture"),
        ("/Unheard", "a picture of an unknown encoding"),
        ("[ /DCTDecode /FlateDecode ]", "a picture that is packed in an unusual way"),
        ("[ /Crypt /DCTDecode ]", "a picture that is packed in an unusual way"),
    ],
)
def test_another_encoding_is_named(file: Path, filters: str, what: str) -> None:
    file.write_bytes(make_pdf(PAGES, form=f"{SMALL_FORM} /Filter {filters}"))

    with pytest.raises(UsageError) as refused:
        read(file)

    assert f"page 1 is {what}, which cannot be shown" in refused.value.message
    assert "ocrmypdf" in refused.value.hint


# --- pages that are no JPEG

SIZE = (21, 13)
"""Width and height; a row of 21 bits ends within a byte."""
FLATE = "/Filter /FlateDecode"
FAX = "/Filter /CCITTFaxDecode"
PREDICTOR = "/DecodeParms << /Predictor 15 /Colors 3 /Columns 21 >>"


def pattern(mode: str) -> Any:
    """A picture of Pillow's: lines on white, and in `RGB` or `L` a ramp."""
    pil = pytest.importorskip("PIL.Image")
    picture = pil.new("RGB", SIZE, "white")
    for x, y in product(range(SIZE[0]), range(SIZE[1])):
        if (x + 2 * y) % 5 == 0:
            picture.putpixel((x, y), (0, 0, 0))
        elif mode != "1" and y > 8:
            picture.putpixel((x, y), (12 * x, 255 - 12 * x, 40))
    return picture.convert(mode, dither=0)


def describe(mode: str, *more: str) -> str:
    space = "/DeviceRGB" if mode == "RGB" else "/DeviceGray"
    bits = 1 if mode == "1" else 8
    size = f"/Width {SIZE[0]} /Height {SIZE[1]}"
    return " ".join([size, f"/BitsPerComponent {bits} /ColorSpace {space}", *more])


def see(page: Scan) -> Any:
    """The first page, decoded, in colours."""
    pil = pytest.importorskip("PIL.Image")
    return pil.open(BytesIO(page.pictures[0].data)).convert("RGB")


def png_rows(picture: Any) -> bytes:
    """The data of Pillow's PNG, whose rows have filters."""
    out = BytesIO()
    picture.save(out, "PNG")
    data = out.getvalue()
    start = data.index(b"IDAT")
    (length,) = struct.unpack_from(">I", data, start - 4)
    return data[start + 4 : start + 4 + length]


@pytest.mark.parametrize("mode", ["1", "L", "RGB"])
def test_packed_samples_become_a_png_of_the_same_pixels(file: Path, mode: str) -> None:
    picture = pattern(mode)
    packed = zlib.compress(picture.tobytes())
    file.write_bytes(make_pdf([packed], form=f"{describe(mode)} {FLATE}"))

    scan = read(file)

    assert scan.pictures[0].picture.kind == "png"
    assert see(scan).tobytes() == picture.convert("RGB").tobytes()


def test_rows_that_are_filtered_as_in_a_png_are_kept(file: Path) -> None:
    picture = pattern("RGB")
    form = describe("RGB", PREDICTOR)
    file.write_bytes(make_pdf([png_rows(picture)], form=f"{form} {FLATE}"))

    assert see(read(file)).tobytes() == picture.tobytes()


@pytest.mark.parametrize("mode", ["1", "L"])
def test_samples_of_which_0_is_white_are_shown_so(file: Path, mode: str) -> None:
    picture = pattern(mode)
    packed = zlib.compress(bytes(255 - byte for byte in picture.tobytes()))
    form = describe(mode, "/Decode [1 0]")
    file.write_bytes(make_pdf([packed], form=f"{form} {FLATE}"))

    assert see(read(file)).tobytes() == picture.convert("RGB").tobytes()


def test_a_mask_is_black_on_white(file: Path) -> None:
    picture = pattern("1")
    form = f"/Width {SIZE[0]} /Height {SIZE[1]} /ImageMask true"
    packed = zlib.compress(picture.tobytes())
    file.write_bytes(make_pdf([packed], form=f"{form} {FLATE}"))

    assert see(read(file)).tobytes() == picture.convert("RGB").tobytes()


@pytest.mark.parametrize("table", ["<FFFFFF102030>", "(\xff\xff\xff\x10\x20\x30)"])
def test_colours_of_a_palette_are_looked_up(file: Path, table: str) -> None:
    form = (
        "/Width 2 /Height 1 /BitsPerComponent 8 "
        f"/ColorSpace [ /Indexed /DeviceRGB 1 {table} ]"
    )
    packed = zlib.compress(b"\1\0")
    file.write_bytes(make_pdf([packed], form=f"{form} {FLATE}"))

    shown = see(read(file))

    assert shown.getpixel((0, 0)) == (0x10, 0x20, 0x30)
    assert shown.getpixel((1, 0)) == (255, 255, 255)


def test_a_png_is_turned_as_its_page(file: Path) -> None:
    packed = zlib.compress(pattern("L").tobytes())
    form = describe("L")
    file.write_bytes(make_pdf([packed], form=f"{form} {FLATE}", rotate=90))

    assert read(file).pictures[0].picture.orientation == 6


def write_fax(picture: Any) -> bytes:
    """What a fax of group 4 has for a picture of black on white."""
    pil = pytest.importorskip("PIL.Image")
    operations = pytest.importorskip("PIL.ImageOps")
    out = BytesIO()
    # Pillow calls 0 white in a fax.
    operations.invert(picture.convert("L")).convert("1").save(
        out, "TIFF", compression="group4"
    )
    tags = pil.open(BytesIO(out.getvalue())).tag_v2
    (start,) = tags[273]
    (length,) = tags[279]
    return out.getvalue()[start : start + length]


@pytest.mark.parametrize("is_white_0", [False, True])
def test_a_fax_is_shown_black_on_white(file: Path, *, is_white_0: bool) -> None:
    picture = pattern("1")
    more = ""
    if is_white_0:
        more = "/BlackIs1 true"
    form = describe("1", f"/DecodeParms << /K -1 /Columns {SIZE[0]} {more} >>")
    file.write_bytes(make_pdf([write_fax(picture)], form=f"{form} {FAX}"))

    shown = see(read(file)).convert("1")

    if is_white_0:  # The page is to be inverted: its text is white.
        assert shown.tobytes() != picture.tobytes()
        assert shown.getpixel((1, 0)) == 0
    else:
        assert shown.tobytes() == picture.tobytes()


def test_a_fax_is_turned_as_its_page(file: Path) -> None:
    picture = pattern("1")
    form = describe("1", f"/DecodeParms << /K -1 /Columns {SIZE[0]} >>")
    fax = write_fax(picture)
    file.write_bytes(make_pdf([fax], form=f"{form} {FAX}", rotate=90))

    shown = see(read(file))

    assert shown.size == (SIZE[1], SIZE[0])
    assert shown.convert("1").tobytes() == picture.rotate(-90, expand=True).tobytes()


@pytest.mark.parametrize(
    ("form", "what"),
    [
        (describe("L").replace("Gray", "CMYK"), "a picture of inks (CMYK)"),
        (describe("L").replace("21", "70000"), "a picture of more than 40 million"),
        (describe("RGB").replace("21", "210"), "a picture that is cut short"),
        (describe("L").replace("21", "-21"), "a damaged picture"),
        (describe("L").replace("Component 8", "Component 7"), "a picture of 7 bits"),
    ],
)
def test_samples_that_cannot_be_shown_are_named(
    file: Path, form: str, what: str
) -> None:
    packed = zlib.compress(bytes(21 * 13))
    form = form.replace("/Height 13", "/Height 1300")
    file.write_bytes(make_pdf([packed], form=f"{form} {FLATE}"))

    with pytest.raises(UsageError, match=re.escape(f"page 1 is {what}")):
        read(file)


def test_an_old_fax_is_named(file: Path) -> None:
    pytest.importorskip("PIL.Image")
    file.write_bytes(make_pdf([b"x" * 40], form=f"{SMALL_FORM} {FAX}"))

    with pytest.raises(UsageError, match=r"a fax \(CCITT\) picture of a rare kind"):
        read(file)


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
        make_pdf([zlib.compress(bytes(90_000_000), 1)], form=PACKED),
        make_pdf([b"no samples"], form=PACKED),
    ],
    ids=["cut", "no JPEG", "deep", "text", "empty", "bomb", "no samples"],
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


@pytest.fixture
def engine() -> SeeingEngine:
    """A picture has 256 tokens."""
    made = SeeingEngine(lambda: seen("A", " scan."))
    made.n_rows = 256
    return made


def pending(chat: Chat) -> list[str]:
    return [each.name for each in chat.screen.session.pending_pictures]


async def test_the_app_asks_before_it_attaches_the_pages(
    engine: SeeingEngine, file: Path
) -> None:
    async with Chat(engine) as chat:
        await chat.send(f"/read {file}")
        await chat.reaches(ConfirmScreen)
        await chat.sees(
            "scan.pdf has no text", "3 pages as pictures, 768 tokens, about 49 s"
        )
        assert pending(chat) == []

        await chat.press("y")
        await chat.sees("+ scan.pdf, page 1 and 2 more, 768 tokens, about 49 s")

        assert pending(chat) == [f"scan.pdf, page {number}" for number in (1, 2, 3)]


@pytest.fixture
def long_file(tmp_path: Path) -> Path:
    path = tmp_path / "long.pdf"
    path.write_bytes(make_pdf([PAGES[0], "", *[PAGES[1]] * 28]))
    return path


async def test_pages_of_a_long_scan_are_chosen_from_a_list(
    engine: SeeingEngine, long_file: Path
) -> None:
    async with Chat(engine) as chat:
        await chat.send(f"/read {long_file}")
        await chat.reaches(DocumentPartsScreen)
        await chat.sees("Which pages of long.pdf?", "30 pages", "32 x 40 pixels")
        assert "no picture" in chat.shown

        await chat.press("ctrl+u", *"1-30")
        await chat.sees("30 pages; the message takes 20 pictures.")
        await chat.press("enter")
        assert isinstance(chat.app.screen, DocumentPartsScreen)

        await chat.press("ctrl+u", *"1,30")
        await chat.sees("2 pages, about 512 tokens")
        await chat.press("enter")
        await chat.wait(lambda: pending(chat))

        assert pending(chat) == ["long.pdf, page 1", "long.pdf, page 30"]


async def test_a_scan_of_more_tokens_than_are_left_is_a_choice(
    engine: SeeingEngine, file: Path
) -> None:
    engine.n_rows = 4000
    async with Chat(engine) as chat:
        await chat.send(f"/read {file}")
        await chat.reaches(DocumentPartsScreen)
        await chat.sees("3 pages, about 12k tokens")
        await chat.press("enter")
        await chat.wait(lambda: pending(chat))

        assert pending(chat) == ["scan.pdf, page 1"]


async def test_the_pages_may_be_declined(engine: SeeingEngine, file: Path) -> None:
    async with Chat(engine) as chat:
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
    assert "scan.pdf has no text: a model that sees gets 2 pages of it." in done.err
    n_more = done.document["prompt_tokens"] - plain.document["prompt_tokens"]
    assert f"The pictures take {n_more} tokens." in done.err


def test_run_says_which_pages_of_a_scan_have_room(
    vision: VisionFiles, long_file: Path
) -> None:
    sight = ("--image-model", vision.projector, "--ctx", "256")
    done = run(vision.model, *sight, "--file", f"{long_file} pages 1-20")

    assert done.code != 0
    assert "Choose parts: --file 'long.pdf pages 1-10'" in done.err


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


def test_the_linear_chat_offers_as_many_pages_as_have_room(
    chat: Dialogue, long_file: Path
) -> None:
    chat.until("\n> ")
    chat.type(f"/read {long_file}\r")
    chat.until("32 x 40 pixels")
    chat.until("and 15 more")
    chat.until("long.pdf has 30 pages, about ")
    chat.until("a message takes 20 of them.")
    chat.until(f"/read {long_file} pages 1-20")


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
