"""`LLM` against real engines: answers, options, chats, refusals."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, assert_type

import pytest

from localspec import LLM, Answer, LocalspecError, Stream, errors
from localspec.machine import measurements
from localspec.protocol.events import Token
from localspec.protocol.wire import ChatMessage
from tests.api.conftest import Load
from tests.cli.command import localspec
from tests.support.zoo import CHAT_TEXT, HELLO_TEXT, THOUGHT_TEXT, Zoo

HI = [{"role": "user", "content": "Hi?"}]


def test_an_answer_and_its_numbers(load: Load) -> None:
    llm = load("parrot", "parrot", spec="model")
    answer = llm.generate("a", temperature=0, max_tokens=50)
    assert_type(answer, Answer)
    assert (answer.text, answer.finish_reason) == (HELLO_TEXT, "eog")
    assert str(answer) == answer.said == answer.text
    assert all(isinstance(token, Token) for token in answer.tokens)
    assert {token.kind for token in answer.tokens} >= {"plain", "accepted"}
    assert "".join(token.text for token in answer.tokens) == HELLO_TEXT
    numbers = answer.speculation
    assert numbers["drafted"] >= numbers["accepted"] > 0
    assert numbers["acceptance_rate"] == pytest.approx(
        numbers["accepted"] / numbers["drafted"], abs=1e-4
    )
    assert answer.prompt_tokens > 0 and answer.timings["load_ms"] > 0
    assert repr(answer) == f"Answer({HELLO_TEXT!r}, {len(answer.tokens)} tokens, eog)"
    assert (answer.model, answer.draft) == ("parrot.gguf", "parrot.gguf")


@pytest.mark.parametrize("more", [{}, {"spec": "off"}])
def test_the_same_seed_gives_what_the_command_prints(load: Load, more: dict[str, Any]) -> None:
    """The document of `run --json`, without the timings."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in more.items()]
    asked = ("-p", "def fibonacci(n):", "--max-tokens", "40", "--seed", "7", "--json", "-q")
    printed = localspec("run", "demo", *asked, "--ctx", "512", "--threads", "1", *options).document
    answer = load("demo").generate("def fibonacci(n):", max_tokens=40, seed=7, **more)
    said = json.loads(json.dumps(answer.document()))
    assert said.keys() == printed.keys()
    assert said["timings"].keys() == printed["timings"].keys()
    assert said["speculation"].keys() == printed["speculation"].keys()
    same = set(said) - {"timings", "speculation", "draft"}
    assert {name: said[name] for name in same} == {name: printed[name] for name in same}
    assert len(said["text"]) > 40


def test_a_chat_model_is_asked_as_the_command_asks_it(load: Load, zoo: Zoo) -> None:
    llm = load("chatty", ctx=1024)
    asked = ("-p", "Hi?", "--temperature", "0", "--json", "-q", "--ctx", "1024")
    printed = localspec("run", zoo["chatty"], *asked).document
    answer = llm.generate("Hi?", temperature=0)
    assert answer.text == printed["text"] == CHAT_TEXT
    assert answer.prompt_tokens == printed["prompt_tokens"] == llm.count("Hi?")
    assert llm.count("Hi?", raw=True) < llm.count("Hi?")
    raw = llm.generate("Hi?", raw=True, max_tokens=3, temperature=0)
    assert raw.prompt_tokens == llm.count("Hi?", raw=True)


@pytest.mark.parametrize("messages", ["Hi?", HI, [ChatMessage("user", "Hi?")]])
def test_a_chat(load: Load, messages: Any) -> None:
    answer = load("chatty", ctx=1024).chat(messages, temperature=0)
    assert (answer.text, answer.finish_reason) == (CHAT_TEXT, "eog")


def test_a_chat_goes_on_and_reads_only_what_is_new(load: Load) -> None:
    llm = load("chatty", ctx=1024)
    turns = [{"role": "system", "content": "Be kind."}, *HI]
    first = llm.chat(turns, temperature=0)
    turns += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "More?"}]
    second = llm.chat(turns, temperature=0)
    assert second.prompt_tokens == llm.count(turns) > first.prompt_tokens
    assert second.reused_tokens >= first.prompt_tokens - 1


def test_a_chat_in_pieces(load: Load) -> None:
    llm = load("chatty", ctx=1024)
    stream = llm.chat(HI, stream=True, temperature=0)
    assert_type(stream, Stream)
    assert "".join(map(str, stream)) == CHAT_TEXT
    assert "".join(piece.text for piece in llm.stream(HI, temperature=0)) == CHAT_TEXT


def test_what_was_thought_is_apart(load: Load) -> None:
    answer = load("thinker", ctx=1024).chat("Hi?", temperature=0)
    assert answer.text == THOUGHT_TEXT
    assert answer.said == "Hello there."


def test_notices_of_an_answer(load: Load) -> None:
    turns = [{"role": "system", "content": "Be kind."}, *HI]
    answer = load("no-system", ctx=1024).chat(turns, temperature=0)
    assert [notice.code for notice in answer.notices] == ["template-roles"]


def test_a_template_by_its_name(load: Load) -> None:
    answer = load("parrot", template="chatml").chat("Hi?", temperature=0, max_tokens=20)
    assert answer.prompt_tokens > 10


def test_seeds(load: Load) -> None:
    llm = load("target", seed=5)
    said = [llm.generate("a", max_tokens=12) for _ in range(2)]
    assert [answer.seed for answer in said] == [5, 5]
    assert said[0].text == said[1].text
    assert llm.generate("a", max_tokens=12, seed=6).text != said[0].text
    drawn = {load("parrot").generate("a", max_tokens=1).seed for _ in range(2)}
    assert len(drawn) == 2


def test_options_reach_the_engine(load: Load) -> None:
    llm = load("chatter", "chatter")
    greedy: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
    assert llm.generate("a", **greedy).text == " one two three four five six seven eight"
    assert llm.generate("a", **greedy, stop=" four").text == " one two three"
    ended = llm.generate("a", **greedy, stop=[" five", " three"])
    assert (ended.text, ended.finish_reason) == (" one two", "stop")
    assert llm.generate("a", **greedy, spec="off").speculation["drafted"] == 0
    drafting = llm.generate("a", **greedy, spec="model", draft_max=2, verify="block")
    assert len(drafting.speculation["histogram"]) == 3 and drafting.verify == "block"
    token = llm.generate("a", **greedy, probabilities=True).tokens[0]
    assert token.rank == 1 and token.p_target is not None
    assert llm.generate("a", **greedy, repeat_penalty=1e9).text.count(" one") == 1
    assert llm.generate("a", max_tokens=2, top_k=1, top_p=None, min_p=0.5).text == " one two"


SENSELESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"temperature": -1}, "temperature cannot be -1"),
    ({"temperature": float("nan")}, "temperature"),
    ({"max_tokens": 0}, "max_tokens cannot be 0"),
    ({"spec": "magic"}, "spec cannot be 'magic'"),
    ({"seed": -1}, "seed cannot be -1"),
    ({"seed": 1.5}, "seed cannot be 1.5"),
    ({"stop": [""]}, "stop cannot be"),
    ({"stop": 5}, "stop cannot be 5"),
    ({"raw": "no"}, "raw cannot be 'no'"),
    ({"grammar": ""}, "grammar cannot be ''"),
    ({"draft_max": 99}, "draft_max cannot be 99"),
)


def test_options_that_make_no_sense(load: Load) -> None:
    llm = load("parrot")
    for options, words in SENSELESS:
        with pytest.raises(errors.UsageError, match=words) as refused:
            llm.generate("a", **options)
        assert refused.value.hint
    assert llm.generate("a", temperature=0).text == HELLO_TEXT


def test_an_unknown_option_is_a_type_error(load: Load) -> None:
    llm: Any = load("parrot")
    with pytest.raises(TypeError, match="Did you mean 'temperature'"):
        llm.generate("a", temprature=0)
    with pytest.raises(TypeError, match="no option called 'gpus'"):
        LLM("demo", gpus=2)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda llm: llm.generate(""), "The prompt cannot be ''"),
        (lambda llm: llm.generate(7), "The prompt cannot be 7"),
        (lambda llm: llm.chat([]), "The chat is empty"),
        (lambda llm: llm.chat([{"role": "bot", "content": "x"}]), "A message cannot be"),
        (lambda llm: llm.chat(["Hi?"]), "A message cannot be 'Hi\\?'"),
        (lambda llm: llm.count(None), "A chat cannot be None"),
        (lambda llm: llm.chat("Hi?"), "no chat template"),
        (lambda llm: llm.generate("a", spec="model"), "needs a draft model"),
    ],
)
def test_questions_that_make_no_sense(load: Load, call: Any, words: str) -> None:
    llm = load("parrot")
    with pytest.raises(errors.UsageError, match=words) as refused:
        call(llm)
    assert refused.value.hint and "--" not in refused.value.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ctx": 0}, "ctx cannot be 0"),
        ({"ctx": "big"}, "ctx cannot be 'big'"),
        ({"kv": "q3"}, "kv cannot be 'q3'"),
        ({"spec": "never"}, "spec cannot be 'never'"),
        ({"spec": "eagle3"}, "does not support 'eagle3': its draft is a model"),
        ({"spec": "mtp", "draft": "none"}, "'mtp' needs a draft model"),
        ({"split": ["a"]}, "split cannot be"),
        ({"template": "nonsense"}, "Unknown chat template"),
        ({"seed": "x"}, "seed cannot be 'x'"),
        ({"exact": "off"}, "exact cannot be 'off'"),
        ({"exact": True, "kv": "f16"}, "Exact mode does not work with a KV cache in f16"),
        ({"overlap": "on"}, "overlap cannot be 'on'"),
        ({"draft": ""}, "draft cannot be ''"),
        ({"workers": "gpu-box:x"}, "'gpu-box:x' is no worker's address"),
    ],
)
def test_machines_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        LLM("demo", **options)


@pytest.mark.parametrize("model", ["", 5])
def test_a_model_without_a_name(model: Any) -> None:
    """A script's empty variable is not the pair of the last run."""
    with pytest.raises(errors.UsageError, match=f"model cannot be {model!r}"):
        LLM(model)


def test_a_model_by_a_path_object(zoo: Zoo) -> None:
    with LLM(Path(zoo["parrot"]), Path(zoo["parrot"])) as llm:
        assert llm.generate("a", temperature=0).text == HELLO_TEXT


def test_typed_refusals(load: Load, zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="no entry demmo"):
        LLM("demmo")
    with pytest.raises(errors.NotFoundError) as missing:
        LLM("qwen3-8b")
    assert missing.value.hint.startswith("Get it: localspec pull qwen3-8b")
    assert "pull=True" in missing.value.hint
    with pytest.raises(errors.IncompatiblePairError, match="token 257") as unlike:
        LLM(str(zoo["target"]), str(zoo["renamed"]))
    assert 'or draft="none" (' in unlike.value.hint
    notes = tmp_path / "notes.txt"
    notes.write_text("hello")
    with pytest.raises(errors.ModelFileError):
        LLM(str(notes))
    llm = load("parrot")
    with pytest.raises(LocalspecError) as long:
        llm.generate("z" * 2000)
    assert isinstance(long.value, errors.PromptTooLongError)
    assert llm.generate("a", temperature=0).text == HELLO_TEXT


def test_an_answer_that_goes_wrong_keeps_what_was_said(load: Load) -> None:
    llm = load("nan-later")
    with pytest.raises(errors.EngineError) as failure:
        llm.generate("a", temperature=0)
    assert failure.value.said and HELLO_TEXT.startswith(failure.value.said)


def test_what_was_measured_is_kept(load: Load, tmp_path: Path) -> None:
    """A pair is probed only once; answers add to its measurements."""
    store = measurements.MeasurementStore(tmp_path / "data" / "measured.sqlite")
    with load("target", "cousin") as first:
        (probed,) = store.read_all()
        for n in range(3):
            first.generate(f"a{n}", max_tokens=8)
    (taught,) = store.read_all()
    with load("target", "cousin") as second:
        (before,) = store.read_all()
        assert before.measured == taught.measured, "not measured again"
        second.generate("a", max_tokens=8)
    (kept,) = store.read_all()
    assert probed.key == taught.key == kept.key
    assert probed.measured != taught.measured != kept.measured


def test_an_engine_and_its_words(load: Load) -> None:
    llm = load("parrot")
    assert repr(llm).endswith("model='parrot.gguf', draft=None, ctx=512)")
    assert llm.ready.settings["target"]["n_ctx"] == 512
    assert "settings" in [notice.code for notice in llm.notices]
    with llm as same:
        assert same is llm and not llm.closed
    assert llm.closed and repr(llm).endswith(", closed)")
    with pytest.raises(errors.UsageError, match="This LLM is closed"):
        llm.generate("a")
    llm.close()


def test_a_draft_that_is_not_used_is_not_loaded(load: Load) -> None:
    llm = load("demo", spec="off")
    assert llm.ready.draft is None
    assert llm.generate("import", max_tokens=4).speculation["drafted"] == 0
    assert llm.generate("import", max_tokens=4, spec="auto").text


def test_help_shows_every_option() -> None:
    shown = inspect.signature(LLM.generate).parameters
    assert list(shown)[:4] == ["self", "prompt", "max_tokens", "temperature"]
    assert shown["seed"].annotation == "int | None" and shown["seed"].default is None
    assert "options" not in shown and "kv" in inspect.signature(LLM.__init__).parameters
    for method in (LLM.generate, LLM.chat, LLM.stream, LLM.agenerate, LLM.achat, LLM.astream):
        assert "stop" in inspect.signature(method).parameters and method.__doc__


def test_exact_mode_is_chosen_at_the_load(load: Load) -> None:
    llm = load("demo", exact=True)
    assert llm.ready.settings["target"]["kv_type"] == "q8_0/f16"
    assert "exact" in [notice.code for notice in llm.notices]
    with pytest.warns(UserWarning, match="exact is ignored here"):
        assert llm.generate("Hello", exact=False, max_tokens=4).tokens
    assert load("demo", exact="auto").ready.settings["target"]["kv_type"] == "f16"


def test_answers_satisfy_a_schema_or_follow_a_grammar(load: Load) -> None:
    llm = load("demo")
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}

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
    for wrong, kind in (("{", errors.UsageError), (3, errors.UsageError)):
        with pytest.raises(kind):
            llm.generate("a = ", json_schema=wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.GrammarError):
        llm.generate("a = ", json_schema={"not": {}})
