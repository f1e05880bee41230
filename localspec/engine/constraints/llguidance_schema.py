"""JSON Schema in llguidance, if it is installed: more keywords, quicker masks, forced tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from localspec.engine.llama.model import LlamaVocab
from localspec.errors import GrammarError
from localspec.sanitize import sanitize

_SAME_AS_GBNF = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_SPECIAL = b"\xff"
"""llguidance's mark before the name of a token that is no text."""


class LlguidanceSchemas:
    """Starts schemas for one vocabulary, which takes up to a second to set up."""

    def __init__(self, vocabulary: LlamaVocab) -> None:
        n = vocabulary.n_tokens
        ends = [token for token in range(n) if vocabulary.is_eog(token)]
        self._tokenizer = llguidance.LLTokenizer(
            _TokenizerInterface(vocabulary), n_vocab=n, eos_token=ends
        )

    def start(self, schema_text: str) -> LlguidanceState:
        """The state before the first token. Raises GrammarError if the schema cannot be used."""
        try:
            schema = json.loads(schema_text)
            if '"allOf"' not in schema_text:
                schema = _close_objects(schema)
            grammar = llguidance.LLMatcher.grammar_from_json_schema(
                json.dumps(schema), overrides=_SAME_AS_GBNF
            )
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"The JSON Schema cannot be read: {error}.") from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        _check_state(matcher)
        return LlguidanceState(matcher, np.empty(0))


class _TokenizerInterface:
    """What llguidance expects of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: LlamaVocab) -> None:
        self._vocabulary = vocabulary
        pieces = [vocabulary.text_piece(token) for token in range(vocabulary.n_tokens)]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.eos_token_id = vocabulary.eos
        self._ids = {piece: token for token, piece in enumerate(pieces) if piece}
        self._max_length = max(map(len, pieces), default=0)
        self.tokens = [
            piece or _SPECIAL + vocabulary.token_text(token) for token, piece in enumerate(pieces)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else bytes(text)
        tokens = self._vocabulary.tokenize(data.decode("utf-8", "replace"))
        tokens = [token for token in tokens if token != self._vocabulary.bos]
        if b"".join(self.tokens[token] for token in tokens) == data:
            return tokens
        return self._longest_matches(data)  # a tokenizer that puts a space in front of a text

    def _longest_matches(self, data: bytes) -> list[int]:
        tokens = []
        while data:
            lengths = range(min(len(data), self._max_length), 0, -1)
            n = next((n for n in lengths if data[:n] in self._ids), 0)
            if not n:
                break
            tokens.append(self._ids[data[:n]])
            data = data[n:]
        return tokens


class LlguidanceState:
    """A `GrammarState`."""

    def __init__(self, matcher: llguidance.LLMatcher, mask: NDArray[Any]) -> None:
        self._matcher, self._mask = matcher, mask

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        allowed: NDArray[np.bool_] = self._computed_mask()[tokens]
        return allowed

    def allowed_tokens(self) -> NDArray[np.int64]:
        return self._computed_mask().nonzero()[0]

    def forced_tokens(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens())

    def advance(self, token: int) -> LlguidanceState:
        matcher = self._matcher.deep_copy()
        matcher.consume_token(token)
        _check_state(matcher)
        return LlguidanceState(matcher, np.empty(0))

    def _computed_mask(self) -> NDArray[np.bool_]:
        if not len(self._mask):
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            _check_state(self._matcher)
            self._mask = np.unpackbits(bits, bitorder="little").astype(bool)
        return self._mask


def _check_state(matcher: llguidance.LLMatcher) -> None:
    if matcher.is_error():
        reason = sanitize(matcher.get_error(), multiline=False)[:200].rstrip(" .")
        raise GrammarError(f"llguidance cannot use the JSON Schema: {reason}.")


def _close_objects(schema: Any) -> Any:
    """The schema with `additionalProperties` false beside `properties`, as `schema_to_gbnf`."""
    if isinstance(schema, list):
        return [_close_objects(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: _close_member(key, value) for key, value in schema.items()}
    return {"additionalProperties": False} | closed if "properties" in closed else closed


def _close_member(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _close_objects(part) for name, part in value.items()}
    if key in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf"):
        return _close_objects(value)
    return value
