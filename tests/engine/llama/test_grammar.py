"""GBNF in llama.cpp: what is allowed next, and grammars that must not harm the process."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from localspec.engine.constraints.grammars import Grammars
from localspec.engine.constraints.json_schema import schema_to_gbnf
from localspec.engine.llama import LlamaContext
from localspec.engine.llama.grammar import GbnfGrammars, check_grammar
from localspec.engine.llama.model import LlamaVocab
from localspec.engine.protocols import GrammarState
from localspec.errors import GrammarError
from localspec.paths import package_data_dir
from tests.sessions import SETTINGS
from tests.zoo import Zoo

SCHEMAS: dict[str, Any] = {
    "flat": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": -3, "exclusiveMaximum": 1205},
            "share": {"type": "number", "minimum": 0, "maximum": 1},
            "quote": {"enum": ['a"b', "back\\slash", "é\n", None, 3.5]},
        },
        "required": ["age", "quote"],
    },
    "nested": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "on": {"type": "boolean"},
                    "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
                },
                "required": ["below"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "choice": {
        "anyOf": [
            {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 2},
            {"type": "string", "pattern": '^[A-Z"]{2,3}-\\d+$'},
            {"const": {"k": [1, None]}},
        ]
    },
    "map": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
    "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}]},
    "anything": {"type": "object"},
}


@pytest.fixture(scope="module", params=["demo", "target"])
def vocabulary(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[LlamaVocab]:
    """A byte-level BPE, and an SPM vocabulary with byte tokens."""
    demo = package_data_dir() / "demo" / "demo-draft.gguf"
    path = demo if request.param == "demo" else zoo[request.param]
    model = LlamaContext(path, SETTINGS, outputs=1, rollback=0)
    yield model.vocabulary
    model.close()


def generate(
    state: GrammarState, vocabulary: LlamaVocab, rng: random.Random, n: int
) -> tuple[bytes, bool]:
    """A random text of the grammar; True if it is complete. Short tokens end it sooner."""
    text = b""
    for _ in range(n):
        allowed = state.allowed_tokens().tolist()
        ends = [token for token in allowed if vocabulary.is_eog(token)]
        if ends:
            return text, True
        closing = [token for token in allowed if vocabulary.piece(token).strip() in CLOSING]
        token = rng.choice(closing if closing and rng.random() < 0.4 else allowed)
        text += vocabulary.piece(token)
        state = state.advance(token)
    return text, False


CLOSING = (b'"', b"]", b"}", b'"}', b'"]', b'",')


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("use_llguidance", [False, True])
def test_texts_of_a_schema_are_json_that_satisfies_it(
    name: str, use_llguidance: bool, vocabulary: LlamaVocab
) -> None:
    if use_llguidance:
        pytest.importorskip("llguidance")
    rng = random.Random(name)
    grammars = Grammars(vocabulary, use_llguidance=use_llguidance)
    complete = 0
    for _ in range(6):
        start = grammars.start("", json.dumps(SCHEMAS[name]))
        text, is_complete = generate(start, vocabulary, rng, 100)
        if is_complete:
            complete += 1
            assert satisfies(
                json.loads(text.decode(errors="replace")), SCHEMAS[name], SCHEMAS[name]
            )
    assert complete, "no text was complete"


KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}


def satisfies(value: Any, schema: Any, root: Any) -> bool:
    """The keywords that `SCHEMAS` uses."""
    if "$ref" in schema:
        return satisfies(value, root["$defs"][schema["$ref"].split("/")[-1]], root)
    if "anyOf" in schema:
        return any(satisfies(value, part, root) for part in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if isinstance(schema["type"], list):
        return any(satisfies(value, schema | {"type": kind}, root) for kind in schema["type"])
    return isinstance(value, KINDS[schema["type"]]) and has_right_parts(value, schema, root)


def has_right_parts(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(value, dict):
        known, other = schema.get("properties", {}), schema.get("additionalProperties", {})
        parts = [(part, known.get(key, other)) for key, part in value.items()]
        return set(schema.get("required", [])) <= value.keys() and all(
            not kind or satisfies(part, kind, root) for part, kind in parts
        )
    if isinstance(value, list):
        items = schema.get("prefixItems") or [schema["items"]] * len(value)
        right = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1000)
        return right and all(map(satisfies, value, items, [root] * len(value)))
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1000))
    low, high = schema.get("minimum", -1e20), schema.get("maximum", 1e20)
    below = schema.get("exclusiveMaximum", 1e20)
    return value is None or bool(low <= value <= high and value < below)


def test_a_tree_of_tokens_finds_what_a_test_of_all_finds(vocabulary: LlamaVocab) -> None:
    rng = random.Random(1)
    every = np.arange(vocabulary.n_tokens)
    grammars = GbnfGrammars(vocabulary)
    texts = ('root ::= "é漢" [a-z]* | "the" ("n" | "\\n")', schema_to_gbnf("{}"))
    for state in map(grammars.start, texts):
        for _ in range(25):
            allowed = np.sort(state.allowed_tokens())
            assert allowed.tolist() == every[state.allows(every)].tolist()
            if not len(allowed) or vocabulary.is_eog(allowed[0]):
                break
            state = state.advance(int(rng.choice(allowed)))  # noqa: PLW2901  walks on


def test_control_tokens_are_never_text(vocabulary: LlamaVocab) -> None:
    state = GbnfGrammars(vocabulary).start("root ::= [^x]*")
    allowed = set(state.allowed_tokens().tolist())
    for token in range(vocabulary.n_tokens):
        if not vocabulary.piece(token):
            assert (token in allowed) == vocabulary.is_eog(token)


def test_a_state_is_not_changed_by_what_follows(vocabulary: LlamaVocab) -> None:
    state = GbnfGrammars(vocabulary).start('root ::= "ab" | "ac"')
    first = state.allowed_tokens().tolist()
    state.advance(first[0])
    assert state.allowed_tokens().tolist() == first
    forbidden = next(token for token in range(vocabulary.n_tokens) if token not in first)
    with pytest.raises(GrammarError):
        state.advance(forbidden)


HOSTILE = (
    "",
    "root ::= root",
    'root ::= "a',
    'other ::= "a"',
    "root ::= missing",
    "root ::= <[5]>",
    'root ::= "a\0b"',
    "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} | r{i + 1}\n" for i in range(60)) + "r60 ::=",
    'root ::= ((("a"{2000}){2000}){2000}){2000}',
    'root ::= "a"{99999999999999999999}',
    "root ::= " + "x" * 300_000,
)


@pytest.mark.parametrize("grammar", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_grammar_is_an_error(grammar: str) -> None:
    with pytest.raises(GrammarError) as error:
        check_grammar(grammar.encode())
    assert len(error.value.message) < 300 and error.value.message.endswith(".")


def test_an_ambiguous_grammar_ends_before_it_fills_the_memory(vocabulary: LlamaVocab) -> None:
    grammar = 'root ::= "a" root "x" | "a" root "y" | "b"'
    state = GbnfGrammars(vocabulary).start(grammar)
    letter = next(t for t in state.allowed_tokens().tolist() if vocabulary.piece(t) == b"a")
    with pytest.raises(GrammarError, match="ambiguous"):
        for _ in range(60):
            state = state.advance(letter)


REFUSED = (
    ("{", "not valid JSON"),
    ("[" * 5000, "not valid JSON"),
    ("3", "not a JSON Schema"),
    ('{"type": "float"}', "not a type"),
    ('{"not": {}}', "`not`"),
    ('{"type": "object", "patternProperties": {}}', "`patternProperties`"),
    ('{"type": "string", "pattern": "(?=a)"}', "not supported"),
    ('{"type": "string", "pattern": "("}', "not valid"),
    ('{"type": "string", "maxLength": 100000}', "`maxLength`"),
    ('{"type": "integer", "minimum": 5, "maximum": 4}', "bounds"),
    ('{"type": "integer", "minimum": 0.5}', "whole number"),
    ('{"$ref": "https://example.org/schema"}', "reference"),
    ('{"$ref": "#/$defs/none"}', "names nothing"),
    ('{"$ref": "#"}', "reference"),
    ('{"enum": []}', "at least one"),
    ('{"items": ' * 70 + "{}" + "}" * 70, "nested"),
    ('{"allOf": [{"type": "string"}, {"type": "null"}]}', "two different"),
    (json.dumps({"anyOf": [{"const": i} for i in range(6000)]}), "too large"),
    ('{"title": "' + "x" * 200_000 + '"}', "characters"),
)


@pytest.mark.parametrize(("schema", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_schema_that_cannot_be_honoured_is_refused(schema: str, reason: str) -> None:
    with pytest.raises(GrammarError) as error:
        schema_to_gbnf(schema)
    assert reason in error.value.message + error.value.hint


def test_llguidance_refuses_what_it_cannot_honour(vocabulary: LlamaVocab) -> None:
    pytest.importorskip("llguidance")
    grammars = Grammars(vocabulary, use_llguidance=True)
    for schema in ("{", '{"type": "float"}', '{"not": {}}', '{"$ref": "https://example.org/x"}'):
        with pytest.raises(GrammarError) as error:
            grammars.start("", schema)
        assert error.value.message.endswith(".")


def test_forced_tokens_are_the_only_ones_allowed(vocabulary: LlamaVocab) -> None:
    pytest.importorskip("llguidance")
    grammars = Grammars(vocabulary, use_llguidance=True)
    state = grammars.start("", json.dumps(SCHEMAS["flat"] | {"required": ["name", "age"]}))
    rng, n_forced = random.Random(2), 0
    for _ in range(60):
        for token in state.forced_tokens():
            assert state.allowed_tokens().tolist() == [token]
            state, n_forced = state.advance(token), n_forced + 1
        allowed = state.allowed_tokens()
        if vocabulary.is_eog(int(allowed[0])):
            break
        state = state.advance(int(rng.choice(allowed.tolist())))
    assert n_forced > 3
