"""Pictures in the app: pasted, dragged or typed paths, what they cost, and thumbnails."""

from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.events import Paste

from localspec.chat import picture_sources
from localspec.protocol.wire import GenerateCommand
from localspec.tui.widgets.composer import AttachedFiles
from tests.support.app_driver import Chat
from tests.support.chat_pictures import PHOTO, SeeingEngine, reading
from tests.support.picture_bytes import png, shades
from tests.support.scripted_engine import Gate, ScriptedEngine, answer, ready


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "my photo.png"
    path.write_bytes(PHOTO)
    return path


async def paste(chat: Chat, text: str) -> None:
    chat.screen.composer.post_message(Paste(text))
    await chat.pilot.pause()


def pending(chat: Chat) -> list[str]:
    return [picture.name for picture in chat.screen.session.pending_pictures]


def asked(chat: Chat) -> GenerateCommand:
    engine = chat.opening.engines[0]
    assert isinstance(engine, ScriptedEngine)
    return engine.asked[-1]


@pytest.mark.parametrize("form", ["{}", "'{}'", '"{}"', "file://{}", "{}\n"], ids=repr)
async def test_a_dropped_path_attaches_the_picture(form: str, photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await paste(chat, form.format(photo))
        cost = "1,020 tokens, about 16 s to read"
        await chat.sees(f"+ my photo.png, 12×8, {cost}", "/image - removes them")

        assert pending(chat) == ["my photo.png"]
        assert chat.typed == ""


async def test_an_escaped_path_is_dropped_into_a_message(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        chat.screen.composer.replace_text("What is it? ")
        await paste(chat, str(photo).replace(" ", "\\ "))
        await chat.sees("1,020 tokens")
        assert chat.typed == "What is it? "

        await chat.press("enter")
        await chat.until("ready")

        (image,) = asked(chat).messages[-1].images
        assert Path(image.path).read_bytes() == PHOTO
        assert asked(chat).messages[-1].content == "What is it? "
        assert pending(chat) == []
        assert not chat.screen.query_one(AttachedFiles).display


async def test_a_path_after_a_command_is_its_argument(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        chat.screen.composer.replace_text("/image ")
        await paste(chat, f"'{photo}'")
        assert chat.typed == f"/image '{photo}'"

        await chat.press("enter")
        await chat.sees("+ my photo.png")

        assert pending(chat) == ["my photo.png"]


async def test_a_picture_alone_is_a_message(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png")

        await chat.press("enter")
        await chat.until("ready")

        await chat.sees("You", "+ my photo.png, 12×8, 24 tokens", "A photo.")
        assert chat.questions == [""]


async def test_pictures_are_removed_again(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await chat.send(f"/image {photo}")
        await chat.sees("+ my photo.png")

        await chat.send("/image -")

        assert pending(chat) == []
        assert not chat.screen.query_one(AttachedFiles).display


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("missing.png", None, "There is no file"),
        ("cut.png", PHOTO[:50], "is incomplete"),
        ("page.png", b"<html>", "is a text, not a picture"),
    ],
)
async def test_a_file_that_is_no_picture_is_said(
    name: str, data: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    async with Chat(SeeingEngine()) as chat:
        await chat.send(f"/image {path}")
        await chat.sees(said)

        assert pending(chat) == []
        await chat.send("Still here?")
        assert chat.questions == ["Still here?"]


@pytest.mark.parametrize("way", ["typed", "pasted"])
async def test_a_file_that_is_broken_takes_nothing_from_the_others(
    way: str, photo: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(PHOTO[:50])
    files = f"{broken} '{photo}'"
    async with Chat(SeeingEngine()) as chat:
        if way == "typed":
            await chat.send(f"/image {files} {tmp_path}/no.png")
            await chat.sees("no.png")
        else:
            await paste(chat, files)

        await chat.sees("broken.png is incomplete", "+ my photo.png")
        assert pending(chat) == ["my photo.png"]


async def test_a_model_that_does_not_see_says_so(photo: Path) -> None:
    async with Chat(ScriptedEngine(lambda: answer(["no"]), ready=ready())) as chat:
        await chat.send(f"/image {photo}")
        await chat.sees("qwen3-8b does not see pictures.")
        assert pending(chat) == []

        await paste(chat, str(photo))

        assert chat.typed == str(photo), "a path is a text as any other"
        assert pending(chat) == []


async def test_a_picture_that_is_attached_while_the_model_loads_is_counted_then(
    photo: Path,
) -> None:
    gate = Gate()
    async with Chat(SeeingEngine(), gate=gate) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png, 12×8")
        assert "1,020" not in chat.shown

        gate.set()

        await chat.sees("1,020 tokens")


async def test_reading_a_picture_is_said_until_the_answer_begins(photo: Path) -> None:
    gate = Gate()

    def script() -> list[Any]:
        plan, *rest = answer(["A", " photo."])
        return [plan, reading(seconds_expected=16.2), gate, *rest]

    async with Chat(SeeingEngine(script)) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png")
        await chat.begin("What is it?")
        await chat.sees("reading the picture, about 16 s")

        gate.set()
        await chat.until("ready")

        assert "reading the picture" not in chat.shown


def half_cells(chat: Chat) -> list[tuple[str, Style]]:
    """The cells of thumbnails on the screen."""
    cells = []
    for strip in chat.app.screen._compositor.render_strips():
        for segment in strip:
            if "▀" in segment.text:
                cells += [(segment.text, segment.style or Style())]
    return cells


async def test_a_thumbnail_is_under_the_question(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png")
        await chat.press("enter")
        await chat.until("ready")
        await chat.sees("A photo.")

        cells = half_cells(chat)

        # 3 × 2 pixels are three cells: the upper pixel is the letter, the lower its
        # background.
        assert [text for text, _ in cells] == ["▀", "▀", "▀"]
        first = cells[0][1]
        assert first.color is not None and first.bgcolor is not None
        assert first.color.triplet == (0, 40, 80)
        assert first.bgcolor.triplet == (360 % 256, 400 % 256, 440 % 256)


async def test_many_pictures_of_a_question_have_their_names_alone(
    tmp_path: Path,
) -> None:
    for number in range(5):
        (tmp_path / f"{number}.png").write_bytes(png(shades(12 + number, 8)))
    async with Chat(SeeingEngine()) as chat:
        await chat.send(f"/image {' '.join(map(str, sorted(tmp_path.glob('*.png'))))}")
        await chat.sees("+ 0.png and 4 more, 5,100 tokens, about 1 min 21 s to read")
        await chat.press("enter")
        await chat.until("ready")
        await chat.sees("+ 0.png", "+ 4.png", "A photo.")

        assert half_cells(chat) == []


async def test_a_terminal_without_half_blocks_has_no_thumbnail(photo: Path) -> None:
    async with Chat(SeeingEngine(), ascii_only=True) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png")
        await chat.press("enter")
        await chat.until("ready")
        await chat.sees("A photo.")

        assert half_cells(chat) == []


async def test_f6_brings_the_picture_back_with_the_question(photo: Path) -> None:
    async with Chat(SeeingEngine()) as chat:
        await paste(chat, str(photo))
        await chat.sees("+ my photo.png")
        await chat.send("What is it?")

        await chat.press("f6")

        assert chat.typed == "What is it?"
        assert pending(chat) == ["my photo.png"]
        await chat.sees("+ my photo.png, 12×8, 1,020 tokens")


async def test_the_clipboards_picture_is_attached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(picture_sources, "read_clipboard", lambda: PHOTO)
    async with Chat(SeeingEngine()) as chat:
        await chat.send("/image paste")
        await chat.sees("+ pasted-1.png, 12×8")
