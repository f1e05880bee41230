"""llama-server's own routes: `/infill` and `/tokenize`."""

from __future__ import annotations

import json
from typing import Any

from tests.serve.conftest import Served, serving
from tests.support.zoo import FIM_CONTROLS, HELLO_TEXT, Zoo


def events_of(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    response = served.post(path, body | {"stream": True})
    lines = response.body.decode().split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


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


def test_an_infill_streamed_and_not(zoo: Zoo) -> None:
    with serving(zoo["infiller"]) as served:
        body = {"input_prefix": "def f(", "n_predict": 4, "temperature": 0, "return_tokens": True}
        whole = served.post("/infill", body).json
        assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 4)
        assert len(whole["tokens"]) == 4 and whole["timings"]["predicted_n"] == 4
        *pieces, last = events_of(served, "/infill", body)
        assert "".join(piece["content"] for piece in pieces) == whole["content"]
        assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
        assert not any(piece["stop"] for piece in pieces)
        assert last["stop"] and last["stop_type"] == "limit"
        wanted = {"response_fields": ["content", "timings/predicted_n"]}
        few = served.post("/infill", body | wanted).json
        assert few == {"content": whole["content"], "timings/predicted_n": 4}
        ended = served.post("/infill", body | {"n_predict": -1}).json
        assert ended["stop_type"] == "eos"
        word = ended["content"].split()[-1]
        stopped = served.post("/infill", body | {"n_predict": -1, "stop": [word]}).json
        assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
        for wrong in ({"n_predict": -2}, {"n": 2}, {"input_extra": [3]}, {"response_fields": [3]}):
            assert served.post("/infill", body | wrong).status == 400
        # As editors do before the user pauses: the next request finds it in the KV cache.
        read = served.post("/infill", body | {"n_predict": 0}).json
        assert (read["content"], read["tokens"], read["tokens_predicted"]) == ("", [], 0)
        timings, settings = read["timings"], read["generation_settings"]
        assert (timings["predicted_n"], settings["n_predict"]) == (0, 0)
        assert served.ended[-1].totals.tokens == 0, "the log and /metrics count none either"
        (last,) = events_of(served, "/infill", body | {"n_predict": 0})
        assert last["content"] == "" and last["stop"]
        assert served.post("/infill", body).json["timings"]["cache_n"] >= 1


def test_tokens(chatty: Served) -> None:
    tokens = chatty.post("/tokenize", {"content": "Hi?"}).json["tokens"]
    pieces = chatty.post("/tokenize", {"content": "Hi?", "with_pieces": True}).json["tokens"]
    assert [piece["id"] for piece in pieces] == tokens
    assert "".join(piece["piece"] for piece in pieces).strip() == "Hi?"


def test_routes_that_llama_server_has_alone(chatty: Served) -> None:
    for path in ("/props", "/slots"):
        assert chatty.get(path).status == 404
    for path in ("/completion", "/detokenize", "/apply-template"):
        assert chatty.post(path, {"prompt": "a"}).error["type"] == "not_found_error"


def test_a_model_is_described(chatty: Served) -> None:
    begun = {"messages": [{"role": "assistant", "content": "I"}]}
    refused = chatty.post("/v1/chat/completions", begun)
    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert chatty.get("/v1/models").json["data"][0]["meta"]["n_ctx"] == 1024
