"""Anthropic's Messages API, with the official client."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve import messages
from tests.serve.conftest import Served, serving
from tests.serve.test_http_app import SAFE_STATUSES
from tests.support import head_models, tinygguf, zoo
from tests.support.long_cases import bulk
from tests.support.tinygguf import Shape
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT

anthropic: Any = pytest.importorskip("anthropic")

HI: Any = [{"role": "user", "content": "Hi?"}]
ASK = {"model": "any", "messages": HI, "max_tokens": 400}
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@contextmanager
def connected(served: Served) -> Iterator[Any]:
    with anthropic.Anthropic(
        base_url=served.url, api_key="any", max_retries=0
    ) as client:
        yield client


@pytest.fixture
def claude(chatty: Served) -> Iterator[Any]:
    with connected(chatty) as client:
        yield client


def test_a_message(chatty: Served, claude: Any) -> None:
    system = [
        {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}
    ]
    answer = claude.messages.create(**ASK, system=system, metadata={"user_id": "me"})
    (block,) = answer.content
    assert (block.type, block.text, answer.model) == ("text", CHAT_TEXT, "chatty")
    assert answer.stop_reason == "end_turn" and answer.stop_sequence is None
    assert answer.role == "assistant"
    chat: Any = [{"role": "system", "content": "Be kind."}, *HI]
    with chatty.client() as client:
        same = client.chat.completions.create(model="any", messages=chat)
    usage = answer.usage
    assert usage.cache_creation_input_tokens == 0
    assert (
        same.usage is not None and same.usage.completion_tokens == usage.output_tokens
    )
    n_prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert same.usage.prompt_tokens == n_prompt
    counted = claude.messages.count_tokens(model="any", messages=HI, system="Be kind.")
    assert counted.input_tokens == n_prompt
    again = claude.messages.create(**ASK, system="Be kind.").usage
    assert again.cache_read_input_tokens > 0, "what the prefix saved"
    assert again.input_tokens + again.cache_read_input_tokens == n_prompt


def test_a_stream_has_its_events_in_order(chatty: Served, claude: Any) -> None:
    events = list(claude.messages.create(**ASK, stream=True))
    names = [event.type for event in events]
    lines = (
        chatty.post("/v1/messages", {**ASK, "stream": True}).body.decode().splitlines()
    )
    sent = dict.fromkeys(line[7:] for line in lines if line.startswith("event: "))
    assert [*sent] == [*dict.fromkeys(names)], "the lines' own names"
    assert names[:2] == ["message_start", "content_block_start"]
    assert set(names[2:-3]) == {"content_block_delta"}
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = events[0].message
    end = events[-2]
    assert (start.content, start.stop_reason) == ([], None)
    assert end.usage.output_tokens > 20 and end.delta.stop_reason == "end_turn"
    for name in ("input_tokens", "cache_read_input_tokens"):
        known = getattr(start.usage, name)
        assert getattr(end.usage, name) == known, "known from the beginning"
    with claude.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == CHAT_TEXT
        assert stream.get_final_message().usage.output_tokens == end.usage.output_tokens


def test_limits_and_stop_sequences(claude: Any) -> None:
    short = claude.messages.create(**{**ASK, "max_tokens": 4})
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 4
    stopped = claude.messages.create(**ASK, stop_sequences=["never", "twice", "café"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "café")
    assert stopped.content[0].text == CHAT_TEXT.partition("café")[0]
    closed = {"required": ["ok"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}} | closed
    form = {"format": {"type": "json_schema", "schema": schema}}
    sampling = {"temperature": 0.5, "top_k": 5, "top_p": 0.9}
    shaped = claude.messages.create(**ASK, output_config=form, extra_body=sampling)
    assert json.loads(shaped.content[0].text).keys() == {"ok"}
    begun = CHAT_TEXT.partition("\n")[0]
    chat = [*HI, {"role": "assistant", "content": begun}]
    rest = claude.messages.create(**{**ASK, "messages": chat})
    assert begun + rest.content[0].text == CHAT_TEXT and rest.stop_reason == "end_turn"


def test_a_call_and_its_result(caller: Served) -> None:
    # only Anthropic runs it
    web = {
        "type": "web_search_20250305",
        "name": "web_search",
    }
    given = {**ASK, "tools": [WEATHER, web]}
    with connected(caller) as client:
        answer = client.messages.create(**given)
        text, call = answer.content
        assert (text.text, call.type, call.name) == ("I look.", "tool_use", "weather")
        assert call.input == {"city": "Rome"} and answer.stop_reason == "tool_use"
        with client.messages.stream(**given) as stream:
            streamed = stream.get_final_message()
        assert (
            streamed.content[1].input == call.input
            and streamed.stop_reason == "tool_use"
        )
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
        chat = [
            *HI,
            {
                "role": "assistant",
                "content": [block.to_dict() for block in answer.content],
            },
            {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
        ]
        again = client.messages.create(**{**given, "messages": chat}).usage
        read = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        assert again.cache_read_input_tokens > read, (
            "the conversation goes on where it was"
        )
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            forced = client.messages.create(**given, tool_choice=choice)
            assert [block.type for block in forced.content] == ["tool_use"]
        free = client.messages.create(**given, tool_choice={"type": "none"})
        assert {block.type for block in free.content} == {"text"}
        names = [event.type for event in client.messages.create(**given, stream=True)]
    assert names.count("content_block_start") == names.count("content_block_stop") == 2


def test_thinking_is_a_block_with_a_signature(thinker: Served) -> None:
    thought, _, visible = THOUGHT_TEXT.removeprefix("<think>").partition("</think>")
    with connected(thinker) as client:
        whole = client.messages.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            streamed = stream.get_final_message()
        for answer in (whole, streamed):
            thinking, text = answer.content
            assert (thinking.type, thinking.thinking, text.text) == (
                "thinking",
                thought,
                visible,
            )
            assert thinking.signature
        chat = [
            *HI,
            {
                "role": "assistant",
                "content": [block.to_dict() for block in whole.content],
            },
        ]
        chat += HI
        assert (
            client.messages.create(**{**ASK, "messages": chat}).content[1].text
            == visible
        )
        events = client.messages.create(**ASK, stream=True)
        kinds = [
            event.delta.type for event in events if event.type == "content_block_delta"
        ]
    assert kinds.index("signature_delta") == kinds.index("text_delta") - 1


def test_thinking_as_far_as_the_template_has_it(thinker: Served, claude: Any) -> None:
    with connected(thinker) as client:

        def kinds(**more: Any) -> list[str]:
            return [
                block.type for block in client.messages.create(**ASK, **more).content
            ]

        assert kinds(thinking={"type": "disabled"}) == ["text"]
        assert kinds(thinking={"type": "adaptive"}) == ["thinking", "text"]
        assert kinds(output_config={"effort": "low"}) == ["thinking", "text"]
        budget = {"type": "enabled", "budget_tokens": 3}
        short = client.messages.create(**ASK, thinking=budget)
        assert short.usage.output_tokens_details.thinking_tokens == 3
        assert short.content[1].text == "Hello there."
    with pytest.raises(
        anthropic.BadRequestError, match="budget_tokens: the chat template"
    ):
        claude.messages.create(**ASK, thinking={"type": "enabled", "budget_tokens": 9})
    for options in (
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "high"}},
    ):
        assert claude.messages.create(**ASK, **options).content[0].text


def test_blocks_become_the_messages_of_a_chat() -> None:
    def parse(given: list[Any], **more: Any) -> Any:
        return messages.parse_chat({"messages": given, **more}).messages

    def text(*texts: str) -> list[Any]:
        return [{"type": "text", "text": each} for each in texts]

    calls = [
        {"type": "tool_use", "id": id_, "name": "f", "input": {"a": "é"}}
        for id_ in "ab"
    ]
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "a", "content": text("sunny", "!")},
        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
    ]
    thought = {"type": "thinking", "thinking": "a plan", "signature": "x"}
    system = text(
        "x-anthropic-billing-header: cc_version=1; cch=ab;", "Be kind.", "Be brief."
    )
    answer = {"role": "assistant", "content": [thought, *text("I ", "look."), *calls]}
    chat = [{"role": "user", "content": text("Hi?", "Now!")}, answer]
    assert parse(
        [*chat, {"role": "user", "content": [*results, *text("So?")]}], system=system
    ) == (
        ChatMessage("system", "Be kind.\n\nBe brief."),
        ChatMessage("user", "Hi?\n\nNow!"),
        ChatMessage(
            "assistant",
            "I look.",
            tool_calls=tuple(ToolCall(id_, "f", '{"a": "é"}') for id_ in "ab"),
            reasoning="a plan",
        ),
        ChatMessage("tool", "sunny!", tool_call_id="a"),
        ChatMessage("tool", "", tool_call_id="b"),
        ChatMessage("user", "So?"),
    )


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": ""},
}


def ask_with(content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content}]}


def test_wrong_requests_are_refused(claude: Any) -> None:
    options: Any
    budget = "thinking.budget_tokens"
    form = {"format": {"type": "json_schema"}}
    for options, message in [
        ({"messages": []}, "messages: "),
        (ask_with([IMAGE]), "messages[0].content[0].type: "),
        (ask_with([{"type": "document"}]), "messages[0].content[0].type: only text"),
        (ask_with("a", "tool"), "messages[0].role: "),
        ({"system": [IMAGE]}, "system[0].type: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"stop_sequences": [3]}, "stop_sequences[0]: "),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: "),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: "),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, f"{budget}: "),
        ({"output_config": form}, "output_config.format.json_schema"),
    ]:
        with pytest.raises(anthropic.BadRequestError) as error:
            claude.messages.create(**{**ASK, **options})
        body = error.value.body
        assert (
            body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        )
        assert body["error"]["message"].startswith(message)


def test_errors_have_anthropics_form(
    chatty: Served, caller: Served, claude: Any
) -> None:
    long = [{"role": "user", "content": "a " * 5_000}]
    with pytest.raises(
        anthropic.BadRequestError, match=r"too long: \d+ tokens > \d+ max"
    ):
        claude.messages.create(**{**ASK, "messages": long})
    tools = [WEATHER | {"name": "a b"}]
    wrong = caller.post("/v1/messages", {**ASK, "tools": tools}).json["error"]
    assert wrong["message"].startswith("tools[0].name: ")
    for path, headers in (
        ("/v1/messages/none", {}),
        ("/v1/none", {"anthropic-version": "1"}),
    ):
        reply = chatty.post(path, {}, headers)
        assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")
    evil = chatty.post("/v1/messages", ASK, {"Host": "evil.example"})
    assert (evil.status, evil.json["error"]["type"]) == (403, "permission_error")
    assert [model.id for model in claude.models.list()] == ["chatty"]


def test_deeply_nested_arguments_are_no_fault(caller: Served) -> None:
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 0}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "b"}
    chat = [
        *HI,
        *ask_with([call], "assistant")["messages"],
        *ask_with([result])["messages"],
    ]
    body = json.dumps({**ASK, "messages": chat, "max_tokens": 2})
    # limits of reading and of writing
    for depth in (
        100,
        *range(700, 1000, bulk(7, 1)),
        2000,
    ):
        deep = body.replace('{"a": 0}', '{"a":' * depth + "0" + "}" * depth)
        assert caller.post("/v1/messages", deep.encode()).status in SAFE_STATUSES, depth


@pytest.mark.long
def test_a_session_of_an_agent_is_replayed(tmp_path: Path) -> None:
    """Twenty turns with tools, 8,000 tokens: one seed gives one text, whatever drafts."""
    shape = Shape(n_ctx=16384)
    model = replace(
        head_models.quantised(tinygguf.llama(0, shape=shape)),
        template=zoo.CALLER_TEMPLATE,
    )
    draft = head_models.quantised(
        tinygguf.nudged(tinygguf.llama(0, shape=shape), seed=5)
    )
    paths = model.write(tmp_path / "agent.gguf"), draft.write(tmp_path / "draft.gguf")
    with serving(*paths, ctx=12288) as served, connected(served) as client:
        # A prompt that is read at once rounds otherwise than one from the cache.
        replay_session(client, "off")
        runs = [
            replay_session(client, spec) for spec in ("off", "model", "model", "off")
        ]
    for run in runs[1:]:
        assert [turn["text"] for turn in run] == [turn["text"] for turn in runs[0]]
    assert len(set(turn["text"] for turn in runs[0])) > 10
    drafted = [sum(turn["drafted"] for turn in run) for run in runs]
    assert drafted[0] == 0 and drafted[1] > 20
    assert runs[0][-1]["prompt"] > 8000
    for before, turn in pairwise(runs[1]):
        new = turn["prompt"] - before["prompt"] - before["written"]
        assert turn["read"] <= new + 64


def replay_session(client: Any, spec: str) -> list[dict[str, Any]]:
    """The turns of an agent that calls a tool after every answer."""
    chat: list[Any] = [{"role": "user", "content": "the one who and so on"}]
    turns = []
    for number in range(20):
        sampling = {"seed": number, "temperature": 0.8, "localspec": {"spec": spec}}
        given = ASK | {"messages": chat, "tools": [WEATHER], "max_tokens": 24}
        answer = client.messages.create(**given, extra_body=sampling)
        text = "".join(block.text for block in answer.content if block.type == "text")
        usage = answer.usage
        prompt = usage.input_tokens + usage.cache_read_input_tokens
        turns.append({"text": text, "prompt": prompt, "read": usage.input_tokens})
        turns[-1]["written"] = usage.output_tokens
        turns[-1]["drafted"] = answer.to_dict()["timings"].get("draft_n", 0)
        call = {
            "type": "tool_use",
            "id": f"t{number}",
            "name": "weather",
            "input": {"city": text},
        }
        said = [{"type": "text", "text": text}] if text.strip() else []
        chat.append({"role": "assistant", "content": [*said, call]})
        result = f"line {number}: " + "it was and will be. " * 15
        block = {"type": "tool_result", "tool_use_id": f"t{number}", "content": result}
        chat.append({"role": "user", "content": [block]})
    return turns
