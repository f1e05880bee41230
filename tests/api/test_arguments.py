"""Arguments of `LLM`: what reaches the engine, what is refused, and what is downloaded."""

import json
from pathlib import Path
from typing import Any

import pytest

from localspec import LLM, errors
from tests.api.conftest import Load
from tests.support.fake_hub import FakeHub
from tests.support.installation import BAD_PAIR, PAIR, Installation
from tests.support.zoo import HELLO_TEXT, Zoo


def test_options_reach_the_engine(load: Load) -> None:
    llm = load("chatter", "chatter")
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    assert (
        llm.generate("a", **greedy).text == " one two three four five six seven eight"
    )
    assert llm.generate("a", **greedy, stop=" four").text == " one two three"
    ended = llm.generate("a", **greedy, stop=[" five", " three"])
    assert (ended.text, ended.finish_reason) == (" one two", "stop")
    assert llm.generate("a", **greedy, spec="off").speculation["drafted"] == 0
    drafting = llm.generate("a", **greedy, spec="model", draft_max=2, verify="block")
    assert len(drafting.speculation["histogram"]) == 3 and drafting.verify == "block"
    token = llm.generate("a", **greedy, probabilities=True).tokens[0]
    assert token.rank == 1 and token.p_target is not None
    assert llm.generate("a", **greedy, repeat_penalty=1e9).text.count(" one") == 1
    assert (
        llm.generate("a", max_tokens=2, top_k=1, top_p=None, min_p=0.5).text
        == " one two"
    )


SENSELESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"temperature": -1}, "temperature cannot be -1"),
    ({"spec": "magic"}, "spec cannot be 'magic'"),
    ({"seed": 1.5}, "seed cannot be 1.5"),
    ({"stop": [""]}, "stop cannot be"),
    ({"raw": "no"}, "raw cannot be 'no'"),
    ({"grammar": ""}, "grammar cannot be ''"),
    ({"draft_max": 99}, "draft_max cannot be 99"),
    ({"spec": "model"}, "needs a draft model"),
)
QUESTIONS: tuple[tuple[Any, str], ...] = (
    (lambda llm: llm.generate(""), "The prompt cannot be ''"),
    (lambda llm: llm.generate(7), "The prompt cannot be 7"),
    (lambda llm: llm.chat([]), "The chat is empty"),
    (lambda llm: llm.chat([{"role": "bot", "content": "x"}]), "A message cannot be"),
    (lambda llm: llm.chat(["Hi?"]), "A message cannot be 'Hi\\?'"),
    (lambda llm: llm.count(None), "A chat cannot be None"),
    (lambda llm: llm.chat("Hi?"), "no chat template"),
)


def test_options_and_questions_that_make_no_sense(load: Load) -> None:
    llm: Any = load("parrot")
    asked = [(lambda llm, o=o: llm.generate("a", **o), words) for o, words in SENSELESS]
    for call, words in (*asked, *QUESTIONS):
        with pytest.raises(errors.UsageError, match=words) as refused:
            call(llm)
        assert refused.value.hint and "--" not in refused.value.hint
    with pytest.raises(TypeError, match="Did you mean 'temperature'"):
        llm.generate("a", temprature=0)
    assert llm.generate("a", temperature=0).text == HELLO_TEXT


def test_machines_and_models_that_make_no_sense() -> None:
    options: Any
    for options, words in [
        ({"ctx": 0}, "ctx cannot be 0"),
        ({"spec": "eagle3"}, "does not support 'eagle3': its draft is a model"),
        ({"spec": "mtp", "draft": "none"}, "'mtp' needs a draft model"),
        ({"split": ["a"]}, "split cannot be"),
        ({"template": "nonsense"}, "Unknown chat template"),
        (
            {"exact": True, "kv": "f16"},
            "Exact mode does not work with a KV cache in f16",
        ),
        ({"model": ""}, "model cannot be ''"),
    ]:
        with pytest.raises(errors.UsageError, match=words):
            LLM(**{"model": "demo"} | options)


def test_a_draft_that_is_not_used_is_not_loaded(load: Load) -> None:
    llm = load("demo", spec="off")
    assert (
        llm.ready.draft is None
        and llm.generate("import", max_tokens=4, spec="auto").text
    )


def test_exact_mode_is_chosen_at_the_load(load: Load) -> None:
    llm = load("demo", exact=True)
    assert llm.ready.settings["target"]["kv_type"] == "q8_0/f16"
    assert "exact" in [notice.code for notice in llm.notices]
    with pytest.warns(UserWarning, match="exact is ignored here"):
        assert llm.generate("Hello", exact=False, max_tokens=4).tokens


def test_answers_satisfy_a_schema_or_follow_a_grammar(load: Load) -> None:
    llm = load("demo")
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
    }

    class Person:
        """Like a class of Pydantic."""

        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return schema

    texts = {
        llm.generate("a = ", temperature=0, json_schema=given).text
        for given in (schema, json.dumps(schema), Person)
    }
    assert [list(json.loads(text)) for text in texts] == [["age"]]
    assert llm.generate("a = ", grammar='root ::= "one" | "two"').text in ("one", "two")
    for wrong, kind in (("{", errors.UsageError), ({"not": {}}, errors.GrammarError)):
        with pytest.raises(kind):
            llm.generate("a = ", json_schema=wrong)


def test_only_pull_uses_the_network(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeHub() as hub:
        computer = Installation(hub, zoo, tmp_path / "computer")
        for name, value in computer.env.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(errors.NotFoundError):
            LLM(PAIR)
        with monkeypatch.context() as offline, pytest.raises(errors.OfflineError):
            offline.setenv("HF_HUB_OFFLINE", "1")
            LLM(PAIR, pull=True)
        assert hub.requests == [], "nothing is asked of the hub"
        with pytest.raises(errors.IncompatiblePairError):
            LLM(BAD_PAIR, pull=True)
        assert computer.finals() == [], "it is refused before its bytes come"
        for _ in ("downloaded", "here"):
            before = len(hub.requests)
            with LLM(PAIR, ctx=512, pull=True) as llm:
                assert llm.generate("a", max_tokens=5).draft == "Tiny-Draft-Q8_0.gguf"
            assert computer.finals() == ["Tiny-Draft-Q8_0.gguf", "Tiny-Q8_0.gguf"]
        assert len(hub.requests) == before, "what is here is not looked for"
