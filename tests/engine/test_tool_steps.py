"""Calls and results of one question: the prompt of each step goes on where the last ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.engine.chat_prompt import PromptBuilder
from localspec.engine.session import Session
from localspec.llama.model import LlamaVocab
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    ToolCall,
)
from tests.support.sessions import GREEDY, Said, folded, loaded
from tests.support.tool_families import (
    FAMILIES,
    THOUGHT,
    ToolFamily,
    split_answer,
    write_caller,
)

ROOMY = ContextSettings(flash_attn="on", n_ctx=2048, n_ubatch=64, n_threads=1)
HI = ChatMessage("user", "Hi?")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA},
        }
    ]
)
families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def write_model(family: ToolFamily, folder: Path) -> Path:
    return write_caller(family, folder / "made.gguf")


def ask(session: Session, *messages: ChatMessage) -> Said:
    request = GenerateCommand(
        messages=messages, tools=TOOLS, sampling=GREEDY, max_tokens=200, think=True
    )
    return folded(session.generate(request))


def list_tokens(vocabulary: LlamaVocab, pieces: list[str]) -> tuple[int, ...]:
    ids = {vocabulary.token_text(i).decode(): i for i in range(vocabulary.n_tokens)}
    return tuple(ids[piece] for piece in pieces)


def build_tokens(
    vocabulary: LlamaVocab, family: ToolFamily, *messages: ChatMessage
) -> list[int]:
    builder = PromptBuilder(vocabulary, family.template)
    command = GenerateCommand(messages=messages, tools=TOOLS, think=True)
    return builder.tokenize(builder.build_prompt(command))


def make_answer(tokens: tuple[int, ...]) -> ChatMessage:
    """As a chat keeps an answer with calls: in its parts, and with its tokens."""
    call = ToolCall("call00001", "look", '{"at": "Rome"}')
    return ChatMessage(
        "assistant", "", tokens=tokens, tool_calls=(call,), reasoning=THOUGHT
    )


def make_result(text: str = "sunny") -> ChatMessage:
    return ChatMessage("tool", text, tool_call_id="call00001")


@families
def test_the_prompt_after_a_call_goes_on_with_the_tokens_of_its_answer(
    family: ToolFamily, tmp_path: Path
) -> None:
    with loaded(write_model(family, tmp_path), settings=ROOMY) as session:
        vocabulary = session._target.vocabulary
        own = list_tokens(vocabulary, split_answer(family))
        asked = build_tokens(vocabulary, family, HI)
        bare = build_tokens(vocabulary, family, HI, make_answer(()), make_result())
        found = build_tokens(vocabulary, family, HI, make_answer(own), make_result())

    known = [*asked, *own]
    assert found[: len(known)] == known
    assert bare[: len(known)] != known


@families
def test_a_result_that_repeats_the_answer_has_no_control_tokens(
    family: ToolFamily, tmp_path: Path
) -> None:
    with loaded(write_model(family, tmp_path), settings=ROOMY) as session:
        vocabulary = session._target.vocabulary
        pieces = split_answer(family)
        answer = make_answer(list_tokens(vocabulary, pieces))
        marks: list[list[int]] = []
        for text in ("sunny", "".join(pieces)):
            tokens = build_tokens(vocabulary, family, HI, answer, make_result(text))
            marks.append([each for each in tokens if each in vocabulary.mark_tokens])

    assert marks[0] == marks[1]


def test_only_the_result_is_read_after_a_call(tmp_path: Path) -> None:
    family = FAMILIES["qwen"]
    with loaded(write_model(family, tmp_path), settings=ROOMY) as session:
        first = ask(session, HI)
        second = ask(session, HI, make_answer(tuple(first.ids)), make_result())

    assert first.text == "".join(split_answer(family))
    # The token that ends the turn is not decoded in the first answer.
    n_known = first.totals["prompt_tokens"] + len(first.ids) - 1
    assert second.totals["reused_tokens"] == n_known
    assert second.text == first.text
