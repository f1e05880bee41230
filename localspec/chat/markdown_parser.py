"""The Markdown of answers: CommonMark, of which nothing hides what a model wrote.

Models write paths, formulas and code outside of code blocks. So backslashes are text,
and `*`, `_` and `~~` are markup only where they enclose words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, emphasis, strikethrough
from markdown_it.token import Token

_PYTHON_NAME = re.compile(r"__\w+__(?!\w)")
_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_NEVER_BEFORE_OPENING = set(")]}\\")
_NEVER_AFTER_OPENING = set(")]},;:!?/\\=>|%^")
_NEVER_BEFORE_CLOSING = set("([{<=|/\\")
_NEVER_AFTER_CLOSING = set("{")


def _keep_escape(state: StateInline, silent: bool) -> bool:
    """A backslash stays, as in paths and TeX; what follows it is no markup."""
    escaped = state.src[state.pos : state.pos + 2]
    if not escaped.startswith("\\") or escaped[1:] not in _PUNCTUATION:
        return False
    if not silent:
        state.pending += escaped
    state.pos += 2
    return True


def _read_emphasis(state: StateInline, silent: bool) -> bool:
    """As CommonMark's rule for `*` and `_`, but not for what is likely no emphasis.

    `__init__` is a name, and `2*pi*r` has a letter on both sides of each `*`. In
    `count(*), sum(*)` the first `*` is followed by a closing bracket.
    """
    name = _PYTHON_NAME.match(state.src, state.pos)
    if name is not None and not _is_word(_character_before(state)):
        if not silent:
            state.pending += name[0]
        state.pos = name.end()
        return True
    return _read_marks(state, emphasis.tokenize, silent)


def _read_strikethrough(state: StateInline, silent: bool) -> bool:
    return _read_marks(state, strikethrough.tokenize, silent)


def _read_marks(
    state: StateInline, rule: Callable[[StateInline, bool], bool], silent: bool
) -> bool:
    """Reads a run of marks by a rule, and decides whether it opens or closes anything."""
    n_before = len(state.delimiters)
    before = _character_before(state)
    if not rule(state, silent):
        return False
    after = state.src[state.pos : state.pos + 1]
    is_in_word = _is_word(before) and _is_word(after)
    for delimiter in state.delimiters[n_before:]:
        if before in _NEVER_BEFORE_OPENING or after in _NEVER_AFTER_OPENING:
            delimiter.open = False
        if before in _NEVER_BEFORE_CLOSING or after in _NEVER_AFTER_CLOSING:
            delimiter.close = False
        if is_in_word:
            delimiter.open = False
            delimiter.close = False
    return True


def _character_before(state: StateInline) -> str:
    return state.src[max(0, state.pos - 1) : state.pos]


def _is_word(character: str) -> bool:
    """Chinese and Japanese have no blanks between words, so marks may stand in them."""
    return character.isalnum() and character < "\u2e80"


MARKDOWN_PARSER = MarkdownIt("commonmark", {"html": False}).enable(
    ["strikethrough", "table"]
)
# Nothing hides text: HTML, images, definitions and entities stay text.
MARKDOWN_PARSER.disable(["autolink", "entity", "image", "reference"])
# Addresses stay as they are.
MARKDOWN_PARSER.normalizeLink = str  # type: ignore[method-assign,assignment]
MARKDOWN_PARSER.inline.ruler.at("escape", _keep_escape)
MARKDOWN_PARSER.inline.ruler.at("emphasis", _read_emphasis)
MARKDOWN_PARSER.inline.ruler.at("strikethrough", _read_strikethrough)


def count_visible(tokens: Sequence[Token]) -> Counter[str]:
    """How often each character must be drawn: all of the text but the inline markup.

    The blocks' markup (`#`, `>`, `-`, fences, the bars of tables) is not counted, but
    the numbers of lists are. Of `2. **a** [b](c)` it is `2`, `a`, `b`, `c` and the round
    brackets, with which an address is drawn.
    """
    visible: Counter[str] = Counter()
    for token in tokens:
        visible.update(token.info)
        if token.type != "inline":
            visible.update(token.content)
            continue
        visible.update(token.content)
        for child in token.children or ():
            if child.type == "link_open":
                visible.subtract("[]")
            elif child.type == "code_inline":
                visible.subtract(child.markup * 2)
            elif child.nesting:
                visible.subtract(child.markup)
    for blank in [character for character in visible if character.isspace()]:
        del visible[blank]
    return visible
