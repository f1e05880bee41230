"""GBNF grammars in llama.cpp: which tokens may come next."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec import child_process
from localspec.engine.llama.library import C
from localspec.engine.llama.model import LlamaVocab
from localspec.errors import EngineError, GrammarError
from localspec.sanitize import sanitize

MAX_GRAMMAR_BYTES = 256 * 1024
_CHECK_SECONDS = 20.0
"""For the check's process, start included; the check itself has a limit on CPU time."""
_MAX_CALL_SECONDS = 1.0
"""CPU time of one call: the number of stacks of an ambiguous grammar may grow exponentially."""

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class GbnfGrammars:
    """Starts grammars for one vocabulary."""

    def __init__(self, vocabulary: LlamaVocab) -> None:
        self._vocabulary = vocabulary
        self._tokens: GrammarTokens | None = None

    def start(self, text: str) -> GbnfState:
        """The state before the first token. Raises GrammarError if the grammar cannot be used."""
        data = text.encode("utf-8", "replace")
        check_grammar(data)
        if self._tokens is None:
            self._tokens = GrammarTokens.of_vocabulary(self._vocabulary)
        sampler = C.llama_sampler_init_grammar(self._vocabulary.handle, data, b"root")
        if not sampler:
            raise GrammarError("llama.cpp cannot use this grammar.")
        return GbnfState(sampler, self._tokens)


@lru_cache(maxsize=64)
def check_grammar(data: bytes) -> None:
    """Parse a grammar in a process of its own, whose crash or endless loop harms nothing.

    Raises GrammarError with llama.cpp's reason.
    """
    if _TOKEN_RULE.search(_QUOTED.sub(b"", data)):
        raise GrammarError("Token rules (<...>) are not supported in a grammar.", "Use characters.")
    if len(data) > MAX_GRAMMAR_BYTES or b"\0" in data:
        raise GrammarError(
            f"The grammar has {len(data):,} bytes, or a NUL character.",
            f"At most {MAX_GRAMMAR_BYTES:,} bytes are possible.",
        )
    if not data.strip():
        raise GrammarError("The grammar is empty.", _FORMAT)
    parent = str(child_process.parent_pid_for_child())
    command = [sys.executable, "-P", "-m", "localspec.engine.llama.grammar_check", parent]
    try:
        process = child_process.start(command)
    except OSError as error:
        raise EngineError(f"The check of a grammar cannot start: {error.strerror}.") from error
    try:
        _, errors = process.communicate(data, timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        process.communicate()
        raise GrammarError("The grammar could not be parsed in time.", _SIMPLER) from error
    if process.returncode not in (0, 1):
        raise GrammarError("The grammar is too large or too complex to parse.", _SIMPLER)
    if process.returncode:
        raise GrammarError(f"The grammar is not valid GBNF: {_first_reason(errors)}.", _FORMAT)


_QUOTED = re.compile(rb'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')
"""Literals, character classes and comments."""
_TOKEN_RULE = re.compile(rb"[<!]")

_SIMPLER = "Use fewer rules, less nesting, and smaller repetitions."
_FORMAT = "The format is llama.cpp's: grammars/README.md in its repository."


def _first_reason(errors: bytes) -> str:
    lines = errors.decode("utf-8", "replace").splitlines()
    reason = next((line for line in lines if line.strip()), "llama.cpp gave no reason")
    text = sanitize(reason, multiline=False).removeprefix("parse: ")
    return text.removeprefix("error parsing grammar: ")[:200].rstrip(" .")


_NO_UTF_8 = re.compile(rb"[\xc0\xc1\xf5-\xff]")


class GrammarTokens:
    """A vocabulary as a tree: the parent of a token is the longest other one that begins it.

    What a grammar allows is closed under prefixes, so below a forbidden token nothing is allowed.
    """

    def __init__(self, pieces: Sequence[bytes], is_eog: Callable[[int], bool]) -> None:
        self.ends = np.array([t for t in range(len(pieces)) if is_eog(t)], np.int64)
        self.is_excluded = np.array(
            [not piece or _NO_UTF_8.search(piece) for piece in pieces], bool
        )
        """Control tokens, and tokens with bytes that llama.cpp would take for a character."""
        self.is_excluded[self.ends] = False
        by_text = [t for t in range(len(pieces)) if pieces[t]]
        by_text.sort(key=pieces.__getitem__)
        parents = np.full(len(pieces), len(pieces))  # of a token without a parent
        path: list[int] = []
        for token in by_text:
            while path and not pieces[token].startswith(pieces[path[-1]]):
                path.pop()
            if path:
                parents[token] = path[-1]
            path.append(token)
        ids = np.array(by_text, np.int64)
        self._children = ids[parents[ids].argsort(kind="stable")]
        self._first_child = parents[self._children].searchsorted(np.arange(len(pieces) + 2))

    @classmethod
    def of_vocabulary(cls, vocabulary: LlamaVocab) -> GrammarTokens:
        pieces = [vocabulary.text_piece(token) for token in range(vocabulary.n_tokens)]
        return cls(pieces, vocabulary.is_eog)

    def find_allowed(
        self, allows: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    ) -> NDArray[np.int64]:
        """All allowed tokens, tested from the roots of the tree on."""
        found = [self.ends[allows(self.ends)]]
        front = self._children_of(np.array([len(self.is_excluded)]))
        while len(front):
            found.append(front[allows(front)])
            front = self._children_of(found[-1])
        return np.concatenate(found)

    def _children_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        first, counts = self._first_child[tokens], np.diff(self._first_child)[tokens]
        offsets = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        children: NDArray[np.int64] = self._children[np.repeat(first, counts) + offsets]
        return children


class GbnfState:
    """A `GrammarState`; llama.cpp aborts on tokens that are not allowed, so they are tested."""

    def __init__(self, sampler: Any, tokens: GrammarTokens) -> None:
        self._sampler, self._tokens = sampler, tokens

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        if not len(tokens):
            return np.zeros(0, bool)
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"] = tokens
        address = candidates.ctypes.data_as(C.llama_token_data_p)
        array = C.llama_token_data_array(address, len(tokens), -1, False)
        began = time.thread_time()
        C.llama_sampler_apply(self._sampler, ctypes.byref(array))
        _check_duration(began)
        allowed: NDArray[np.bool_] = candidates["logit"] == 0.0
        allowed &= ~self._tokens.is_excluded[tokens]
        return allowed

    def allowed_tokens(self) -> NDArray[np.int64]:
        return self._tokens.find_allowed(self.allows)

    def forced_tokens(self) -> list[int]:
        return []

    def advance(self, token: int) -> GbnfState:
        if not self.allows(np.array([token]))[0]:
            raise GrammarError(f"The grammar does not allow token {token} here.")
        began = time.thread_time()
        after = GbnfState(C.llama_sampler_clone(self._sampler), self._tokens)
        C.llama_sampler_accept(after._sampler, token)
        _check_duration(began)
        return after

    def __del__(self) -> None:
        C.llama_sampler_free(self._sampler)


def _check_duration(began: float) -> None:
    if time.thread_time() - began > _MAX_CALL_SECONDS:
        raise GrammarError("The grammar is too ambiguous: a step takes too long.", _SIMPLER)
