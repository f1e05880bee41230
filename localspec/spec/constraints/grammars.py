"""Grammars and JSON Schemas for one model's vocabulary, by the package llguidance.

The package is optional. `Grammars` compiles a grammar, a schema or the calls of tools,
and gives the state before the first token (`LlguidanceState`).

A text that satisfies a schema has the separators of Python's json.dumps, and its objects
have no other properties than those that `properties` names. A keyword that llguidance
does not know is refused. Annotations are ignored, and so are formats that it does not
know.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec import child_process
from localspec.errors import GrammarError
from localspec.install_hints import GRAMMAR_PACKAGES, install_command
from localspec.models.chat_template.schema_references import BudgetExceededError
from localspec.sanitize import sanitize
from localspec.spec.constraints import one_of
from localspec.spec.constraints.gbnf import gbnf_to_lark
from localspec.spec.protocols import GrammarState, Vocabulary

if TYPE_CHECKING:
    import llguidance

MAX_CHARS = 128 * 1024
_SCHEMA_OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "coerce_one_of": True,
    "lenient": False,
}
_LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "verbose_errors": False,
}
"""Bound a step to about 0.1 s, the memory to 100 MB; JSON needs a tenth of both."""
_ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id",
})  # fmt: skip
_ENFORCED_FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
})  # fmt: skip
"""Values of `format` that llguidance knows. By the specification a format is an
annotation, and any other, such as OpenAPI's `int64` and `password`, stays one.
"""
_DESCRIPTIVE_KEYWORDS = frozenset({"title", "description", "default", "examples"})
_HINTS = frozenset({"discriminator"})
"""OpenAPI's, beside `oneOf`.

It allows and forbids nothing, and llguidance would merge it.
"""
_MERGING_KEYWORDS = frozenset({"allOf", "patternProperties", "multipleOf"})
_COMBINED_KEYWORDS = frozenset({"$ref", "anyOf", "oneOf"})
"""llguidance merges them with the keywords beside them."""
_SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions"}
)
_INNER_SCHEMAS = frozenset(
    {"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"}
)
_ALWAYS_TRUE: Mapping[str, tuple[Any, ...]] = {
    "propertyNames": ({}, True, {"type": "string"}),
    "uniqueItems": (False,),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}
"""Values of keywords that llguidance does not know, with which they mean nothing."""
_CHECK_SECONDS = 20.0
"""The check's process has so long, start included. The check has a limit on CPU time."""
EXIT_OVERLAP = 3
"""The process's exit status if alternatives of `oneOf` overlap."""
_MAX_OUTLINE_CHARS = 128 * 1024
"""Outlines of alternatives up to this length are compared outside of that process: as
many as a schema may have.
"""
# Tokens that are tested one by one, while not all that are allowed are known.
_MAX_LAZY = 64
_MAX_FORCED_BYTES = 256  # More than a draft can hold.
_SPECIAL = b"\xff"  # llguidance's mark before the name of a token that is no text.


class Grammars:
    """Starts grammars for one vocabulary; the first takes up to a second to set up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._twins: TwinTokens | None = None

    def start(self, grammar: str, json_schema: str) -> GrammarState:
        """The state before the first token, for whichever of the two is not empty.

        Raises GrammarError if it cannot be used.
        """
        what = "JSON Schema"
        text = json_schema
        if grammar:
            what = "grammar"
            text = grammar
        if len(text) > MAX_CHARS:
            raise GrammarError(
                f"The {what} has {len(text):,} characters.",
                f"At most {MAX_CHARS:,} are possible.",
            )
        _check_package()
        with _translate_errors(what):
            tokenizer = self._set_up()
            if grammar:
                compiled = lark_to_grammar(gbnf_to_lark(grammar))
            else:
                compiled = schema_to_grammar(_checked_schema(json_schema))
            matcher = make_matcher(tokenizer, compiled)
            _check_state(matcher, what)
        return self._state(matcher)

    def start_call(
        self, schemas: Mapping[str, Any], before: str, after: str
    ) -> GrammarState:
        """The state before one call of a tool: an object between two texts.

        `schemas` has the JSON Schema of each tool's arguments, by its name. Clients offer
        tools whose schema this package cannot compile; their arguments may be any object,
        because the request would fail otherwise, and with it each request of an agent.
        """
        _check_package()
        usable: dict[str, str] = {}
        for name, schema in schemas.items():
            usable[name] = self._inline_schema(schema)
        any_object = dict.fromkeys(schemas, _ANY_OBJECT)
        with _translate_errors(_TOOLS):
            matcher = self._match_calls(usable, before, after)
            if matcher.is_error():  # Together the schemas are too large.
                matcher = self._match_calls(any_object, before, after)
            _check_state(matcher, _TOOLS)
        return self._state(matcher)

    def _state(self, matcher: llguidance.LLMatcher) -> LlguidanceState:
        if self._twins is None:
            self._twins = find_twin_tokens(self._vocabulary)
        return LlguidanceState(matcher, self._twins)

    def _match_calls(
        self, schemas: Mapping[str, str], before: str, after: str
    ) -> llguidance.LLMatcher:
        lark = _write_calls(schemas, before=before, after=after)
        return make_matcher(self._set_up(), lark_to_grammar(lark))

    def _set_up(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = _make_tokenizer(self._vocabulary)
        return self._tokenizer

    def _inline_schema(self, schema: Any) -> str:
        """A schema as a grammar can contain it; that of any object if it is of no use."""
        try:
            text = json.dumps(_change_schemas(schema, _drop_annotations))
            if len(text) > MAX_CHARS:
                return _ANY_OBJECT
            with _translate_errors("JSON Schema"):
                complete = _checked_schema(text)
                matcher = make_matcher(self._set_up(), schema_to_grammar(complete))
                _check_state(matcher)
        except (GrammarError, RecursionError, ValueError):
            return _ANY_OBJECT
        return json.dumps({**json.loads(complete), "x-guidance": _SCHEMA_OPTIONS})


_TOOLS = "grammar of the tools"
_ANY_OBJECT = json.dumps({"type": "object", "x-guidance": _SCHEMA_OPTIONS})


def _write_calls(schemas: Mapping[str, str], *, before: str, after: str) -> str:
    """In llguidance's Lark: a call of one of the tools, between two texts.

    Each schema is a rule of its own, so that its `$ref`s begin at its own root. Example,
    with one tool `get_time`:

        start: "<call>" ("{\"name\": \"get_time\", \"arguments\": " arguments0) "}" "</call>"
        arguments0: %json {"type": "object", …}
    """
    calls: list[str] = []
    lines: list[str] = []
    for i, (name, schema) in enumerate(schemas.items()):
        quoted = json.dumps(name, ensure_ascii=False)
        head = json.dumps(f'{{"name": {quoted}, "arguments": ', ensure_ascii=False)
        calls.append(f"{head} arguments{i}")
        lines.append(f"arguments{i}: %json {schema}")
    choice = " | ".join(calls)
    whole = f'start: {json.dumps(before)} ({choice}) "}}" {json.dumps(after)}'
    return "\n".join([whole, *lines])


def _check_package() -> None:
    try:
        import llguidance  # noqa: F401, PLC0415  optional
    except ImportError as missing:
        raise GrammarError(
            "Grammars and JSON Schemas need one more package: llguidance.",
            f"Install it: {install_command(*GRAMMAR_PACKAGES)}",
        ) from missing


def lark_to_grammar(lark: str) -> str:
    import llguidance  # noqa: PLC0415  optional

    return str(llguidance.LLMatcher.grammar_from_lark(lark))


def schema_to_grammar(schema: str) -> str:
    import llguidance  # noqa: PLC0415  optional

    return str(
        llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=_SCHEMA_OPTIONS)
    )


def make_matcher(
    tokenizer: llguidance.LLTokenizer, grammar: str
) -> llguidance.LLMatcher:
    """The matcher of a compiled grammar; it has an error if the grammar cannot be used."""
    import llguidance  # noqa: PLC0415  optional

    limits = llguidance.LLParserLimits(**_LIMITS)
    return llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)


# --- JSON Schemas


def check_outlines(outlines: Iterable[str]) -> None:
    """Raise GrammarError if alternatives of `oneOf` overlap, by their outlines."""
    one_of.check_outlines(outlines, _SCHEMA_OPTIONS)


def _checked_schema(text: str) -> str:
    """The schema as it is compiled.

    What may take much time or memory is tried in a process of its own first.
    """
    schema = _read_schema(text)
    complete = json.dumps(schema)
    outlines = _outline_alternatives(schema)
    n_chars = sum(len(outline) for outline in outlines)
    has_long_outlines = n_chars > _MAX_OUTLINE_CHARS
    if not has_long_outlines:
        check_outlines(outlines)
    if has_long_outlines or _has_merged_parts(schema):
        _check_in_child(complete, compares_alternatives=has_long_outlines)
    return complete


def _outline_alternatives(schema: Any) -> list[str]:
    try:
        return one_of.outline_alternatives(_find_one_ofs(schema), schema)
    except BudgetExceededError as error:
        raise _cost_error() from error


def _cost_error() -> GrammarError:
    return GrammarError(
        "The JSON Schema needs too much time or memory.",
        "Use $ref without other keywords, fewer alternatives in oneOf, fewer properties in allOf,"
        " and a small multipleOf.",
    )


@lru_cache(maxsize=64)
def _check_in_child(schema: str, *, compares_alternatives: bool) -> None:
    """Compile the schema in a process with limits; it may compare alternatives too.

    Raises GrammarError if it exceeds the limits, or if alternatives overlap. The
    outlines are no argument because the cache keeps arguments: 64 times a megabyte.
    """
    outlines: list[str] = []
    if compares_alternatives:
        outlines = _outline_alternatives(json.loads(schema))
    module = "localspec.spec.constraints.schema_check"
    parent = str(child_process.parent_pid_for_child())
    process = child_process.start([sys.executable, "-P", "-m", module, parent])
    request = json.dumps([schema, *outlines]).encode()
    try:
        process.communicate(request, timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    if process.returncode == EXIT_OVERLAP:
        raise one_of.overlap_error()
    if process.returncode:
        raise _cost_error()


# --- Errors of llguidance


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (GrammarError, KeyboardInterrupt, SystemExit):
        raise
    except RecursionError as error:
        raise GrammarError(f"The {what} is nested too deeply.") from error
    except BaseException as error:  # a panic of the library is no Exception
        raise _refusal(what, str(error)) from error


def _refusal(what: str, reason: str) -> GrammarError:
    line = sanitize(reason.partition("\n<")[0], multiline=False)[:200].rstrip(" .")
    return GrammarError(f"The {what} cannot be used: {line}.")


def _check_state(matcher: llguidance.LLMatcher, what: str = "grammar") -> None:
    if matcher.is_error():
        raise _refusal(what, matcher.get_error())


# --- Schemas as llguidance reads them


def _read_schema(text: str) -> Any:
    schema = json.loads(text)
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(f"{text[:40]} is not a JSON Schema that a text satisfies.")
    schema = _change_schemas(schema, _drop_always_true)
    if '"allOf"' in text:
        # llguidance merges the parts: closed, they would exclude each other's properties.
        return schema
    return _change_schemas(schema, _close_object)


def _has_merged_parts(schema: Any) -> bool:
    """Whether llguidance's time and memory may be exponential in the schema's size."""
    if isinstance(schema, list):
        return any(_has_merged_parts(part) for part in schema)
    if not isinstance(schema, dict):
        return False
    keywords = schema.keys() - _ANNOTATIONS
    if keywords & _MERGING_KEYWORDS:
        return True
    if keywords & _COMBINED_KEYWORDS and len(keywords) > 1:
        return True
    return any(_has_merged_parts(part) for part in schema.values())


def _change_schemas(
    schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Any:
    """The schema with each object in it changed that is a schema, the inner ones first."""
    if isinstance(schema, list):
        return [_change_schemas(part, change) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            by_name = value.items()
            changed[key] = {
                name: _change_schemas(part, change) for name, part in by_name
            }
        elif key in _INNER_SCHEMAS:
            changed[key] = _change_schemas(value, change)
        else:
            changed[key] = value
    return change(changed)


def _find_one_ofs(schema: Any) -> list[list[Any]]:
    """The alternatives of each `oneOf` in a schema."""
    found: list[list[Any]] = []

    def add_alternatives(part: dict[str, Any]) -> dict[str, Any]:
        alternatives = part.get("oneOf")
        if isinstance(alternatives, list):
            found.append(alternatives)
        return part

    _change_schemas(schema, add_alternatives)
    return found


def _drop_always_true(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out what allows and forbids nothing."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        is_hint = key in _HINTS
        is_always_true = value in _ALWAYS_TRUE.get(key, ())
        is_unknown_format = key == "format" and not _is_enforced_format(value)
        if not (is_hint or is_always_true or is_unknown_format):
            kept[key] = value
    return kept


def _is_enforced_format(value: object) -> bool:
    return isinstance(value, str) and value in _ENFORCED_FORMATS


def _drop_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is only said about the values: it is long, and known already."""
    return {
        key: value for key, value in schema.items() if key not in _DESCRIPTIVE_KEYWORDS
    }


def _close_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow no more properties than an object names, unless it says otherwise."""
    if "properties" not in schema:
        return schema
    return {"additionalProperties": False} | schema


# --- The vocabulary, and the state of a text


def _make_tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    import llguidance  # noqa: PLC0415  optional

    n = vocabulary.n_tokens
    ends = [token for token in range(n) if vocabulary.is_eog(token)]
    return llguidance.LLTokenizer(
        _TokenizerInterface(vocabulary), n_vocab=n, eos_token=ends
    )


class _TokenizerInterface:
    """What llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        self._ids: dict[bytes, int] = {}
        for token in range(vocabulary.n_tokens):
            piece = vocabulary.text_piece(token)
            if piece:
                self._ids[piece] = token
                self.tokens.append(piece)
            else:
                self.special_token_ids.append(token)
                self.tokens.append(_SPECIAL + vocabulary.token_text(token))
        self._max_length = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text that is forced; each call is for the rest of it."""
        if isinstance(text, str):
            text = text.encode()
        data = text[:_MAX_FORCED_BYTES]
        whole_characters = data.decode("utf-8", "ignore").encode()
        tokens = self._vocabulary.tokenize_plain(whole_characters)
        tokenized = b"".join(self.tokens[token] for token in tokens)
        if data.startswith(tokenized):
            return tokens
        # This tokenizer puts a space in front of a text.
        return self._longest_matches(data)

    def _longest_matches(self, data: bytes) -> list[int]:
        """The longest token at each place: of `ab`, `a`, `b` and `c`, `abc` is `ab`, `c`."""
        tokens: list[int] = []
        while data:
            lengths = range(min(len(data), self._max_length), 0, -1)
            n = next((n for n in lengths if data[:n] in self._ids), 0)
            if not n:
                break
            tokens.append(self._ids[data[:n]])
            data = data[n:]
        return tokens


TwinTokens = NDArray[np.int64]
"""Tokens whose bytes an earlier token has, and that one: shape (n, 2)."""


def find_twin_tokens(vocabulary: Vocabulary) -> TwinTokens:
    """In an SPM vocabulary the letter `o` is a token, and so is the byte 6F.

    They have the same text, so a grammar allows both or neither. llguidance's mask has
    only one of them, and its test of a single token has both.
    """
    first_with: dict[bytes, int] = {}
    pairs: list[tuple[int, int]] = []
    for token in range(vocabulary.n_tokens):
        piece = vocabulary.text_piece(token)
        if not piece:
            continue
        first = first_with.setdefault(piece, token)
        if first != token:
            pairs.append((token, first))
    return np.array(pairs, np.int64).reshape(-1, 2)


class LlguidanceState:
    """A `GrammarState`."""

    def __init__(self, matcher: llguidance.LLMatcher, twins: TwinTokens) -> None:
        self._matcher = matcher
        self._twins = twins
        self._mask: NDArray[np.bool_] | None = None

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        # After a complete text llguidance refuses to test a token alone, even the end.
        is_tested_alone = len(tokens) <= _MAX_LAZY and not self._matcher.is_stopped()
        if self._mask is None and is_tested_alone:
            return self._test_each(tokens.tolist())
        allowed: NDArray[np.bool_] = self._computed_mask()[tokens]
        return allowed

    def _test_each(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        counts: list[int] = []
        with _translate_errors("grammar"):
            for token in tokens:
                counts.append(self._matcher.validate_tokens([token]))
            _check_state(self._matcher)
        return np.array(counts, bool)

    def allowed_tokens(self) -> NDArray[np.int64]:
        return self._computed_mask().nonzero()[0]

    def forced_tokens(self) -> list[int]:
        with _translate_errors("grammar"):
            return list(self._matcher.compute_ff_tokens())

    def advance(self, token: int) -> LlguidanceState:
        with _translate_errors("grammar"):
            matcher = self._matcher.deep_copy()
            matcher.consume_token(token)
            _check_state(matcher)
        return LlguidanceState(matcher, self._twins)

    def _computed_mask(self) -> NDArray[np.bool_]:
        if self._mask is None:
            with _translate_errors("grammar"):
                bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
                _check_state(self._matcher)
            mask = np.unpackbits(bits, bitorder="little").astype(bool)
            others, firsts = self._twins.T
            np.logical_or.at(mask, firsts, mask[others])
            mask[others] = mask[firsts]
            self._mask = mask
        return self._mask
