"""Text is free until a call is begun, and then it is a call of an offered tool."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.llama.context import LlamaContext
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.models.chat_template.call_layouts import (
    GENERIC_LAYOUT,
    LAYOUTS,
    CallLayout,
)
from localspec.models.chat_template.thinking_tags import ThinkingTags
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolCallParser
from localspec.paths import package_data_dir
from localspec.spec.constraints.grammars import Grammars
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.constraints.tool_call_text import (
    CallGrammar,
    MarkTokens,
    TextBetweenCalls,
    ToolCallText,
)
from localspec.spec.protocols import GrammarState
from localspec.spec.sampling import NoAllowedTokenError
from localspec.spec.thinking_budget import make_byte_parser
from tests.spec.constraints.call_vocabulary import CallVocabulary
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

MARK = "<tool_call>"
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Rome", "</tool_call>"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
        },
        "required": ["city"],
    },
    "clock": {
        "type": "object",
        "properties": {"zone": {"$ref": "#/$defs/Zone"}},
        "required": ["zone"],
        "$defs": {"Zone": {"enum": ["UTC", "CET"]}},
    },
    "now": {"type": "object", "properties": {}},
}
CALL = '\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'


@pytest.fixture(scope="module", params=["demo", "target"])
def vocabulary(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[LlamaVocab]:
    """A byte-level BPE, and an SPM vocabulary with byte tokens."""
    path = package_data_dir() / "demo" / "demo-draft.gguf"
    if request.param == "target":
        path = zoo["target"]
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        yield model.vocabulary


def call_grammar(
    vocabulary: LlamaVocab | WideVocabulary | CallVocabulary,
    schemas: Mapping[str, Any] = SCHEMAS,
    layout: CallLayout = GENERIC_LAYOUT,
) -> CallGrammar:
    states = Grammars(vocabulary).start_calls(layout, schemas)
    marks = MarkTokens(states.by_mark, vocabulary.n_tokens, vocabulary.piece)
    return CallGrammar(states, marks, vocabulary, layout.place)


@pytest.fixture(scope="module")
def calls(vocabulary: LlamaVocab) -> CallGrammar:
    return call_grammar(vocabulary)


def byte_tokens(vocabulary: LlamaVocab | WideVocabulary) -> dict[int, int]:
    """A token of each byte that has one."""
    found: dict[int, int] = {}
    for token in range(vocabulary.n_tokens):
        piece = vocabulary.text_piece(token)
        if len(piece) == 1:
            found.setdefault(piece[0], token)
    return found


def accepts(
    vocabulary: LlamaVocab | WideVocabulary, state: GrammarState, text: str
) -> bool:
    """Whether each byte of a text is allowed, one token a byte."""
    tokens = byte_tokens(vocabulary)
    for byte in text.encode():
        token = tokens[byte]
        if not state.allows(np.array([token]))[0]:
            return False
        state = state.advance(token)
    return True


@pytest.mark.parametrize(
    "text",
    [
        f"Rome < Paris <tool_cal <tool_call_x {MARK}{CALL} and then {MARK}{CALL} done",
        f'{MARK}\n{{"name": "weather", "arguments": {{"city": "</tool_call>"}}}}\n</tool_call>x',
        f'{MARK}\n{{"name": "clock", "arguments": {{"zone": "UTC"}}}}\n</tool_call>',
        f'{MARK}\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
        "</tool_call> alone, and {}",
    ],
)
def test_a_text_with_calls_is_allowed(
    vocabulary: LlamaVocab, calls: CallGrammar, text: str
) -> None:
    assert accepts(vocabulary, TextBetweenCalls(calls, None), text)


@pytest.mark.parametrize(
    "text",
    [
        f"{MARK}x",
        f'{MARK}{{"name"',
        f'{MARK}\n{{"name": "other"',
        f'{MARK}\n{{"name": "weather", "arguments": {{"city": "Paris"',
        f'{MARK}\n{{"name": "weather", "arguments": {{"days": 3}}',
        f'{MARK}\n{{"name": "clock", "arguments": {{"zone": "EST"',
        f'{MARK}\n{{"name": "now", "arguments": {{"zone"',
        f'{MARK}\n{{"name": "now", "arguments": {{}}}} ',
        f"{MARK}{CALL}{MARK}x",
    ],
)
def test_what_is_no_call_is_not(
    vocabulary: LlamaVocab, calls: CallGrammar, text: str
) -> None:
    assert not accepts(vocabulary, TextBetweenCalls(calls, None), text)


def test_any_walk_over_allowed_tokens_writes_only_whole_calls(
    vocabulary: LlamaVocab, calls: CallGrammar
) -> None:
    """Tokens are chosen so that they begin calls, also with text behind the mark."""
    dice = random.Random(12)
    mark = MARK.encode()
    pieces = [vocabulary.piece(token) for token in range(vocabulary.n_tokens)]

    @functools.cache
    def tokens_that_go_on(begun: bytes) -> NDArray[np.int64]:
        """Tokens that write more of a mark that is begun."""
        rest = mark[len(begun) :]
        chosen: list[int] = []
        for token, piece in enumerate(pieces):
            if piece and (rest.startswith(piece) or piece.startswith(rest)):
                chosen.append(token)
        return np.array(chosen)

    n_called = 0
    for _ in range(40):
        state: GrammarState = TextBetweenCalls(calls, None)
        text = b""
        for _ in range(160):
            if isinstance(state, ToolCallText):
                allowed = state.allowed_tokens()
            else:
                allowed = tokens_that_go_on(calls.tokens.begun(text))
                allowed = allowed[state.allows(allowed)]
            token = int(dice.choice(allowed))
            assert state.allows(np.array([token]))[0]
            state = state.advance(token)
            text += pieces[token]
        parser = ToolCallParser("generic", SCHEMAS)
        deltas = [*parser.feed(text.decode("utf-8", "replace")), *parser.finish()]
        said = "".join(delta for delta in deltas if isinstance(delta, str))
        assert said.count(MARK) <= 1, "only a call that is cut is text"
        n_called += parser.n_calls
    assert n_called > 40


def test_tokens_that_hold_text_behind_the_mark_are_those_of_a_call(
    vocabulary: LlamaVocab, calls: CallGrammar
) -> None:
    begun = MARK[:-1].encode()
    forbidden = set(calls.forbidden(begun).tolist())
    for token, end in calls.tokens.rests(begun).items():
        assert vocabulary.piece(token) == b">" + end.rest
        is_call = CALL.encode().startswith(end.rest)
        # A tokenizer that writes a space first cannot tell, so its token is forbidden.
        assert token in forbidden or is_call
    assert not len(calls.forbidden(b""))


class WideVocabulary:
    """The bytes, and tokens that hold the end of the mark with something behind it."""

    LONG = (b">\n", b'>\n{"', b">x", b">>", b"_call>\n", b"call>{", MARK.encode())
    eos = 0

    def __init__(self) -> None:
        self.pieces = [b"", *(bytes([byte]) for byte in range(256)), *self.LONG]
        self.n_tokens = len(self.pieces)

    def is_eog(self, token: int) -> bool:
        return token == self.eos

    def text_piece(self, token: int) -> bytes:
        return self.pieces[token]

    piece = text_piece

    def token_text(self, token: int) -> bytes:
        return self.pieces[token] or b"<eos>"

    def tokenize_plain(self, data: bytes) -> list[int]:
        return [1 + byte for byte in data]

    def token(self, piece: bytes) -> int:
        return self.pieces.index(piece)


@pytest.mark.parametrize(
    ("begun", "piece", "is_allowed"),
    [
        ("<tool_call", b">\n", True),
        ("<tool_call", b'>\n{"', True),
        ("<tool_call", b">", True),
        ("<tool_call", b">x", False),
        ("<tool_call", b">>", False),
        ("<tool", b"_call>\n", True),
        ("<tool_", b"call>{", False),
        ("<tool_call ", b">x", True),
        ("tool", b"_call>\n", True),
        ("", MARK.encode(), True),
        ("<<tool_call", b">x", False),
        ("<tool<tool_call", b">x", False),
    ],
)
def test_a_token_may_end_the_mark_and_begin_the_call(
    begun: str, piece: bytes, is_allowed: bool
) -> None:
    vocabulary = WideVocabulary()
    state: GrammarState = TextBetweenCalls(call_grammar(vocabulary), None)
    for token in vocabulary.tokenize_plain(begun.encode()):
        state = state.advance(token)
    token = vocabulary.token(piece)
    assert state.allows(np.array([token]))[0] == is_allowed
    assert (token in state.allowed_tokens()) == is_allowed


def test_a_mark_in_the_thinking_is_free(
    vocabulary: LlamaVocab, calls: CallGrammar
) -> None:
    tags = ThinkingTags("<think>", "</think>")
    thought = f"I may write {MARK}x here.</think>"
    opened = TextBetweenCalls(calls, make_byte_parser(tags, is_open=True))
    assert accepts(vocabulary, opened, f"{thought}{MARK}{CALL}")
    assert not accepts(vocabulary, opened, f"{thought}{MARK}x")
    closed = TextBetweenCalls(calls, make_byte_parser(tags, is_open=False))
    assert accepts(vocabulary, closed, f"<think>{thought}{MARK}{CALL}")
    assert not accepts(vocabulary, closed, f"{MARK}x")


def test_a_text_that_is_given_may_hold_what_is_no_call(
    vocabulary: LlamaVocab, calls: CallGrammar
) -> None:
    """A client may begin the answer with anything; a draft may not."""
    tokens = byte_tokens(vocabulary)
    given = [tokens[byte] for byte in f"{MARK}x {MARK}".encode()]
    wrong = tokens[ord("y")]
    constraint = OutputConstraint(TextBetweenCalls(calls, None), n_prompt=0)
    constraint.commit(given)
    assert constraint.count_allowed(given, [tokens[ord("\n")]]) == 1
    assert constraint.count_allowed(given, [wrong]) == 0
    with pytest.raises(NoAllowedTokenError):
        constraint.state_after(given, [wrong])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "not": {}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "description": "x" * 200_000},
        {"type": "object", "properties": 3},
    ],
)
def test_a_schema_that_cannot_be_used_lets_its_tool_be_called(
    vocabulary: LlamaVocab, schema: Any
) -> None:
    """Its name is exact, and so are the other tools."""
    schemas = {"odd": schema, "clock": SCHEMAS["clock"]}
    state = TextBetweenCalls(call_grammar(vocabulary, schemas), None)
    odd = f'{MARK}\n{{"name": "odd", "arguments": {{}}}}\n</tool_call>'
    assert accepts(vocabulary, state, odd)
    assert not accepts(vocabulary, state, f'{MARK}\n{{"name": "odds"')
    wrong = f'{MARK}\n{{"name": "clock", "arguments": {{"zone": "EST"'
    assert not accepts(vocabulary, state, wrong)


def test_the_call_that_is_allowed_is_the_one_that_is_read(
    vocabulary: LlamaVocab, calls: CallGrammar
) -> None:
    text = f"I look. {MARK}{CALL}"
    assert accepts(vocabulary, TextBetweenCalls(calls, None), text)
    parser = ToolCallParser("generic", SCHEMAS)
    deltas = [*parser.feed(text), *parser.finish()]
    said = [delta for delta in deltas if isinstance(delta, str)]
    written = "".join(
        delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)
    )
    assert said == ["I look."]
    assert json.loads(written) == {"city": "Rome", "days": 3}


# --- where a mark opens a call

LLAMA_CALL = '{"name": "clock", "parameters": {"zone": "UTC"}}'


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (LLAMA_CALL, True),
        (f" {LLAMA_CALL} and free", True),
        ('{"name": "clock", "parameters": {"zone": "EST"', False),
        ('{"name": "clock", "parameters": {"zone": "UTC"}, ', False),
        ('{"name": "Ada", "parameters": 3}', True),
        ('I write {"name": "clock", "parameters": 3}', True),
        (f'{LLAMA_CALL};{{"name": "clock", "parameters": 3}}', True),
    ],
)
def test_a_mark_at_the_beginning_of_an_answer_is_the_only_one_of_llama(
    text: str, is_allowed: bool
) -> None:
    vocabulary = WideVocabulary()
    calls = call_grammar(vocabulary, layout=LAYOUTS["llama3"][0])
    state = TextBetweenCalls(calls, None)
    assert accepts(vocabulary, state, text) == is_allowed


def test_a_call_of_llama_begins_behind_the_thinking() -> None:
    vocabulary = WideVocabulary()
    calls = call_grammar(vocabulary, layout=LAYOUTS["llama3"][0])
    parser = make_byte_parser(ThinkingTags("<think>", "</think>"), is_open=False)
    state = TextBetweenCalls(calls, parser)
    wrong = LLAMA_CALL.replace("UTC", "EST")
    assert accepts(vocabulary, state, f"<think>{wrong}</think>{LLAMA_CALL}")
    assert not accepts(vocabulary, state, f"<think>So</think>{wrong}")


HARMONY_TAGS = ThinkingTags("<|channel|>analysis<|message|>", "<|end|>")
HARMONY_CALL = 'to=functions.clock <|constrain|>json<|message|>{"zone": "UTC"}'


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        (f"<|channel|>commentary {HARMONY_CALL}<|call|>", True),
        (f" {HARMONY_CALL}<|call|>", True),
        (f"<|channel|>analysis<|message|>to=functions.x<|end|> {HARMONY_CALL}", True),
        ("<|channel|>final<|message|>to=functions.x", True),
        ("<|channel|>commentary to=functions.x", False),
        (f"<|channel|>commentary {HARMONY_CALL} ", False),
        (
            f"<|channel|>commentary {HARMONY_CALL}<|call|><|start|>assistant to=user",
            True,
        ),
    ],
)
def test_a_mark_in_a_header_is_the_only_one_of_harmony(
    text: str, is_allowed: bool
) -> None:
    vocabulary = WideVocabulary()
    calls = call_grammar(vocabulary, layout=LAYOUTS["gpt-oss"][0])
    state = TextBetweenCalls(calls, make_byte_parser(HARMONY_TAGS, is_open=False))
    assert accepts(vocabulary, state, text) == is_allowed


SOLAR_CALL = (
    "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>clock<|tool_call:args|>"
    '{"zone": "UTC"}<|tool_call:end|><|calls|>'
)


@pytest.mark.parametrize("before", ["", "<|content|>So. ", "<|think|>So<|end|>"])
def test_a_mark_may_stand_in_place_of_a_header(before: str) -> None:
    """Solar's call is a message without one."""
    vocabulary = CallVocabulary("solar")
    layout = replace(LAYOUTS["solar"][0], opening="", ending="<|calls|>", separator="")
    calls = call_grammar(vocabulary, layout=layout)
    tags = ThinkingTags("<|think|>", "<|end|>")
    state: GrammarState = TextBetweenCalls(calls, make_byte_parser(tags, is_open=False))
    for token in vocabulary.tokenize(f"{before}<|tool_calls|>"):
        assert state.allows(np.array([token]))[0]
        state = state.advance(token)
    assert isinstance(state, ToolCallText)
    for token in vocabulary.tokenize(SOLAR_CALL.removeprefix("<|tool_calls|>")):
        assert state.allows(np.array([token]))[0]
        state = state.advance(token)
    assert isinstance(state, TextBetweenCalls)


def test_of_several_marks_the_first_one_counts() -> None:
    marks = MarkTokens(["<a>", "<ab>"], 0, lambda _: b"")
    assert marks.find_end(b"x<ab>y<a>") == (b"<ab>", b"y<a>")
    assert marks.find_end(b"x<a") is None
    assert marks.begun(b"x<a") == b"<a"
    assert marks.begun(b"x<ab") == b"<ab"
    assert marks.begun(b"<a>") == b""
