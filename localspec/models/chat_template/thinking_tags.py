"""The thinking tags of a chat template, and the parsers that split an answer.

`ThinkingParser` reads `<think>…</think>` and its relatives; `MessageParser` reads
answers that are a sequence of messages with headers.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from localspec.models.chat_template.text_scanner import TextScanner


class ThinkingTags(NamedTuple):
    open: str
    close: str


_TAGS_BY_SIGN: tuple[tuple[str, ThinkingTags], ...] = (
    # A string in the template's source, and its tags; the first match applies.
    (
        "{{- '<|open|>' + tag -}}",
        ThinkingTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ),
    ("<|channel|>analysis", ThinkingTags("<|channel|>analysis<|message|>", "<|end|>")),
    ("<|channel>thought", ThinkingTags("<|channel>thought\n", "<channel|>")),
    ("</seed:think>", ThinkingTags("<seed:think>", "</seed:think>")),
    ("HYTK = ':opensource'", ThinkingTags("<think:opensource>", "</think:opensource>")),
    ("</mm:think>", ThinkingTags("<mm:think>", "</mm:think>")),
    ("[/THINK]", ThinkingTags("[THINK]", "[/THINK]")),
    ("<|END_THINKING|>", ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<|begin|>assistant<|think|>", ThinkingTags("<|think|>", "<|end|>")),
    ("<|inner_suffix|>", ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>")),
    (
        "[BEGIN FINAL RESPONSE]",
        ThinkingTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ),
    ("</think>", ThinkingTags("<think>", "</think>")),
    ("</thinking>", ThinkingTags("<thinking>", "</thinking>")),
    ("</thought>", ThinkingTags("<thought>", "</thought>")),
    ("</reasoning>", ThinkingTags("<reasoning>", "</reasoning>")),
)

_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|start|>assistant<|channel|>final<|message|>",
    "<|think|>": "<|begin|>assistant<|content|>",
    "<|open|>think<|sep|>": "<|open|>response<|sep|>",
}
"""The text between a thinking part and the answer, by opening tag."""
_DIRECT_ANSWER_PREFIXES = {
    "<|channel|>analysis<|message|>": "<|channel|>final<|message|>",
    "<|think|>": "<|content|>",
}
"""The text before an answer without a thinking part, by opening tag."""


def detect_tags(source: str) -> ThinkingTags | None:
    """The tags of a template; None if it has no thinking parts of a known format."""
    return next((tags for sign, tags in _TAGS_BY_SIGN if sign in source), None)


def with_answer_prefix(tags: ThinkingTags) -> ThinkingTags:
    """The tags, with the text between thinking and answer added to the closing tag."""
    return ThinkingTags(tags.open, tags.close + _ANSWER_PREFIXES.get(tags.open, ""))


def closing_text(tags: ThinkingTags) -> str:
    """What ends a thinking part and begins the answer after it."""
    after = _ANSWER_PREFIXES.get(tags.open, "\n\n")
    return f"\n{tags.close}{after}"


def direct_answer_prefix(tags: ThinkingTags) -> str:
    """What begins an answer without a thinking part; empty if nothing does."""
    return _DIRECT_ANSWER_PREFIXES.get(tags.open, "")


def is_open(generation_prompt: str, tags: ThinkingTags | None) -> bool:
    """Whether a prompt ends inside a thinking part.

    `generation_prompt` is what the template wrote at the prompt's end.
    """
    if tags is None:
        return False
    return generation_prompt.rfind(tags.open.rstrip()) > generation_prompt.rfind(
        tags.close
    )


def separate_thinking(
    answer: str, tags: ThinkingTags | None, starts_in_thinking: bool = False
) -> tuple[str | None, str]:
    """An answer's thinking (None without) and the rest of the answer.

    The prompt may hold the opening tag, so that the answer holds only the closing one.
    An answer that `starts_in_thinking` and has no closing tag, because it was cut, is
    thinking only.
    """
    if tags is None or not answer:
        return None, answer
    message_parser = _find_message_parser(tags)
    if message_parser is not None:
        parser = message_parser(starts_in_thinking, is_model=False)
        parts = merge_parts([*parser.feed(answer), *parser.flush()])
        thought = "".join(part.text for part in parts if part.is_thinking).strip()
        said = "".join(part.text for part in parts if not part.is_thinking)
        return thought or None, said
    opening = tags.open.rstrip()
    is_opened = answer.lstrip().startswith(opening)
    if not is_opened and tags.close not in answer:
        if starts_in_thinking:
            return answer.strip(), ""
        return None, answer
    parts = split_thinking(
        answer, (opening, tags.close), starts_in_thinking=not is_opened
    )
    thinking = "".join(part.text for part in parts if part.is_thinking)
    if tags.open in thinking:  # text before the thinking part: not a known format
        return None, answer
    rest = "".join(part.text for part in parts if not part.is_thinking).lstrip()
    return thinking.strip(), rest


class AnswerPart(Struct, frozen=True):
    is_thinking: bool
    text: str
    n_calls: int = 0  # Calls of tools that begin before it, where calls are read.


class _PartList:
    """Collects text as alternating parts.

    The pieces of a part are joined once: an answer of many pieces takes linear time.
    """

    def __init__(self) -> None:
        self._parts: list[AnswerPart] = []
        self._pieces: list[str] = []
        self._is_thinking = False

    def add(self, is_thinking: bool, text: str) -> None:
        if not text:
            return
        if is_thinking is not self._is_thinking:
            self._end_part()
        self._is_thinking = is_thinking
        self._pieces.append(text)

    def close(self) -> list[AnswerPart]:
        """Return the parts. The list is not used afterwards."""
        self._end_part()
        return self._parts

    def _end_part(self) -> None:
        if self._pieces:
            self._parts.append(AnswerPart(self._is_thinking, "".join(self._pieces)))
        self._pieces = []


TextKind = Literal["header", "thinking", "preamble", "call", "answer"]
"""What an answer's text is: a `preamble` is shown, and tells that a call follows."""


class ThinkingParser:
    """Splits streamed text; the result does not depend on how the text is cut.

    Thinking can begin only before the first visible character. So an answer that
    explains the tags is not hidden. The tags are removed.
    """

    unread_header = ""

    def __init__(
        self, tags: tuple[str, str] | None, starts_in_thinking: bool = False
    ) -> None:
        self._open, self._close = tags or ("", "")
        self.in_thinking = starts_in_thinking and bool(self._close)
        self._scanner = TextScanner()

    @property
    def unread(self) -> str:
        """The text that waits for more of it: it may be a tag, or a header."""
        return self._scanner.unread

    @property
    def may_think(self) -> bool:
        """Whether the text is thinking, or thinking may still begin."""
        return bool(self._next_tag)

    @property
    def kind(self) -> TextKind:
        """What the next character belongs to."""
        return "thinking" if self.in_thinking else "answer"

    def fork(self) -> ThinkingParser:
        """A parser of another continuation of the same text."""
        twin = copy.copy(self)
        twin._scanner = self._scanner.fork()
        return twin

    def expected_headers(self, *, has_tools: bool) -> tuple[str, ...]:
        """No headers: an answer in this format is one message."""
        return ()

    def feed(self, text: str) -> list[AnswerPart]:
        """The parts that are certain so far."""
        parts = _PartList()
        self._scanner.feed(text, partial(self._read, parts))
        return parts.close()

    def flush(self) -> list[AnswerPart]:
        """The unread text at the end of the answer."""
        parts = _PartList()
        self._add(parts, self._scanner.take_unread())
        return parts.close()

    @property
    def _next_tag(self) -> str:
        return self._close if self.in_thinking else self._open

    def _read(self, parts: _PartList, text: str, start: int) -> int:
        """Read up to the next tag and over it, or up to what may become one."""
        tag = self._next_tag
        if not tag:
            self._add(parts, text[start:])
            return len(text)

        found = text.find(tag, start)
        if found >= 0:
            self._add(parts, text[start:found])
            # Visible text may have ended the wait for a thinking part.
            if self._next_tag != tag:
                return found
            self.in_thinking = not self.in_thinking
            return found + len(tag)

        end = len(text) - partial_length(text[start:], tag)
        self._add(parts, text[start:end])
        return end

    def _add(self, parts: _PartList, text: str) -> None:
        if not self.in_thinking and text.strip():
            self._open = ""  # No thinking can follow visible text.
        parts.add(self.in_thinking, text)


class _MessageHeader(NamedTuple):
    """The header of a message, as its format reads it."""

    end: int  # The index of the message's body.
    kind: TextKind = "answer"
    shown: str = ""  # What is shown of it, for `ToolCallParser`.


_NO_HEADER = _MessageHeader(-1)


class MessageParser:
    """As `ThinkingParser`, for answers that are a sequence of messages with headers.

    For example, this is the thinking `Hm.` and the text `Yes.`:

        <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.

    Headers and end markers are removed; a tool call keeps its header, in one form, for
    `ToolCallParser`. Nothing else is lost. Where no header can be read, the text is
    shown as it was written: an answer without headers, one whose header never ends, and
    prose that names a marker. While more text decides, at most `_MAX_HEADER` characters
    are held back.
    """

    may_think = True
    _ENDS: ClassVar[tuple[str, ...]]
    """The markers that end a message."""
    _HEADER_MARKERS: ClassVar[tuple[str, ...]]
    """The markers that may begin a header within a message that was not ended."""
    _MARKER: ClassVar[re.Pattern[str]]
    """Any of both."""
    _HEADERS: ClassVar[tuple[str, ...]]
    """Every header that the format documents, as an answer to a chat has them."""
    _CALL_HEADERS: ClassVar[tuple[str, ...]] = ()
    """How the header of a tool call begins, before the tool's name."""
    _MAX_HEADER = 200

    def __init__(
        self, starts_in_thinking: bool = False, *, is_model: bool = True
    ) -> None:
        """`is_model` says that a model wrote the text, and not a client.

        Only a model forgets to end its headers. What a client sends is its text: a
        header without an end in it is not taken away.
        """
        self.kind: TextKind = "thinking" if starts_in_thinking else "header"
        """What the next character belongs to; `header` also between messages."""
        self._is_model = is_model
        self._scanner = TextScanner()

    @property
    def in_thinking(self) -> bool:
        return self.kind == "thinking"

    @property
    def unread(self) -> str:
        """As `ThinkingParser`'s."""
        return self._scanner.unread

    @property
    def unread_header(self) -> str:
        """What was read of a header that is not complete; empty if there is none."""
        return self._scanner.unread if self.kind == "header" else ""

    def fork(self) -> MessageParser:
        """A parser of another continuation of the same text."""
        twin = copy.copy(self)
        twin._scanner = self._scanner.fork()
        return twin

    def expected_headers(self, *, has_tools: bool) -> tuple[str, ...]:
        """The headers that the format documents.

        After one that ends in `to=` comes the name of a tool.
        """
        return self._HEADERS + self._CALL_HEADERS if has_tools else self._HEADERS

    def feed(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain so far."""
        parts = _PartList()
        self._scanner.feed(text, partial(self._read, parts))
        return parts.close()

    def flush(self) -> list[AnswerPart]:
        """Return the unread text at the end of the answer."""
        rest = self._scanner.take_unread()
        is_expected = self.kind == "header"
        if is_expected and self._is_cut_header(rest):
            return []
        parts = _PartList()
        header = _NO_HEADER
        if self._is_model:
            header = self._parse_unended_header(rest, is_expected=is_expected)
        if header is not _NO_HEADER:
            rest = rest[self._begin_message(parts, header) :]
        parts.add(self.in_thinking, rest)
        return parts.close()

    def _read(self, parts: _PartList, text: str, start: int) -> int:
        if self.kind != "header":
            return self._read_body(parts, text, start)
        header = self._find_header(text, start, is_expected=True)
        if header is None:
            return start
        if header is _NO_HEADER:  # The message has none.
            self.kind = "answer"
            return self._read_body(parts, text, start)
        return self._begin_message(parts, header)

    def _read_body(self, parts: _PartList, text: str, start: int) -> int:
        marker = self._MARKER.search(text, start)
        if marker is None:
            tail = text[max(start, len(text) - self._MAX_HEADER) :]
            markers = self._ENDS + self._HEADER_MARKERS
            n_held = max(partial_length(tail, each) for each in markers)
            end = len(text) - n_held
            parts.add(self.in_thinking, text[start:end])
            return end

        parts.add(self.in_thinking, text[start : marker.start()])
        if marker[0] in self._ENDS:
            self.kind = "header"
            return marker.end()
        header = self._find_header(text, marker.start(), is_expected=False)
        if header is None:
            return marker.start()
        if header is _NO_HEADER:  # The message's text names the marker.
            parts.add(self.in_thinking, marker[0])
            return marker.end()
        return self._begin_message(parts, header)

    def _begin_message(self, parts: _PartList, header: _MessageHeader) -> int:
        self.kind = header.kind
        parts.add(False, header.shown)
        return header.end

    def _find_header(
        self, text: str, start: int, *, is_expected: bool
    ) -> _MessageHeader | None:
        """The header that begins at `start`.

        It is `_NO_HEADER` where none does, and None if more text decides.

        `is_expected`: a message ended before, or none began yet. There, a header with
        mistakes is still a header. Within a message only a faultless one is: the rest
        is text about headers.
        """
        begun = text[start : start + self._MAX_HEADER]
        header = self._parse_header(begun, is_expected=is_expected)
        if header is None and len(begun) < self._MAX_HEADER:
            return None
        if self._is_model and (header is None or header is _NO_HEADER):
            header = self._parse_unended_header(begun, is_expected=is_expected)
        if header is None or header is _NO_HEADER:
            return _NO_HEADER
        return header._replace(end=start + header.end)

    def _parse_header(self, text: str, *, is_expected: bool) -> _MessageHeader | None:
        """As `_find_header`, for a text that begins with the header."""
        raise NotImplementedError

    def _parse_unended_header(self, text: str, *, is_expected: bool) -> _MessageHeader:
        """The header with which a text begins, where its last marker is missing."""
        return _NO_HEADER

    def _is_cut_header(self, text: str) -> bool:
        """Whether the end of an answer is certainly a header that was cut."""
        begun = text.lstrip()
        if not any(marker in begun for marker in self._HEADER_MARKERS):
            return False
        is_call = begun.startswith(self._CALL_HEADERS)
        return is_call or any(header.startswith(begun) for header in self._HEADERS)


_HARMONY_ROLES = ("", "<|start|>assistant")
_HARMONY_CHANNELS = ("analysis", "commentary", "final")
_HARMONY_TYPES = ("", " <|constrain|>json", "<|constrain|>json", " json")
_HARMONY_ITEM = re.compile(
    r"""
    (?P<space> \s+ )
  | (?P<end> <\|message\|> )
  | <\|start\|> (?P<role> \s*assistant\b | [\w.:-]+ | (?=<) )
  | <\|channel\|> (?P<channel> \s*(?:analysis|commentary|final)\b | [^\s<>{}\[\]"]+ | (?=<) )
  | <\|constrain\|> \s* (?P<type> [^\s<>{}\[\]"]* )
  | to= (?P<recipient> [^\s<>{}\[\]"]+ )
  | (?P<word> (?!to=) [^\s<>{}\[\]"]+ )
    """,
    re.ASCII | re.VERBOSE,
)
_HARMONY_UNENDED = re.compile(
    r"""
    \s* (?P<role> <\|start\|> \s* assistant \s* )?
    <\|channel\|> \s* (?P<channel> analysis | commentary | final )
    (?: \s+ to= (?P<recipient> [^\s<>{}\[\]"]+ ) )?
    (?: \s* <\|constrain\|> \s* \w* )?
    (?: \s* json (?= \s* [{\[] ) )?
    """,
    re.ASCII | re.VERBOSE,
)
"""A header up to where its `<|message|>` should be."""
_HARMONY_TOOL = re.compile(r"(?:functions\.)?([\w.-]+)", re.ASCII)
_NO_TOOLS = re.compile(r"(?:assistant|user|system|developer|all|python|browser)\b")
"""Recipients that are no function of the request: roles, and gpt-oss's own tools."""


class HarmonyParser(MessageParser):
    """OpenAI's Harmony format (gpt-oss): the channel `analysis` is thinking.

    The prompt ends with `<|start|>assistant`. A header names a channel, a recipient and
    the type of the body, in any order:

        <|channel|>final <|constrain|>json<|message|>
         to=functions.weather<|channel|>commentary json<|message|>

    gpt-oss also writes headers with mistakes, such as `<|channel|>commentary
    2?<|message|>` and `<|channel|>bash<|channel|>analysis<|message|>`. It forgets the
    `<|message|>`, as in `<|channel|>final{"a": 1}`, and the space before a type, as in
    `to=functions.weatherjson`; `ToolCallParser`, who knows the tools, reads the latter.
    """

    _ENDS = ("<|end|>", "<|return|>", "<|call|>")
    _HEADER_MARKERS = ("<|start|>", "<|channel|>")
    _MARKER = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
    _HEADERS = tuple(
        f"{role}<|channel|>{channel}{type_}<|message|>"
        for role in _HARMONY_ROLES
        for channel in _HARMONY_CHANNELS
        for type_ in _HARMONY_TYPES
    )
    _CALL_HEADERS = tuple(
        f"{role}{before} to="
        for role in _HARMONY_ROLES
        for before in ("", "<|channel|>analysis", "<|channel|>commentary")
    )
    _INNER_MARKERS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "to=")

    def _parse_header(self, text: str, *, is_expected: bool) -> _MessageHeader | None:
        items = _HarmonyItems(is_expected=is_expected)
        position = 0
        while True:
            rest = text[position:]
            if any(
                marker.startswith(rest)
                for marker in self._INNER_MARKERS
                if marker != rest
            ):
                return None
            item = _HARMONY_ITEM.match(text, position)
            if item is None:
                return None if _is_item_begun(rest) else _NO_HEADER
            is_cut = item.end() == len(text) and item.lastgroup != "end"
            if not items.add(item, is_cut=is_cut):
                return _NO_HEADER
            if is_cut:
                return None
            position = item.end()
            if item.lastgroup == "end":
                return items.to_header(position)

    def _parse_unended_header(self, text: str, *, is_expected: bool) -> _MessageHeader:
        """As `MessageParser`'s.

        Within a message, only a header with its role counts, if no quotation mark
        follows: prose about the format names the markers, too.
        """
        found = _HARMONY_UNENDED.match(text)
        if found is None:
            return _NO_HEADER
        following = text[found.end() : found.end() + 1]
        is_quoted = following in ("`", "'", '"')
        if not is_expected and (found["role"] is None or is_quoted):
            return _NO_HEADER
        return _to_header(found.end(), found["channel"], found["recipient"] or "")


def _is_item_begun(text: str) -> bool:
    """Whether a text that is no item of a header may become one with more text.

    For example `<|channel|>ana`, whose name is not complete.
    """
    if text == "to=":
        return True
    for marker, names in (
        ("<|start|>", ("assistant",)),
        ("<|channel|>", _HARMONY_CHANNELS),
    ):
        if text.startswith(marker):
            begun = text.removeprefix(marker).lstrip()
            return any(name.startswith(begun) for name in names)
    return False


class _HarmonyItems:
    """The items of one Harmony header, as far as it was read."""

    _MAX_WORDS = 2  # Words without a marker: a type, and one more that a model made up.

    def __init__(self, *, is_expected: bool) -> None:
        self._is_expected = is_expected
        self._channel = ""
        self._recipient = ""
        self._n_words = 0
        self._is_begun = False  # Whether an item came that only headers have.

    def add(self, item: re.Match[str], *, is_cut: bool) -> bool:
        """Add an item; return whether this can still be a header.

        A cut item may go on.
        """
        if item.lastgroup == "space":
            return True
        if item.lastgroup == "word":
            self._n_words += 1
            max_words = self._MAX_WORDS if self._is_expected else 1
            return self._is_begun and self._n_words <= max_words
        self._is_begun = True
        if item.lastgroup == "channel":
            return self._add_channel(item["channel"].strip(), is_cut=is_cut)
        if item.lastgroup == "role":
            role = item["role"].strip()
            return self._is_expected or self._is_name(
                role, ("assistant",), is_cut=is_cut
            )
        if item.lastgroup == "recipient":
            self._recipient = item["recipient"]
        if item.lastgroup == "end":
            return self._is_expected or bool(self._channel or self._recipient)
        return True

    def _add_channel(self, name: str, *, is_cut: bool) -> bool:
        self._channel = next(filter(name.startswith, _HARMONY_CHANNELS), "")
        return self._is_expected or self._is_name(
            name, _HARMONY_CHANNELS, is_cut=is_cut
        )

    @staticmethod
    def _is_name(name: str, known: tuple[str, ...], *, is_cut: bool) -> bool:
        if is_cut:
            return any(each.startswith(name) for each in known)
        return name in known

    def to_header(self, end: int) -> _MessageHeader:
        return _to_header(end, self._channel, self._recipient)


def _to_header(end: int, channel: str, recipient: str) -> _MessageHeader:
    tool = _HARMONY_TOOL.match(recipient)
    if tool is not None and not _NO_TOOLS.match(recipient):
        channel = channel or "commentary"
        shown = f"<|channel|>{channel} to=functions.{tool[1]}<|message|>"
        return _MessageHeader(end, "call", shown)
    if channel == "analysis":
        return _MessageHeader(end, "thinking")
    if channel == "commentary":
        return _MessageHeader(end, "preamble")
    return _MessageHeader(end, "answer")


class SolarParser(MessageParser):
    """Solar Open: `<|think|>…<|end|><|begin|>assistant<|content|>…`.

    Without thinking it is `<|content|>…` only. The prompt ends with
    `<|begin|>assistant`.
    """

    _ENDS = ("<|end|>",)
    _HEADER_MARKERS = ("<|begin|>",)
    _MARKER = re.compile(r"<\|(?:end|begin)\|>")
    _HEADERS = (
        "<|think|>",
        "<|content|>",
        "<|begin|>assistant<|think|>",
        "<|begin|>assistant<|content|>",
    )

    def _parse_header(self, text: str, *, is_expected: bool) -> _MessageHeader | None:
        begun = text.lstrip()
        n_space = len(text) - len(begun)
        for header in self._HEADERS:
            if begun.startswith(header):
                kind: TextKind = (
                    "thinking" if header.endswith("<|think|>") else "answer"
                )
                return _MessageHeader(n_space + len(header), kind)
        is_begun = any(header.startswith(begun) for header in self._HEADERS)
        return None if is_begun else _NO_HEADER


class KimiParser(MessageParser):
    """Kimi K3: `<|open|>think<|sep|>…<|close|>think<|sep|><|open|>response<|sep|>…`.

    The prompt opens the thinking, or the response. Calls follow the response; they are
    no message here, so `ToolCallParser` gets them as they are.
    """

    _ENDS = (
        "<|close|>think<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
    )
    _HEADER_MARKERS = ("<|open|>think<|sep|>", "<|open|>response<|sep|>")
    _MARKER = re.compile(
        r"<\|close\|>(?:think|response|message)<\|sep\|>"
        r"|<\|open\|>(?:think|response)<\|sep\|>"
    )
    _HEADERS = _HEADER_MARKERS

    def __init__(
        self, starts_in_thinking: bool = False, *, is_model: bool = True
    ) -> None:
        super().__init__(starts_in_thinking, is_model=is_model)
        if not starts_in_thinking:
            self.kind = "answer"

    def _parse_header(self, text: str, *, is_expected: bool) -> _MessageHeader | None:
        begun = text.lstrip()
        n_space = len(text) - len(begun)
        for header in self._HEADERS:
            if begun.startswith(header):
                kind: TextKind = "thinking" if "think" in header else "answer"
                return _MessageHeader(n_space + len(header), kind)
        is_begun = any(header.startswith(begun) for header in self._HEADERS)
        return None if is_begun else _NO_HEADER


def has_messages(tags: tuple[str, str]) -> bool:
    """Whether an answer is a sequence of messages, which `MessageParser` splits."""
    return _find_message_parser(tags) is not None


def _find_message_parser(tags: tuple[str, str]) -> type[MessageParser] | None:
    if tags[0].startswith("<|channel|>analysis"):
        return HarmonyParser
    if tags[0] == "<|think|>":
        return SolarParser
    if tags[0] == "<|open|>think<|sep|>":
        return KimiParser
    return None


AnswerParser = ThinkingParser | MessageParser


def make_parser(
    tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> AnswerParser:
    """The parser of a stream with these tags."""
    message_parser = _find_message_parser(tags) if tags is not None else None
    if message_parser is not None:
        return message_parser(starts_in_thinking)
    return ThinkingParser(tags, starts_in_thinking)


def split_thinking(
    text: str, tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> tuple[AnswerPart, ...]:
    """Split a complete text into alternating parts."""
    parser = make_parser(tags, starts_in_thinking)
    return merge_parts([*parser.feed(text), *parser.flush()])


def merge_parts(parts: Iterable[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Join adjacent parts of the same type, without a call between them."""
    texts = [part for part in parts if part.text]
    merged: list[AnswerPart] = []
    for (is_thinking, n_calls), group in groupby(texts, _type_of):
        text = "".join(part.text for part in group)
        merged.append(AnswerPart(is_thinking, text, n_calls))
    return tuple(merged)


def _type_of(part: AnswerPart) -> tuple[bool, int]:
    return part.is_thinking, part.n_calls


def strip_thinking(
    text: str, tags: tuple[str, str] | None, starts_in_thinking: bool = False
) -> str:
    """Return the text without thinking.

    If there was thinking, the text is also without surrounding white space.
    """
    parts = split_thinking(text, tags, starts_in_thinking)
    visible = "".join(part.text for part in parts if not part.is_thinking)
    return visible.strip() if any(part.is_thinking for part in parts) else visible


def partial_length(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`."""
    longest = min(len(text), len(tag) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(tag[:n])), 0)
