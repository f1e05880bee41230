"""`localspec run --audio`: audio for one answer."""

import json
from pathlib import Path

import pytest

from tests.support.audio_models import AudioModels, tune, wav
from tests.support.picture_bytes import png, shades
from tests.support.run_command import Done, localspec
from tests.support.vision_models import VisionFiles
from tests.support.zoo import Zoo

VOICE = wav(tune(0.8))
PICTURE = png(shades(40, 30))


@pytest.fixture
def files(audio_models: AudioModels) -> VisionFiles:
    return audio_models["gemma4ua"]


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "a voice.wav"
    path.write_bytes(VOICE)
    return path


def run(files: VisionFiles, *more: str | Path) -> Done:
    return localspec(
        "run",
        files.model,
        *("--spec", "lookup", "--temperature", "0", "--max-tokens", "20"),
        *("--ctx", "1024", "--threads", "1", "-p", "hi"),
        *more,
    )


def test_audio_changes_the_answer_counts_and_is_an_event(
    files: VisionFiles, voice: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PICTURE)
    log = tmp_path / "events.jsonl"

    text = run(files, "--json")
    heard = run(files, "--audio", voice, "--json", "--events", log)
    both = run(files, "--audio", voice, "--image", picture, "--json")

    assert [text.code, heard.code, both.code] == [0, 0, 0]
    counts = [done.document["prompt_tokens"] for done in (text, heard, both)]
    assert counts[0] + 20 <= counts[1] < counts[2]
    assert text.document["text"] != heard.document["text"]
    events = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    (reading,) = [each for each in events if each["ev"] == "picture"]
    assert reading["seconds"] == 0.8


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"hello", "bad.wav is no audio file"),
        (VOICE[:600], "bad.wav is incomplete"),
        (b"OggS" + b"\0" * 40, "bad.wav is an Ogg file"),
        (None, "There is no file"),
    ],
)
def test_a_bad_file_ends_before_a_model_is_loaded(
    files: VisionFiles, tmp_path: Path, data: bytes | None, words: str
) -> None:
    bad = tmp_path / "bad.wav"
    if data is not None:
        bad.write_bytes(data)

    done = run(files, "--audio", bad)

    assert done.code == (3 if data is None else 21)
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.out == b""


def test_a_model_that_does_not_hear_says_so_before_it_is_loaded(
    zoo: Zoo, voice: Path
) -> None:
    done = localspec("run", zoo["parrot"], "--audio", voice, "-p", "hi")

    assert done.code == 21
    assert "does not hear" in done.err
    assert "These do: " in done.err


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--image-model", "none"), "--image-model none"), (("--raw",), "--raw")],
)
def test_options_that_leave_no_way_to_hear_exclude_audio(
    files: VisionFiles, voice: Path, options: tuple[str, ...], words: str
) -> None:
    done = run(files, *options, "--audio", voice)

    assert done.code == 2
    assert words in done.err
