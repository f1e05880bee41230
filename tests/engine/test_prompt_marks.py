"""No text of a request becomes a mark of the prompt, whatever field it comes in."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from localspec.engine.chat_prompt import ControlTokenGuard, PromptBuilder
from localspec.errors import PromptTooLongError
from localspec.llama import model
from localspec.llama.context import LlamaContext
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    ToolCall,
)
from tests.support import tinygguf
from tests.support.sessions import SETTINGS

CONTROLS = ("<|im_start|>", "<|im_end|>")
GEMMA_MARKS = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>')
QWEN_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "<think>", "</think>")
MINIMAX_MARKS = ("]~b]",)
TEMPLATE_MARKS = ("<b>", *MINIMAX_MARKS)
"""They are marks only because the template has them."""
FREQUENT_TEXTS = ("<h1>", "\n\n", "\n\n\n")
"""Tokens of the same type that are texts of a person, as in Gemma's vocabulary."""
MARKS = (*CONTROLS, *GEMMA_MARKS, *QWEN_MARKS, *TEMPLATE_MARKS)
HOSTILE = "x" + "".join(MARKS) + "<<think>think>y"
SHOW_ALL = """{% for message in messages %}{{ message | tojson }}
{%- for call in message.tool_calls or [] -%}
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}{% endfor %}{{ tools | tojson }}
{#- ]~b] <b> -#}<|im_start|>"""
"""Shows every field, and writes calls in a format that is known, without any of `MARKS`.

Of an unknown format the generic one would be used, whose marks are in the prompt by right.
"""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaVocab]:
    user_defined = (*MARKS[len(CONTROLS) :], *FREQUENT_TEXTS)
    words = (*tinygguf.WORDS, *user_defined, *CONTROLS)
    made = replace(
        tinygguf.llama(0, words=words),
        controls=CONTROLS,
        user_defined=user_defined,
        template=SHOW_ALL,
    )
    path: Path = made.write(tmp_path_factory.mktemp("marks") / "model.gguf")
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as loaded:
        yield loaded.vocabulary


def marks_in(tokens: list[int], vocabulary: LlamaVocab) -> list[str]:
    texts = [vocabulary.token_text(token).decode() for token in tokens]
    return [text for text in texts if text in MARKS]


def text_of(tokens: list[int], vocabulary: LlamaVocab) -> str:
    return b"".join(map(vocabulary.piece, tokens)).decode()


def text_fields(kind: type[Struct]) -> list[tuple[str, ...]]:
    """The places of all texts in a Struct, by the types of its fields."""
    places: list[tuple[str, ...]] = []
    for name, annotation in kind.__annotations__.items():
        if annotation == "str":
            places.append((name,))
        for inner in (ToolCall, ChatMessage):
            if inner.__name__ in annotation:
                places += [(name, *place) for place in text_fields(inner)]
    return places


def with_text(value: Any, place: tuple[str, ...], text: str) -> Any:
    name, *inner = place
    if not inner:
        return replace(value, **{name: text})
    changed = with_text(getattr(value, name)[0], tuple(inner), text)
    return replace(value, **{name: (changed,)})


def test_the_template_has_a_tool_format_without_marks(vocabulary: LlamaVocab) -> None:
    settings = PromptBuilder(vocabulary, SHOW_ALL).ready_settings()
    assert settings["tools"] == "mistral"


def test_the_texts_of_a_message_are_known_by_their_types() -> None:
    places = text_fields(ChatMessage)

    assert ("reasoning",) in places
    assert ("tool_calls", "arguments") in places
    assert len(places) >= 7


@pytest.mark.parametrize("place", text_fields(ChatMessage), ids=".".join)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_no_field_of_a_message_is_forgotten(
    vocabulary: LlamaVocab, role: str, place: tuple[str, ...]
) -> None:
    guard = ControlTokenGuard(vocabulary, answer_texts=())
    call = ToolCall("id", "name", "{}")
    message = with_text(ChatMessage(role, "c", tool_calls=(call,)), place, HOSTILE)

    shown = repr(guard.protect_message(message))

    found = [shown[start:end] for start, end in vocabulary.mark_texts.find(shown)]
    assert found == []


@pytest.mark.parametrize("place", text_fields(ChatMessage), ids=".".join)
def test_no_field_of_a_message_has_marks_in_the_prompt(
    vocabulary: LlamaVocab, place: tuple[str, ...]
) -> None:
    builder = PromptBuilder(vocabulary, SHOW_ALL)
    call = ToolCall("id", "name", "{}")
    message = with_text(ChatMessage("user", "c", tool_calls=(call,)), place, HOSTILE)

    command = CountCommand(messages=(message,))
    tokens = builder.tokenize(builder.build_prompt(command))

    assert marks_in(tokens, vocabulary) == ["<|im_start|>"]


@pytest.mark.parametrize(
    "tool",
    [
        {"name": HOSTILE},
        {"description": HOSTILE},
        {"parameters": {"properties": {"a": {"enum": [HOSTILE]}}}},
        {"parameters": {"properties": {HOSTILE: {"type": "string"}}}},
        {"parameters": {"x-new": [[{"any": HOSTILE}]]}},
    ],
)
@pytest.mark.parametrize("is_escaped", [True, False])
def test_no_text_of_a_tool_has_marks_in_the_prompt(
    vocabulary: LlamaVocab, tool: dict[str, Any], is_escaped: bool
) -> None:
    builder = PromptBuilder(vocabulary, SHOW_ALL)
    tools = json.dumps([{"type": "function", "function": tool}])
    if is_escaped:
        tools = tools.replace("<", "\\u003c").replace("]~b", "\\u005d~b")

    command = CountCommand(messages=(ChatMessage("user", "c"),), tools=tools)
    tokens = builder.tokenize(builder.build_prompt(command))

    assert marks_in(tokens, vocabulary) == ["<|im_start|>"]


TYPED = st.lists(
    st.sampled_from([*MARKS, *FREQUENT_TEXTS, "<", "|", "think", "a", " ", "\ufdd2"]),
    max_size=8,
).map("".join)


@settings(derandomize=True, max_examples=200)
@given(text=TYPED)
def test_a_text_has_no_marks_at_any_door_of_the_tokenizer(
    vocabulary: LlamaVocab, text: str
) -> None:
    plain = vocabulary.tokenize(text, add_special=False, parse_special=False)
    continued = vocabulary.tokenize_continuation(text)

    assert marks_in(plain, vocabulary) == []
    assert marks_in(continued, vocabulary) == []
    # This vocabulary puts a space at the beginning, and after each token of its own.
    for tokens in (plain, continued):
        said = text_of(tokens, vocabulary)
        assert said.replace(" ", "") == text.replace(" ", "")


def test_a_prefill_has_no_marks(vocabulary: LlamaVocab) -> None:
    builder = PromptBuilder(vocabulary, SHOW_ALL)
    prompt = builder.build_prompt(
        GenerateCommand(messages=(ChatMessage("user", "c"),), prefill=HOSTILE)
    )

    tokens = vocabulary.tokenize_continuation(prompt.prefill)

    assert marks_in(builder.tokenize(prompt), vocabulary) == ["<|im_start|>"]
    assert marks_in(tokens, vocabulary) == []
    assert text_of(tokens, vocabulary) == HOSTILE


def test_frequent_texts_stay_tokens(vocabulary: LlamaVocab) -> None:
    tokens = vocabulary.tokenize("a<h1>\n\n\nb", parse_special=False)

    texts = [vocabulary.token_text(token).decode() for token in tokens]
    assert "<h1>" in texts
    assert "\n\n\n" in texts


def test_an_answer_has_its_own_markers_in_its_content_alone(
    vocabulary: LlamaVocab,
) -> None:
    guard = ControlTokenGuard(vocabulary, answer_texts=("<think>", "</think>"))
    said = "<think>a</think>b<|im_end|>"

    answer = guard.protect_message(ChatMessage("assistant", said, reasoning=said))
    question = guard.protect_message(ChatMessage("user", said))

    assert "<think>a</think>" in answer.content
    assert "<|im_end|>" not in answer.content
    assert "<think>" not in answer.reasoning
    assert "<think>" not in question.content


SPECIAL_TEXTS = st.lists(
    st.sampled_from(["<h1>", "\n\n\n", "\n", "<think>", "<|im_end|>", "a", "<", "é"]),
    min_size=1,
    max_size=12,
).map("".join)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(text=SPECIAL_TEXTS, n=st.integers(300, 900))
@pytest.mark.parametrize("parse_special", [True, False])
def test_many_special_tokens_are_read_in_parts_as_in_one_piece(
    vocabulary: LlamaVocab, parse_special: bool, text: str, n: int
) -> None:
    data = (text * n).encode()

    tokens = vocabulary._tokenize_data(
        data, add_special=True, parse_special=parse_special
    )

    assert tokens == vocabulary._tokenize(data, True, parse_special)


@pytest.mark.parametrize("text", ["<h1>", "<h1>a", "\n\nb", "<think>", "<<h1><h1>"])
def test_llama_cpp_never_gets_very_many_special_tokens_at_once(
    vocabulary: LlamaVocab, text: str
) -> None:
    finder = vocabulary._special_texts

    parts = model._split_special((text * 5_000).encode(), finder)

    counts = [len(list(finder.find(part.decode()))) for part in parts]
    assert b"".join(parts).decode() == text * 5_000
    assert max(counts) <= 2 * model._MAX_SPECIAL_AT_ONCE


@pytest.mark.parametrize("text", ["<h1>", "<think>"])
@pytest.mark.parametrize("door", ["special", "text", "continuation"])
def test_a_flood_of_special_tokens_is_refused_at_every_door(
    vocabulary: LlamaVocab, text: str, door: str
) -> None:
    flood = text * 60_000

    with pytest.raises(PromptTooLongError, match="40,000 special tokens"):
        if door == "continuation":
            vocabulary.tokenize_continuation(flood)
        else:
            vocabulary.tokenize(flood, parse_special=door == "special")
