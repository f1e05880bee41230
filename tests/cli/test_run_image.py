"""`localspec run --image`: a picture for one answer."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.dialogue import Dialogue
from tests.support.picture_bytes import empty_png, png, shades
from tests.support.run_command import Done, localspec
from tests.support.vision_models import VisionFiles, VisionModels
from tests.support.zoo import Zoo

SMALL = png(shades(40, 30))
WIDE = png(shades(90, 20))


@pytest.fixture
def files(vision_models: VisionModels) -> VisionFiles:
    return vision_models["gemma3"]


def run(files: VisionFiles, *more: str | Path) -> Done:
    return localspec(
        "run",
        files.model,
        *("--spec", "lookup", "--temperature", "0", "--max-tokens", "20"),
        *("--ctx", "1024", "--threads", "1", "-p", "hi"),
        *more,
    )


def test_a_picture_changes_the_answer_and_counts(
    files: VisionFiles, tmp_path: Path
) -> None:
    small = tmp_path / "small one.png"
    small.write_bytes(SMALL)
    wide = tmp_path / "wide.png"
    wide.write_bytes(WIDE)
    projector = ("--image-model", files.projector)

    text = run(files, "--json")
    one = run(files, *projector, "--image", small, "--json")
    two = run(files, *projector, "--image", small, "--image", wide, "--json")

    assert [text.code, one.code, two.code] == [0, 0, 0]
    counts = [done.document["prompt_tokens"] for done in (text, one, two)]
    assert counts[0] + 16 <= counts[1]
    assert counts[1] + 16 <= counts[2]
    assert text.document["text"] != one.document["text"]


def test_the_events_have_the_picture(files: VisionFiles, tmp_path: Path) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)
    log = tmp_path / "events.jsonl"

    done = run(
        files,
        *("--image-model", files.projector),
        *("--image", small),
        *("--events", log),
    )

    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    assert done.code == 0
    (reading,) = [each for each in events if each["ev"] == "picture"]
    assert (reading["width"], reading["height"]) == (40, 30)
    assert events[0]["settings"]["images"]["kind"] == "gemma3"


def test_without_a_picture_no_projector_is_loaded(
    files: VisionFiles, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"

    assert run(files, "--events", log).code == 0

    ready = json.loads(log.read_text("utf-8").splitlines()[0])
    assert ready["settings"]["images"] is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello", "bad.png is a text"),
        (SMALL[:60], "bad.png is incomplete"),
        (b"%PDF-1.7", "bad.png is a PDF"),
        (None, "There is no file"),
    ],
)
def test_a_bad_file_ends_before_a_model_is_loaded(
    files: VisionFiles, tmp_path: Path, data: bytes | None, words: str
) -> None:
    bad = tmp_path / "bad.png"
    if data is not None:
        bad.write_bytes(data)

    done = run(files, "--image-model", files.projector, "--image", bad)

    assert done.code == (3 if data is None else 18)
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out == b""


def test_a_model_that_does_not_see_says_so_before_it_is_loaded(
    zoo: Zoo, tmp_path: Path
) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)

    done = localspec("run", zoo["parrot"], "--image", small, "-p", "hi")

    assert done.code == 18
    assert "does not see" in done.err
    assert "These do: " in done.err


def test_an_image_and_no_projector_exclude_each_other(
    files: VisionFiles, tmp_path: Path
) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)

    done = run(files, "--image-model", "none", "--image", small)

    assert done.code == 2
    assert "--image-model none" in done.err


def test_the_projector_beside_the_model_is_found(
    files: VisionFiles, tmp_path: Path
) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)

    found = run(files, "--image", small, "--json")
    named = run(files, "--image", small, "--image-model", files.projector, "--json")

    assert found.code == 0
    assert found.document["text"] == named.document["text"]


def test_the_tokens_of_a_picture_can_be_limited(
    vision_models: VisionModels, tmp_path: Path
) -> None:
    large = tmp_path / "large.png"
    large.write_bytes(empty_png(600, 400))
    files = vision_models["qwen2vl"]

    usual = run(files, "--image", large, "--json")
    limited = run(files, "--image", large, "--image-tokens", "64", "--json")

    assert limited.document["prompt_tokens"] + 100 < usual.document["prompt_tokens"]


def test_a_projector_of_another_model_is_named(
    files: VisionFiles, vision_models: VisionModels, tmp_path: Path
) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)
    other = vision_models["gemma4"].projector

    done = run(files, "--image-model", other, "--image", small)

    assert done.code == 12
    assert other.name in done.err


def test_a_chat_says_at_its_start_what_is_attached(
    files: VisionFiles, tmp_path: Path
) -> None:
    small = tmp_path / "small one.png"
    small.write_bytes(SMALL)
    notes = tmp_path / "notes.txt"
    notes.write_text("the one")
    arguments = (
        *("--ctx", "1024", "--threads", "1", "--private"),
        *("--image-model", files.projector, "--image", small, "--file", notes),
    )
    with Dialogue("run", files.model, *arguments) as chat:
        said = chat.until("\n> ")

        assert "Attached to your next message: notes.txt, 1 line. About" in said
        assert re.search(r"small one\.png, 40 x 30, \d+ tokens\.", said)

        chat.type(f"/image {shlex.quote(str(small))}\r")
        assert re.search(r"small one\.png, 40 x 30, \d+ tokens\.", chat.until("\n> "))

        chat.type(f"/image {tmp_path}/no.png {shlex.quote(str(small))}\r")
        said = chat.until("\n> ")
        assert "small one.png, 40 x 30" in said
        assert "no.png" in said.partition("Attached to")[2]


def test_a_chat_without_a_projector_refuses_the_picture_at_its_start(
    zoo: Zoo, tmp_path: Path
) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)
    arguments = ("--ctx", "1024", "--threads", "1", "--private", "--image", small)
    with Dialogue("run", zoo["chatty"], *arguments) as chat:
        said = chat.until("\n> ")

        assert "does not see pictures" in said
        assert "Attached" not in said


def test_raw_has_no_place_for_a_picture(files: VisionFiles, tmp_path: Path) -> None:
    small = tmp_path / "small.png"
    small.write_bytes(SMALL)

    done = run(files, "--raw", "--image", small)

    assert done.code == 2
    assert "--raw" in done.err
