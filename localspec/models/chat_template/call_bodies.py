"""Arguments of a tool call that are no JSON: how they end, and what they mean.

Models write them between tags (Qwen Coder, GLM, MiniMax, DeepSeek), as a call in Python
(LFM2.5), or in a notation of their own (Gemma 4). The text is the model's and the
schema the client's, so the work may grow with the length of the text, but not with its
square, and the schema is read within a budget.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection
from typing import Any, Protocol

from msgspec import Struct

from localspec.models.chat_template.argument_types import ArgumentTypes, to_value

MAX_LOOKAHEAD = 64
"""Characters after an end that may decide whether it is one, the tag there included."""
_SPACE = re.compile(r"\s*")

ParsedCall = tuple[str, str]
"""The name of a tool, and its arguments as a JSON object."""


class BodyText:
    """The text of one call's arguments, as far as it was read."""

    _N_TAIL = 300

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.tail = ""
        """The last characters, without space behind them: what is before an end."""
        self.n_tries = 0
        """How often the text was tried as a whole."""

    def add(self, text: str) -> None:
        self._pieces.append(text)
        if text.strip():
            self.tail = (self.tail + text).rstrip()[-self._N_TAIL :]
        elif self.tail:
            # Space may belong to the middle of a tail that text follows.
            self.tail = (self.tail + text)[-self._N_TAIL :].rstrip()

    def join(self) -> str:
        text = "".join(self._pieces)
        self._pieces = [text]
        return text


class BodyStyle(Protocol):
    """A notation of arguments."""

    @property
    def end(self) -> str:
        """The text behind the arguments. It may be in a value, too."""

    def is_end(self, body: BodyText, following: str, *, at_end: bool) -> bool | None:
        """Whether the end mark behind `body` ends it; None if more text decides.

        `following` is what comes after the mark, at most `MAX_LOOKAHEAD` characters.
        """

    def find_last_end(self, body: str) -> int | None:
        """Where a text with which an answer ends may have its end nevertheless."""

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """The calls; None if the text is none. A call in Python has its own name."""


def to_json(value: Any) -> str | None:
    """The JSON of arguments, in characters that UTF-8 has; None if there is none."""
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return written.encode("utf-8", "replace").decode()


# --- between tags


class TaggedStyle(Struct, frozen=True):
    """Arguments between tags.

    A value may hold the same tags: an end is one only where one fits.
    """

    parameter: re.Pattern[str]
    """The tag before a value: its first group is the name.

    It never matches the beginning of another one. A group `is_text` says by `true` or
    `string` that the value is a text.
    """
    value_end: re.Pattern[str]
    end: str
    followers: tuple[str, ...] = ()
    """What follows the end; empty: anything."""
    has_line_feeds: bool = False
    """Whether a value stands on lines of its own."""
    has_cdata: bool = False
    """Whether a value with markup in it is written as `<![CDATA[…]]>`."""

    def is_end(self, body: BodyText, following: str, *, at_end: bool) -> bool | None:
        """As `BodyStyle`: the last value is closed, and a follower comes."""
        is_followed = self._is_followed(following, at_end=at_end)
        if is_followed is False or not self._is_closed(body.tail):
            return False
        return is_followed

    def _is_followed(self, text: str, *, at_end: bool) -> bool | None:
        rest = text.lstrip()
        if not self.followers or rest.startswith(self.followers):
            return True
        is_begun = any(tag.startswith(rest) for tag in self.followers)
        is_whole = at_end or len(text) >= MAX_LOOKAHEAD
        return None if is_begun and not is_whole else False

    def _is_closed(self, tail: str) -> bool:
        """Whether the last value of these arguments is closed, if there is one."""
        if not tail:
            return True
        last = None
        for found in self.value_end.finditer(tail):
            last = found
        return last is not None and last.end() == len(tail)

    def find_last_end(self, body: str) -> int | None:
        """As `BodyStyle`, where a tag may be missing."""
        ends = [found.start() for found in re.finditer(re.escape(self.end), body)]
        next_call = body.find("<function=")
        closed = [end for end in ends if self._is_closed(_tail_before(body, end))]
        own = [end for end in closed if next_call < 0 or end < next_call]
        if own:
            return own[-1]
        if closed:
            return closed[0]
        for end in ends:
            after = end + len(self.end)
            following = body[after : after + MAX_LOOKAHEAD]
            # A follower that the answer's end cuts is one.
            if self._is_followed(following, at_end=False) is not False:
                return end
        return None

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """As `BodyStyle`; None if something else is between the arguments."""
        if not body.strip():
            return [(name, "{}")]
        if self.parameter.match(body, _skip_space(body, 0)) is None:
            return None
        types = types_of(name)
        tags = _TagPositions(self, body, types.names)
        arguments: dict[str, Any] = {}
        at = 0
        while (opening := tags.find_opening(at)) is not None:
            start = opening.end()
            end, at = tags.find_value_end(start)
            value = self._unwrap(body[start:end])
            key = opening[1].strip()
            arguments[key] = self._read_value(opening, key, value, types)
        if body[at:].strip():
            return None
        written = to_json(arguments)
        return None if written is None else [(name, written)]

    def _unwrap(self, value: str) -> str:
        if self.has_line_feeds:
            return value.removeprefix("\n").removesuffix("\n")
        is_wrapped = value.startswith("<![CDATA[") and value.endswith("]]>")
        if self.has_cdata and is_wrapped:
            return value[len("<![CDATA[") : -len("]]>")]
        return value

    @staticmethod
    def _read_value(
        opening: re.Match[str], key: str, value: str, types: ArgumentTypes
    ) -> Any:
        is_text = opening.groupdict().get("is_text")
        if is_text in ("true", "string"):
            return value
        if is_text is not None:
            return to_value(value, frozenset())
        if key in types.names:
            return to_value(value, types.find(key))
        return value


def _tail_before(text: str, end: int) -> str:
    return text[max(0, end - 1000) : end].rstrip()[-300:]


class _TagPositions:
    """Where the tags of one call's arguments are.

    All are found in one pass. An answer can have ten thousand tags without an end; if
    each value searched the rest of the text for its own end, these would be a hundred
    million.
    """

    def __init__(self, style: TaggedStyle, body: str, names: Collection[str]) -> None:
        """`names`: the arguments that the tool has."""
        self._body = body
        self._openings = list(style.parameter.finditer(body))
        self._opening_starts = [opening.start() for opening in self._openings]
        self._opening_ends = [opening.end() for opening in self._openings]
        self._known = [
            opening for opening in self._openings if opening[1].strip() in names
        ]
        self._known_starts = [opening.start() for opening in self._known]
        closings = list(style.value_end.finditer(body))
        self._closings = [closing.start() for closing in closings]
        self._final_closings = [
            (closing.start(), closing.end())
            for closing in closings
            if self._is_final(closing.end())
        ]

    def find_opening(self, at: int) -> re.Match[str] | None:
        """The opening tag that stands at an index, or after space there."""
        at = _skip_space(self._body, at)
        i = bisect_left(self._opening_starts, at)
        if i < len(self._openings) and self._opening_starts[i] == at:
            return self._openings[i]
        return None

    def find_value_end(self, start: int) -> tuple[int, int]:
        """The end of the value that begins at `start`, and of its closing tag."""
        at, end = self._find_closing(start)
        # A value that opens more than it closes has lost its closing tag: the next
        # argument that the tool has ends it.
        first_opening = bisect_left(self._opening_starts, start)
        first_closing = bisect_left(self._closings, start)
        n_openings = bisect_right(self._opening_ends, at) - first_opening
        n_closings = bisect_left(self._closings, at) - first_closing
        if n_openings > n_closings:
            i = bisect_left(self._known_starts, start)
            if i < len(self._known) and self._known[i].end() <= at:
                value = self._body[start : self._known_starts[i]]
                at = start + len(value.rstrip())
                end = at
        return at, end

    def _find_closing(self, start: int) -> tuple[int, int]:
        i = bisect_left(self._final_closings, (start, 0))
        if i == len(self._final_closings):
            return len(self._body), len(self._body)
        return self._final_closings[i]

    def _is_final(self, following: int) -> bool:
        """Whether another argument, or nothing, follows a closing tag.

        Others are in a value.
        """
        if self.find_opening(following) is not None:
            return True
        return _skip_space(self._body, following) == len(self._body)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


# --- as a whole, that is tried at each end mark

_MAX_TRIES = 32
"""A value may hold the end mark, but not often: each try reads the text so far."""
_MAX_WHOLE = 1024 * 1024


class _WholeStyle(Struct, frozen=True):
    """A notation that is read whole: an end counts if a call stands before it."""

    end: str

    def is_end(self, body: BodyText, following: str, *, at_end: bool) -> bool | None:
        """As `BodyStyle`."""
        body.n_tries += 1
        if body.n_tries > _MAX_TRIES:
            return False
        return self.parse("", body.join(), ArgumentTypes.unknown) is not None

    def find_last_end(self, body: str) -> int | None:
        """As `BodyStyle`: the end of the answer, where the mark is missing."""
        return len(body)

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """As `BodyStyle`."""
        raise NotImplementedError


class PythonStyle(_WholeStyle, frozen=True):
    """A list of calls in Python, as LFM2.5 writes them: `[f(city='Rome', n=3), g()]`.

    The text is only parsed; nothing of it is run. LFM2.5's template escapes nothing in
    a text, so `city='it's'` is read, too: a quotation mark ends a text where an
    argument or the end of the call follows.
    """

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """As `BodyStyle`."""
        if len(body) > _MAX_WHOLE:
            return None
        try:
            return _parse_python(body.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        try:
            return _parse_unescaped_python(body.strip())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _parse_python(text: str) -> list[ParsedCall]:
    """Raises ValueError or SyntaxError for anything but calls with literals."""
    tree = ast.parse(text, mode="eval").body
    nodes = tree.elts if isinstance(tree, ast.List) else [tree]
    if not nodes:
        raise ValueError("no call")
    return [_read_python_call(node) for node in nodes]


def _read_python_call(node: ast.expr) -> ParsedCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with named arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an argument without a name")
        arguments[keyword.arg] = _read_literal(keyword.value)
    return ast.unparse(node.func), _to_json_or_raise(arguments)


def _to_json_or_raise(arguments: dict[str, Any]) -> str:
    written = to_json(arguments)
    if written is None:
        raise ValueError("a value that JSON does not have")
    return written


_JSON_CONSTANTS = {"true": True, "false": False, "null": None}


def _read_literal(node: ast.expr) -> Any:
    """The value of a literal; JSON's words are literals, too. Raises ValueError."""
    if isinstance(node, ast.Name) and node.id in _JSON_CONSTANTS:
        return _JSON_CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_read_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        # A key is None where another dictionary is unpacked.
        written_keys = [key for key in node.keys if key is not None]
        keys = [ast.literal_eval(key) for key in written_keys]
        if len(keys) < len(node.keys) or not all(isinstance(key, str) for key in keys):
            raise ValueError("a key that is no text")
        values = [_read_literal(value) for value in node.values]
        return dict(zip(keys, values, strict=True))
    return ast.literal_eval(node)


_PYTHON_CALL = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(\s*")
_PYTHON_KEY = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_PYTHON_CALL_END = re.compile(r"\s*\)\s*(?:,\s*(?=[A-Za-z_])|\]?\s*\Z)")
_AFTER_VALUE = r"\s*(?:,\s*(?=[A-Za-z_]\w*\s*=)|(?=\)\s*(?:,\s*[A-Za-z_]|\]?\s*\Z)))"
_TEXT_ENDS = {quote: re.compile(quote + _AFTER_VALUE) for quote in ("'", '"')}
_VALUE_END = re.compile(_AFTER_VALUE)


def _parse_unescaped_python(text: str) -> list[ParsedCall]:
    """As `_parse_python`, where texts are written as they are.

    For example `[f(city='it's', n=3)]`: the text begins at the first quotation mark.
    The second one has `s` behind it, the third one `, n=`, so the third one is its end.
    """
    calls: list[ParsedCall] = []
    at = 1 if text.startswith("[") else 0
    while at < len(text):
        opening = _match(_PYTHON_CALL, text, at)
        at = opening.end()
        arguments: dict[str, Any] = {}
        while (key := _PYTHON_KEY.match(text, at)) is not None:
            begin = key.end()
            quote = text[begin : begin + 1]
            if quote in _TEXT_ENDS:
                end = _search(_TEXT_ENDS[quote], text, begin + 1)
                value: Any = text[begin + 1 : end.start()]
            else:
                end = _search(_VALUE_END, text, begin)
                written = text[begin : end.start()].strip()
                value = _read_literal(ast.parse(written, mode="eval").body)
            arguments[key[1]] = value
            at = end.end()
        at = _match(_PYTHON_CALL_END, text, at).end()
        calls.append((opening[1], _to_json_or_raise(arguments)))
    if not calls:
        raise ValueError("no call")
    return calls


def _match(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise ValueError(f"no {pattern.pattern} at {at}")
    return found


def _search(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.search(text, at)
    if found is None:
        raise ValueError(f"no {pattern.pattern} after {at}")
    return found


class GemmaStyle(_WholeStyle, frozen=True):
    """Gemma 4's notation: `{city:<|"|>Rome<|"|>,days:3}`.

    It is JSON but for the quotation marks: keys have none, and texts have a token of
    their own, so that nothing in a text is escaped.
    """

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """As `BodyStyle`."""
        if len(body) > _MAX_WHOLE:
            return None
        parts = body.split(_GEMMA_QUOTE)
        if len(parts) % 2 == 0:
            return None
        written = []
        for i, part in enumerate(parts):
            # The parts between two quotation marks are texts.
            if i % 2 == 1:
                written.append(json.dumps(part))
            else:
                written.append(_quote_keys(part))
        try:
            arguments = json.loads("".join(written))
        except (ValueError, RecursionError):
            return None
        if not isinstance(arguments, dict):
            return None
        as_json = to_json(arguments)
        return None if as_json is None else [(name, as_json)]


_GEMMA_QUOTE = '<|"|>'
_GEMMA_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)(?=\s*:)")


def _quote_keys(text: str) -> str:
    return _GEMMA_KEY.sub(lambda key: f"{key[1]}{json.dumps(key[2])}", text)


class NestedTagStyle(Struct, frozen=True):
    """Arguments as tags in tags, behind a separator that no value has (MiniMax-M3).

    With `|` for the separator, `|<a>1|</a>|<l>|<item>x|</item>|</l>` is
    `{"a": 1, "l": ["x"]}`.
    """

    separator: str
    end: str

    def is_end(self, body: BodyText, following: str, *, at_end: bool) -> bool | None:
        """As `BodyStyle`: a value cannot have the end."""
        return True

    def find_last_end(self, body: str) -> int | None:
        """As `BodyStyle`: the end of the answer, where the mark is missing."""
        return len(body)

    def parse(
        self, name: str, body: str, types_of: Callable[[str], ArgumentTypes]
    ) -> list[ParsedCall] | None:
        """As `BodyStyle`."""
        root = _Element("", "")
        open_elements = [root]
        before, *tags = body.split(self.separator)
        if before.strip() or len(tags) > _MAX_TAGS:
            return None
        for tag in tags:
            found = _NESTED_TAG.match(tag)
            if found is None:
                return None
            text = tag[found.end() :]
            if not found["slash"]:
                element = _Element(found["name"], text)
                open_elements[-1].children.append(element)
                open_elements.append(element)
            elif len(open_elements) > 1 and open_elements.pop().name == found["name"]:
                if text.strip():
                    return None
            else:
                return None
            if len(open_elements) > _MAX_NESTING:
                return None
        if len(open_elements) > 1:
            return None

        types = types_of(name)
        arguments: dict[str, Any] = {}
        for element in root.children:
            value = element.to_value()
            if isinstance(value, str) and element.name in types.names:
                value = to_value(value, types.find(element.name))
            arguments[element.name] = value
        written = to_json(arguments)
        return None if written is None else [(name, written)]


_MAX_TAGS = 20_000
_MAX_NESTING = 100
_NESTED_TAG = re.compile(r"<(?P<slash>/?)(?P<name>[^<>\s]+)>")


class _Element:
    """A tag with what is in it: a text, or further tags."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._text = text
        self.children: list[_Element] = []

    def to_value(self) -> Any:
        """A list if all tags in it are called `item`, an object, or the text."""
        if not self.children:
            return self._text
        values = [child.to_nested_value() for child in self.children]
        if all(child.name == "item" for child in self.children):
            return values
        names = [child.name for child in self.children]
        return dict(zip(names, values, strict=True))

    def to_nested_value(self) -> Any:
        """The same where no schema is asked: what reads as a number is one."""
        value = self.to_value()
        return to_value(value, frozenset()) if isinstance(value, str) else value
