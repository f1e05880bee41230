"""Grammars and schemas: what is allowed next, and those that must not harm the process."""

import json
import random
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import GrammarError
from localspec.install_hints import install_command
from localspec.llama.context import LlamaContext
from localspec.llama.model import LlamaVocab
from localspec.machine.llama_params import ModelRole
from localspec.paths import package_data_dir
from localspec.spec.constraints.grammars import (
    MAX_CHARS,
    Grammars,
    _TokenizerInterface,
)
from localspec.spec.constraints.one_of import outline_alternatives
from localspec.spec.protocols import GrammarState
from tests.support.sessions import SETTINGS
from tests.support.zoo import Zoo

DEMO = package_data_dir() / "demo" / "demo-draft.gguf"
TREE = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"},
        "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
    },
    "required": ["below"],
    "additionalProperties": False,
}
FLAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 4},
        "age": {"type": "integer", "minimum": -3, "exclusiveMaximum": 1205},
        "quote": {"enum": ['a"b', "back\\slash", "é\n", None, 3.5]},
    },
    "required": ["age", "quote"],
}
CHOICE = {
    "anyOf": [
        {"type": "array", "items": {"type": "string", "format": "date"}, "minItems": 2},
        {"type": "string", "pattern": '^[A-Z"]{2,3}-\\d+$'},
        {"const": {"k": [1, None]}},
    ]
}
SCHEMAS: tuple[tuple[Any, tuple[str, ...], tuple[str, ...]], ...] = (
    # schema, texts that satisfy it, texts that do not
    (
        FLAT,
        ('{"age": -3, "quote": null}', r'{"name": "ab", "age": 1204, "quote": "a\"b"}'),
        (
            '{"age": 1205, "quote": null}',
            '{"age": 1}',
            '{"name": "", "age": 1, "quote": null}',
        ),
    ),
    (
        {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
        ('{"below": [{"on": true, "below": []}]}',),
        ('{"on": true}', '{"below": [{}]}', '{"below": [], "x": 1}'),
    ),
    (
        CHOICE,
        ('["2026-01-31", "1999-12-01"]', r'"A\"-12"', '{"k": [1, null]}'),
        ('["2026-01-31"]', '"A-1"', '{"k": [1]}', '["2026-13-01", "1999-12-01"]'),
    ),
)


@contextmanager
def vocabulary_of(path: Path) -> Iterator[LlamaVocab]:
    with closing(LlamaContext(path, ModelRole(SETTINGS, 1, 0))) as model:
        yield model.vocabulary


@pytest.fixture(scope="module", params=["demo", "target"])
def vocabulary(request: pytest.FixtureRequest, zoo: Zoo) -> Iterator[LlamaVocab]:
    """A byte-level BPE, and an SPM vocabulary with byte tokens."""
    path = DEMO if request.param == "demo" else zoo[request.param]
    with vocabulary_of(path) as vocabulary:
        yield vocabulary


@pytest.fixture(scope="module")
def grammars(vocabulary: LlamaVocab) -> Grammars:
    return Grammars(vocabulary)


@pytest.fixture(scope="module")
def demo() -> Iterator[Grammars]:
    with vocabulary_of(DEMO) as vocabulary:
        yield Grammars(vocabulary)


JSON_GRAMMAR = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
GRAMMARS = (
    # grammar, texts of it, texts that are not
    (
        JSON_GRAMMAR,
        ('{"a": [1, 2.5e3, "x\\n\\u00e9é"], "b": {}}\n', "{}"),
        ('{"a":01}', "[]"),
    ),
    (ARITHMETIC, ("1 = 2\n\n", "(a_1 +b)*3=x\n"), ("1=2", "1+=2\n")),
    ('root ::= word "ab"\nword ::= [a-z]*', ("ab", "abab"), ("ba",)),
    (
        'root ::= word "ab" | "(" root ")"\nword ::= [a-z]*',
        ("abab", "((ab))"),
        ("(ab",),
    ),
    ('root ::= [a-z] [a-z] "c" | "ab" "d"', ("abc", "abd", "xyc"), ("xyd",)),
    ('root ::= ("a"{2}){2,3}', ("aaaa", "aaaaaa"), ("aaaaa", "aa")),
    ('root ::= ("a"+ "b"?)* "c"{0,1}', ("", "aabac"), ("b", "acc")),
    (
        r'root ::= "\u0041\x42\U0001F600" [\u00e9\U0001F601-\U0001F603]+',
        ("AB😀é😂",),
        ("AB😀😀",),
    ),
    (r'root ::= [a&&b~~-]+ [^\]"\\-] [+--]', ("a&~-x,", "bc-"), ("c-", "a]-", "a--x")),
    (r'root ::= "it' + "'" + r's \"\\/\t" . [/]', ("it" + "'" + 's "\\/\t\n/',), ("",)),
    (
        'my-rule ::= "a"\nmyRule ::= "b"\nstart ::= my-rule\nroot ::= start myRule',
        ("ab",),
        ("ba",),
    ),
    (
        "root ::= ( | x ) x\nx ::= \"\" | 'y'".replace("'", '"'),
        ("", "y", "yy"),
        ("yyy",),
    ),
    ('root ::=\n  # a comment\n  "a"\n  | "é漢"\n', ("a", "é漢"), ("é",)),
    ('root ::= root "a" | "b"', ("baa",), ("ab",)),
)


def spell(text: str, vocabulary: LlamaVocab) -> list[int]:
    """Tokens of a text, those of single bytes where the vocabulary has no longer ones."""
    pieces = [vocabulary.text_piece(token) for token in range(vocabulary.n_tokens)]
    return _TokenizerInterface(vocabulary, pieces)._longest_matches(text.encode())


def is_text_of(state: GrammarState, tokens: list[int], vocabulary: LlamaVocab) -> bool:
    for token in tokens:
        if not state.allows(np.array([token]))[0]:
            return False
        state = state.advance(token)
    return any(vocabulary.is_eog(token) for token in state.allowed_tokens().tolist())


def test_a_grammar_or_a_schema_allows_its_texts_and_no_others(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    given = [(grammar, "", *texts) for grammar, *texts in GRAMMARS]
    given += [("", json.dumps(schema), *texts) for schema, *texts in SCHEMAS]
    for grammar, schema, allowed, others in given:
        for text in (*allowed, *others):
            state = grammars.start(grammar, schema)
            tokens = spell(text, vocabulary)
            assert is_text_of(state, tokens, vocabulary) == (text in allowed), (
                schema,
                text,
            )


def test_tokens_tested_alone_are_those_of_the_whole_mask(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    rng = random.Random(1)
    for grammar, schema in ((JSON_GRAMMAR, ""), ("", "{}")):
        state = grammars.start(grammar, schema)
        for _ in range(25):
            asked = np.array(rng.sample(range(vocabulary.n_tokens), 60))
            alone = state.allows(asked)
            allowed = state.allowed_tokens()
            assert alone.tolist() == np.isin(asked, allowed).tolist()
            assert state.allows(asked).tolist() == alone.tolist()
            if vocabulary.is_eog(int(allowed[0])):
                break
            state = state.advance(int(rng.choice(allowed)))


class SpmVocabulary:
    """An end, a token for every byte, and then words: `a`, `b` and `"` are there twice."""

    def __init__(self) -> None:
        self._pieces = [b"", *(bytes([i]) for i in range(256)), b"a", b"ab", b"b", b'"']
        self.n_tokens = len(self._pieces)
        self.eos = 0

    def is_eog(self, token: int) -> bool:
        return token == self.eos

    def text_piece(self, token: int) -> bytes:
        return self._pieces[token]

    def token_text(self, token: int) -> bytes:
        return self._pieces[token] or b"</s>"

    def tokenize_plain(self, data: bytes) -> list[int]:
        return [1 + byte for byte in data]


def test_tokens_of_the_same_bytes_are_allowed_together_however_they_are_tested() -> (
    None
):
    """Else a drafted token is refused that plain decoding takes, or the other way round."""
    vocabulary = SpmVocabulary()
    grammars = Grammars(vocabulary)
    every = np.arange(vocabulary.n_tokens)
    for grammar, schema in (
        ('root ::= "\\"" [ab]* "\\""', ""),
        ("", '{"type": "string"}'),
    ):
        state = grammars.start(grammar, schema)
        for text in (b'"', b"a", b"b", b"a"):
            alone = [bool(state.allows(every[i : i + 1])[0]) for i in every]
            allowed = np.isin(every, state.allowed_tokens())
            assert alone == allowed.tolist()
            same = [i for i in every if vocabulary.text_piece(int(i)) == text]
            assert len(same) == 2
            assert allowed[same].all()
            state = state.advance(int(same[1]))


def test_control_tokens_are_never_text_and_a_state_is_not_changed_by_what_follows(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    allowed = set(grammars.start("root ::= [^x]*", "").allowed_tokens().tolist())
    for token in range(vocabulary.n_tokens):
        if not vocabulary.piece(token):
            assert (token in allowed) == vocabulary.is_eog(token)
    state = grammars.start('root ::= "ab" | "ac"', "")
    first = state.allowed_tokens().tolist()
    state.advance(first[0])
    assert state.allowed_tokens().tolist() == first
    forbidden = next(
        token for token in range(vocabulary.n_tokens) if token not in first
    )
    with pytest.raises(GrammarError):
        state.advance(forbidden)


INVALID = (
    ('root ::= "a', "not valid GBNF"),
    ('other ::= "a"', "no rule 'root'"),
    ("root ::= missing", "no rule 'missing'"),
    ("root ::= <[5]>", "not valid GBNF"),
    ("::= x", "begins with"),
    ('root ::= x\n(x) ::= y\nx ::= ""', "no name"),
    ("root ::= *", "cannot be used"),
    ("root ::= [z-a]", "cannot be used"),
    ("root ::= []", "cannot be used"),
    ('root ::= "a"{99999999999999999999}', "cannot be used"),
    ("root ::= " + "x" * 300_000, "characters"),
    ('root ::= "a"{1,' + " " * 120_000 + "x", "not valid GBNF"),
    ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, ""),
)


def chain(n: int, make: Callable[[str], Any], last: Any) -> dict[str, Any]:
    """A schema of `n` definitions of which each names the next."""
    parts = {f"a{i}": make(f"#/$defs/a{i + 1}") for i in range(n)}
    return {"$defs": {**parts, f"a{n}": last}, "$ref": "#/$defs/a0"}


HOSTILE_SCHEMAS: tuple[Any, ...] = (
    {"type": {}},
    {"type": "integer", "minimum": 10**400},
    {"type": "string", "pattern": "(" * 300 + "a" + ")" * 300},
    {"$defs": {"a": [True]}, "$ref": "#/$defs/a/" + "9" * 5000},
    chain(  # keywords beside $ref
        24,
        lambda ref: {
            "properties": {key: {"$ref": ref, "minProperties": 0} for key in "xy"}
        },
        {"type": "object"},
    ),
    chain(
        24,
        lambda ref: {
            "allOf": [
                {"additionalProperties": {"$ref": ref}},
                {"properties": {key: {"type": "object"} for key in "xy"}},
            ]
        },
        {"type": "object"},
    ),
    chain(
        24,
        lambda ref: {
            "anyOf": [{"$ref": ref, "minimum": 1}, {"$ref": ref, "maximum": 9}]
        },
        {"type": "integer"},
    ),
    {"type": "number", "multipleOf": 1234567},
    {"allOf": [{"type": "integer", "multipleOf": p} for p in (3, 7, 11, 13, 17, 19)]},
    {"allOf": [{"type": "string", "pattern": f".*{c}.{{30}}.*"} for c in "abcdefgh"]},
)
HOSTILE_GRAMMARS = (
    'root ::= r\nr ::= [^0-9] r "1" | [^0-9] r "2" | "0"',
    'root ::= "a" root "x" | "a" root "y" | "b"',
    'root ::= r\nr ::= r r | [^0-9] | r r r | s | ""\ns ::= r s | r',
    "root ::= root",
    'root ::= ((("a"{2000}){2000}){2000}){2000}',
    "root ::= r0\n"
    + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60))
    + 'r60 ::= "a"',
    "root ::= r0\n"
    + "".join(f"r{i} ::= r{i + 1}\n" for i in range(3000))
    + 'r3000 ::= "a"',
    # A stack of 8 MB is too small for these rules.
    "root ::= r0\n"
    + "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(5000))
    + 'r5000 ::= "z"',
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("grammar", HOSTILE_GRAMMARS, ids=range(len(HOSTILE_GRAMMARS)))
def test_an_ambiguous_grammar_is_followed_or_refused_in_little_time(
    grammar: str, demo: Grammars
) -> None:
    """A BPE's last tokens are its longest words."""
    with suppress(GrammarError):
        state = demo.start(grammar, "")
        for _ in range(60):
            state = state.advance(int(state.allowed_tokens()[-1]))


REFUSED = (
    ("{", "cannot be used"),
    ("[" * 5000, "nested too deeply"),
    ("3", "not a JSON Schema"),
    ("false", "not a JSON Schema"),
    ('{"type": "float"}', "float"),
    ('{"not": {}}', '"not"'),
    ('{"type": "object", "propertyNames": {"pattern": "a"}}', '"propertyNames"'),
    ('{"type": "array", "uniqueItems": true}', '"uniqueItems"'),
    ('{"x-guidance": {"lenient": true}, "contains": {}}', '"contains"'),
    ('{"type": "string", "pattern": "(?=a)"}', "look-ahead"),
    ('{"type": "integer", "minimum": 5, "maximum": 4}', "min"),
    ('{"$ref": "https://example.org/schema"}', "https://example.org/schema"),
    ('{"$ref": "#/$defs/none"}', "/$defs/none"),
    ('{"enum": []}', "empty"),
    ('{"$ref": "#"}', "refers to itself without end"),
    ('{"title": "' + "x" * 200_000 + '"}', "characters"),
)
UNUSABLE = [
    *((grammar, "", reason) for grammar, reason in INVALID),
    *(("", schema, reason) for schema, reason in REFUSED),
    *(("", json.dumps(schema), "") for schema in HOSTILE_SCHEMAS),
]


@pytest.mark.timeout(
    60
)  # compiled without limits, hostile ones take minutes and all memory
@pytest.mark.parametrize(
    ("grammar", "schema", "reason"), UNUSABLE, ids=range(len(UNUSABLE))
)
def test_what_cannot_be_honoured_is_refused_in_one_short_sentence(
    grammar: str, schema: str, reason: str, demo: Grammars
) -> None:
    with pytest.raises(GrammarError) as error:
        demo.start(grammar, schema)
    assert len(error.value.message) < 300 and error.value.message.endswith(".")
    assert reason in error.value.message


def test_definitions_in_a_long_chain_need_no_larger_stack_of_the_caller(
    demo: Grammars,
) -> None:
    """llguidance follows references by recursion: 1,500 of them end a process."""
    definitions: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(2_000)
    }
    definitions["d2000"] = {"type": "string"}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    state = demo.start("", json.dumps(schema))
    assert len(state.allowed_tokens())


def test_definitions_may_name_each_other_without_end(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    plain = {"properties": {key: {"$ref": "#", "description": key} for key in "xy"}}
    schema = chain(
        40, lambda ref: {"type": "object", "properties": {"k": {"$ref": ref}}}, plain
    )
    for text in ("{}", '{"k": {"k": {}}}'):
        state = grammars.start("", json.dumps(schema))
        assert is_text_of(state, spell(text, vocabulary), vocabulary)


def pet(kind: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}},
        "required": ["kind"],
    }


FORMATS = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uri-reference",
    "iri",
    "iri-reference",
    "uuid",
    "uri-template",
    "json-pointer",
    "regex",
    "int32",
    "int64",
    "float",
    "double",
    "byte",
    "binary",
    "password",
    "path",
    "file-path",
    "directory-path",
    "base64url",
    "nonsense",
    "relative-json-pointer",
    "unknown",
]
"""Those of JSON Schema, OpenAPI and pydantic, and two that nobody has."""


@pytest.mark.parametrize("kind", ["string", "integer", "number"])
def test_every_format_is_accepted_and_an_unknown_one_changes_nothing(
    kind: str, demo: Grammars
) -> None:
    for name in FORMATS:
        schema = {
            "$defs": {"a": {"type": kind, "format": name}},
            "properties": {"format": {"$ref": "#/$defs/a"}},
        }

        state = demo.start("", json.dumps(schema))

        assert not state.allows(np.array([demo._vocabulary.eos]))[0]


@pytest.mark.parametrize("value", ["nonsense", "int64", "password", 3, None, ["uri"]])
def test_a_text_of_an_unknown_format_is_any_text(
    value: object, vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    state = grammars.start("", json.dumps({"type": "string", "format": value}))

    assert is_text_of(state, spell('"any text"', vocabulary), vocabulary)


def test_a_known_format_is_still_enforced(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    schema = json.dumps({"type": "string", "format": "ipv4"})
    address = spell('"127.0.0.1"', vocabulary)
    other = spell('"any text"', vocabulary)

    assert is_text_of(grammars.start("", schema), address, vocabulary)
    assert not is_text_of(grammars.start("", schema), other, vocabulary)


def test_one_of_is_exact_and_true_is_anything(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    for schema, text in (
        ({"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}]}, '"abc"'),
        ({"oneOf": [{"enum": ["a", 1]}, {"const": "b"}, {"type": "array"}]}, '"b"'),
        ({"oneOf": [pet("cat"), pet("dog")]}, '{"kind": "dog"}'),
        (True, "[1, {}]"),
        (
            {"items": {"uniqueItems": False, "propertyNames": {"type": "string"}}},
            '[{"a": 1}]',
        ),
        ({"properties": {"uniqueItems": {"const": False}}}, '{"uniqueItems": false}'),
    ):
        state = grammars.start("", json.dumps(schema))
        assert is_text_of(state, spell(text, vocabulary), vocabulary)
    grammars.start("", '{"properties": {"oneOf": {"type": "string"}}}')
    for overlapping in (
        [{"type": "string"}, {"const": "abc"}],
        [{"type": "number"}, {"type": "integer"}],
        [pet("cat"), {"type": "object"}],
        [{"$ref": "#"}, {"$ref": "#"}],
    ):
        with pytest.raises(GrammarError, match="oneOf overlap"):
            grammars.start(
                "", json.dumps({"properties": {"a": {"oneOf": overlapping}}})
            )


NAMES = list("abcdefgh")


def nested_object(leaf: str) -> dict[str, Any]:
    """8 properties, of which each is the same definition, and all are required."""
    properties = {name: {"$ref": f"#/$defs/{leaf}"} for name in NAMES}
    return {"type": "object", "properties": properties, "required": NAMES}


def definitions(n_values: int) -> dict[str, Any]:
    """`outer` names a list of values 64 times."""
    return {
        "values": {"enum": list(range(n_values))},
        "inner": nested_object("values"),
        "outer": nested_object("inner"),
    }


OUTER = {"$ref": "#/$defs/outer"}
MULTIPLIED = (
    {"$defs": definitions(500), "oneOf": [OUTER] * 100},
    {
        "$defs": definitions(1000),
        "properties": {f"p{i}": {"oneOf": [OUTER, {"const": i}]} for i in range(100)},
    },
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("schema", MULTIPLIED, ids=["in one oneOf", "in many"])
def test_alternatives_that_references_multiply_are_refused_in_little_memory(
    schema: dict[str, Any], demo: Grammars
) -> None:
    """Written out, they are three million values and more, in a schema of 5 KB."""
    tracemalloc.start()
    try:
        with pytest.raises(GrammarError, match="too much time or memory"):
            demo.start("", json.dumps(schema))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 1024 * 1024


def model(kind: str, child: str = "") -> dict[str, Any]:
    """A class of Pydantic with a field that tells it from others, and perhaps a union."""
    properties: dict[str, Any] = {
        "kind": {"const": kind, "title": "Kind", "type": "string"},
        "size": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None},
        "color": {"enum": ["red", "green", "blue"], "type": "string"},
        "tags": {"items": {"type": "string"}, "type": "array"},
    }
    required = ["kind", "color", "tags"]
    if child:
        properties["child"] = discriminated_union(child)
        required.append("child")
    return {
        "properties": properties,
        "required": required,
        "title": kind,
        "type": "object",
    }


def discriminated_union(prefix: str) -> dict[str, Any]:
    """20 models, as Pydantic writes `Field(discriminator="kind")`."""
    references = {f"{prefix}{i}": f"#/$defs/{prefix}{i}" for i in range(20)}
    return {
        "discriminator": {"mapping": references, "propertyName": "kind"},
        "oneOf": [{"$ref": reference} for reference in references.values()],
    }


@pytest.mark.timeout(60)
def test_unions_of_20_models_within_unions_of_20_models_are_accepted(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    schema: dict[str, Any] = {
        "$defs": {
            **{f"leaf{i}": model(f"leaf{i}") for i in range(20)},
            **{f"twig{i}": model(f"twig{i}", child="leaf") for i in range(20)},
            **{f"branch{i}": model(f"branch{i}", child="twig") for i in range(20)},
        },
        "properties": {"item": discriminated_union("branch")},
        "required": ["item"],
        "type": "object",
    }
    leaf: dict[str, Any] = {"kind": "leaf19", "size": None, "color": "red", "tags": []}
    twig = {"kind": "twig3", "size": 1.5, "color": "blue", "tags": ["x"], "child": leaf}
    branch = {"kind": "branch7", "color": "green", "tags": [], "child": twig}
    state = grammars.start("", json.dumps(schema))
    for item, is_allowed in ((branch, True), (branch | {"child": leaf}, False)):
        tokens = spell(json.dumps({"item": item}), vocabulary)
        assert is_text_of(state, tokens, vocabulary) is is_allowed


def test_long_alternatives_are_compared_as_short_ones_are(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    """Their outlines are longer than a schema may be: the child process compares them."""
    words = {"enum": [f"word {i}" for i in range(20)]}
    alternatives = []
    for i in range(120):
        alternative = nested_object("words")
        alternative["properties"] |= {"a": {"const": f"kind {i}"}}
        alternatives.append(alternative)
    schema = {"$defs": {"words": words}, "oneOf": alternatives}
    assert sum(map(len, outline_alternatives([alternatives], schema))) > MAX_CHARS
    state = grammars.start("", json.dumps(schema))
    value = dict.fromkeys(NAMES, "word 7") | {"a": "kind 119"}
    assert is_text_of(state, spell(json.dumps(value), vocabulary), vocabulary)
    schema["oneOf"] = [*alternatives, alternatives[-1]]
    with pytest.raises(GrammarError, match="oneOf overlap"):
        grammars.start("", json.dumps(schema))


def test_without_llguidance_the_error_says_what_to_install(
    vocabulary: LlamaVocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for given in (("root ::= [a]", ""), ("", "{}")):
        with pytest.raises(GrammarError, match="llguidance") as error:
            Grammars(vocabulary).start(*given)
        assert error.value.hint.endswith(install_command("llguidance"))


def test_forced_tokens_are_the_only_text_that_is_allowed(
    vocabulary: LlamaVocab, grammars: Grammars
) -> None:
    state = grammars.start("", json.dumps(FLAT | {"required": ["name", "age"]}))
    rng = random.Random(2)
    n_forced = 0
    for _ in range(60):
        for token in state.forced_tokens():
            allowed_texts = map(vocabulary.text_piece, state.allowed_tokens().tolist())
            assert set(allowed_texts) == {vocabulary.text_piece(token)}
            state = state.advance(token)
            n_forced = n_forced + 1
        allowed = state.allowed_tokens()
        if vocabulary.is_eog(int(allowed[0])):
            break
        state = state.advance(int(rng.choice(allowed.tolist())))
    assert n_forced > 3
