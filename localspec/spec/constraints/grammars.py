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
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec import child_process
from localspec.errors import GrammarError
from localspec.install_hints import GRAMMAR_PACKAGES, install_command
from localspec.models.chat_template.call_layouts import CallLayout, JsonArguments
from localspec.models.chat_template.schema_references import BudgetExceededError
from localspec.sanitize import sanitize
from localspec.spec.constraints import finite_values, one_of
from localspec.spec.constraints.call_grammars import CallGrammarText, CallGrammarWriter
from localspec.spec.constraints.deep_stack import run_with_deep_stack
from localspec.spec.constraints.gbnf import gbnf_to_lark
from localspec.spec.constraints.lark import ControlTexts
from localspec.spec.constraints.notations import (
    LARGEST_NUMBER,
    UnwritableSchemaError,
)
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
_LIMITING_KEYWORDS = frozenset({
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const",
})  # fmt: skip
_CHECK_SECONDS = 20.0
"""The check's process has so long, start included. The check has a limit on CPU time."""
EXIT_OVERLAP = 3
"""The process's exit status if alternatives of `oneOf` overlap."""
_MAX_OUTLINE_CHARS = 128 * 1024
"""Outlines of alternatives up to this length are compared outside of that process: as
many as a schema may have.
"""
_MAX_PROPERTIES = 500
"""Of one object of a tool's arguments."""
# Tokens that are tested one by one, while not all that are allowed are known.
_MAX_LAZY = 64
_MAX_FORCED_BYTES = 256  # More than a draft can hold.
_SPECIAL = b"\xff"  # llguidance's mark before the name of a token that is no text.


class Grammars:
    """Starts grammars for one vocabulary; the first takes up to a second to set up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._pieces: list[bytes] | None = None
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._twins: TwinTokens | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a grammar can start at once."""
        return self._tokenizer is not None

    def prepare(self) -> Iterator[None]:
        """Do in steps what the first grammar would wait for.

        For 152,000 tokens (Qwen3.5) it takes 0.6 s, and 80 MB of memory. It may be closed
        at every yield, and a step that is done is not repeated. Raises GrammarError if
        the package is missing.
        """
        _check_package()
        if self._pieces is None:
            self._pieces = self._read_pieces()
            yield
        if self._twins is None:
            self._twins = find_twin_tokens(self._pieces)
            yield
        if not self.is_ready:
            self._set_up()
            yield

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

    def start_calls(self, layout: CallLayout, schemas: Mapping[str, Any]) -> CallStates:
        """The states before calls of tools, which are written in a layout.

        `schemas` has the JSON Schema of each tool's arguments, by its name. Clients offer
        tools whose schema this package cannot compile; their arguments may be any object,
        because the request would fail otherwise, and with it each request of an agent.
        Raises GrammarError if the layout cannot hold a tool's name.
        """
        _check_package()
        writer = CallGrammarWriter(layout, self._controls, self._inline_schema)
        by_mark: dict[str, GrammarState] = {}
        loose: dict[str, None] = {}
        ends_answer = False
        for mark, names in layout.marks(tuple(schemas)).items():
            callable_schemas = {name: schemas[name] for name in names}
            state, text = self._start_calls(writer, callable_schemas)
            by_mark[mark] = state
            loose.update(dict.fromkeys(text.loose))
            ends_answer = text.ends_answer
        return CallStates(by_mark, tuple(loose), ends_answer=ends_answer)

    def start_forced_call(
        self, layout: CallLayout, schemas: Mapping[str, Any]
    ) -> GrammarState:
        """The state before a text that is one call, from its mark on.

        Raises GrammarError as `start_calls` does.
        """
        _check_package()
        layout = replace(layout.with_mark(), separator=None)
        writer = CallGrammarWriter(layout, self._controls, self._inline_schema)
        return self._start_calls(writer, schemas)[0]

    def _start_calls(
        self, writer: CallGrammarWriter, schemas: Mapping[str, Any]
    ) -> tuple[GrammarState, CallGrammarText]:
        with _translate_errors(_TOOLS):
            try:
                text = writer.write(schemas)
                matcher = make_matcher(self._set_up(), lark_to_grammar(text.lark))
                if matcher.is_error():  # Together the schemas are too large.
                    text = writer.write(schemas, is_loose=True)
                    matcher = make_matcher(self._set_up(), lark_to_grammar(text.lark))
            except UnwritableSchemaError as error:
                raise _refusal(_TOOLS, str(error)) from error
            _check_state(matcher, _TOOLS)
        return self._state(matcher), text

    def _state(self, matcher: llguidance.LLMatcher) -> LlguidanceState:
        if self._twins is None:
            self._twins = find_twin_tokens(self.pieces)
        return LlguidanceState(matcher, self._twins)

    @property
    def pieces(self) -> list[bytes]:
        """The text of each token."""
        if self._pieces is None:
            self._pieces = self._read_pieces()
        return self._pieces

    def _read_pieces(self) -> list[bytes]:
        """It takes some 0.1 s for 100,000."""
        vocabulary = self._vocabulary
        return [vocabulary.text_piece(token) for token in range(vocabulary.n_tokens)]

    @cached_property
    def _controls(self) -> ControlTexts:
        vocabulary = self._vocabulary
        tokens: dict[str, int] = {}
        ends: list[str] = []
        for token, piece in enumerate(self.pieces):
            if piece:
                continue
            text = vocabulary.token_text(token).decode("utf-8", "replace")
            tokens.setdefault(text, token)
            if vocabulary.is_eog(token):
                ends.append(text)
        return ControlTexts(tokens, ends)

    def _set_up(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = _make_tokenizer(self._vocabulary, self.pieces)
        return self._tokenizer

    def _inline_schema(self, schema: Any, form: JsonArguments) -> str | None:
        """A schema as a grammar can contain it; None if it is of no use."""
        try:
            text = json.dumps(_change_schemas(schema, _drop_annotations))
            if len(text) > MAX_CHARS or _has_many_properties(schema):
                return None
            with _translate_errors("JSON Schema"):
                checked = json.loads(_checked_schema(text))
                if not finite_values.have_all_finite_values(checked):
                    return None
                complete = _change_schemas(checked, _bound_numbers)
                grammar = schema_to_grammar(json.dumps(complete))
                _check_state(make_matcher(self._set_up(), grammar))
        except (GrammarError, RecursionError, ValueError):
            return None
        options = {
            **_SCHEMA_OPTIONS,
            "item_separator": form.item_separator,
            "key_separator": form.key_separator,
        }
        return json.dumps({**complete, "x-guidance": options})


class CallStates(Struct, frozen=True):
    """The states behind each mark of a layout, before the rest of a call."""

    by_mark: Mapping[str, GrammarState]
    loose: tuple[str, ...]
    """Tools whose arguments are not held to their schema."""
    ends_answer: bool
    """Whether only the end of the answer may follow a call."""


_TOOLS = "grammar of the tools"


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

    def make() -> llguidance.LLMatcher:
        return llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)

    return run_with_deep_stack(make)


# --- JSON Schemas


def check_outlines(outlines: Iterable[str]) -> None:
    """Raise GrammarError if alternatives of `oneOf` overlap, by their outlines."""
    run_with_deep_stack(lambda: one_of.check_outlines(outlines, _SCHEMA_OPTIONS))


def _checked_schema(text: str) -> str:
    """The schema as it is compiled.

    What may take much time or memory is tried in a process of its own first.
    """
    schema = _read_schema(text)
    if not finite_values.has_finite_value(schema):
        raise GrammarError(
            "No text satisfies the JSON Schema: it refers to itself without end."
        )
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


def _has_many_properties(schema: Any) -> bool:
    """Whether an object has more named properties than a call's grammar can have.

    Behind each of them any later one may follow, and llguidance gives up in the middle
    of an answer when it follows more than 2,000 possibilities at once. One property
    takes three in Gemma's notation.
    """
    has_many = False

    def look(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal has_many
        properties = part.get("properties")
        if isinstance(properties, dict) and len(properties) > _MAX_PROPERTIES:
            has_many = True
        return part

    _change_schemas(schema, look)
    return has_many


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


def _bound_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """Limit the numbers of a call: JSON can write some that no program can read.

    Between limits, a number has no exponent: `1e999` would be infinite.
    """
    given = schema.get("type")
    names = given if isinstance(given, list) else [given]
    has_limits = not schema.keys().isdisjoint(_LIMITING_KEYWORDS)
    if has_limits or not ("number" in names or "integer" in names):
        return schema
    return {**schema, "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}


def _close_object(schema: dict[str, Any]) -> dict[str, Any]:
    """Allow no more properties than an object names, unless it says otherwise."""
    if "properties" not in schema:
        return schema
    return {"additionalProperties": False} | schema


# --- The vocabulary, and the state of a text


def _make_tokenizer(
    vocabulary: Vocabulary, pieces: Sequence[bytes]
) -> llguidance.LLTokenizer:
    import llguidance  # noqa: PLC0415  optional

    n = vocabulary.n_tokens
    ends = [token for token in range(n) if vocabulary.is_eog(token)]
    return llguidance.LLTokenizer(
        _TokenizerInterface(vocabulary, pieces), n_vocab=n, eos_token=ends
    )


class _TokenizerInterface:
    """What llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, pieces: Sequence[bytes]) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.eos
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        self._ids: dict[bytes, int] = {}
        for token, piece in enumerate(pieces):
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


def find_twin_tokens(pieces: Sequence[bytes]) -> TwinTokens:
    """In an SPM vocabulary the letter `o` is a token, and so is the byte 6F.

    They have the same text, so a grammar allows both or neither. llguidance's mask has
    only one of them, and its test of a single token has both.
    """
    first_with: dict[bytes, int] = {}
    pairs: list[tuple[int, int]] = []
    for token, piece in enumerate(pieces):
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
