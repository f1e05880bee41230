"""Calls of every format are exact: what the grammar can write, the parser reads."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.errors import GrammarError
from localspec.models.chat_template import tool_detection
from localspec.models.chat_template.call_layouts import (
    GENERIC_LAYOUT,
    LAYOUTS,
    CallLayout,
    JsonArguments,
    TagArguments,
    find_layout,
)
from localspec.models.chat_template.thinking_tags import ThinkingTags, split_thinking
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolCallParser
from localspec.spec.constraints.grammars import CallStates, Grammars
from localspec.spec.protocols import GrammarState
from tests.models.test_tool_formats import FOLDER, write
from tests.spec.constraints.call_vocabulary import CallVocabulary

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "lat": {"type": "number"},
        "name": {"type": "string"},
        "within": {"$ref": "#/$defs/Place"},
    },
    "required": ["lat"],
}
SCHEMAS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "unit": {"enum": ["C", "F"], "description": "Degrees."},
            "long": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "place": {"$ref": "#/$defs/Place"},
            "note": {
                "anyOf": [
                    {"type": "string", "minLength": 2, "maxLength": 5},
                    {"type": "null"},
                ]
            },
            "wind": {"type": "number"},
        },
        "required": ["city", "days"],
        "$defs": {"Place": PLACE},
    },
    "now": {"type": "object", "properties": {}},
}
HARMONY_TAGS = ThinkingTags("<|channel|>analysis<|message|>", "<|end|>")
MAX_TOKENS = 600


def layout_of(format_name: str) -> CallLayout:
    arguments = {"city": "Rome", "days": 3, "ok": True}
    text = write(format_name, arguments)
    layout = find_layout(format_name, text, "get_weather", arguments)
    assert layout is not None
    return layout


def start(
    format_name: str,
    schemas: Mapping[str, Any] = SCHEMAS,
    vocabulary: CallVocabulary | None = None,
) -> CallStates:
    vocabulary = vocabulary or CallVocabulary(format_name)
    return Grammars(vocabulary).start_calls(layout_of(format_name), schemas)


def read_calls(format_name: str, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """What an answer says beside its calls, and these with their arguments."""
    if format_name == "gpt-oss":
        parts = split_thinking(text, HARMONY_TAGS)
        text = "".join(part.text for part in parts if not part.is_thinking)
    parser = ToolCallParser(format_name, SCHEMAS)
    said = ""
    names: list[str] = []
    arguments: list[str] = []
    for delta in [*parser.feed(text), *parser.finish(is_cut=False)]:
        if not isinstance(delta, ToolCallDelta):
            said += delta
            continue
        if delta.name:
            names.append(delta.name)
            arguments.append("")
        arguments[delta.index] += delta.arguments
    calls = zip(names, map(json.loads, arguments), strict=True)
    return said, list(calls)


def satisfies(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """Whether a value satisfies a schema of the kind above, strictly."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return satisfies(root["$defs"][name], value, root)
    if "anyOf" in schema:
        return any(satisfies(part, value, root) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        if not isinstance(value, dict) or not set(schema.get("required", ())) <= set(
            value
        ):
            return False
        parts = schema["properties"]
        return all(
            name in parts and satisfies(parts[name], item, root)
            for name, item in value.items()
        )
    if kind == "array":
        is_short = isinstance(value, list) and len(value) <= schema["maxItems"]
        return is_short and all(satisfies(schema["items"], v, root) for v in value)
    if kind == "string":
        least = schema.get("minLength", 0)
        most = schema.get("maxLength", len(str(value)))
        return isinstance(value, str) and least <= len(value) <= most
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if kind == "integer":
        is_within = schema["minimum"] <= value <= schema["maximum"]
        return isinstance(value, int) and bool(is_within)
    return bool(kind == "number")


class Walk:
    """A walk over tokens that a grammar allows, which prefers those that end things."""

    def __init__(
        self, vocabulary: CallVocabulary, layout: CallLayout, seed: int
    ) -> None:
        self._vocabulary = vocabulary
        self._dice = random.Random(seed)
        self._closers: list[list[int]] = []
        """What ends a text between tags, which chance would not write."""
        if isinstance(layout.arguments, TagArguments):
            after = layout.arguments.after_value
            for key in SCHEMAS["weather"]["properties"]:
                self._closers.append(vocabulary.tokenize(after.replace("$KEY", key)))

    def write(self, state: GrammarState) -> bytes | None:
        """The text up to where an answer may end; None if it takes too long."""
        text = b""
        for _ in range(MAX_TOKENS):
            allowed = state.allowed_tokens().tolist()
            is_end = self._vocabulary.eos in allowed
            if is_end and (len(allowed) < 3 or self._dice.random() < 0.5):
                return text
            if self._closers and self._dice.random() < 0.2:
                closer = self._dice.choice(self._closers)
                closed = self._close(state, closer)
                if closed is not None:
                    text += b"".join(map(self._vocabulary.piece, closer))
                    state = closed
                    continue
            token = self._choose([t for t in allowed if not self._vocabulary.is_eog(t)])
            text += self._vocabulary.piece(token)
            state = state.advance(token)
        return None

    @staticmethod
    def _close(state: GrammarState, closer: list[int]) -> GrammarState | None:
        for token in closer:
            if not state.allows(np.array([token]))[0]:
                return None
            state = state.advance(token)
        return state

    def _choose(self, allowed: list[int]) -> int:
        pieces = {token: self._vocabulary.piece(token) for token in allowed}
        short = [t for t in allowed if pieces[t][:1] in b"\"'}]<,:\n[1{"]
        if short and self._dice.random() < 0.7:
            return self._dice.choice(short)
        ascii_tokens = [t for t in allowed if pieces[t].isascii()]
        return self._dice.choice(ascii_tokens or allowed)


@pytest.mark.parametrize("format_name", LAYOUTS)
def test_what_the_grammar_writes_is_a_call_that_satisfies_its_schema(
    format_name: str,
) -> None:
    vocabulary = CallVocabulary(format_name)
    states = start(format_name, vocabulary=vocabulary)
    assert not states.loose
    before = ""
    if format_name == "gpt-oss":
        before = "<|channel|>commentary "
    n_calls = 0
    called: set[str] = set()
    for seed in range(12):
        for mark, state in states.by_mark.items():
            written = Walk(vocabulary, layout_of(format_name), seed).write(state)
            if written is None:
                continue
            text = f"{before}{mark}{written.decode('utf-8', 'replace')}"
            said, calls = read_calls(format_name, text)
            assert said.strip() == "", text
            assert calls, text
            for name, arguments in calls:
                assert satisfies(SCHEMAS[name], arguments, SCHEMAS[name]), text
                called.add(name)
            n_calls += len(calls)
    assert n_calls > 6
    assert called == {"weather", "now"}


def accepts(vocabulary: CallVocabulary, state: GrammarState, text: str) -> bool:
    for token in vocabulary.tokenize(text):
        if not state.allows(np.array([token]))[0]:
            return False
        state = state.advance(token)
    return bool(state.allows(np.array([vocabulary.eos]))[0])


WRITABLE: tuple[dict[str, Any], ...] = (
    {"city": "Rome", "days": 3},
    {"city": "a < b \n\n", "days": 0, "unit": "F", "long": False},
    {"city": "", "days": 9, "tags": ["u", "v"], "note": "日本", "wind": -1},
    {"city": "12", "days": 1, "place": {"lat": 1, "within": {"lat": 2}}},
)


@pytest.mark.parametrize("format_name", [name for name in LAYOUTS if name != "gpt-oss"])
def test_a_call_as_the_template_writes_it_is_allowed(format_name: str) -> None:
    vocabulary = CallVocabulary(format_name)
    named = {"get_weather": SCHEMAS["weather"]}
    states = start(format_name, named, vocabulary)
    (mark,) = states.by_mark
    for arguments in WRITABLE:
        if format_name == "minimax3" and {"tags", "place"} & arguments.keys():
            continue  # The template writes these as tags, in which nothing has a type.
        written_arguments = arguments
        if format_name == "gemma":
            written_arguments = dict(sorted(arguments.items()))
        text = write(format_name, written_arguments)
        if format_name == "python" and "\n" in arguments["city"]:
            continue  # The template writes a line feed as it is, which Python cannot read.
        assert text.startswith(mark), text
        written = text.removeprefix(mark)
        assert accepts(vocabulary, states.by_mark[mark], written), text
    for wrong in ({"city": "Rome"}, {"city": "Rome", "days": 33}, {"days": 3}):
        written = write(format_name, wrong).removeprefix(mark)
        assert not accepts(vocabulary, states.by_mark[mark], written), wrong


@pytest.mark.parametrize("format_name", LAYOUTS)
def test_no_other_tool_is_called(format_name: str) -> None:
    vocabulary = CallVocabulary(format_name)
    states = start(format_name, vocabulary=vocabulary)
    for mark, state in states.by_mark.items():
        other = write(format_name, {"city": "Rome", "days": 3})
        assert not accepts(vocabulary, state, other.removeprefix(mark))


LOOSE = [name for name in LAYOUTS if name != "minimax3"]
"""MiniMax M3's closing tags have the names of arguments."""


@pytest.mark.parametrize("format_name", LOOSE)
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "not": {}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "properties": {"a": {"enum": ["x" * 200_000]}}},
        {"type": "object", "properties": 3},
        {"type": "object", "properties": {"a": 3}},
        {"type": "object", "properties": {"a": {"type": [{}]}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_named_and_its_tool_can_be_called(
    format_name: str, schema: Any
) -> None:
    schemas = {"weather": schema, "now": SCHEMAS["now"]}
    vocabulary = CallVocabulary(format_name)
    states = start(format_name, schemas, vocabulary)
    assert states.loose == ("weather",)
    read: list[str] = []
    for seed in range(4):
        for mark, state in states.by_mark.items():
            written = Walk(vocabulary, layout_of(format_name), seed).write(state)
            if written is None:
                continue
            text = f"{mark}{written.decode('utf-8', 'replace')}"
            if format_name == "gpt-oss":
                text = f"<|channel|>commentary {text}"
            said, calls = read_calls(format_name, text)
            assert said.strip() == "", text
            read += [name for name, _ in calls]
    assert read


def test_the_separators_of_the_template_are_those_of_the_grammar() -> None:
    compact = replace(GENERIC_LAYOUT, arguments=JsonArguments(",", ":"))
    vocabulary = CallVocabulary("generic")
    states = Grammars(vocabulary).start_calls(compact, SCHEMAS)
    state = states.by_mark["<tool_call>"]
    head = '\n{"name": "weather", "arguments": '
    tail = "}\n</tool_call>"
    assert accepts(vocabulary, state, f'{head}{{"city":"Rome","days":3}}{tail}')
    assert not accepts(vocabulary, state, f'{head}{{"city": "Rome", "days": 3}}{tail}')


def test_where_the_closing_mark_ends_the_answer_only_an_end_follows() -> None:
    vocabulary = CallVocabulary("gpt-oss", ends=("<|call|>",))
    states = start("gpt-oss", vocabulary=vocabulary)
    assert states.ends_answer
    state = states.by_mark["to=functions."]
    for token in vocabulary.tokenize("now json<|message|>{}"):
        assert state.allows(np.array([token]))[0]
        state = state.advance(token)
    allowed = state.allowed_tokens().tolist()
    assert allowed
    assert all(map(vocabulary.is_eog, allowed))


@pytest.mark.parametrize("format_name", LAYOUTS)
def test_a_forced_call_begins_with_its_mark(format_name: str) -> None:
    vocabulary = CallVocabulary(format_name)
    layout = layout_of(format_name)
    state = Grammars(vocabulary).start_forced_call(layout, SCHEMAS)
    written = None
    seed = 0
    while written is None:
        written = Walk(vocabulary, layout_of(format_name), seed).write(state)
        seed += 1
    said, calls = read_calls(format_name, written.decode("utf-8", "replace"))
    assert said.strip() == ""
    assert calls


def test_arguments_without_a_schema_have_no_closing_tags_in_minimax_m3() -> None:
    with pytest.raises(GrammarError, match="without a schema"):
        start("minimax3", {"now": {"type": "object", "not": {}}})


@pytest.mark.parametrize(
    ("format_name", "name"),
    [
        ("tags", "a <b>"),
        ("gemma", "a b"),
        ("kimi", "a:1"),
        ("kimi3", 'a"'),
        ("python", "get-time"),
        ("python", "if"),
    ],
)
def test_a_name_that_no_call_can_hold_is_refused(format_name: str, name: str) -> None:
    with pytest.raises(GrammarError, match="name"):
        start(format_name, {name: SCHEMAS["now"]})


def with_argument(part: Any, **definitions: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": part},
        "required": ["a"],
        "$defs": definitions,
    }


HOSTILE: Mapping[str, dict[str, Any]] = {
    "a reference to itself": {"$ref": "#"},
    "references in a circle": with_argument(
        {"$ref": "#/$defs/A"}, A={"$ref": "#/$defs/B"}, B={"$ref": "#/$defs/A"}
    ),
    "alternatives that are itself": with_argument(
        {"$ref": "#/$defs/A"}, A={"anyOf": [{"$ref": "#/$defs/A"}]}
    ),
    "an object that must have itself": with_argument({"$ref": "#"}),
    "an argument that no value fits": {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/a"}},
    },
    "3,000 arguments": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(3_000)},
    },
    "500 arguments": {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(500)},
    },
    "a chain of 3,000 references": with_argument(
        {"$ref": "#/$defs/d0"},
        **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3_000)},
        d3000={"type": "string"},
    ),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("format_name", ["tags", "gemma", "python", "dsml", "gpt-oss"])
def test_no_schema_of_a_server_ends_an_answer_or_the_engine(
    format_name: str, what: str
) -> None:
    """A grammar that fails in the middle of a call would end the answer."""
    rng = random.Random(7)
    states = start(format_name, {"weather": HOSTILE[what]})
    for behind_mark in states.by_mark.values():
        state = behind_mark
        for _ in range(60):
            allowed = state.allowed_tokens()
            assert len(allowed)
            state = state.advance(int(rng.choice(allowed)))


@pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_CHECKOUT is not set")
@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem
)
def test_the_calls_that_llama_cpps_templates_write_are_allowed(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    format_name = tool_detection.detect_format(source, variables)
    if format_name is None:
        return
    layout = tool_detection.detect_layout(format_name, source, variables)
    assert layout is not None
    probe = tool_detection._PROBES[0]
    text = tool_detection._render_call(source, variables, probe)
    assert text is not None
    ends = ("<|call|>",) if format_name == "gpt-oss" else ()
    vocabulary = CallVocabulary(format_name, ends=ends)
    parameters = tool_detection._PARAMETERS
    states = Grammars(vocabulary).start_calls(layout, parameters)
    (mark, *_) = [mark for mark in states.by_mark if mark in text]
    state = states.by_mark[mark]
    for token in vocabulary.tokenize(text.partition(mark)[2]):
        if state.allows(np.array([vocabulary.eos]))[0]:
            return
        assert state.allows(np.array([token]))[0]
        state = state.advance(token)
    assert state.allows(np.array([vocabulary.eos]))[0]


def test_a_long_text_between_tags_is_read_in_linear_time() -> None:
    """The grammar of a text has as many states at its end as at its beginning."""
    vocabulary = CallVocabulary("tags")
    states = start("tags", {"weather": SCHEMAS["weather"]}, vocabulary)
    text = "\n<function=weather>\n<parameter=city>\n" + "a < b\n" * 3_000
    state = states.by_mark["<tool_call>"]
    for token in vocabulary.tokenize(text):
        assert state.allows(np.array([token]))[0]
        state = state.advance(token)
    assert accepts(
        vocabulary,
        state,
        "\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    )
