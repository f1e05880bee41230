"""Chat settings: parsing, refusals, formatting, and the request they produce."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.chat.conversation import Conversation
from localspec.chat.settings import (
    CHAT_SETTING_FIELDS,
    COMPLETION_MAX_TOKENS,
    ChatSettings,
    LoadedModel,
    build_request,
    find_field,
)
from localspec.errors import UsageError
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import ChatMessage, SamplingParams


def test_a_value() -> None:
    for name, text, value, shown in [
        ("temperature", "0", 0.0, "0"),
        ("temp", "0,7", 0.7, "0.7"),
        ("top-k", "40", 40, "40"),
        ("num_predict", "12", 12, "12"),
        ("topKSampling", "40", 40, "40"),
        ("TOP_P", "1", 1.0, "1"),
        ("max_tokens", "12", 12, "12"),
        ("max_tokens", "auto", None, "auto"),
        ("draft_length", "auto", None, "auto"),
        ("spec", "Lookup", "lookup", "lookup"),
        ("spec", "on", "auto", "auto"),
        ("exact", "on", True, "on"),
        ("think", "off", False, "off"),
        ("show_thinking", " on ", True, "on"),
        ("think_budget", "0", 0, "0"),
        ("overflow", "Drop", "drop", "drop"),
    ]:
        changed = ChatSettings().with_value(name, text)
        assert (
            changed.format_value(name) == shown
            and changed.get(find_field(name)) == value
        )


def test_a_refusal_says_what_is_possible() -> None:
    for name, text in [
        ("temperature", "-1"),
        ("temperature", "nan"),
        ("temperature", ""),
        ("top_p", "0"),
        ("top_k", "1.5"),
        ("top_k", "9" * 5000),
        ("draft_max", "63"),
        ("spec", "eagle"),
        ("exact", "maybe"),
    ]:
        with pytest.raises(UsageError) as refused:
            ChatSettings().with_value(name, text)
        assert CHAT_SETTING_FIELDS[name].hint in refused.value.hint
        assert len(refused.value.message) < 120


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="no setting called 'temprature'") as refused:
        ChatSettings().with_value("temprature", "1")
    assert refused.value.hint == "Did you mean temperature?"


def ready(**settings: Any) -> EngineReady:
    return EngineReady(
        {}, "m.gguf", None, (), {"target": {"n_ctx": 512}, **settings}, {}, 1.0
    )


def test_the_drafter_of_the_catalogue_needs_its_draft() -> None:
    """A draft for which memory is short is not loaded."""
    alone = ready()
    with_draft = replace(alone, draft="d.gguf")

    loaded = LoadedModel.from_ready(with_draft, "model", "the catalogue says so")
    without = LoadedModel.from_ready(alone, "model", "the catalogue says so")
    lookup = LoadedModel.from_ready(alone, "lookup", "the catalogue says so")

    assert (loaded.spec, loaded.spec_reason) == ("model", "the catalogue says so")
    assert (without.spec, without.spec_reason) == ("auto", "")
    assert (lookup.spec, lookup.spec_reason) == ("lookup", "the catalogue says so")


def test_a_completion_model_is_given_text() -> None:
    chat = Conversation(7, "# system")
    chat.ask("import os")
    with_draft = replace(ready(), draft="d.gguf")
    asked = build_request(
        ChatSettings(think=True),
        chat,
        LoadedModel.from_ready(with_draft, "model", "for show"),
    )
    assert (asked.text, asked.messages) == ("# system\nimport os", ())
    assert (asked.spec, asked.why) == ("model", "for show")
    assert (asked.max_tokens, asked.think) == (COMPLETION_MAX_TOKENS, None)
    assert asked.sampling.seed == chat.derive_seed()


def test_a_chat_model_is_given_messages() -> None:
    chat = Conversation(7, "be brief")
    chat.ask("hello")
    about = ready(chat={"template": "own", "thinking": ["<t>", "</t>"]})
    loaded = LoadedModel.from_ready(about)
    assert loaded.thinking_markers == ("<t>", "</t>")
    asked = build_request(
        ChatSettings(spec="off", think=False), chat, loaded, probabilities=True
    )
    assert asked.messages == (
        ChatMessage("system", "be brief"),
        ChatMessage("user", "hello"),
    )
    assert (asked.text, asked.template, asked.max_tokens) == ("", None, 512)
    assert (asked.spec, asked.why, asked.think, asked.probabilities) == (
        "off",
        "",
        False,
        True,
    )
    raw = build_request(ChatSettings(), chat, LoadedModel.from_ready(about, raw=True))
    assert (raw.text, raw.messages) == ("be brief\nhello", ())
    # of a model without its own
    loaded = LoadedModel.from_ready(ready(), template="chatml")
    asked = build_request(ChatSettings(), chat, loaded)
    assert (asked.template, len(asked.messages)) == ("chatml", 2)


def test_stop_strings_a_seed_and_a_schema_are_typed_and_sent(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{\n  "type": "object"\n}')
    settings = (
        ChatSettings().with_value("seed", "7").with_value("json_schema", str(file))
    )
    for typed, stop in (
        ("END", ("END",)),
        (r"\n\n", ("\n\n",)),
        ('["a", "B c"]', ("a", "B c")),
        ('["[", " b "]', ("[", " b ")),
        ("none", ()),
    ):
        changed = settings.with_value("stop", typed)
        assert changed.stop == stop
        assert changed.with_value("stop", changed.format_value("stop")) == changed
        chat = Conversation(1)
        chat.ask("a")
        asked = build_request(changed, chat, LoadedModel.from_ready(ready()))
        assert (asked.stop, asked.json_schema) == (stop, '{"type": "object"}')
        assert asked.sampling.seed != chat.derive_seed() == chat.derive_seed(chat.seed)
        assert asked.sampling.seed == chat.derive_seed(7)
    for name, wrong in (
        ("stop", "[1]"),
        ("stop", "["),
        ("json_schema", "{"),
        ("seed", "x"),
    ):
        with pytest.raises(UsageError):
            settings.with_value(name, wrong)
    assert settings.with_value("seed", "auto").seed is None


@pytest.mark.parametrize(
    ("settings", "verify", "repeats"),
    [
        (ChatSettings(), "auto", False),
        (ChatSettings(seed=7), "coupled", True),
        (ChatSettings(seed=7, verify="block"), "block", False),
        (ChatSettings(verify="coupled"), "coupled", True),
        (ChatSettings(SamplingParams(temperature=0)), "auto", True),
        (ChatSettings(spec="off"), "auto", True),
    ],
)
def test_only_a_seed_that_was_asked_for_needs_a_verifier_that_repeats_texts(
    settings: ChatSettings, verify: str, repeats: bool
) -> None:
    chat = Conversation(1)
    chat.ask("a")
    asked = build_request(settings, chat, LoadedModel.from_ready(ready()))
    assert asked.verify == verify
    assert settings.repeats_texts is repeats
