"""Answers in messages on channels: what is read of them, and where a grammar holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.engine.session import Session
from localspec.models.chat_template.thinking_tags import split_thinking
from localspec.protocol.wire import ChatMessage, ContextSettings, GenerateCommand
from tests.support.channels import THOUGHT, speaker
from tests.support.sessions import GREEDY, Said, folded, loaded

ROOMY = ContextSettings(flash_attn="on", n_ctx=2048, n_ubatch=64, n_threads=1)
HI = ChatMessage("user", "Hi?")
SPECS = ("off", "model", "lookup", "auto")
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
OBJECT = '{"a": 1}'
PROSE = ("▁no", "▁JSON", "▁from", "▁me", "▁today", ".")


def ask(session: Session, **more: Any) -> Said:
    asked: dict[str, Any] = {
        "messages": (HI,),
        "sampling": GREEDY,
        "max_tokens": 120,
    } | more
    return folded(session.generate(GenerateCommand(**asked)))


def shown(session: Session, said: Said) -> tuple[str, str]:
    """The thinking of an answer, and what it says."""
    opening, closing = session.ready.settings["chat"]["thinking"]
    parts = split_thinking(said.text, (opening, closing))
    return (
        "".join(part.text for part in parts if part.is_thinking),
        "".join(part.text for part in parts if not part.is_thinking),
    )


HEADERS = {
    "final": ("<|channel|>final", "<|message|>Sorry"),
    "with a type": ("<|channel|>final", "<|constrain|>", "json", "<|message|>Sorry"),
    "with a type after a space": (
        "<|channel|>final",
        "▁<|constrain|>json",
        "<|message|>Sorry",
    ),
    "with a word": ("<|channel|>final", "▁json", "<|message|>Sorry"),
    "commentary": ("<|channel|>commentary", "<|message|>Sorry"),
    "that never ends": ("<|channel|>final", "▁Sorry"),
    "missing": ("Sorry",),
}


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("has_thought", [False, True])
def test_a_schema_holds_from_the_first_token_of_the_answer(
    header: str, has_thought: bool, tmp_path: Path
) -> None:
    """A model that would say something else, in a token that also ends the header."""
    words = [*HEADERS[header], *PROSE]
    if has_thought:
        words = [*THOUGHT, *words]
    if has_thought and header == "missing":
        words.remove("<|start|>")
        words.remove("assistant")
    path = speaker(words).write(tmp_path / "made.gguf")
    with loaded(path, path, ROOMY) as session:
        plan = "PLAN" if has_thought else ""
        free = ask(session)
        assert shown(session, free)[0] == plan
        assert shown(session, free)[1].endswith("Sorry no JSON from me today.")
        for spec in SPECS:
            said = ask(session, spec=spec, json_schema=SCHEMA)
            assert shown(session, said) == (plan, OBJECT)
            assert said.reason == "eog"
        said = ask(session, grammar='root ::= "x" [yz]+ "."')
        assert shown(session, said)[1].startswith("xy")


WEATHER = json.dumps(
    [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
)
CALL = (
    "▁to=functions.weather",
    "<|channel|>commentary",
    "▁json",
    "<|message|>",
    '{"b":',
    "▁2}",
)


def test_a_schema_leaves_a_tool_call_alone(tmp_path: Path) -> None:
    path = speaker((*CALL, "<|call|>")).write(tmp_path / "made.gguf")
    with loaded(path, settings=ROOMY) as session:
        called = ask(session, tools=WEATHER, json_schema=SCHEMA)
        call = '<|channel|>commentary to=functions.weather<|message|>{"b": 2}'
        assert shown(session, called)[1] == call
        assert shown(session, ask(session, json_schema=SCHEMA))[1] == OBJECT


def test_a_schema_holds_at_once_for_a_plain_text_and_another_template(
    tmp_path: Path,
) -> None:
    path = speaker(("Sorry", *PROSE)).write(tmp_path / "made.gguf")
    with loaded(path, settings=ROOMY) as session:
        assert ask(session, messages=(), text="data", json_schema=SCHEMA).text == OBJECT
        assert ask(session, template="chatml", json_schema=SCHEMA).text == OBJECT


def test_a_schema_holds_behind_thinking_that_its_budget_ends(tmp_path: Path) -> None:
    words = (*THOUGHT[:3], "One", "▁two", "▁three", "▁four", "<|end|>", *PROSE)
    path = speaker(words).write(tmp_path / "made.gguf")
    with loaded(path, path, ROOMY) as session:
        for spec in SPECS:
            said = ask(session, spec=spec, json_schema=SCHEMA, think_budget=2)
            thought, answer = shown(session, said)
            assert (thought.split(), answer) == (["One", "two"], OBJECT)


def test_a_constrained_answer_is_resumed_in_its_header_and_behind_it(
    tmp_path: Path,
) -> None:
    words = (*THOUGHT, *HEADERS["with a type"], *PROSE)
    path = speaker(words).write(tmp_path / "made.gguf")
    with loaded(path, settings=ROOMY) as session:
        whole = ask(session, json_schema=SCHEMA)
        for cut in range(1, len(whole.ids)):
            begun = tuple(whole.ids[:cut])
            rest = ask(session, json_schema=SCHEMA, resumed_tokens=begun)
            assert [*begun, *rest.ids] == whole.ids


HEADER_WITHOUT_END = (
    "<|channel|>",
    "analysis",
    *(f"▁{word}{n}" for n in range(30) for word in ("word", "next")),
    *("<|end|>", "<|start|>", "assistant", "<|channel|>final", "<|message|>", "ANSWER"),
)


@pytest.mark.parametrize("spec", SPECS)
def test_a_header_without_end_ends(spec: str, tmp_path: Path) -> None:
    path = speaker(HEADER_WITHOUT_END).write(tmp_path / "made.gguf")
    with loaded(path, path, ROOMY) as session:
        said = ask(session, spec=spec)
        assert said.reason == "eog"
        thought, answer = shown(session, said)
        assert thought.startswith(" word0 next0")
        assert thought.endswith("next29")
        assert answer == "ANSWER"
