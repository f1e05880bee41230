"""The official `openai` client, unchanged, against a real engine."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from localspec import LLM
from localspec.sanitize import sanitize
from tests.cli.command import localspec
from tests.serve.conftest import Served, serving
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT, Zoo

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi?"}]


def test_models(chatty: Served, client: OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.owned_by) == ("chatty", "localspec")
    assert client.models.retrieve("chatty").id == "chatty"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=HI)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", CHAT_TEXT)
    assert choice.finish_reason == "stop"
    assert answer.model == "chatty" and answer.object == "chat.completion"
    usage = answer.usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens > 5 and usage.completion_tokens > 20


def test_a_stream_says_the_same(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[1:-2]]
    assert all(texts), "an empty delta"
    assert "".join(text or "" for text in texts) == CHAT_TEXT
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert not chunks[-1].choices
    whole = client.chat.completions.create(model="any", messages=HI).usage
    assert whole is not None and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_no_usage_in_a_stream_unless_asked_for(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="any", messages=HI, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_clients_own_accumulation_of_a_stream(client: OpenAI) -> None:
    with client.chat.completions.stream(model="any", messages=HI) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.content == CHAT_TEXT


def test_roles_and_parts(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=[
            {"role": "developer", "content": "Be kind."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "?"}],
            },
        ],
    )
    system = client.chat.completions.create(
        model="any", messages=[{"role": "system", "content": "Be kind."}, *HI]
    )
    assert answer.usage and system.usage
    assert answer.usage.prompt_tokens == system.usage.prompt_tokens


def test_limits_and_stops(client: OpenAI) -> None:
    def ask(**options: object) -> tuple[str, str]:
        answer = client.chat.completions.create(model="any", messages=HI, **options)  # type: ignore[call-overload]
        return answer.choices[0].message.content, answer.choices[0].finish_reason

    short, reason = ask(max_completion_tokens=3, max_tokens=9)
    assert CHAT_TEXT.startswith(short) and reason == "length"
    assert ask(max_tokens=3) == (short, reason)
    assert ask(stop="you asked") == (CHAT_TEXT.partition("you asked")[0], "stop")
    assert ask(stop=["nowhere", " – "]) == (CHAT_TEXT.partition(" – ")[0], "stop")


def test_logprobs(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=HI, logprobs=True, top_logprobs=3, max_tokens=8
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content
    assert "".join(item.token for item in logprobs.content) == answer.choices[0].message.content
    for item in logprobs.content:
        assert bytes(item.bytes or []).decode() == item.token
        tops = item.top_logprobs
        assert len(tops) == 3 and tops[0].logprob == item.logprob  # greedy
        assert [top.logprob for top in tops] == sorted((t.logprob for t in tops), reverse=True)
    streamed = client.chat.completions.create(
        model="any", messages=HI, logprobs=True, top_logprobs=3, max_tokens=8, stream=True
    )
    items = [
        item
        for chunk in streamed
        if chunk.choices[0].logprobs
        for item in chunk.choices[0].logprobs.content or []
    ]
    assert items == logprobs.content


def test_text_completions(target: Served) -> None:
    with target.client() as client:
        one = client.completions.create(model="any", prompt="the one ", max_tokens=20)
        text = one.choices[0].text
        assert one.object == "text_completion" and one.choices[0].finish_reason == "length"
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
        tokens = target.post("/tokenize", {"content": "the one ", "add_special": True}).json
        by_tokens = client.completions.create(
            model="any", prompt=tokens["tokens"], max_tokens=20, logprobs=2
        )
        assert by_tokens.choices[0].text == text
        logprobs = by_tokens.choices[0].logprobs
        assert logprobs is not None and logprobs.tokens is not None
        assert "".join(logprobs.tokens) == text
        assert all(1 <= len(top) <= 2 for top in logprobs.top_logprobs or [])


def test_seeds_choices_and_speculation(target: Served) -> None:
    """The same seed gives one text: streamed or not, as a choice, with and without speculation."""
    with target.client() as client:

        def ask(seed: int, **more: object) -> list[str]:
            answer = client.completions.create(  # type: ignore[call-overload]
                model="any", prompt="the one ", max_tokens=30, temperature=0.9, seed=seed, **more
            )
            return [choice.text for choice in answer.choices]

        texts = [ask(seed)[0] for seed in (5, 6, 7)]
        assert len(set(texts)) == 3
        assert ask(5, n=3) == texts
        for spec in ("model", "off"):
            stream = client.completions.create(
                model="any",
                prompt="the one ",
                max_tokens=30,
                temperature=0.9,
                seed=5,
                stream=True,
                extra_body={"localspec": {"spec": spec}},
            )
            assert "".join(chunk.choices[0].text for chunk in stream) == texts[0]
        assert ask(5, extra_body={"localspec": {"spec": "off"}}) == texts[:1]
        assert ask(5, extra_body={"localspec": {"spec": "lookup", "draft_max": 8}}) == texts[:1]
        biased = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "logit_bias": {"300": 5}}
        other = ask(5, **biased)
        assert other != texts[:1]
        assert ask(5, **biased, extra_body={"localspec": {"spec": "off"}}) == other


def test_the_same_seed_gives_the_text_of_run_and_of_the_python_api(
    target: Served, zoo: Zoo
) -> None:
    with LLM(str(zoo["target"]), str(zoo["cousin"]), ctx=1024, threads=1) as llm:
        expected = llm.generate("the one ", max_tokens=30, temperature=0.9, seed=5)
    with target.client() as client:
        answer = client.completions.create(
            model="any", prompt="the one ", max_tokens=30, temperature=0.9, seed=5
        )
    assert answer.choices[0].text == expected.text
    words = ["run", zoo["target"], "--draft", zoo["cousin"], "-p", "the one ", "--seed", 5]
    words += ["--max-tokens", 30, "--temperature", 0.9, "--ctx", 1024, "--threads", 1]
    printed = localspec(*map(str, words)).text
    assert printed.rstrip() == sanitize(expected.text).rstrip()


def test_speculation_is_reported(target: Served) -> None:
    body = {"prompt": "the one ", "max_tokens": 40}
    answer = target.post("/v1/completions", body).json
    speculation = answer["metrics"]["speculative_decoding"]
    assert answer["timings"]["draft_n"] == speculation["num_draft_tokens"] > 0
    assert answer["timings"]["draft_n_accepted"] == speculation["num_accepted_draft_tokens"] > 0
    histogram = speculation["acceptance_histogram"]
    assert sum(histogram) == speculation["num_spec_steps"]
    assert speculation["state"] == "on" and speculation["why"]
    assert sum(i * n for i, n in enumerate(histogram)) == speculation["num_accepted_draft_tokens"]
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


def test_a_prediction_is_copied(target: Served) -> None:
    """OpenAI's predicted outputs feed prompt lookup; the text does not change."""
    body = {"prompt": "the one ", "max_tokens": 60, "localspec": {"spec": "lookup"}}
    plain = target.post("/v1/completions", body).json
    text = plain["choices"][0]["text"]
    prediction = {"prediction": {"type": "content", "content": text}}
    copied = target.post("/v1/completions", body | prediction).json
    assert copied["choices"][0]["text"] == text
    details = copied["usage"]["completion_tokens_details"]
    before = plain["timings"].get("draft_n_accepted", 0)
    assert details["accepted_prediction_tokens"] > before
    assert "accepted_prediction_tokens" not in plain["usage"]["completion_tokens_details"]


def test_the_next_question_reads_only_what_is_new(client: OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Well, hello?"}]
    first = client.chat.completions.create(model="any", messages=messages)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "More?"},
    ]
    second = client.chat.completions.create(model="any", messages=messages)
    assert first.usage and second.usage and second.usage.prompt_tokens_details
    read = first.usage.prompt_tokens + first.usage.completion_tokens
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= read - 2


def test_two_conversations_by_turns_read_only_what_is_new(zoo: Zoo) -> None:
    """As of an editor and an agent at once."""
    first, second = "the one " * 80, "and so on, " * 60
    with serving(zoo["target"], zoo["cousin"], probe=True) as served:  # as `localspec serve` does
        for prompt in (first, second):
            served.post("/v1/completions", {"prompt": prompt, "max_tokens": 4})
        for prompt in (first, second, first):
            body = {"prompt": f"{prompt} again", "max_tokens": 4}
            usage = served.post("/v1/completions", body).json["usage"]
            read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            assert read < 20 < usage["prompt_tokens"]


def test_an_answer_that_has_begun_is_continued(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=HI, max_tokens=12)
    half = client.chat.completions.create(model="any", messages=HI, max_tokens=6)
    begun = half.choices[0].message.content or ""
    rest = client.chat.completions.create(
        model="any", messages=[*HI, {"role": "assistant", "content": begun}], max_tokens=6
    )
    assert begun + (rest.choices[0].message.content or "") == whole.choices[0].message.content


def test_thinking_is_apart(zoo: Zoo) -> None:
    thought, _, visible = THOUGHT_TEXT.removeprefix("<think>").partition("</think>")
    with serving(zoo["thinker"]) as served:
        body = {"messages": HI}
        message = served.post("/v1/chat/completions", body).json["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (thought, visible)
        opened = body | {"chat_template_kwargs": {"enable_thinking": True}}
        message = served.post("/v1/chat/completions", opened).json["choices"][0]["message"]
        assert message["reasoning_content"] and message["content"] == visible
        with served.client() as client:
            chunks = list(client.chat.completions.create(model="any", messages=HI, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert reasoning == thought
        assert "".join(delta.content or "" for delta in deltas) == visible


def test_errors_are_the_clients_own(chatty: Served, client: OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model="any", messages=HI, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="any", messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"
    assert long.value.type == "exceed_context_size_error"
    for words in ("This model's maximum context length is", "exceeds the available context size"):
        assert words in long.value.message, "clients know the error by them"
    assert isinstance(long.value.body, dict) and long.value.body["n_prompt_tokens"] > 1024
    with pytest.raises(openai.BadRequestError) as streamed:
        create(model="any", messages=[{"role": "user", "content": "word " * 3000}], stream=True)
    assert streamed.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as image:
        create(
            model="any",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "data:x"}}],
                }
            ],
        )
    assert image.value.param == "messages[0].content[0].type"


def test_a_text_model_refuses_chats(target: Served) -> None:
    with target.client() as client, pytest.raises(openai.BadRequestError, match="chat template"):
        client.chat.completions.create(model="any", messages=HI)


def test_structured_outputs(target: Served, chatty: Served) -> None:
    """Random weights, and yet what they say has the shape that was asked for."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    body = {"prompt": "the one ", "max_tokens": 200, "temperature": 0.9}
    for seed in range(3):
        texts = set()
        for spec in ("model", "off"):
            request = body | {"seed": seed, "json_schema": schema, "localspec": {"spec": spec}}
            texts.add(target.post("/v1/completions", request).json["choices"][0]["text"])
        (text,) = texts
        assert json.loads(text).keys() == {"ok", "n"}
    grammar = {"grammar": 'root ::= ("ab" | "cd")+ "."', "max_tokens": 9}
    text = target.post("/v1/completions", body | grammar).json["choices"][0]["text"]
    assert set(text) <= set("abcd.")
    with chatty.client() as client:
        answer = client.chat.completions.create(
            model="any",
            messages=HI,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
        )
        assert json.loads(answer.choices[0].message.content or "").keys() == {"ok", "n"}
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(
                model="any", messages=HI, extra_body={"grammar": "root ::= nothing"}
            )
    assert wrong.value.code == "invalid_grammar"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format"),
    ],
)
def test_an_unusable_constraint_names_its_field(chatty: Served, options: Any, param: str) -> None:
    refused = chatty.post("/v1/chat/completions", {"messages": HI, **options})
    assert refused.status == 400
    assert (refused.error["code"], refused.error["param"]) == ("invalid_grammar", param)
