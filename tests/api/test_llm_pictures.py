"""`LLM.chat` with pictures: as paths, bytes and pictures of Pillow, in their places."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM, errors
from localspec.models.pictures import PICTURE_MARK
from tests.support.picture_bytes import png, shades
from tests.support.vision_models import VisionModels

SMALL = png(shades(40, 30))
WIDE = png(shades(90, 20))


@pytest.fixture(scope="module")
def llm(vision_models: VisionModels) -> Iterator[LLM]:
    files = vision_models["gemma3"]
    with LLM(
        files.model,
        image_model=files.projector,
        ctx=1024,
        threads=1,
        spec="lookup",
        seed=1,
    ) as loaded:
        yield loaded


class PillowPicture:
    """What this program uses of a picture of Pillow."""

    def save(self, file: Any, kind: str) -> None:
        assert kind == "PNG"
        file.write(SMALL)


def say(llm: LLM, **message: Any) -> str:
    return llm.chat([{"role": "user", **message}], max_tokens=20).text


def test_a_picture_is_a_path_bytes_or_a_picture_of_pillow(
    llm: LLM, tmp_path: Path
) -> None:
    path = tmp_path / "small.png"
    path.write_bytes(SMALL)
    texts = [
        say(llm, content="hi", images=[each])
        for each in (path, str(path), SMALL, bytearray(SMALL), PillowPicture())
    ]

    assert len(set(texts)) == 1
    assert texts[0] != say(llm, content="hi", images=[WIDE])
    assert texts[0] != say(llm, content="hi")


def test_a_picture_stands_where_the_parts_of_a_message_have_it(llm: LLM) -> None:
    def parts(*given: Any) -> list[dict[str, Any]]:
        return [
            {"type": "text", "text": each}
            if isinstance(each, str)
            else {"type": "image", "image": each}
            for each in given
        ]

    first = say(llm, content=parts(SMALL, "hi"))

    assert first == say(llm, content="hi", images=[SMALL])
    assert first == say(llm, content=parts("hi"), images=[SMALL])
    assert llm.count([{"role": "user", "content": parts("h", SMALL, "i")}]) > 16


def test_pictures_count_as_they_are_read(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi", "images": [SMALL, WIDE]}]

    answer = llm.chat(messages, max_tokens=2)

    assert answer.prompt_tokens == llm.count(messages)
    assert llm.count("hi") + 32 <= answer.prompt_tokens


def test_a_text_holds_no_place_of_a_picture(llm: LLM) -> None:
    marked = say(llm, content=f"{PICTURE_MARK}hi", images=[SMALL])

    assert marked == say(llm, content="\ufffdhi", images=[SMALL])


@pytest.mark.parametrize(
    "given",
    [
        {"content": "hi", "images": SMALL},
        {"content": "hi", "images": "small.png"},
        {"content": "hi", "images": [3]},
        {"content": [{"type": "image"}]},
        {"content": [{"type": "image_url", "image_url": {"url": "http://x/a.png"}}]},
        {"content": ["hi"]},
        {"content": SMALL},
    ],
)
def test_what_is_no_picture_is_an_error_of_the_call(
    llm: LLM, given: dict[str, Any]
) -> None:
    with pytest.raises(errors.UsageError) as failure:
        say(llm, **given)

    assert len(failure.value.message) < 400


def test_a_file_that_is_no_picture_is_named(llm: LLM, tmp_path: Path) -> None:
    text = tmp_path / "notes.png"
    text.write_text("hello", encoding="utf-8", errors="strict")

    with pytest.raises(errors.PictureError, match=r"notes\.png is a text"):
        say(llm, content="hi", images=[text])
    with pytest.raises(errors.NotFoundError):
        say(llm, content="hi", images=[tmp_path / "none.png"])


def test_ready_says_that_it_sees(llm: LLM) -> None:
    assert llm.ready.settings["images"]["kind"] == "gemma3"


def test_a_model_that_does_not_see_says_so(vision_models: VisionModels) -> None:
    model = vision_models["gemma3"].model
    with LLM(model, image_model="none", ctx=256, threads=1, spec="lookup") as blind:
        with pytest.raises(errors.PictureError, match="does not see"):
            say(blind, content="hi", images=[SMALL])
        assert say(blind, content="hi")
