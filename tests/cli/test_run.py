"""`localspec run` in a process of its own, on models whose words are known."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from localspec.chat.answer import PLAIN_SPEED
from localspec.protocol.events import (
    EngineReady,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    SpeculationPlan,
    decode,
    token_to_json,
)
from tests.support.installation import DEEP, HEAD, Installation
from tests.support.run_command import Done, command, finish, harmful, hello, localspec
from tests.support.zoo import CHAT_TEXT, HELLO_TEXT, Zoo

GREEDY = ("--temperature", "0")


def test_what_is_piped_follows_the_prompt(zoo: Zoo) -> None:
    """After a blank line.  Blank lines alone add nothing."""
    ask = ("run", zoo["target"], *GREEDY, "--max-tokens", "8", "--json", "-p")

    def told(prompt: str, piped: bytes = b"") -> tuple[int, str]:
        document = localspec(*ask, prompt, stdin=piped).document
        return document["prompt_tokens"], document["text"]

    alone = told("sum up:")
    assert told("sum up:", b" \n") == alone
    assert (
        told("sum up:", b"text") == told("sum up:\n\ntext") != told("text\n\nsum up:")
    )


def test_standard_input_that_is_not_utf8_is_said_to_be_so(zoo: Zoo) -> None:
    done = localspec("run", zoo["parrot"], *GREEDY, stdin="für".encode("latin-1"))
    assert done.code == 0
    assert "Standard input is not UTF-8: read as Windows-1252" in done.err
    assert localspec("run", zoo["parrot"], *GREEDY, "-q", stdin=b"f\xff").err == ""
    binary = localspec("run", zoo["parrot"], *GREEDY, stdin=b"a\xff\xfe\x00b")
    assert (binary.code, binary.out) == (2, b"") and "is not text" in binary.err


def test_the_model_is_named_where_it_is_not_the_default(zoo: Zoo) -> None:
    ask = ("-p", "a", "--max-tokens", "2")
    assert localspec("run", *ask).err == "", "the default pair"
    assert localspec("run", zoo["parrot"], *ask).err == ""
    again = localspec("run", *ask, "--json")
    assert again.document["model"] == "parrot.gguf"
    assert (
        again.err.startswith("localspec: Answering with ")
        and "the last one used" in again.err
    )
    assert localspec("run", *ask, "-q").err == ""


def test_the_document_holds_what_the_contract_says(zoo: Zoo) -> None:
    document = hello(zoo, "--json", "--seed", "7", "--spec", "model").document
    assert (document["schema"], document["text"]) == (1, HELLO_TEXT)
    assert "".join(token["text"] for token in document["tokens"]) == HELLO_TEXT
    assert all(set(token) == {"id", "text", "class"} for token in document["tokens"])
    assert document["finish_reason"] == "eog"
    assert (document["model"], document["draft"]) == ("parrot.gguf", "parrot.gguf")
    assert (document["seed"], document["verify"]) == (7, "coupled")
    assert document["prompt_tokens"] == 2  # BOS and "▁a"
    times = {
        "load_ms",
        "prefill_ms",
        "first_token_ms",
        "decode_ms",
        "tokens_per_second",
    }
    assert set(document["timings"]) == times
    assert all(value > 0 for value in document["timings"].values())
    speculation = document["speculation"]
    assert speculation.pop("host_ms_per_round") > 0
    # Plain ("▁Hello"), five accepted and a bonus, and the end token, which was drafted
    # too.
    assert speculation == {
        "rounds": 2,
        "drafted": 7,
        "accepted": 7,
        "acceptance_rate": 1.0,
        "mean_accepted_length": 4.0,
        "histogram": [0, 0, 1, 0, 0, 1],
        "by_source": {"model": {"drafted": 7, "accepted": 7}},
        "paused_rounds": 1,
    }
    plain = hello(zoo, "--json", "--spec", "off", "--max-tokens", "4").document
    nothing = (plain["draft"], plain["speculation"]["acceptance_rate"])
    assert nothing == (None, None) and plain["speculation"]["drafted"] == 0
    assert (len(plain["tokens"]), plain["finish_reason"]) == (4, "length")


def test_json_is_one_line_of_ascii_whatever_is_said(zoo: Zoo) -> None:
    done = localspec(
        "run", zoo["hostile"], "-p", "a", *GREEDY, "--json", "--stats", "--tokens"
    )
    assert done.out.isascii() and done.out.count(b"\n") == 1 and not harmful(done.out)
    assert "]52;c" in done.document["text"]


def test_events_are_lines_with_probabilities_where_asked_for(
    zoo: Zoo, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    done = hello(
        zoo, "--events", str(file), "--json", "--spec", "model", "--probabilities"
    )
    lines = file.read_text("utf-8").splitlines()
    assert all(json.loads(line)["v"] == 1 for line in lines)
    events = [decode(line) for line in lines]
    kinds = [type(event) for event in events]
    assert (kinds[0], kinds[-1]) == (EngineReady, GenerationFinished)
    assert set(kinds) <= {
        EngineReady,
        SpeculationPlan,
        Prefill,
        Round,
        Notice,
        GenerationFinished,
    }
    end = events[-1]
    assert isinstance(end, GenerationFinished)
    # Only a recording has what a replay compares the answer with.
    added = set(end.totals["timings"]) - set(done.document["timings"])
    assert added <= {PLAIN_SPEED}
    rounds = [event for event in events if isinstance(event, Round)]
    assert [event.n for event in rounds] == list(range(len(rounds)))
    tokens = list(itertools.chain.from_iterable(event.tokens for event in rounds))
    assert [token_to_json(token) for token in tokens] == done.document["tokens"]
    for token in tokens:
        assert token.rank == 1
        assert token.p_target is not None and token.p_target > 0
        assert len(token.alternatives) == 3


def test_stats_are_talk(zoo: Zoo) -> None:
    done = hello(zoo, "--stats", "--seed", "5", "--spec", "model")
    assert done.text == HELLO_TEXT + "\n"
    rate = (
        "acceptance rate 7 of 7 · 3.0 tokens per target pass · 3 passes, 2 with a draft"
    )
    for words in (
        "7 of 7 guesses right",
        rate,
        "tok/s",
        "seed 5",
        "accepted tokens per round",
    ):
        assert words in done.err
    assert re.search(r"memory .* GB, .* GB less than estimated", done.err), (
        "an upper bound"
    )


def test_one_answer_may_end_in_its_thinking(zoo: Zoo) -> None:
    asked = ("run", zoo["thinker"], "-p", "hello", *GREEDY)
    short = localspec(*asked, "--max-tokens", "4")
    assert short.code == 0 and "ended while the model was still thinking" in short.err
    budget = localspec(*asked, "--think-budget", "2")
    assert budget.text.endswith("Hello there.\n") and "still thinking" not in budget.err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--think", "on"), "so it cannot be turned on"),
        (("--reasoning-effort", "high"), "so no effort high"),
        (("--think-budget", "9"), "so no thinking budget"),
    ],
)
def test_thinking_is_refused_by_a_model_without_it(
    zoo: Zoo, options: tuple[str, str], what: str
) -> None:
    done = hello(zoo, *options)
    assert (done.code, done.out) == (2, b"")
    assert f"This model's chat template has no thinking, {what}." in done.err
    assert hello(zoo, "--think", "off").text == HELLO_TEXT + "\n"


def test_one_answer_of_a_chat_model(zoo: Zoo) -> None:
    asked = ("run", zoo["chatty"], "-p", "hello", *GREEDY)
    assert localspec(*asked).text == CHAT_TEXT + "\n"
    chatml = localspec(
        *asked, "--template", "chatml", "--system", "Be brief.", "--json"
    ).document
    raw = localspec(*asked, "--raw", "--json").document
    assert raw["prompt_tokens"] < chatml["prompt_tokens"]
    assert localspec(*asked, "--raw", "--template", "chatml").code == 2


def test_a_stop_text_cuts_the_answer(zoo: Zoo) -> None:
    document = hello(zoo, "--json", "--stop", "zzz", "--stop", "\n").document
    assert (document["text"], document["finish_reason"]) == (" Hello, world!", "stop")
    held_back = hello(zoo, "--stop", "!X", "--max-tokens", "5")
    assert held_back.text == " Hello, world!\n", (
        "what might have become a stop text is printed"
    )


def test_a_drawn_seed_gives_its_text_again_if_coupled_was_asked_for(zoo: Zoo) -> None:
    options = ("run", zoo["target"], "-p", "é漢字", "--max-tokens", "24", "--json")
    drawn = localspec(*options, "--verify", "coupled").document
    again = localspec(*options, "--seed", str(drawn["seed"]), "--spec", "off").document
    assert again["text"] == drawn["text"]


def test_it_is_said_that_a_drawn_seed_does_not_give_its_text_again(zoo: Zoo) -> None:
    options = ("run", zoo["target"], "-p", "é漢字", "--max-tokens", "24")
    assert localspec(*options, "--json").document["verify"] == "block"
    assert "(not repeatable: block)" in localspec(*options, "--stats").err
    assert "not repeatable" not in localspec(*options, "--stats", "--seed", "7").err


def test_a_preset_gives_what_the_command_line_leaves_open(
    zoo: Zoo, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(
        "[presets.short]\nmax_tokens = 3\ntemperature = 0\nspec = 'off'\n"
    )
    given = ("run", zoo["parrot"], "-p", "a", "--json", "--preset", "short")
    plain = localspec(*given).document
    assert (len(plain["tokens"]), plain["finish_reason"]) == (3, "length")
    assert len(localspec(*given, "--max-tokens", "2").document["tokens"]) == 2
    unknown = localspec("run", zoo["parrot"], "-p", "a", "--preset", "long")
    assert unknown.code == 3 and "Presets: short." in unknown.err


def test_options_as_typed_for_llama_cpp_give_the_same_answer(zoo: Zoo) -> None:
    ours = hello(zoo, "--max-tokens", "5", "--ctx", "64", "--threads", "1", "--json")
    llama_cpp = ("-p", "a", "--temp", "0", "-n", "5", "-c", "64", "-t", "1")
    model = str(zoo["parrot"])
    drafted = ("-md", model, "--spec-draft-n-max", "4", "--top_k", "40", "-ngl", "0")
    theirs = localspec("run", "-m", model, *llama_cpp, *drafted, "--json")
    assert (ours.code, theirs.code) == (0, 0), theirs.text
    assert theirs.document["text"] == ours.document["text"] != ""
    assert len(theirs.document["tokens"]) == len(ours.document["tokens"]) == 5


@pytest.mark.parametrize(
    ("typed", "what", "hint"),
    [
        ("run demo -ctk q8_0", "localspec run has no option -ctk.", "--kv f16"),
        ("run demo -np 2", "localspec run has no option -np.", "one request after"),
        ("serve demo --api-key x", "no option --api-key.", "LOCALSPEC_API_KEY"),
        ("fit demo --temp 1", "localspec fit has no option --temp.", "--temperature"),
        ("run demo --draft 16", "'--draft'", "--draft-max 16"),
        ("run demo --tempratur 1", "'--tempratur'", "Did you mean --temperature?"),
        ("run demo --tempt 1", "'--tempt'", "Did you mean --temperature?"),
        ("-m big.gguf", "'-m'", "localspec run MODEL"),
    ],
)
def test_an_option_that_is_not_here_is_refused_with_the_one_that_is(
    typed: str, what: str, hint: str
) -> None:
    done = localspec(*typed.split())
    assert done.code == 2
    assert what in done.err and hint in done.err


def test_what_looks_like_an_option_may_be_the_value_of_one(zoo: Zoo) -> None:
    done = localspec("run", zoo["parrot"], "-p", "-np", "--max-tokens", "3")
    assert done.code == 0, done.err


def test_an_unusable_schema_or_grammar_is_refused() -> None:
    """By its reader or, with code 16, by the engine."""
    for options, code in [
        (("--json-schema", "none.json"), 3),
        (("--json-schema", "{}", "--grammar", __file__), 2),
        (("--json-schema", '{"not": {}}'), 16),
        (("--grammar", __file__), 16),
    ]:
        done = localspec("run", "demo", "-p", "a = ", *options, "--json")
        assert (done.code, bool(done.document["error"]["message"])) == (code, True)


def test_an_abort_of_llama_cpp_is_named_and_logged(zoo: Zoo, tmp_path: Path) -> None:
    env = {"LOCALSPEC_DATA_DIR": str(tmp_path)}
    # llama.cpp aborts
    model = Path(shutil.copy(zoo["no-bytes"], tmp_path / "model.gguf"))
    ask = ("run", model, "-p", "жж", "--max-tokens", "3", "--draft", "none")
    end = localspec(*ask, "-v", env=env)
    assert end.code == 9 and "The engine stopped: llama.cpp aborted." in end.err
    assert f"Engine log: {tmp_path / 'engine.log'}" in end.err
    assert "this engine ended: assert" in (tmp_path / "engine.log").read_text(
        encoding="utf-8"
    )


def limited(kib: int, *arguments: str | Path) -> Done:
    """With so much address space for the command and its engine."""
    return finish(
        ["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", *command(*arguments)]
    )


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits on the address space")
@pytest.mark.parametrize("with_draft", [False, True])
def test_memory_that_runs_out_is_explained(
    zoo: Zoo, tmp_path: Path, with_draft: bool
) -> None:
    """Fewer and fewer bytes, until the engine starts but there is none for a context.

    It is the context of the target, or that of the draft.
    """
    draft: str | Path = "none"
    if with_draft:
        draft = Path(shutil.copy(zoo["vast"], tmp_path / "small.gguf"))
    ask = ("run", zoo["vast"], "-p", "x", "--ctx", "1048576", "--max-tokens", "1")
    told = []
    for kib in range(4_000_000, 400_000, -150_000):
        done = limited(kib, *ask, "--draft", draft)
        told.append(done.err)
        is_named = not with_draft or "small.gguf" in told[-1]
        if done.code == 11 and is_named:
            if with_draft:
                assert "--draft none" in told[-1]
                assert limited(kib, *ask, "--draft", "none").code == 0
            else:
                assert "Estimated " in told[-1]
            return
    raise AssertionError(told)


ANSWER = ("-p", "a", "--max-tokens", "12", "--temperature", "0")


def test_a_pulled_head_is_used_and_said(computer: Installation) -> None:
    """Through the links of the hub's cache, and from the folder of a later commit too."""
    computer.pulled(DEEP)
    alone = computer.do("run", DEEP, *ANSWER, "--json")
    assert alone.code == 0, alone.err
    assert alone.document["draft"] is None and "Drafting with" not in alone.err
    computer.hub.commit = "2" * 40
    pulled = computer.do("pull", HEAD, "-y")
    assert pulled.code == 0 and "used automatically" in pulled.err, pulled.err
    said = "rafting with the EAGLE-3 head eagle3-Deep-Q8_0.gguf in the model's folder"
    small = computer.do("run", DEEP, *ANSWER, "--json")
    assert small.document["draft"] is None
    assert f"Not d{said}: about " in small.err
    (named,) = re.findall(
        r"To use it anyway: --draft (\S+)\.$", small.err, re.MULTILINE
    )
    assert computer.do("run", DEEP, *ANSWER, "--json", "--draft", named).document[
        "draft"
    ]
    told = computer.do("run", DEEP, *ANSWER, "--json", "--spec", "model")
    assert told.code == 0, told.err
    assert told.document["draft"] == "eagle3-Deep-Q8_0.gguf"
    assert told.document["text"] == alone.document["text"]
    assert f"D{said}. To disable: --draft none." in told.err
