"""Audio in OpenAI's APIs, as the official client sends it."""

import base64
from pathlib import Path
from typing import Any

import pytest

from localspec.models.pictures import PICTURE_MARK
from localspec.protocol.events import Event, GenerationFinished
from localspec.protocol.wire import ChatMessage
from localspec.serve import prompts, responses
from localspec.serve.api_error import ApiError
from tests.serve.test_pictures import openai_picture, serving
from tests.support.audio_bytes import silent_mp3
from tests.support.audio_models import tune, wav
from tests.support.chat_audio import ready_to_hear
from tests.support.chat_pictures import PHOTO, ready_to_see
from tests.support.scripted_engine import ScriptedEngine, answer

VOICE = wav(tune(0.3))
SONG = silent_mp3(20)


def part(data: bytes = VOICE, kind: str = "wav") -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": kind}}


def parse_chat(*parts: Any, **senses: bool) -> list[ChatMessage]:
    body = {"messages": [{"role": "user", "content": list(parts)}]}
    return list(prompts.parse_chat(body, **{"hears": True, **senses}).messages)


def parse_responses(*parts: Any, **senses: bool) -> list[ChatMessage]:
    body = {"input": [{"role": "user", "content": list(parts)}]}
    return list(responses.parse_chat(body, **{"hears": True, **senses}).messages)


def bodies(message: ChatMessage) -> list[bytes]:
    return [Path(image.path).read_bytes() for image in message.images]


@pytest.mark.parametrize("parse", [parse_chat, parse_responses])
def test_audio_stands_where_the_client_put_it(parse: Any) -> None:
    text = {"type": "text", "text": "First:"}
    then = {"type": "text", "text": "Then:"}

    (message,) = parse(text, part(), then, part(SONG, "mp3"))

    assert message.content == f"First:{PICTURE_MARK}Then:{PICTURE_MARK}"
    assert bodies(message) == [VOICE, SONG]
    assert [each.kind for each in message.images] == ["audio", "audio"]


def test_a_picture_and_audio_are_in_one_message() -> None:
    (message,) = parse_chat(openai_picture(), part(), sees=True)

    assert bodies(message) == [PHOTO, VOICE]
    assert [each.kind for each in message.images] == ["picture", "audio"]


def test_a_model_that_does_not_hear_refuses_the_question() -> None:
    with pytest.raises(ApiError, match="does not hear") as refused:
        parse_chat({"type": "text", "text": "Hear:"}, part(), hears=False)
    assert str(refused.value.param).endswith("content[1].type")


def test_audio_before_the_last_answer_is_a_line_for_a_model_that_does_not_hear() -> (
    None
):
    chat = [
        {"role": "user", "content": [part()]},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And?"},
    ]
    first, *_ = prompts.parse_chat({"messages": chat}).messages

    assert first.content == "[audio: not read by this model]"


REFUSED: list[tuple[Any, str, str]] = [
    (None, "input_audio", "missing"),
    ("text", "input_audio", "missing"),
    ({}, "input_audio.data", "missing"),
    ({"data": "!!"}, "input_audio.data", "Base64"),
    ({"data": ""}, "input_audio.data", "empty"),
    ({"data": base64.b64encode(VOICE[:500]).decode()}, "input_audio.data", "too early"),
    ({"data": base64.b64encode(PHOTO).decode()}, "input_audio.data", "is a picture"),
    ({"data": "A" * 90_000_000}, "input_audio.data", "64 MB"),
]


@pytest.mark.parametrize(("given", "field", "problem"), REFUSED)
def test_what_cannot_be_heard_is_refused_by_its_field(
    given: Any, field: str, problem: str
) -> None:
    bad = {"type": "input_audio", "input_audio": given}
    with pytest.raises(ApiError, match=problem) as refused:
        parse_chat({"type": "text", "text": "Hear:"}, bad)
    assert refused.value.status == 400
    assert str(refused.value.param).endswith(f"content[1].{field}")


def test_twenty_files_are_taken_and_no_more() -> None:
    with pytest.raises(ApiError, match="at most 20"):
        parse_chat(*[part()] * 21)


def say_yes() -> list[Event]:
    *events, _ = answer(["Yes", "."])
    totals = {
        "tokens": 2,
        "prompt_tokens": 32,
        "reused_tokens": 0,
        "timings": {"prefill_ms": 1.0, "decode_ms": 1.0},
    }
    return [*events, GenerationFinished("eog", totals=totals)]


def test_openais_client_sends_audio() -> None:
    engine = ScriptedEngine(say_yes, ready=ready_to_hear())
    content: Any = [{"type": "text", "text": "What is said?"}, part()]
    with serving(engine) as served, served.client() as client:
        said = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": content}]
        )
        (model,) = client.models.list().data

    assert said.choices[0].message.content == "Yes."
    (message,) = engine.asked[-1].messages
    assert message.content == f"What is said?{PICTURE_MARK}"
    assert bodies(message) == [VOICE]
    extra = model.model_extra or {}
    assert extra["capabilities"] == ["completion", "audio"]


def test_a_model_that_sees_alone_refuses_audio() -> None:
    engine = ScriptedEngine(say_yes, ready=ready_to_see())
    with serving(engine) as served:
        content = [{"type": "text", "text": "Hear:"}, part()]
        body = {"messages": [{"role": "user", "content": content}]}
        refused = served.post("/v1/chat/completions", body)

    assert refused.status == 400
    assert "does not hear" in refused.error["message"]
