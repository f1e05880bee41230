r"""GBNF, llama.cpp's format of grammars, to llguidance's Lark.

llguidance reads a terminal as far as it goes, as a lexer does, and GBNF has no lexer.
So a grammar without recursion becomes one terminal (names in upper case), and in any
other each character is a terminal of its own (names in lower case): both allow exactly
the texts of the grammar. llguidance's own converter makes terminals of all rules without
references, with which many grammars have no end.

Example:

    root ::= "ok" | digit ","          start: R0
    digit ::= [0-9]                    R0: /\x{6f}\x{6b}/ | R1 /\x{2c}/
                                       R1: /[\x{30}-\x{39}]/

    root ::= "[" root? "]" | "ok"      start: r0
                                       r0: (/\x{5b}/) r0 ? (/\x{5d}/) | (/\x{6f}/ /\x{6b}/)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from localspec.errors import GrammarError

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|#[^\n]*)"
    r"|(?P<define>::=)"
    r"|(?P<mark>[|()])"
    r"|(?P<any>\.)"
    r'|"(?P<literal>(?:\\.|[^"\\])*)"'
    r"|\[(?P<class>(?:\\.|[^\]\\])*)\]"
    r"|(?P<repetition>[*+?]|\{\s*+\d++\s*+(?:,\s*+\d*+\s*+)?\})"
    r"|(?P<name>[\w-]+)",
    re.DOTALL | re.ASCII,
)
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})"
    r"|\\u([0-9a-fA-F]{4})"
    r"|\\U([0-9a-fA-F]{8})"
    r"|\\(.)"
    r"|(.)",
    re.DOTALL,
)
"""A character of a literal or of a class: three kinds of code, an escape, or itself."""
_CONTROL_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_FORMAT = "The format is llama.cpp's: grammars/README.md in its repository."


class GbnfToken(NamedTuple):
    kind: str  # A group of `_TOKEN`.
    text: str  # Of a literal and of a class, what is between the quotes or brackets.


_Rules = dict[str, list[GbnfToken]]
"""The body of each rule, by its name."""


def gbnf_to_lark(text: str) -> str:
    """Raises GrammarError for what is not GBNF."""
    rules = _parse_rules(text)
    is_recursive = _has_recursion(rules)
    letter = "R"
    if is_recursive:
        letter = "r"
    names = {name: f"{letter}{i}" for i, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    for name, body in rules.items():
        words: list[str] = []
        for token in body:
            if token.kind == "name":
                words.append(names[token.text])
            else:
                words.append(_to_lark(token, is_recursive=is_recursive))
        lines.append(f"{names[name]}: {' '.join(_fill_empty_alternatives(words))}")
    return "\n".join(lines)


def _has_recursion(rules: _Rules) -> bool:
    """Raises GrammarError if a rule is missing."""
    references: dict[str, set[str]] = {}
    for name, body in rules.items():
        references[name] = {token.text for token in body if token.kind == "name"}
    missing = {"root"}.union(*references.values()) - rules.keys()
    if missing:
        raise GrammarError(f"The grammar has no rule {min(missing)[:40]!r}.", _FORMAT)
    try:
        TopologicalSorter(references).prepare()
    except CycleError:
        return True
    return False


def _parse_rules(text: str) -> _Rules:
    """A name before `::=` begins a rule; of two rules with one name the last counts."""
    tokens = list(_tokenize(text))
    rules: _Rules = {}
    body: list[GbnfToken] | None = None
    for i, token in enumerate(tokens):
        is_before_define = i + 1 < len(tokens) and tokens[i + 1].kind == "define"
        if token.kind == "name" and is_before_define:
            body = []
            rules[token.text] = body
        elif body is None:
            raise GrammarError(
                f"The grammar begins with {token.text[:40]!r}, not a rule.", _FORMAT
            )
        elif token.kind != "define":
            body.append(token)
        elif tokens[i - 1].kind != "name":
            raise GrammarError("A rule of the grammar has no name.", _FORMAT)
    return rules


def _tokenize(text: str) -> Iterator[GbnfToken]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            problem = f"line {line}: {text[at : at + 20]!r} is not expected"
            raise GrammarError(f"The grammar is not valid GBNF, {problem}.", _FORMAT)
        at = found.end()
        kind = str(found.lastgroup)
        if kind != "space":
            yield GbnfToken(kind, found[kind])


def _to_lark(token: GbnfToken, *, is_recursive: bool) -> str:
    match token.kind:
        case "any":
            return "/(?s:.)/"
        case "class":
            return _class_to_regex(token.text)
        case "literal":
            return _literal_to_lark(token.text, is_recursive=is_recursive)
    return token.text  # A mark or a repetition, which Lark writes alike.


def _literal_to_lark(text: str, *, is_recursive: bool) -> str:
    characters = [_to_regex(found) for found in _CHARACTER.finditer(text)]
    if not characters:
        return '""'
    if is_recursive:
        terminals = [f"/{character}/" for character in characters]
        return f"({' '.join(terminals)})"
    return f"/{''.join(characters)}/"


def _class_to_regex(text: str) -> str:
    """`[…]`: a `-` is a range between two characters, else itself."""
    sign = ""
    if text.startswith("^"):
        sign = "^"
    found = list(_CHARACTER.finditer(text.removeprefix("^")))
    parts: list[str] = []
    at = 0
    while at < len(found):
        first = _to_regex(found[at])
        is_range = at + 2 < len(found) and found[at + 1][0] == "-"
        if is_range:
            last = _to_regex(found[at + 2])
            parts.append(f"{first}-{last}")
            at += 3
        else:
            parts.append(first)
            at += 1
    return f"/[{sign}{''.join(parts)}]/"


def _to_regex(character: re.Match[str]) -> str:
    """Every character by its code, so that none has a meaning in a regex."""
    hex2, hex4, hex8, escaped, itself = character.groups()
    code = hex2 or hex4 or hex8
    if code is not None:
        return f"\\x{{{code}}}"
    text = itself or _CONTROL_ESCAPES.get(escaped, escaped)
    return f"\\x{{{ord(text):x}}}"


def _fill_empty_alternatives(words: Sequence[str]) -> Iterator[str]:
    """Lark writes an empty alternative as an empty literal: `( | a` as `( "" | a`."""
    before = "|"
    for word in words:
        if before in ("|", "(") and word in ("|", ")"):
            yield '""'
        yield word
        before = word
    if before in ("|", "("):
        yield '""'
