"""Chats through a session: templates, roles, thinking, and what is told of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.engine.chat_prompt import PromptBuilder
from localspec.engine.session import Session
from localspec.errors import PromptTooLongError, UsageError
from localspec.protocol.events import Event, Notice, Prefill, SpeculationPlan
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    CountCommand,
    GenerateCommand,
    RenderResult,
    SamplingParams,
)
from tests.sessions import GREEDY, Said, folded, loaded, say
from tests.support import tinygguf
from tests.support import zoo as animals
from tests.support.zoo import CHAT_TEXT, HELLO_TEXT, THOUGHT_TEXT, Zoo

ROOMY = ContextSettings(flash_attn="on", n_ctx=2048, n_ubatch=64, n_threads=1)
SYSTEM = ChatMessage("system", "Be kind.")
HI = ChatMessage("user", "Hi?")
NAMES = {"chatty": CHAT_TEXT, "thinker": THOUGHT_TEXT, "no-system": CHAT_TEXT}


@pytest.fixture(scope="module", params=NAMES)
def named(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[tuple[str, Session]]:
    name = request.param
    with loaded(zoo[name], zoo[name], ROOMY) as session:
        yield name, session


@pytest.fixture(scope="module")
def chatty(zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo["chatty"], settings=ROOMY) as session:
        yield session


def render(session: Session, *messages: ChatMessage, template: str | None = None) -> RenderResult:
    """The prompt text of a chat."""
    command = CountCommand(messages=messages, template=template)
    return session._prompt_builder.render(command)


def ask(session: Session, *messages: ChatMessage, **more: Any) -> tuple[Said, list[Event]]:
    request = GenerateCommand(messages=messages, sampling=GREEDY, max_tokens=200)
    events = list(session.generate(replace(request, **more)))
    return folded(events), events


def notices(events: list[Event]) -> list[str]:
    return [event.code for event in events if isinstance(event, Notice)]


def made(tmp_path: Path, template: str, text: str = CHAT_TEXT) -> Path:
    return animals._chat(text, template).write(tmp_path / "made.gguf")


# --- the tiny chat models -----------------------------------------------------------------


@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("spec", ["off", "lookup", "model"])
def test_four_turns(named: tuple[str, Session], spec: str, system: bool) -> None:
    """Every answer is the known one, and ends with the end of its turn."""
    name, session = named
    chat = [SYSTEM] if system else []
    for turn in range(4):
        chat.append(ChatMessage("user", f"Question {turn}?"))
        said, _ = ask(session, *chat, spec=spec)
        assert said.text == NAMES[name]
        assert said.reason == "eog"
        assert session._target.vocabulary.token_text(said.ids[-1]) == b"<|im_end|>"
        if spec == "model":
            assert said.speculation["acceptance_rate"] == 1.0
        chat.append(ChatMessage("assistant", said.text))


def test_a_later_turn_reads_only_what_is_new(chatty: Session) -> None:
    said, _ = ask(chatty, HI, spec="off")
    later, _ = ask(chatty, HI, ChatMessage("assistant", said.text), HI, spec="off")
    known = chatty.count(CountCommand(messages=(HI,))).tokens
    assert later.totals["reused_tokens"] >= known


def test_sampling_answers_the_same(chatty: Session) -> None:
    said, _ = ask(chatty, HI, sampling=SamplingParams(temperature=0.8, seed=3))
    assert said.text == CHAT_TEXT


# --- the prompt ---------------------------------------------------------------------------


def test_ready_tells_of_the_template(named: tuple[str, Session]) -> None:
    name, session = named
    thinking = ["<think>", "</think>"] if name == "thinker" else None
    assert session.ready.settings["chat"] == {
        "template": "own",
        "thinking": thinking,
        "tools": None,
    }


def test_a_text_is_read_as_it_is(chatty: Session) -> None:
    text = "<|im_start|>user\nHi?<|im_end|>\n"
    assert say(chatty, text).totals["prompt_tokens"] == chatty.count(CountCommand(text)).tokens


def test_the_prompt_begins_with_one_bos(chatty: Session) -> None:
    """The template writes it, and the tokenizer adds it."""
    rendered = render(chatty, HI)
    assert rendered.text.startswith("<s><|im_start|>user\nHi?<|im_end|>")
    ids = chatty._target.vocabulary.tokenize(rendered.text.removeprefix("<s>"))
    assert ids[:2] == [1, chatty._target.vocabulary.tokenize("<|im_start|>")[1]]
    assert chatty.count(CountCommand(messages=(HI,))).tokens == len(ids)
    said, _ = ask(chatty, HI)
    assert said.totals["prompt_tokens"] == len(ids)


def test_a_chat_that_is_too_long_is_refused(chatty: Session) -> None:
    with pytest.raises(PromptTooLongError):
        ask(chatty, ChatMessage("user", "long " * 2000))


def test_an_empty_chat_is_refused(chatty: Session) -> None:
    with pytest.raises(UsageError, match="empty"):
        render(chatty)


# --- roles, and templates that fail -----------------------------------------------------


def test_merged_roles_are_told_once(zoo: Zoo) -> None:
    with loaded(zoo["no-system"], settings=ROOMY) as session:
        said, events = ask(session, SYSTEM, HI)
        assert said.text == CHAT_TEXT
        assert isinstance(events[0], SpeculationPlan)
        assert isinstance(events[1], Notice), "before anything is read"
        assert notices(events) == ["template-roles"]
        assert notices(ask(session, SYSTEM, HI)[1]) == [], "not at every turn"
        rendered = render(session, SYSTEM, HI)
    assert "user\nBe kind.\n\nHi?<|im_end|>" in rendered.text
    assert [notice.code for notice in rendered.notices] == ["template-roles"]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ no.such }}", "undefined"),
        ("{{ raise_exception('no') }}", "rejects this chat: no"),
        ("{# " + "x" * 1024 * 1024 + " #}" + animals.CHAT_TEMPLATE, "characters"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "steps",
        ),
    ],
    ids=["fails", "rejects", "long", "slow"],
)
def test_a_template_that_does_not_work_is_an_error_of_each_request(
    tmp_path: Path, template: str, reason: str
) -> None:
    with loaded(made(tmp_path, template), settings=ROOMY) as session:
        assert session.ready.settings["chat"]["template"] == "own"
        for _ in range(2):
            with pytest.raises(UsageError, match=reason) as raised:
                ask(session, HI)
            assert "--template" in raised.value.hint
        assert ask(session, HI, template="chatml")[0].text == CHAT_TEXT


def test_a_chat_that_a_template_rejects_changes_no_other(tmp_path: Path) -> None:
    template = (
        "{% if messages[0].content == 'bad' %}{{ raise_exception('bad') }}{% endif %}"
        + animals.CHAT_TEMPLATE
    )
    with loaded(made(tmp_path, template), settings=ROOMY) as session:
        before = render(session, HI)
        with pytest.raises(UsageError):
            ask(session, ChatMessage("user", "bad"))
        assert render(session, HI) == before


def test_a_built_in_template_may_be_chosen(chatty: Session) -> None:
    rendered = render(chatty, HI, template="llama3")
    assert rendered.template == "llama3"
    assert rendered.text.startswith("<s><|start_header_id|>user")
    assert notices(ask(chatty, HI, template="llama3")[1]) == []
    with pytest.raises(UsageError, match="Unknown chat template"):
        ask(chatty, HI, template="nonsense")


def test_a_model_without_a_template_says_so(zoo: Zoo) -> None:
    with loaded(zoo["parrot"]) as session:
        assert session.ready.settings["chat"] == {"template": None, "thinking": None, "tools": None}
        with pytest.raises(UsageError, match="no chat template") as raised:
            ask(session, HI)
        assert "--template" in raised.value.hint
        said, _ = ask(session, HI, template="chatml")
        assert HELLO_TEXT.endswith(said.text), "it goes on from the prompt's line feed"


def test_a_built_in_template_ends_the_answer_where_the_model_has_no_token_for_it(
    tmp_path: Path,
) -> None:
    """Without `<|im_end|>` in its vocabulary a model writes it in pieces."""
    model = tinygguf.parrot(("▁Hello", "<|im", "_end|>", "▁more"))
    with loaded(model.write(tmp_path / "made.gguf")) as session:
        said, _ = ask(session, HI, template="chatml")
    assert (said.text, said.reason) == (" Hello", "stop")


# --- thinking -----------------------------------------------------------------------------


class Words:
    """A vocabulary of nothing but what a chat asks for."""

    add_bos = True
    bos = 1

    def tokenize(self, text: str) -> list[int]:
        raise AssertionError(f"no model thinks here: {text}")

    def piece(self, token: int) -> bytes:
        raise AssertionError(f"no model thinks here: {token}")

    def special_texts(self) -> dict[str, str]:
        return {"bos_token": "<s>", "eos_token": "</s>"}

    def show_control_tokens(self, text: str) -> None:
        raise AssertionError(f"no model thinks here: {text}")


@pytest.mark.parametrize(
    ("source", "name"), [("", None), ("mistral-v7-tekken", "mistral-v7"), ("unheard-of", None)]
)
def test_a_name_instead_of_a_template_is_llama_cpps(source: str, name: str | None) -> None:
    """It names a form for a few models that have no template."""
    chat = PromptBuilder(Words(), source)  # type: ignore[arg-type]
    assert chat.ready_settings() == {"template": name, "thinking": None, "tools": None}
    if name:
        prompt = chat.build_prompt(GenerateCommand(messages=(SYSTEM, HI)))
        assert prompt.text == "[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi?[/INST]"
        assert prompt.notices == ()


@pytest.fixture(scope="module")
def thinker(zoo: Zoo) -> Iterator[Session]:
    with loaded(zoo["thinker"], settings=ROOMY) as session:
        yield session


def test_markers_that_are_control_tokens_are_part_of_the_text(thinker: Session) -> None:
    assert ask(thinker, HI)[0].text == THOUGHT_TEXT


@pytest.mark.parametrize(
    ("think", "inside", "text"),
    [
        (None, False, THOUGHT_TEXT),
        (True, True, THOUGHT_TEXT.removeprefix("<think>")),
        (False, False, "Hello there."),
    ],
)
def test_a_prompt_may_begin_the_thinking(
    thinker: Session, think: bool | None, inside: bool, text: str
) -> None:
    said, events = ask(thinker, HI, think=think)
    prefills = [event for event in events if isinstance(event, Prefill)]
    assert prefills
    assert {event.thinking for event in prefills} == {inside}
    assert said.text == text


def test_earlier_thinking_is_not_read_again(thinker: Session) -> None:
    rendered = render(thinker, HI, ChatMessage("assistant", THOUGHT_TEXT), HI)
    assert "greet" not in rendered.text
    assert "assistant\nHello there.<|im_end|>" in rendered.text
