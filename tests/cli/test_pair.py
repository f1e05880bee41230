"""`localspec pair`: suggestions, verdicts, and drafts judged by answers."""

import json
import re
from contextlib import closing
from pathlib import Path

from localspec.chat.conversation import Conversation
from localspec.chat.history import ChatHistory
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from tests.chat.saved_chats import about, add_events
from tests.support import sessions
from tests.support.installation import DEEP, HEAD, INSIDE, Installation
from tests.support.run_command import localspec
from tests.support.zoo import Zoo


def test_pairs_for_a_gpu() -> None:
    done = localspec(
        "pair", "suggest", "--gpu", "RTX 3060, 12 GiB", "--use", "chat", "--json"
    )
    assert done.code == 0, done.err
    said = done.document
    assert said["gpu"] is True and 11 << 30 < said["memory"] <= 12 << 30
    for pair in said["pairs"]:
        assert set(pair) == {
            *(
                "id",
                "target",
                "draft",
                "sees",
                "hears",
                "bytes",
                "needed",
                "verdict",
                "speed",
                "reasons",
            ),
            *("name", "plain", "to_free", "group", "reason"),
        }
        assert pair["needed"] <= said["memory"] and pair["reasons"]
    unknown = localspec("pair", "suggest", "--gpu", "RTX 3960")
    assert unknown.code == 3 and "RTX 3" in unknown.err


def test_the_advice_is_three_best_and_then_the_others_by_kind() -> None:
    """Each line has the memory, the middle of both speeds, and one reason."""
    done = localspec("pair", "suggest", "--gpu", "RTX 3090")
    assert done.code == 0, done.err
    lines = done.text.splitlines()
    assert lines[0] == "Best for this card"
    best = lines[1 : lines.index("")]
    assert len(best) == 3
    for line in best:
        assert re.search(r"\S+  +\d+\.\d of 24 GB +≈ \d+ → \d+ tok/s +\w", line)
    assert {"Faster", "Larger, partly in RAM", "Older"} <= set(lines)
    assert not re.search(r"\blookup\b|untested|\d–\d", done.text)
    assert "Download one: localspec pull gemma-4-31b+mtp" in done.err


def test_advice_for_a_computer_that_has_no_gpu() -> None:
    done = localspec("pair", "suggest", "--cpu", "Ryzen 5 3600", "--ram", "16")
    assert done.code == 0, done.err
    assert "For a computer without a GPU (Ryzen 5 3600), 16.0 GB:" in done.err
    assert "tok/s" in done.text


def test_a_longer_context_is_a_wish_of_the_advice() -> None:
    asked = ("pair", "suggest", "--gpu", "RTX 3090", "--use", "code", "--json")
    for n_ctx in (8192, 32768):
        done = localspec(*asked, "--ctx", str(n_ctx))
        assert done.code == 0, done.err
        best = done.document["pairs"][0]
        assert f"with a context of {n_ctx:,}" in best["reasons"][0]
    assert best["target"] == "qwen3.8-27b"


def test_what_does_not_fit_says_what_to_take() -> None:
    done = localspec("pair", "suggest", "llama-3.3-70b", "--gpu", "RTX 4060")
    assert "Does not fit: take qwen3.5-9b+mtp." in done.text


def test_pairs_for_this_computer() -> None:
    done = localspec("pair", "suggest", "--json")
    assert (
        done.code == 0 and done.document["gpu"] is False and done.document["memory"] > 0
    )


def test_all_pairs() -> None:
    pairs = localspec("pair", "list", "--json").document["pairs"]
    assert [pair["here"] for pair in pairs if pair["id"] == "demo"] == [True]
    assert {pair["status"] for pair in pairs} == {"verified", "reported", "untested"}


def test_drafts_are_judged_by_answers_of_their_target(zoo: Zoo, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the one\n\nin the end\n")
    drafts = (zoo["target"], zoo["stranger"], "lookup")
    asked = ("pair", "test", zoo["target"], *drafts, "--tokens", "60", "-q", "--json")
    done = localspec(*asked, "--file", prompts)
    assert done.code == 0, done.err
    found = {Path(each["draft"]).stem: each for each in done.document["drafts"]}
    same, stranger = (found[name]["by_length"]["3"] for name in ("target", "stranger"))
    # wide passes round differently
    assert same["accepted"] > 0.8 * same["drafted"] > 30
    assert stranger["accepted"] < same["accepted"] / 2
    speeds = [each["speedup"] for each in done.document["drafts"]]
    assert (
        speeds == sorted(speeds, reverse=True) and found["lookup"]["kind"] == "lookup"
    )
    fit = localspec("fit", zoo["target"], "--draft", zoo["stranger"], "--json").document
    assert "measured with this pair" in json.dumps(fit)


def test_drafts_are_judged_by_kept_answers_with_the_seeds_they_had(zoo: Zoo) -> None:
    """The target itself drafts what it answered, by the noise of the chat's seed."""
    asked = ("pair", "test", zoo["chatty"], zoo["chatty"], "--chats", "--json")
    assert "kept chats" in localspec(*asked).document["error"]["message"]
    settings = ChatSettings(max_tokens=60)
    conversation = Conversation(7, "be brief")
    conversation.ask("Say it again")
    conversation.set_model(zoo["chatty"].stem)
    with (
        sessions.loaded(zoo["chatty"]) as session,
        closing(ChatHistory.open()) as history,
    ):
        loaded_model = LoadedModel.from_ready(session.ready)
        request = build_request(settings, conversation, loaded_model)
        add_events(conversation, list(session.generate(request)))
        history.save_chat(None, about(conversation, settings), conversation.all_turns)
    (judged,) = localspec(*asked).document["drafts"]
    rates = judged["by_length"]["3"]
    assert rates["accepted"] > 0.8 * rates["drafted"] > 20


def test_what_does_not_match_is_named(computer: Installation) -> None:
    good = computer.do("pair", "check", DEEP, HEAD, "--json")
    assert good.code == 0, good.err
    assert good.document["verdict"] == "compatible"
    layers = computer.do(
        "pair", "check", DEEP, f"hf://{DEEP}/dflash-Deep-Q8_0.gguf", "--json"
    )
    assert layers.code == 5
    assert (
        layers.document["rule"] == "layers" and "layer 9" in layers.document["detail"]
    )
    own = computer.do("pair", "check", INSIDE, INSIDE)
    assert own.code == 0 and "its own MTP layer" in own.text
    fit = computer.do("fit", "tiny", "--draft", HEAD)
    assert fit.code == 5 and "it reads layer 2 of its target" in fit.err
    assert not computer.cache.exists(), "by headers alone"
