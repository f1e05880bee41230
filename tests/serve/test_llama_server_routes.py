"""llama-server's own routes: `/completion` and `/infill`, and the small ones."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.conftest import Served, serving
from tests.zoo import FIM_CONTROLS, HELLO_TEXT, Zoo


def events_of(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    response = served.post(path, body | {"stream": True})
    lines = response.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_completion_streamed_and_not(target: Served) -> None:
    body = {"prompt": "the one ", "n_predict": 20, "temperature": 0, "return_tokens": True}
    whole = target.post("/completion", body).json
    text = target.post("/v1/completions", {"prompt": "the one ", "max_tokens": 20}).json
    assert whole["content"] == text["choices"][0]["text"]
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 20)
    assert len(whole["tokens"]) == 20 and whole["timings"]["predicted_n"] == 20
    *pieces, last = events_of(target, "/completion", body)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
    assert not any(piece["stop"] for piece in pieces)
    assert last["stop"] and last["stop_type"] == "limit"
    tokens = target.post("/tokenize", {"content": "the one ", "add_special": True}).json["tokens"]
    assert target.post("/completion", body | {"prompt": tokens}).json["content"] == whole["content"]
    scored = target.post("/completion", body | {"n_probs": 2}).json["completion_probabilities"]
    assert all(item["id"] in whole["tokens"] for item in scored)
    assert all(len(item["top_logprobs"]) == 2 for item in scored)
    assert all(item["top_logprobs"][0]["id"] == item["id"] for item in scored)  # greedy
    wanted = {"response_fields": ["content", "timings/predicted_n"]}
    few = target.post("/completion", body | wanted).json
    assert few == {"content": whole["content"], "timings/predicted_n": 20}


def test_why_it_stopped(zoo: Zoo) -> None:
    with serving(zoo["parrot"]) as served:
        ended = served.post("/completion", {"prompt": "a"}).json
        assert (ended["content"], ended["stop_type"]) == (HELLO_TEXT, "eos")
        stopped = served.post("/completion", {"prompt": "a", "stop": ["world"]}).json
        assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", "world")
        for body in ({}, {"prompt": ""}, {"prompt": "a", "n_predict": -2}, {"prompt": "a", "n": 2}):
            assert served.post("/completion", body).status == 400


def test_a_prompt_that_is_only_read(chatty: Served) -> None:
    """As editors do before the user pauses: the next request finds it in the KV cache."""
    body = {"prompt": "one two three four five six", "n_predict": 0}
    read = chatty.post("/completion", body).json
    assert (read["content"], read["tokens"], read["tokens_predicted"]) == ("", [], 0)
    assert (read["timings"]["predicted_n"], read["generation_settings"]["n_predict"]) == (0, 0)
    assert chatty.ended[-1].tokens == 0, "the log and /metrics count none either"
    (last,) = events_of(chatty, "/completion", body)
    assert last["content"] == "" and last["stop"]
    more = body | {"prompt": "one two three four five six seven", "n_predict": 2}
    assert chatty.post("/completion", more).json["timings"]["cache_n"] >= 5


def test_infill(zoo: Zoo) -> None:
    with serving(zoo["infiller"]) as served:
        body = {"input_prefix": "def f(", "input_suffix": "): pass", "n_predict": 8}
        answer = served.post("/infill", body).json
        assert answer["content"] == HELLO_TEXT[: len(answer["content"])]
        expected = "".join(
            f"{control}{text}"
            for control, text in zip(FIM_CONTROLS, ("def f(", "): pass", ""), strict=True)
        )
        by_hand = served.post("/tokenize", {"content": expected, "add_special": True}).json
        assert abs(answer["tokens_evaluated"] - len(by_hand["tokens"])) <= 2  # a leading space
        files = [{"filename": "a.py", "text": "x = 1\n"}, {"filename": "b.py", "text": "y" * 9000}]
        more = served.post("/infill", body | {"input_extra": files}).json
        assert more["tokens_evaluated"] == answer["tokens_evaluated"], "a file that does not fit"
        more = served.post("/infill", body | {"input_extra": files[:1]}).json
        assert more["tokens_evaluated"] > answer["tokens_evaluated"]
        long = body | {"input_prefix": "word " * 5000, "input_suffix": "word " * 5000}
        assert served.post("/infill", long).json["tokens_evaluated"] < 1024
    with serving(zoo["parrot"]) as served:
        assert served.post("/infill", body).status == 501


def test_tokens_and_templates(chatty: Served) -> None:
    tokens = chatty.post("/tokenize", {"content": "Hi?"}).json["tokens"]
    assert chatty.post("/detokenize", {"tokens": tokens}).json["content"].strip() == "Hi?"
    unknown = chatty.post("/detokenize", {"tokens": [10**6]})
    assert (unknown.status, unknown.json["error"]["param"]) == (400, "tokens")
    begun = chatty.post(
        "/v1/chat/completions", {"messages": [{"role": "assistant", "content": "I"}]}
    )
    assert (begun.status, begun.json["error"]["param"]) == (400, "messages")
    pieces = chatty.post("/tokenize", {"content": "Hi?", "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    chat = {"messages": [{"role": "user", "content": "Hi?"}]}
    prompt = chatty.post("/apply-template", chat).json["prompt"]
    assert "Hi?" in prompt and prompt.endswith("<|im_start|>assistant\n")
    properties = chatty.get("/props").json
    assert properties["default_generation_settings"]["n_ctx"] == 1024
    assert properties["modalities"] == {"vision": False, "audio": False}
    (slot,) = chatty.get("/slots").json
    assert (slot["n_ctx"], slot["is_processing"]) == (1024, False)
    assert chatty.get("/v1/models").json["data"][0]["meta"]["n_ctx"] == 1024
