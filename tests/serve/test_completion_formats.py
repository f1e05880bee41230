"""Answers in the JSON of each API, as the official `openai` client reads them."""

from typing import Any

import openai
import pytest
from msgspec.structs import replace
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from localspec.protocol.events import FinishReason, Prefill
from localspec.protocol.wire import GenerateCommand
from localspec.serve.completion import Choice
from localspec.serve.prompts import OfferedTools
from tests.serve.conftest import Served
from tests.support.scripted_engine import answer, pieces
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi?"}]
CALLING: ChatCompletionMessageParam = {
    "role": "assistant",
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ],
}


def test_a_chat_streamed_and_not(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == "", "some clients add null as a text"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
    assert all(texts), "an empty delta"
    assert "".join(text or "" for text in texts) == CHAT_TEXT
    assert chunks[-2].choices[0].finish_reason == "stop" and not chunks[-1].choices
    whole = client.chat.completions.create(model="any", messages=HI)
    (choice,) = whole.choices
    assert (choice.message.role, choice.message.content) == ("assistant", CHAT_TEXT)
    assert choice.finish_reason == "stop" and whole.model == "chatty"
    assert whole.object == "chat.completion"
    usage = whole.usage
    assert usage is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == usage.completion_tokens > 20
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    chunks = list(client.chat.completions.create(model="any", messages=HI, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_have_an_entry_a_token(client: OpenAI, is_streamed: bool) -> None:
    """Where a stop string holds text back, and where a character takes several tokens."""

    def items(**more: Any) -> list[Any]:
        asked: dict[str, Any] = {"model": "any", "messages": HI, "logprobs": True}
        answer: Any = client.chat.completions.create(
            **asked, **more, stream=is_streamed
        )
        if is_streamed:
            parts = [chunk.choices[0] for chunk in answer]
        else:
            parts = answer.choices
        found: list[Any] = []
        for part in parts:
            if part.logprobs:
                found += part.logprobs.content or []
        return found

    whole = items(top_logprobs=3)
    for item in whole:
        logprobs = [top.logprob for top in item.top_logprobs]
        assert len(logprobs) == 3
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] == item.logprob, "the answer is greedy"
    data = b"".join(bytes(item.bytes) for item in whole)
    assert data.decode() == CHAT_TEXT
    assert items(top_logprobs=3, stop=["what you wanted", "nowhere"]) == whole
    cut = items(top_logprobs=3, stop=[" asked for"])
    assert cut == whole[: len(cut)]
    assert "".join(item.token for item in cut) == CHAT_TEXT.partition(" asked")[0]


def test_text_completions(target: Served) -> None:
    with target.client() as client:
        one = client.completions.create(model="any", prompt="the one ", max_tokens=20)
        text = one.choices[0].text
        assert (
            one.object == "text_completion" and one.choices[0].finish_reason == "length"
        )
        stream = client.completions.create(
            model="any", prompt="the one ", max_tokens=20, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == text
        echoed = client.completions.create(
            model="any", prompt=["the one ", "two"], max_tokens=20, echo=True, n=2
        )
        assert [choice.index for choice in echoed.choices] == [0, 1, 2, 3]
        assert echoed.choices[0].text == echoed.choices[1].text == f"the one {text}"
        assert echoed.choices[2].text.startswith("two")
        alone = [
            client.completions.create(model="any", prompt=prompt, max_tokens=1).usage
            for prompt in ("the one ", "two")
        ]
        n_prompt = sum(usage.prompt_tokens for usage in alone if usage)
        assert echoed.usage and echoed.usage.prompt_tokens == n_prompt
        tokens = target.post(
            "/tokenize", {"content": "the one ", "add_special": True}
        ).json
        by_tokens = client.completions.create(
            model="any", prompt=tokens["tokens"], max_tokens=20, logprobs=2
        )
        assert by_tokens.choices[0].text == text
        logprobs = by_tokens.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        assert len(logprobs.tokens) == 20, "parts of characters, too"
        for at, token in zip(logprobs.text_offset or [], logprobs.tokens, strict=True):
            assert "\ufffd" in token or text[at:].lstrip("\ufffd").startswith(token)
        assert all(1 <= len(top) <= 2 for top in logprobs.top_logprobs or [])


def test_speculation_is_reported(target: Served) -> None:
    body = {"prompt": "the one ", "max_tokens": 40}
    answer = target.post("/v1/completions", body).json
    speculation = answer["metrics"]["speculative_decoding"]
    assert answer["timings"]["draft_n"] == speculation["num_draft_tokens"] > 0
    assert (
        answer["timings"]["draft_n_accepted"]
        == speculation["num_accepted_draft_tokens"]
        > 0
    )
    histogram = speculation["acceptance_histogram"]
    assert sum(histogram) == speculation["num_spec_steps"]
    assert speculation["state"] == "on" and speculation["why"]
    assert (
        sum(i * n for i, n in enumerate(histogram))
        == speculation["num_accepted_draft_tokens"]
    )
    plain = target.post("/v1/completions", body | {"localspec": {"spec": "off"}}).json
    assert "draft_n" not in plain["timings"]
    assert plain["metrics"]["speculative_decoding"]["draft_acceptance_rate"] is None
    shown = target.post("/v1/completions", body | {"localspec": {"tokens": True}}).json
    tokens = shown["localspec"]["tokens"]
    assert "".join(token["text"] for token in tokens) == shown["choices"][0]["text"]
    assert {token["class"] for token in tokens} >= {"accepted", "bonus"}
    counts = target.get("/metrics").body.decode()
    assert "llamacpp:spec_decode_num_accepted_tokens_total" in counts
    assert 'accepted_tokens_per_pos_total{position="0"}' in counts


def test_thinking_is_apart(thinker: Served) -> None:
    thought, _, visible = THOUGHT_TEXT.removeprefix("<think>").partition("</think>")
    body = {"messages": HI}
    message = thinker.post("/v1/chat/completions", body).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (thought, visible)
    opened = body | {"chat_template_kwargs": {"enable_thinking": True}}
    message = thinker.post("/v1/chat/completions", opened).json["choices"][0]["message"]
    assert message["reasoning_content"] and message["content"] == visible
    with thinker.client() as client:
        chunks = list(
            client.chat.completions.create(model="any", messages=HI, stream=True)
        )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (
        "".join(getattr(each, "reasoning_content", None) or "" for each in deltas)
        == thought
    )
    assert "".join(delta.content or "" for delta in deltas) == visible


def test_what_would_be_silently_wrong_is_refused(client: OpenAI) -> None:
    for route, body, param in [
        ("completions", {"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ("chat/completions", {"messages": [*HI, CALLING]}, "messages"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            client.post(f"/{route}", body=body, cast_to=object)
        assert refused.value.param == param


CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
LOOK = f"So I look.\n{CALL}"
UNCLOSED: list[tuple[str, str, FinishReason, bool]] = [
    # An answer in its thinking, what follows, how it ends, and whether the call in it
    # is one.
    (f"{LOOK}\n", "", "eog", True),
    (LOOK, "</think>Done.", "eog", False),
    (LOOK, "", "length", False),
    (f"First {CALL}, then more.", "", "eog", False),
    ("A <tool_call> is a tag.", "", "eog", False),
    (CALL.replace('"f"', '"x"'), "", "eog", False),
]


LIMITED: list[tuple[str, bool, str]] = [
    # An answer that ends at `max_tokens`, whether it may have only one call, and the
    # reason that the client gets.
    (CALL, False, "tool_calls"),
    (f"{CALL} And now", False, "tool_calls"),
    (CALL[:-20], False, "length"),
    (CALL + CALL[:-20], False, "length"),
    (CALL + CALL[:-20], True, "tool_calls"),
    ("I would call", False, "length"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("text", "is_single", "reason"), LIMITED)
async def test_complete_calls_are_calls_also_at_the_limit_of_tokens(
    text: str, is_single: bool, reason: str
) -> None:
    for size in (1, 3, 1000):
        tools = OfferedTools("tags", "[]", {"f": {}}, is_single=is_single)
        choice = Choice(lambda _: GenerateCommand(), None, tools)
        for event in answer(pieces(text, size), reason="length"):
            choice.add(event)
        assert choice.finish_reason == reason


FINISH_REASONS = {"eog": "stop", "length": "length"}


@pytest.mark.asyncio
@pytest.mark.parametrize(("thought", "end", "reason", "called"), UNCLOSED)
async def test_a_call_in_unclosed_thinking(
    thought: str, end: str, reason: FinishReason, called: bool
) -> None:
    for size in (1, 3, 1000):
        tools = OfferedTools("tags", "[]", {"f": {}})
        choice = Choice(lambda _: GenerateCommand(), ("<think>", "</think>"), tools)
        for event in answer(pieces(f"{thought}{end}", size), reason=reason):
            if isinstance(event, Prefill):
                choice.add(replace(event, thinking=True))
            else:
                choice.add(event)
        text = choice.text
        names = [delta.name for delta in text.calls if delta.name]
        arguments = "".join(delta.arguments for delta in text.calls)
        assert text.content == ("Done." if end else "")
        if called:
            assert names == ["f"]
            assert arguments == '{"a": 1}'
            assert text.reasoning == "So I look."
            assert choice.finish_reason == "tool_calls"
        else:
            assert names == []
            assert arguments == ""
            assert text.reasoning == thought
            assert choice.finish_reason == FINISH_REASONS[reason]
