"""GBNF, llama.cpp's format of grammars, to llguidance's Lark.

llguidance reads a terminal as far as it goes, as a lexer does, and GBNF has no lexer.
So a grammar without recursion becomes one terminal, and in any other each character is
a terminal of its own: both allow exactly the texts of the grammar. (llguidance's own
converter makes terminals of all rules without references, with which many grammars have
no end.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from localspec.errors import GrammarError

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|#[^\n]*)|(?P<define>::=)|(?P<mark>[|()])|(?P<any>\.)"
    r'|"(?P<literal>(?:\\.|[^"\\])*)"|\[(?P<class>(?:\\.|[^\]\\])*)\]'
    r"|(?P<repetition>[*+?]|\{\s*+\d++\s*+(?:,\s*+\d*+\s*+)?\})|(?P<name>[\w-]+)",
    re.DOTALL | re.ASCII,
)
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_CONTROL_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_FORMAT = "The format is llama.cpp's: grammars/README.md in its repository."

_Rules = dict[str, list[tuple[str, str]]]
"""The tokens of each rule's body: kind, a group of `_TOKEN`, and text."""


def gbnf_to_lark(text: str) -> str:
    """Raises GrammarError for what is not GBNF."""
    rules = _parse_rules(text)
    references: dict[str, set[str]] = {}
    for name, body in rules.items():
        references[name] = {word for kind, word in body if kind == "name"}
    missing = {"root"}.union(*references.values()) - rules.keys()
    if missing:
        raise GrammarError(f"The grammar has no rule {min(missing)[:40]!r}.", _FORMAT)
    try:
        TopologicalSorter(references).prepare()
        is_recursive = False
    except CycleError:
        is_recursive = True
    letter = "r" if is_recursive else "R"  # Lark's terminals are in upper case.
    names = {name: f"{letter}{i}" for i, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    for name, body in rules.items():
        words: list[str] = []
        for kind, word in body:
            if kind == "name":
                words.append(names[word])
            else:
                words.append(_to_lark(kind, word, is_recursive))
        lines.append(f"{names[name]}: {' '.join(_fill_empty_alternatives(words))}")
    return "\n".join(lines)


def _parse_rules(text: str) -> _Rules:
    tokens = list(_tokenize(text))
    rules: _Rules = {}
    for i, (kind, word) in enumerate(tokens):
        if kind == "name" and tokens[i + 1 : i + 2] == [("define", "::=")]:
            body: list[tuple[str, str]] = []
            rules[word] = body
        elif not rules:
            raise GrammarError(
                f"The grammar begins with {word[:40]!r}, not a rule.", _FORMAT
            )
        elif kind != "define":
            body.append((kind, word))
        elif tokens[i - 1][0] != "name":
            raise GrammarError("A rule of the grammar has no name.", _FORMAT)
    return rules


def _tokenize(text: str) -> Iterator[tuple[str, str]]:
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
            yield kind, found[kind]


def _to_lark(kind: str, word: str, is_recursive: bool) -> str:
    if kind == "any":
        return "/(?s:.)/"
    if kind == "class":
        return _class_to_regex(word)
    if kind != "literal":
        return word
    characters = [_to_regex(found) for found in _CHARACTER.finditer(word)]
    if is_recursive and characters:
        return f"({' '.join(f'/{character}/' for character in characters)})"
    if not characters:
        return '""'
    return f"/{''.join(characters)}/"


def _class_to_regex(word: str) -> str:
    """`[…]`: a `-` is a range between two characters, else itself."""
    sign = "^" if word.startswith("^") else ""
    found = list(_CHARACTER.finditer(word.removeprefix("^")))
    parts: list[str] = []
    at = 0
    while at < len(found):
        is_range = at + 2 < len(found) and found[at + 1][0] == "-"
        if is_range:
            parts.append(f"{_to_regex(found[at])}-{_to_regex(found[at + 2])}")
            at += 3
        else:
            parts.append(_to_regex(found[at]))
            at += 1
    return f"/[{sign}{''.join(parts)}]/"


def _to_regex(character: re.Match[str]) -> str:
    code = character[1] or character[2] or character[3]
    if code is not None:
        return f"\\x{{{code}}}"
    text = character[5] or _CONTROL_ESCAPES.get(character[4], character[4])
    return f"\\x{{{ord(text):x}}}"


def _fill_empty_alternatives(words: list[str]) -> Iterator[str]:
    """Lark writes an empty alternative as an empty literal."""
    before = "|"
    for word in words:
        if before in ("|", "(") and word in ("|", ")"):
            yield '""'
        yield word
        before = word
    if before in ("|", "("):
        yield '""'
