"""The loaded pair as its requests need it: infill prompts, and what is kept of answers."""

import json
from contextlib import closing
from typing import Any

import pytest
from openai import OpenAI

from tests.serve.conftest import Served, read_events, serving, streaming
from tests.support.downloads import wait_for
from tests.support.zoo import FIM_CONTROLS, HELLO_TEXT, Zoo


def events_of(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    with streaming(served, body | {"stream": True}, path) as response:
        return read_events(response)


def test_infill(infiller: Served, target: Served) -> None:
    body = {"input_prefix": "def f(", "input_suffix": "): pass", "n_predict": 8}
    answer = infiller.post("/infill", body).json
    assert answer["content"] == HELLO_TEXT[: len(answer["content"])]
    texts = zip(FIM_CONTROLS, ("def f(", "): pass", ""), strict=True)
    expected = "".join(f"{control}{text}" for control, text in texts)
    by_hand = infiller.post(
        "/tokenize", {"content": expected, "add_special": True}
    ).json
    # a leading space
    assert abs(answer["tokens_evaluated"] - len(by_hand["tokens"])) <= 2
    files = [
        {"filename": "a.py", "text": "x = 1\n"},
        {"filename": "b.py", "text": "y" * 9000},
    ]
    more = infiller.post("/infill", body | {"input_extra": files}).json
    assert more["tokens_evaluated"] == answer["tokens_evaluated"], (
        "a file that does not fit"
    )
    more = infiller.post("/infill", body | {"input_extra": files[:1]}).json
    assert more["tokens_evaluated"] > answer["tokens_evaluated"]
    long = body | {"input_prefix": "word " * 5000, "input_suffix": "word " * 5000}
    assert infiller.post("/infill", long).json["tokens_evaluated"] < 1024
    assert target.post("/infill", body).status == 501


def test_an_infill_streamed_and_not(infiller: Served) -> None:
    body = {
        "input_prefix": "def f(",
        "n_predict": 4,
        "temperature": 0,
        "return_tokens": True,
    }
    whole = infiller.post("/infill", body | {"n_probs": 2}).json
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (
        True,
        "limit",
        4,
    )
    assert len(whole["tokens"]) == 4 and whole["timings"]["predicted_n"] == 4
    assert [item["id"] for item in whole["completion_probabilities"]] == whole["tokens"]
    assert {
        len(item["top_logprobs"]) for item in whole["completion_probabilities"]
    } == {2}
    *pieces, last = events_of(infiller, "/infill", body)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert [token for piece in pieces for token in piece["tokens"]] == whole["tokens"]
    assert not any(piece["stop"] for piece in pieces)
    assert last["stop"] and last["stop_type"] == "limit"
    few = infiller.post(
        "/infill", body | {"response_fields": ["content", "timings/predicted_n"]}
    )
    assert few.json == {"content": whole["content"], "timings/predicted_n": 4}
    ended = infiller.post("/infill", body | {"n_predict": -1}).json
    assert ended["stop_type"] == "eos"
    word = ended["content"].split()[-1]
    stopped = infiller.post("/infill", body | {"n_predict": -1, "stop": [word]}).json
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    for wrong in (
        {"n_predict": -2},
        {"n": 2},
        {"input_extra": [3]},
        {"response_fields": [3]},
    ):
        assert infiller.post("/infill", body | wrong).status == 400


def test_an_infill_that_only_reads(infiller: Served) -> None:
    """As editors do before the user pauses: the next request finds it in the KV cache."""
    body = {"input_prefix": "def g(", "n_predict": 0, "return_tokens": True}
    read = infiller.post("/infill", body).json
    assert (read["content"], read["tokens"], read["tokens_predicted"]) == ("", [], 0)
    assert (
        read["timings"]["predicted_n"],
        read["generation_settings"]["n_predict"],
    ) == (0, 0)
    wait_for(infiller.is_idle)
    assert infiller.ended[-1].totals.tokens == 0, (
        "the log and /metrics count none either"
    )
    (last,) = events_of(infiller, "/infill", body)
    assert last["content"] == "" and last["stop"]
    assert (
        infiller.post("/infill", body | {"n_predict": 4}).json["timings"]["cache_n"]
        >= 1
    )


def test_two_conversations_by_turns_read_only_what_is_new(zoo: Zoo) -> None:
    """As of an editor and an agent at once."""
    first = "the one " * 80
    second = "and so on, " * 60
    # as `localspec serve` does
    with serving(zoo["target"], zoo["cousin"], probe=True) as served:
        for prompt in (first, second):
            served.post("/v1/completions", {"prompt": prompt, "max_tokens": 4})
        for prompt in (first, second, first):
            body = {"prompt": f"{prompt} again", "max_tokens": 4}
            usage = served.post("/v1/completions", body).json["usage"]
            read = (
                usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            )
            assert read < 20 < usage["prompt_tokens"]


def test_an_answer_that_has_begun_is_continued(client: OpenAI) -> None:
    hi: Any = {"role": "user", "content": "Hi?"}

    def ask(n: int, begun: str = "") -> str:
        messages = [hi, {"role": "assistant", "content": begun}] if begun else [hi]
        answer = client.chat.completions.create(
            model="any", messages=messages, max_tokens=n
        )
        return answer.choices[0].message.content or ""

    begun = ask(6)
    assert begun + ask(6, begun) == ask(12)


LONG = "the one and the other, " * 20
CHAT_PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
    "/v1/completions": {"prompt": LONG},
    "/v1/responses": {"input": LONG},
    "/v1/messages": {"messages": [{"role": "user", "content": LONG}]},
}


def find_cached(answer: Any) -> set[int]:
    """All that an answer says of tokens that were reused."""
    usage = answer["usage"]
    found = {answer["timings"]["cache_n"], usage.get("cache_read_input_tokens", 0)}
    for details in ("prompt_tokens_details", "input_tokens_details"):
        found.add(usage.get(details, {}).get("cached_tokens", 0))
    return found


@pytest.mark.parametrize("path", CHAT_PATHS)
def test_no_client_learns_what_another_one_has_asked(chatty: Served, path: str) -> None:
    def ask(key: str) -> set[int]:
        body = CHAT_PATHS[path] | {"max_tokens": 16, "max_output_tokens": 16}
        headers = {"Authorization": f"Bearer {key} {path}"}
        return find_cached(chatty.post(path, body, headers).json)

    assert ask("first") == {0}
    assert max(ask("first")) > 20, "its own prompt is cached"
    assert ask("second") == {0}
    assert max(ask("second")) > 20


def test_a_stream_tells_no_client_what_another_one_has_asked(chatter: Served) -> None:
    body = {"prompt": LONG * 10, "max_tokens": 1, "return_progress": True}

    def stream(key: str) -> list[Any]:
        connection = chatter.connect()
        with closing(connection):
            headers = {"Content-Type": "application/json", "X-Api-Key": key}
            data = json.dumps(body | {"stream": True})
            connection.request("POST", "/v1/completions", data, headers)
            events = read_events(connection.getresponse())
        return [each["prompt_progress"] for each in events if "prompt_progress" in each]

    first = stream("progress of the first")
    second = stream("progress of the second")

    assert first[0]["processed"] == second[0]["processed"] == 0
    assert {each["cache"] for each in second} == {0}
    again = stream("progress of the second")
    assert again[0]["cache"] == again[0]["processed"] > 1000
