"""`LLM.chat` with audio: as paths and bytes, in their places."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM, errors
from tests.support.audio_models import AudioModels, tune, wav
from tests.support.picture_bytes import png, shades

VOICE = wav(tune(0.8))
OTHER = wav(tune(0.8, seed=4))
PICTURE = png(shades(40, 30))


@pytest.fixture(scope="module")
def llm(audio_models: AudioModels) -> Iterator[LLM]:
    files = audio_models["gemma4ua"]
    with LLM(
        files.model,
        image_model=files.projector,
        ctx=1024,
        threads=1,
        spec="lookup",
        seed=1,
    ) as loaded:
        yield loaded


def say(llm: LLM, **message: Any) -> str:
    return llm.chat([{"role": "user", **message}], max_tokens=20).text


def test_audio_is_a_path_or_bytes(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    path.write_bytes(VOICE)
    texts = [
        say(llm, content="hi", audio=[each])
        for each in (path, str(path), VOICE, bytearray(VOICE))
    ]

    assert len(set(texts)) == 1
    assert texts[0] != say(llm, content="hi", audio=[OTHER])
    assert texts[0] != say(llm, content="hi")


def test_audio_stands_where_the_parts_of_a_message_have_it(llm: LLM) -> None:
    hi = {"type": "text", "text": "hi"}
    voice = {"type": "audio", "audio": VOICE}
    picture = {"type": "image", "image": PICTURE}

    first = say(llm, content=[voice, hi])

    assert first == say(llm, content="hi", audio=[VOICE])
    assert say(llm, content=[picture, voice, hi]) == say(
        llm, content="hi", images=[PICTURE], audio=[VOICE]
    )


def test_audio_counts_as_it_is_read(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi", "audio": [VOICE, OTHER]}]

    answer = llm.chat(messages, max_tokens=2)

    assert answer.prompt_tokens == llm.count(messages)
    assert llm.count("hi") + 40 <= answer.prompt_tokens


@pytest.mark.parametrize(
    "given",
    [
        {"content": "hi", "audio": VOICE},
        {"content": "hi", "audio": "voice.wav"},
        {"content": "hi", "audio": [3]},
        {"content": [{"type": "audio"}]},
    ],
)
def test_what_is_no_audio_is_an_error_of_the_call(
    llm: LLM, given: dict[str, Any]
) -> None:
    with pytest.raises(errors.UsageError) as failure:
        say(llm, **given)

    assert len(failure.value.message) < 400


def test_a_file_that_is_no_audio_is_named(llm: LLM, tmp_path: Path) -> None:
    text = tmp_path / "notes.wav"
    text.write_text("hello", encoding="utf-8", errors="strict")

    with pytest.raises(errors.AudioError, match=r"notes\.wav is no audio"):
        say(llm, content="hi", audio=[text])
    with pytest.raises(errors.NotFoundError):
        say(llm, content="hi", audio=[tmp_path / "none.wav"])


def test_a_model_that_does_not_hear_says_so(audio_models: AudioModels) -> None:
    model = audio_models["gemma4ua"].model
    with LLM(model, image_model="none", ctx=256, threads=1, spec="lookup") as deaf:
        with pytest.raises(errors.AudioError, match="does not hear"):
            say(deaf, content="hi", audio=[VOICE])
        assert say(deaf, content="hi")


def test_a_model_that_only_hears_does_not_see(audio_models: AudioModels) -> None:
    files = audio_models["voxtral"]
    with LLM(
        files.model, image_model=files.projector, ctx=512, threads=1, spec="lookup"
    ) as hearing:
        with pytest.raises(errors.PictureError, match="does not see"):
            say(hearing, content="hi", images=[PICTURE])
        assert say(hearing, content="hi", audio=[VOICE])
