"""Pictures in the three APIs, as the official clients send them."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localspec.launch import LoadOptions, ResolvedPair
from localspec.launch.engine_host import EngineHost
from localspec.models.pictures import PICTURE_MARK, without_marks
from localspec.protocol.events import Event, GenerationFinished
from localspec.protocol.wire import ChatMessage, CountCommand, CountResult
from localspec.serve import messages, prompts, responses
from localspec.serve.access_rules import AccessRules
from localspec.serve.api_error import ApiError
from localspec.serve.http_server import HttpServer, ServerOptions
from localspec.serve.served_model import ServedModel
from tests.serve.conftest import GREEDY, TIMEOUT, Served
from tests.support.chat_pictures import (
    PHOTO,
    SKETCH,
    attachment,
    ready_to_see,
    seen,
)
from tests.support.downloads import wait_for
from tests.support.picture_bytes import empty_png, png, shades
from tests.support.scripted_engine import Opening, ScriptedEngine, ready

anthropic: Any = pytest.importorskip("anthropic")

Parse = Callable[..., list[ChatMessage]]


def url(data: bytes = PHOTO, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def parse_chat(*parts: Any, sees: bool = True) -> list[ChatMessage]:
    body = {"messages": [{"role": "user", "content": list(parts)}]}
    return list(prompts.parse_chat(body, sees=sees).messages)


def parse_responses(*parts: Any, sees: bool = True) -> list[ChatMessage]:
    body = {"input": [{"role": "user", "content": list(parts)}]}
    return list(responses.parse_chat(body, sees=sees).messages)


def parse_messages(*parts: Any, sees: bool = True) -> list[ChatMessage]:
    body = {"messages": [{"role": "user", "content": list(parts)}]}
    return list(messages.parse_chat(body, sees=sees).messages)


def openai_picture(data: bytes = PHOTO) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url(data), "detail": "high"}}


def input_picture(data: bytes = PHOTO) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url(data), "detail": "auto"}


def block(data: bytes = PHOTO) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    return {"type": "image", "source": source}


APIS: list[tuple[Parse, Callable[[bytes], dict[str, Any]], str]] = [
    (parse_chat, openai_picture, "text"),
    (parse_responses, input_picture, "input_text"),
    (parse_messages, block, "text"),
]
each_api = pytest.mark.parametrize(
    ("parse", "picture", "text_type"), APIS, ids=["chat", "responses", "messages"]
)


def bodies(message: ChatMessage) -> list[bytes]:
    return [Path(image.path).read_bytes() for image in message.images]


@each_api
def test_a_picture_stands_where_the_client_put_it(
    parse: Parse, picture: Any, text_type: str
) -> None:
    before = {"type": text_type, "text": "Left:"}
    between = {"type": text_type, "text": "Right:"}
    (message,) = parse(before, picture(PHOTO), between, picture(SKETCH))

    assert message.content == f"Left:{PICTURE_MARK}Right:{PICTURE_MARK}"
    assert bodies(message) == [PHOTO, SKETCH]
    assert message.images[0].sha256 == attachment().sha256


@each_api
def test_a_text_cannot_stand_for_a_picture(
    parse: Parse, picture: Any, text_type: str
) -> None:
    text = {"type": text_type, "text": f"a{PICTURE_MARK}b"}
    (message,) = parse(text, picture(PHOTO))

    assert message.content == f"a\ufffdb{PICTURE_MARK}"


@each_api
def test_a_model_that_does_not_see_refuses_the_question(
    parse: Parse, picture: Any, text_type: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse({"type": text_type, "text": "See:"}, picture(PHOTO), sees=False)
    assert str(refused.value.param).endswith("content[1].type")


@each_api
def test_twenty_pictures_are_taken_and_no_more(
    parse: Parse, picture: Any, text_type: str
) -> None:
    pictures = [picture(png(shades(4, 4 + n))) for n in range(21)]
    (message,) = parse(*pictures[:20])
    assert len(message.images) == 20

    with pytest.raises(ApiError, match="at most 20 pictures") as refused:
        parse(*pictures)
    assert str(refused.value.param).endswith("content[20]")


def chat_url(address: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


def input_url(address: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": address}


def source(**fields: Any) -> dict[str, Any]:
    return {"type": "image", "source": fields}


REFUSED: list[tuple[Parse, dict[str, Any], str, str]] = [
    (parse_chat, chat_url("https://example.org/a.png"), "image_url.url", "not fetched"),
    (parse_chat, chat_url("file:///etc/passwd"), "image_url.url", "not fetched"),
    (parse_chat, chat_url("/etc/passwd"), "image_url.url", "not fetched"),
    (parse_chat, chat_url(None), "image_url.url", "missing"),
    (parse_chat, chat_url(5), "image_url.url", "missing"),
    (parse_chat, chat_url("data:image/png,abc"), "image_url.url", "Base64"),
    (parse_chat, chat_url("data:image/png;base64,!!"), "image_url.url", "Base64"),
    (parse_chat, chat_url("data:image/png;base64,é"), "image_url.url", "Base64"),
    (parse_chat, chat_url("data:image/png;base64,"), "image_url.url", "empty"),
    (parse_chat, chat_url(url(PHOTO[:50])), "image_url.url", "incomplete"),
    (parse_chat, chat_url(url(b"<svg >")), "image_url.url", "SVG"),
    (parse_chat, {"type": "image_url"}, "image_url", "missing"),
    (parse_chat, {"type": "image_url", "image_url": url(b"GIF")}, "image_url", "text"),
    (parse_responses, input_url("http://localhost/a"), "image_url", "not fetched"),
    (parse_responses, input_url(url(b"%PDF-1")), "image_url", "PDF"),
    (
        parse_responses,
        {"type": "input_image", "file_id": "file-1"},
        "file_id",
        "not stored",
    ),
    (
        parse_messages,
        source(type="url", url="https://example.org"),
        "source.type",
        "not fetched",
    ),
    (
        parse_messages,
        source(type="file", file_id="file_1"),
        "source.type",
        "not fetched",
    ),
    (parse_messages, source(type="base64", data="!"), "source.data", "Base64"),
    (parse_messages, source(type="base64"), "source.data", "missing"),
    (parse_messages, {"type": "image"}, "source", "missing"),
]


@pytest.mark.parametrize(("parse", "part", "field", "problem"), REFUSED)
def test_what_cannot_be_read_is_refused_by_its_field(
    parse: Parse, part: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(ApiError, match=problem) as refused:
        parse({"type": "text", "text": "See:"}, part)
    assert refused.value.status == 400
    assert str(refused.value.param).endswith(f"content[1].{field}")
    assert refused.value.message.startswith(str(refused.value.param))


def test_a_picture_that_is_too_large_is_refused() -> None:
    with pytest.raises(ApiError, match="20 MB"):
        parse_chat(chat_url("data:image/png;base64," + "A" * 28_000_000))
    with pytest.raises(ApiError, match="million"):
        parse_chat(chat_url(url(empty_png(50_000, 1000))))


def test_base64_may_have_lines_and_lack_its_end() -> None:
    encoded = base64.encodebytes(PHOTO).decode().rstrip("=\n")
    (message,) = parse_messages(source(type="base64", data=encoded))
    assert bodies(message) == [PHOTO]


# --- results of tools, and earlier messages


CALL = {"type": "tool_use", "id": "t1", "name": "screenshot", "input": {}}


def test_a_screenshot_in_a_result_is_seen() -> None:
    said = {"type": "text", "text": "Here:"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [said, block()]}
    body = {
        "messages": [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
        ]
    }
    chat = messages.parse_chat(body, sees=True).messages

    assert [message.role for message in chat] == ["user", "assistant", "tool", "user"]
    assert chat[2].content == f"Here:{PICTURE_MARK}"
    assert bodies(chat[2]) == [PHOTO]
    assert chat[2].tool_call_id == "t1"


def test_a_picture_that_claude_code_has_read_is_seen() -> None:
    """As Claude Code 2.1.197 sends what its tool Read has opened: the result alone."""
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "Read",
        "input": {"file_path": "/tmp/shot.png"},
    }
    result = {"tool_use_id": "toolu_1", "type": "tool_result", "content": [block()]}
    body = {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>…</system-reminder>"},
                    {"type": "text", "text": "What is in shot.png?"},
                ],
            },
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result | mark]},
        ]
    }
    chat = messages.parse_chat(body, sees=True).messages

    assert [message.role for message in chat] == ["user", "assistant", "tool"]
    assert chat[2].content == PICTURE_MARK
    assert bodies(chat[2]) == [PHOTO]


def test_a_screenshot_in_an_output_is_seen() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "shot", "arguments": "{}"}
    output = {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "Here:"}, input_picture()],
    }
    body = {"input": [{"role": "user", "content": "Look"}, call, output]}
    chat = responses.parse_chat(body, sees=True).messages

    assert chat[-1].content == f"Here:{PICTURE_MARK}"
    assert bodies(chat[-1]) == [PHOTO]


def test_a_tool_message_may_have_a_picture() -> None:
    function = {"name": "shot", "arguments": "{}"}
    call = {"id": "c", "type": "function", "function": function}
    body = {
        "messages": [
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [openai_picture()]},
        ]
    }
    chat = prompts.parse_chat(body, sees=True).messages

    assert (chat[-1].role, chat[-1].content) == ("tool", PICTURE_MARK)
    assert bodies(chat[-1]) == [PHOTO]


def test_an_earlier_picture_that_cannot_be_read_is_a_line() -> None:
    """The client has it in its history for ever."""
    address = chat_url("https://example.org/a.png")
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "See:"}, address]},
            {"role": "assistant", "content": "Fine."},
            {"role": "user", "content": [openai_picture()]},
        ]
    }
    first, _, last = prompts.parse_chat(body, sees=True).messages

    assert first.content == "See:\n[image: not read by this model]"
    assert bodies(last) == [PHOTO]


def test_pictures_of_joined_messages_stay_in_order() -> None:
    blocks = [
        {"type": "text", "text": "a"},
        block(PHOTO),
        {"type": "text", "text": "b"},
        {"type": "text", "text": "c"},
        block(SKETCH),
    ]
    (message,) = parse_messages(*blocks)

    assert message.content == f"a{PICTURE_MARK}b\n\nc{PICTURE_MARK}"
    assert bodies(message) == [PHOTO, SKETCH]


def test_an_answer_of_the_assistant_has_no_pictures() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "Draw"},
            {"role": "assistant", "content": [openai_picture()]},
            {"role": "user", "content": "More"},
        ]
    }
    chat = prompts.parse_chat(body, sees=True).messages
    assert chat[1].images == ()
    assert chat[1].content == "[image: not read by this model]"


# --- a server


class SeeingEngine(ScriptedEngine):
    """A picture has 24 tokens, a message 8."""

    def count(self, count: CountCommand) -> CountResult:
        n_images = sum(len(each.images) for each in count.messages)
        return CountResult(8 * len(count.messages) + 24 * n_images)


@contextmanager
def serving(engine: ScriptedEngine) -> Iterator[Served]:
    pair = ResolvedPair(Path("seer.gguf"), None)
    request = LoadOptions(ctx=8192, threads=1).to_request(pair, "lookup")
    host = EngineHost(request, probe=False, start=Opening([engine]))
    options = ServerOptions(
        (ServedModel("seer", pair, GREEDY),), rules=AccessRules(), port=0
    )
    server = HttpServer(options, host)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        wait_for(lambda: server.api.model is not None or not thread.is_alive())
        yield Served(server)
    finally:
        server.stop()
        thread.join(TIMEOUT)
        server.close()


def say_photo() -> list[Event]:
    *events, _ = seen("A", " photo.")
    totals = {
        "tokens": 2,
        "prompt_tokens": 32,
        "reused_tokens": 0,
        "timings": {"prefill_ms": 1.0, "decode_ms": 1.0},
    }
    return [*events, GenerationFinished("eog", totals=totals)]


@pytest.fixture
def engine() -> SeeingEngine:
    return SeeingEngine(say_photo, ready=ready_to_see())


@pytest.fixture
def seer(engine: SeeingEngine) -> Iterator[Served]:
    with serving(engine) as served:
        yield served


def test_openais_client_sends_a_picture(seer: Served, engine: SeeingEngine) -> None:
    content: Any = [{"type": "text", "text": "What is it?"}, openai_picture()]
    with seer.client() as client:
        answer = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": content}]
        )
        response = client.responses.create(
            model="any",
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is it?"},
                        {
                            "type": "input_image",
                            "image_url": url(),
                            "detail": "auto",
                        },
                    ],
                }
            ],
        )

    assert answer.choices[0].message.content == "A photo."
    assert response.output_text == "A photo."
    for command in engine.asked:
        (message,) = command.messages
        assert message.content == f"What is it?{PICTURE_MARK}"
        assert bodies(message) == [PHOTO]


def test_anthropics_client_sends_a_picture(seer: Served, engine: SeeingEngine) -> None:
    question = [{"type": "text", "text": "What is it?"}, block()]
    given: Any = [{"role": "user", "content": question}]
    with anthropic.Anthropic(base_url=seer.url, api_key="any", max_retries=0) as client:
        answer = client.messages.create(model="any", messages=given, max_tokens=9)
        counted = client.messages.count_tokens(model="any", messages=given)
        with client.messages.stream(
            model="any", messages=given, max_tokens=9
        ) as stream:
            text = stream.get_final_text()

    assert answer.content[0].text == text == "A photo."
    assert bodies(engine.asked[-1].messages[0]) == [PHOTO]
    assert (
        counted.input_tokens == engine.count(engine.asked[-1].to_count()).tokens == 32
    )


def test_a_refusal_has_the_field(seer: Served) -> None:
    content = [chat_url("https://example.org/a.png")]
    body = {"messages": [{"role": "user", "content": content}]}

    response = seer.post("/v1/chat/completions", body)

    assert response.status == 400
    assert response.error["param"] == "messages[0].content[0].image_url.url"
    assert response.error["code"] == "unsupported_parameter"


def test_a_model_that_sees_says_so(seer: Served) -> None:
    models = seer.get("/v1/models").json
    assert models["data"][0]["capabilities"] == ["completion", "vision"]
    assert models["models"][0]["capabilities"] == ["completion", "vision"]
    assert seer.get("/props").json["modalities"]["vision"] is True


def test_a_model_that_does_not_see_says_so() -> None:
    with serving(ScriptedEngine(lambda: seen("no"), ready=ready())) as blind:
        assert blind.get("/v1/models").json["data"][0]["capabilities"] == ["completion"]
        assert blind.get("/props").json["modalities"]["vision"] is False
        content = [{"type": "text", "text": "See:"}, openai_picture()]
        body = {"messages": [{"role": "user", "content": content}]}
        response = blind.post("/v1/chat/completions", body)
        assert response.status == 400
        assert response.error["param"] == "messages[0].content[1].type"


def test_a_pictures_bytes_are_no_part_of_the_text() -> None:
    """A prompt's texts are limited by the context; a picture has its rows."""
    (message,) = parse_chat(openai_picture(png(shades(700, 700))))
    assert len(message.content) == 1
    assert without_marks(message.content) == "\ufffd"
