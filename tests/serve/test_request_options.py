"""Options of requests: what they change, and the errors of those that are wrong."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from localspec import LLM
from tests.serve.conftest import Served, read_events, streaming
from tests.support.zoo import CHAT_TEXT, Zoo

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hi?"}]


def test_limits_and_stops(client: OpenAI) -> None:
    def ask(**options: object) -> tuple[str, str]:
        answer = client.chat.completions.create(model="any", messages=HI, **options)  # type: ignore[call-overload]
        return answer.choices[0].message.content, answer.choices[0].finish_reason

    short, reason = ask(max_completion_tokens=3, max_tokens=9)
    assert CHAT_TEXT.startswith(short) and reason == "length"
    assert ask(max_tokens=3) == (short, reason)
    assert ask(stop="you asked") == (CHAT_TEXT.partition("you asked")[0], "stop")
    assert ask(stop=["nowhere", " – "]) == (CHAT_TEXT.partition(" – ")[0], "stop")


def test_seeds_choices_and_speculation(target: Served, zoo: Zoo) -> None:
    """The same seed gives one text: streamed or not, as a choice, however drafted, in
    Python.
    """
    body = {"prompt": "the one ", "max_tokens": 30, "temperature": 0.9}

    def ask(seed: int, **more: object) -> list[str]:
        answer = target.post("/v1/completions", body | {"seed": seed} | more).json
        return [choice["text"] for choice in answer["choices"]]

    texts = [ask(seed)[0] for seed in (5, 6, 7)]
    assert len(set(texts)) == 3 and ask(5, n=3) == texts
    for own in ({"spec": "model"}, {"spec": "off"}, {"spec": "lookup", "draft_max": 8}):
        assert ask(5, localspec=own) == texts[:1]
        with streaming(
            target, body | {"seed": 5, "stream": True, "localspec": own}
        ) as response:
            chunks = read_events(response)[:-1]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == texts[0]
    biased = {
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
        "logit_bias": {"300": 5},
    }
    other = ask(5, **biased)
    assert other != texts[:1] and ask(5, **biased, localspec={"spec": "off"}) == other
    with LLM(zoo["target"], zoo["cousin"], ctx=1024, threads=1) as llm:
        answer = llm.generate("the one ", max_tokens=30, temperature=0.9, seed=5)
    assert answer.text == texts[0]


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
    assert (
        "accepted_prediction_tokens" not in plain["usage"]["completion_tokens_details"]
    )


def test_errors_are_the_clients_own(target: Served, client: OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model="any", messages=HI, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        create(model="any", messages=[{"role": "user", "content": "word " * 3000}])
    assert long.value.code == "context_length_exceeded"
    assert long.value.type == "exceed_context_size_error"
    for words in (
        "This model's maximum context length is",
        "exceeds the available context size",
    ):
        assert words in long.value.message, "clients know the error by them"
    assert (
        isinstance(long.value.body, dict) and long.value.body["n_prompt_tokens"] > 1024
    )
    with pytest.raises(openai.BadRequestError) as streamed:
        create(
            model="any",
            messages=[{"role": "user", "content": "word " * 3000}],
            stream=True,
        )
    assert streamed.value.code == "context_length_exceeded"
    picture: Any = [{"type": "image_url", "image_url": {"url": "data:x"}}]
    with pytest.raises(openai.BadRequestError) as image:
        create(model="any", messages=[{"role": "user", "content": picture}])
    assert image.value.param == "messages[0].content[0].type"
    refused = target.post("/v1/chat/completions", {"messages": HI})
    assert "no chat template" in refused.error["message"], "a text model"


def test_structured_outputs(target: Served, client: OpenAI) -> None:
    """Random weights, and yet what they say has the shape that was asked for."""
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    schema["properties"] = {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}}
    schema["required"] = ["ok", "n"]
    body = {"prompt": "the one ", "max_tokens": 200, "temperature": 0.9, "seed": 1}
    texts = set()
    for spec in ("model", "off"):
        request = body | {"json_schema": schema, "localspec": {"spec": spec}}
        texts.add(target.post("/v1/completions", request).json["choices"][0]["text"])
    (text,) = texts
    assert json.loads(text).keys() == {"ok", "n"}
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = client.chat.completions.create(
        model="any", messages=HI, response_format=form
    )
    assert json.loads(answer.choices[0].message.content or "").keys() == {"ok", "n"}


def test_an_unusable_constraint_names_its_field(chatty: Served) -> None:
    options: Any
    for options, param in [
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"json_schema": {"not": {}}}, "json_schema"),
        (
            {"response_format": {"type": "json_object", "schema": {"not": {}}}},
            "response_format",
        ),
    ]:
        refused = chatty.post("/v1/chat/completions", {"messages": HI, **options})
        assert refused.status == 400
        assert (refused.error["code"], refused.error["param"]) == (
            "invalid_grammar",
            param,
        )


def test_an_effort_needs_a_template_with_thinking(
    chatty: Served, thinker: Served
) -> None:
    chat = {"messages": HI}
    response = {"input": "Hi?", "reasoning": {"effort": "low"}}
    for effort, thinks in (
        ("none", False),
        ("minimal", False),
        ("low", True),
        ("max", True),
    ):
        body = chat | {"reasoning_effort": effort}
        message = thinker.post("/v1/chat/completions", body).json["choices"][0][
            "message"
        ]
        assert ("reasoning_content" in message) is thinks
        assert chatty.post("/v1/chat/completions", body).status == (
            400 if thinks else 200
        )
    wrong = chatty.post("/v1/chat/completions", chat | {"reasoning_effort": "high"})
    assert wrong.error["param"] == "reasoning_effort"
    assert chatty.post("/v1/responses", response).error["param"] == "reasoning.effort"
    assert thinker.post("/v1/responses", response).status == 200
    wrong = thinker.post("/v1/chat/completions", chat | {"reasoning_effort": "hard"})
    assert wrong.error["param"] == "reasoning_effort"
    cut = thinker.post(
        "/v1/chat/completions", chat | {"thinking_budget_tokens": 2}
    ).json
    assert cut["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def test_thinking_is_turned_on_and_off_by_a_templates_argument(thinker: Served) -> None:
    for name in ("enable_thinking", "thinking"):
        for switch in (True, False):
            body = {"messages": HI, "chat_template_kwargs": {name: switch}}
            answer = thinker.post("/v1/chat/completions", body).json
            message = answer["choices"][0]["message"]
            assert ("reasoning_content" in message) is switch
    thinking: dict[str, Any] = {
        "messages": HI,
        "max_tokens": 200,
        "thinking": {"type": "enabled"},
        "chat_template_kwargs": {"preserve_thinking": True},
    }
    thought = thinker.post("/v1/messages", thinking).json
    assert thought["content"][0]["type"] == "thinking"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"documents": []}, "chat_template_kwargs.documents"),
        ({"tools": {}}, "chat_template_kwargs.tools"),
        ({"enable_thinking": "no"}, "chat_template_kwargs.enable_thinking"),
        ({"x": "y" * 2000}, "chat_template_kwargs"),
        ({"y" * 2000: 1}, "chat_template_kwargs"),
        ({str(i): i for i in range(65)}, "chat_template_kwargs"),
        ([], "chat_template_kwargs"),
    ],
)
def test_an_argument_that_no_template_takes_is_refused(
    chatty: Served, value: Any, param: str
) -> None:
    body = {"messages": HI, "chat_template_kwargs": value}

    refused = chatty.post("/v1/chat/completions", body)

    assert refused.status == 400
    assert refused.error["param"] == param


def test_arguments_that_a_template_does_not_read_change_nothing(chatty: Served) -> None:
    arguments = {"preserve_thinking": True, "mood": "kind", "n": 1.5, "none": None}
    body = {"messages": HI, "chat_template_kwargs": arguments}

    answer = chatty.post("/v1/chat/completions", body).json

    assert answer["choices"][0]["message"]["content"] == CHAT_TEXT
