"""Builds the prompt of a chat for the loaded model, and its tokens."""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import Hint, UsageError
from localspec.models.chat_template import (
    builtin_templates,
    generic_tools,
    thinking_tags,
)
from localspec.models.chat_template.call_layouts import GENERIC_LAYOUT, CallLayout
from localspec.models.chat_template.thinking_effort import (
    ThinkingControl,
    ThinkingParams,
    resolve_effort,
)
from localspec.models.chat_template.thinking_tags import AnswerParser, ThinkingTags
from localspec.models.chat_template.tool_calls import ToolCallParser
from localspec.models.chat_template.tool_formats import GENERIC, TOOL_FORMATS
from localspec.models.pictures import PICTURE_MARK, without_marks
from localspec.protocol.events import Notice
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    PictureRef,
    TemplateArgument,
    ToolCall,
)
from localspec.spec.thinking_budget import ThinkingBudget, make_byte_parser

if TYPE_CHECKING:
    from localspec.llama.model import LlamaVocab
    from localspec.models.chat_template.jinja_render import RenderResult


class Prompt(Struct, frozen=True):
    """The text of a prompt, with what its chat template implies for the answer."""

    text: str
    messages: tuple[ChatMessage, ...] = ()  # The messages in the text, if known.
    notices: tuple[Notice, ...] = ()
    opens_thinking: bool = False  # Whether the prompt ends inside a thinking part.
    tokens: tuple[int, ...] = ()
    """The prompt's tokens, if the request has them instead of a text."""
    stop: tuple[str, ...] = ()
    """Stop strings of a built-in template, for whose end of turn the model may have no
    token.
    """
    has_answer_prefix: bool = False
    """Whether the text ends with the beginning of the answer itself."""
    prefill: str = ""  # The beginning of the answer that is not in the text.
    is_rendered: bool = False
    """Whether a template wrote the text, with marks for `ControlTokenGuard.tokenize`."""
    pictures: tuple[PictureRef, ...] = ()
    """Those of the messages, in their order; the text has numbered marks of them."""


_MARK = "\ufdd2"  # A noncharacter: in a text that a person writes, it means nothing.
_JSON_FIELDS = {(ToolCall, "arguments")}
"""Fields whose text is JSON, in whose strings characters may be escaped."""
_ANSWER_FIELDS = {(ChatMessage, "content")}
"""Fields of an assistant's message that may have an answer's own markers."""

_StructT = TypeVar("_StructT", bound=Struct)


class ControlTokenGuard:
    """Keeps the texts of a chat from being read as the marks of its prompt.

    A page that someone pastes could otherwise end the turn and begin another. Before a
    template is rendered, a text of a control token, or of another token that structures
    prompts (`LlamaVocab.mark_texts`), gets a mark after its first character; `tokenize`
    removes it. For example, a person writes "<end>" and the template ends a turn with
    "<end>". The prompt is "<¦end><end>", where ¦ is the mark. Its tokens are those of
    the plain text "<end>", and the control token.
    """

    def __init__(self, vocabulary: LlamaVocab, answer_texts: Sequence[str]) -> None:
        """`answer_texts` are texts whose control tokens an answer may contain."""
        self._vocabulary = vocabulary
        self._marks = vocabulary.mark_texts
        self._in_answers: set[str] = set()
        for text in answer_texts:
            for start, end in self._marks.find(text):
                self._in_answers.add(text[start:end])

    def protect_message(self, message: ChatMessage) -> ChatMessage:
        """The message with every text in it protected.

        Only an answer's own markers in its `content` stay control tokens, and in a
        message with pictures the marks of their places.
        """
        is_answer = message.role == "assistant"
        protected = self._protect_fields(message, is_answer=is_answer)
        if not message.images:
            return protected
        parts = message.content.split(PICTURE_MARK)
        content = PICTURE_MARK.join(
            self.protect(part, is_answer=is_answer) for part in parts
        )
        return replace(protected, content=content)

    def _protect_fields(self, value: _StructT, *, is_answer: bool = False) -> _StructT:
        """All fields of any Struct, so that no new one is forgotten."""
        changes: dict[str, Any] = {}
        for name in value.__struct_fields__:
            field = getattr(value, name)
            place = (type(value), name)
            if place in _JSON_FIELDS:
                changes[name] = self.protect_json(field)
            elif is_answer and place in _ANSWER_FIELDS:
                changes[name] = self.protect(field, is_answer=True)
            else:
                changes[name] = self._protect_value(field)
        return replace(value, **changes)

    def _protect_value(self, value: Any) -> Any:
        """Every text in a value of any type, the names in a dict too."""
        if isinstance(value, str):
            return self.protect(value)
        if isinstance(value, Struct):
            return self._protect_fields(value)
        if isinstance(value, list | tuple):
            return type(value)(map(self._protect_value, value))
        if isinstance(value, dict):
            return {
                self.protect(name): self._protect_value(item)
                for name, item in value.items()
            }
        return value

    def protect(self, text: str, *, is_answer: bool = False) -> str:
        """The text with its control tokens marked, but for those of an answer."""
        text = without_marks(text).replace(_MARK, "\ufffd")
        parts: list[str] = []
        done = 0
        exempt_end = 0
        for start, end in self._marks.find_overlapping(text):
            if start < exempt_end:
                continue
            if is_answer and text[start:end] in self._in_answers:
                exempt_end = end
                continue
            parts += [text[done : start + 1], _MARK]
            done = start + 1
        return "".join([*parts, text[done:]])

    def protect_json(self, text: str) -> str:
        """The same for a JSON text: the strings in it, and the names of its objects.

        A text that is no JSON is protected as it stands.
        """
        if "\\" not in text and not self._has_marks(text):
            return text
        try:
            protected = self._protect_value(json.loads(text))
            return json.dumps(protected, ensure_ascii=False)
        except ValueError:
            return self.protect(text)
        except RecursionError:
            raise UsageError(
                "The tools, or a call's arguments, are nested too deeply."
            ) from None

    def _has_marks(self, text: str) -> bool:
        if _MARK in text or PICTURE_MARK in text:
            return True
        return any(self._marks.find_overlapping(text))

    def tokenize(self, text: str, *, is_first: bool = True) -> list[int]:
        """Tokens of a prompt: the template's control tokens, and marked ones as text.

        A text between two control tokens that has a mark is tokenized by itself, without
        control tokens. All that is between two of these is tokenized in one piece.
        `is_first`: whether the prompt begins with this text, and so with BOS.
        """
        if _MARK not in text:
            return self._vocabulary.tokenize(text, add_special=is_first)
        tokens: list[int] = []
        done = 0  # The end of what is tokenized.
        last_end = 0  # The end of the last control token.
        end_of_text = (len(text), len(text))
        for start, end in [*self._marks.find(text), end_of_text]:
            between = text[last_end:start]
            if _MARK in between:
                is_beginning = is_first and done == 0
                tokens += self._tokenize_part(
                    text[done:last_end], is_first=is_beginning
                )
                tokens += self._vocabulary.tokenize(
                    between.replace(_MARK, ""),
                    add_special=is_first and last_end == 0,
                    parse_special=False,
                )
                done = start
            last_end = end
        return tokens + self._tokenize_part(text[done:], is_first=False)

    def _tokenize_part(self, text: str, *, is_first: bool) -> list[int]:
        if not text:
            return []
        return self._vocabulary.tokenize(text, add_special=is_first)


class PromptBuilder:
    """Renders chats for one loaded model."""

    def __init__(
        self, vocabulary: LlamaVocab, source: str, tool_source: str = ""
    ) -> None:
        """The Jinja sources of a model's template, and of one that it has for tools."""
        self._vocabulary = vocabulary
        self._special_texts = vocabulary.special_texts()
        self._bos = self._special_texts["bos_token"] if vocabulary.add_bos else ""
        self._tags = thinking_tags.detect_tags(source)
        self._template: str | None = None
        """`own`, the name of a built-in template, or None if the model has no template."""
        self._source = source
        self._tool_source = tool_source or source
        if "{" in source:
            self._template = "own"
        # For some models llama.cpp gives a template's name.
        elif source.startswith("mistral-v7"):
            self._template = "mistral-v7"
        own_tool_format: str | None = None
        self._call_layout: CallLayout | None = None
        """How the model's own template writes calls, if that is known."""
        if self._template == "own" and "tool" in self._tool_source:
            # The import takes 50 ms, which pass while llama.cpp loads a model.
            from localspec.models.chat_template.tool_detection import (  # noqa: PLC0415
                detect_format,
                detect_layout,
            )

            own_tool_format = detect_format(self._tool_source, self._special_texts)
            if own_tool_format is not None:
                self._call_layout = detect_layout(
                    own_tool_format, self._tool_source, self._special_texts
                )
        self._tool_format = own_tool_format or GENERIC.name
        """Of the model's own template; a built-in one has none of its own."""
        self._answer_texts: tuple[str, ...] = ()
        """Texts of answers that may contain control tokens: tags, and markers of tools."""
        if self._tags:
            self._answer_texts += thinking_tags.with_answer_prefix(self._tags)
        self._answer_texts += TOOL_FORMATS[self._tool_format].control_texts
        for text in self._answer_texts:
            vocabulary.show_control_tokens(text)

    @property
    def has_exact_calls(self) -> bool:
        """Whether it is known how calls are written in answers to this template."""
        if self._template is None:
            return False
        return self._tool_format == GENERIC.name or self._call_layout is not None

    def ready_settings(self) -> dict[str, Any]:
        """The `chat` part of `EngineReady.settings`."""
        tags: list[str] | None = None
        if self._tags:
            tags = list(thinking_tags.with_answer_prefix(self._tags))
        tool_format = self._tool_format if self._template else None
        return {
            "template": self._template,
            "thinking": tags,
            "tools": tool_format,
            "exact_calls": self.has_exact_calls,
            "thinking_controls": list(self._controls),
        }

    @cached_property
    def _controls(self) -> tuple[ThinkingControl, ...]:
        """How the model's own template and the engine govern its thinking."""
        if self._template != "own":
            return ()
        from localspec.models.chat_template.jinja_render import (  # noqa: PLC0415
            THINKING_VARIABLES,
            find_variables,
        )

        variables = find_variables(self._source)
        controls: list[ThinkingControl] = []
        if "reasoning_effort" in variables:
            controls.append("levels")
        if not variables.isdisjoint(THINKING_VARIABLES):
            controls.append("switch")
        if self._tags is not None:
            controls.append("budget")
        return tuple(controls)

    def _thinking_params(
        self, command: GenerateCommand | CountCommand
    ) -> ThinkingParams:
        """Raises UsageError for an effort that the template does not have."""
        budget = command.think_budget if isinstance(command, GenerateCommand) else None
        controls = () if command.template else self._controls
        return resolve_effort(command.effort, command.think, budget, controls)

    def build_prompt(self, command: GenerateCommand | CountCommand) -> Prompt:
        """The prompt of a request: its rendered chat, or its text without messages."""
        if not command.messages:
            if _list_pictures(command.prior_messages):
                raise UsageError(
                    "A picture needs a chat: this prompt is only a text to continue.",
                    Hint("Leave out {raw}, or use a model with a chat template."),
                )
            tokens: tuple[int, ...] = ()
            if isinstance(command, GenerateCommand):
                tokens = command.prompt_tokens
            return Prompt(command.text, command.prior_messages, tokens=tokens)
        rendered = self.render(command)
        own = rendered.template == "own"
        text = rendered.text
        if self._bos:  # The tokenizer adds it.
            text = text.removeprefix(self._bos)
        opens_thinking = False
        stop: tuple[str, ...] = ()
        if own:
            opens_thinking = thinking_tags.is_open(
                rendered.generation_prompt, self._tags
            )
        else:
            stop = builtin_templates.STOP_STRINGS[rendered.template]
        prompt = Prompt(
            text=text,
            messages=command.messages,
            notices=rendered.notices,
            opens_thinking=opens_thinking,
            stop=stop,
            is_rendered=True,
            pictures=_list_pictures(command.messages),
        )
        if not isinstance(command, GenerateCommand):
            return prompt
        if command.prefill:
            prefill = self._guard.protect(command.prefill, is_answer=True)
            tags = self._tags if own else None
            return self._add_prefill(prompt, prefill, tags)
        closing = ""
        if prompt.opens_thinking and self._tags is not None:
            closing = thinking_tags.closing_text(self._tags)
        # A call without thinking begins where thinking has ended.
        is_bare_call = command.must_call and command.think_budget == 0
        if command.answer_prefix or (closing and is_bare_call):
            text = prompt.text + closing + without_marks(command.answer_prefix)
            return replace(
                prompt, text=text, opens_thinking=False, has_answer_prefix=True
            )
        return prompt

    def _add_prefill(
        self, prompt: Prompt, prefill: str, tags: ThinkingTags | None
    ) -> Prompt:
        """Add the caller's beginning of the answer; its thinking part becomes prompt.

        For example, with the tags <think> and </think>: "<think>So" is added to the
        prompt, and the answer goes on thinking. Of "<think>So</think>Hi" the thinking is
        added, and "Hi" is what the answer begins with.
        """
        if tags is None:
            return replace(prompt, prefill=prefill.replace(_MARK, ""))
        text = prompt.text
        opening = tags.open.rstrip()
        begun = prefill.lstrip()
        if begun.startswith(opening) and tags.close not in begun:
            if prompt.opens_thinking:
                begun = begun.removeprefix(opening)
            return replace(prompt, text=text + begun, opens_thinking=True)
        thinking, answer = thinking_tags.separate_thinking(prefill, tags)
        if thinking is not None and not prompt.opens_thinking:
            text += tags.open
        if thinking is not None or prompt.opens_thinking:
            text += thinking or ""
            text += thinking_tags.closing_text(tags)
        else:
            text += thinking_tags.direct_answer_prefix(tags)
        prompt = replace(
            prompt, text=text, opens_thinking=False, has_answer_prefix=True
        )
        return replace(prompt, prefill=answer.replace(_MARK, ""))

    def writes_tools_as_text(self, command: GenerateCommand | CountCommand) -> bool:
        """Whether tools of this request are part of messages, in the generic format."""
        is_own = (command.template or self._template) == "own"
        return not is_own or self._tool_format == GENERIC.name

    def call_layout(self, request: GenerateCommand) -> CallLayout | None:
        """How an answer to this request writes calls; None if that is not known."""
        if self.writes_tools_as_text(request):
            return GENERIC_LAYOUT
        return self._call_layout

    def render(self, command: GenerateCommand | CountCommand) -> RenderResult:
        """The text of a chat.

        Raises UsageError if it is empty or there is no template.
        """
        messages = command.messages
        if not messages:
            raise UsageError("The chat is empty.", "Enter a message.")
        name = command.template or self._template
        if name is None:
            raise UsageError(
                "This model has no chat template: it only continues text.",
                Hint(f"Use a plain text prompt. {builtin_templates.HINT.template}"),
            )
        # The import takes 50 ms, which pass while llama.cpp loads a model (`LoadedPair`).
        from localspec.models.chat_template.jinja_render import render  # noqa: PLC0415

        has_tools = bool(command.tools) or any(map(_is_about_tools, messages))
        as_text = self.writes_tools_as_text(command)
        if name != "own":
            source = builtin_templates.load_source(name)
        elif has_tools and not as_text:
            source = self._tool_source
        else:
            source = self._source
        tools = ""
        if command.tools:
            tools = self._guard.protect_json(command.tools)
        think, level, _ = self._thinking_params(command)
        variables: dict[str, TemplateArgument] = {**self._special_texts}
        if name == "own":
            for argument, value in command.template_arguments.items():
                if isinstance(value, str):
                    value = self._guard.protect(value)  # noqa: PLW2901
                variables.setdefault(argument, value)
        if level:
            variables["reasoning_effort"] = level
        protected = _number_pictures(map(self._guard.protect_message, messages))
        if has_tools and as_text:
            protected = generic_tools.write_as_text(protected, tools)
            tools = ""
        rendered = render(
            source, protected, variables, enable_thinking=think, tools=tools, name=name
        )
        fields = command.message_fields
        if rendered.lost and fields:
            field = fields[0].partition("[")[0]
            # Tools that are written as text join messages, or add one.
            if len(protected) == len(fields):
                field = fields[rendered.lost[0]]
            raise _name_lost_message(field)
        return rendered

    def tokenize(
        self, prompt: Prompt, picture_ids: Sequence[Sequence[int]] = ()
    ) -> list[int]:
        """The tokens of a prompt's text; earlier answers keep their own tokens.

        `picture_ids` are the ids of each picture of the prompt. Without them the
        pictures are left out: that is what a draft model reads.
        """
        if not prompt.is_rendered:
            tokens = self._vocabulary.tokenize(prompt.text)
        elif prompt.pictures:
            tokens = self._tokenize_with_pictures(prompt, picture_ids)
        else:
            tokens = self._guard.tokenize(prompt.text)
        return reuse_answer_tokens(tokens, prompt.messages, self._vocabulary)

    def _tokenize_with_pictures(
        self, prompt: Prompt, picture_ids: Sequence[Sequence[int]]
    ) -> list[int]:
        """The texts between pictures are tokenized one by one, as llama.cpp does it."""
        first, *rest = _NUMBERED_MARK.split(prompt.text)
        tokens = self._guard.tokenize(first)
        # Behind each number is the text up to the next picture.
        for number, text in zip(rest[::2], rest[1::2], strict=True):
            index = int(number)
            if index < len(picture_ids):
                tokens += picture_ids[index]
            if text:
                tokens += self._guard.tokenize(text, is_first=False)
        return tokens

    @cached_property
    def _guard(self) -> ControlTokenGuard:
        # It is made with the first chat, because it reads the whole vocabulary.
        return ControlTokenGuard(self._vocabulary, self._answer_texts)

    def make_thinking_budget(
        self, prompt: Prompt, request: GenerateCommand
    ) -> ThinkingBudget:
        vocabulary = self._vocabulary
        closing: list[int] = []
        if self._tags:
            text = f"\n{thinking_tags.with_answer_prefix(self._tags).close}"
            tokens = vocabulary.tokenize(text)
            closing = [token for token in tokens if token != vocabulary.bos]
        limit: int | None = None
        if request.messages:
            limit = self._thinking_params(request).budget
        calls: ToolCallParser | None = None
        if request.tools and limit is not None:
            calls = ToolCallParser(self._tool_format, {})
        return ThinkingBudget(
            self._tags,
            is_open=prompt.opens_thinking,
            limit=limit,
            piece=vocabulary.piece,
            closing_tokens=closing,
            calls=calls,
        )

    def make_answer_parser(
        self, prompt: Prompt, request: GenerateCommand
    ) -> AnswerParser | None:
        """The parser that finds where the answer's body begins; None if that is at once.

        Only an answer by the model's own template has thinking and headers: not one to
        a plain text, nor one by a built-in template.
        """
        parser = self.make_parser(prompt, request)
        if parser is None or parser.kind == "answer":
            return None
        return parser

    def make_parser(
        self, prompt: Prompt, request: GenerateCommand
    ) -> AnswerParser | None:
        """The parser of an answer by the model's own template; None for another one."""
        template = request.template or self._template
        if template != "own" or not prompt.is_rendered or prompt.has_answer_prefix:
            return None
        return make_byte_parser(self._tags, is_open=prompt.opens_thinking)


# --- the places of pictures

_NUMBERED_MARK = re.compile(rf"{PICTURE_MARK}(\d{{1,6}})_")
"""What stands for a picture in a rendered text."""


def _list_pictures(messages: Sequence[ChatMessage]) -> tuple[PictureRef, ...]:
    pictures: list[PictureRef] = []
    for message in messages:
        pictures += message.images
    return tuple(pictures)


def _number_pictures(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """The messages with the number of its picture behind each mark.

    A template may move or leave out messages, so the order of marks alone would not say
    which pictures they are. A message of pictures 4 and 5, with ¦ for a mark and one
    given place, becomes "¦4_Compare it with ¦5_!": what has no place comes first.
    """
    numbered: list[ChatMessage] = []
    n_before = 0
    for message in messages:
        n_pictures = len(message.images)
        if n_pictures:
            marks = [f"{PICTURE_MARK}{n_before + i}_" for i in range(n_pictures)]
            content = _place_marks(message.content, marks)
            numbered.append(replace(message, content=content))
        else:
            numbered.append(message)
        n_before += n_pictures
    return numbered


def _place_marks(content: str, marks: Sequence[str]) -> str:
    first, *rest = content.split(PICTURE_MARK)
    n_without_place = max(0, len(marks) - len(rest))
    placed = [*marks[:n_without_place], first]
    places = marks[n_without_place:]
    for i, text in enumerate(rest):
        mark = places[i] if i < len(places) else "\ufffd"
        placed += [mark, text]
    return "".join(placed)


def _name_lost_message(field: str) -> UsageError:
    error = UsageError(
        f"{field}: the model's chat template leaves it out, also with other roles.",
        builtin_templates.HINT,
    )
    error.param = field
    return error


def _is_about_tools(message: ChatMessage) -> bool:
    return message.role == "tool" or bool(message.tool_calls)


# --- Reuse of an answer's own tokens, so that the next prompt matches the KV cache


def reuse_answer_tokens(
    tokens: list[int], messages: Sequence[ChatMessage], vocabulary: LlamaVocab
) -> list[int]:
    """Replace the tokens of each earlier answer by those that the model generated.

    The model may have written "Hello" as the tokens "Hel" and "lo", while the tokenizer
    reads it as one. With the tokenizer's, the KV cache would match only up to that
    word, and everything after it would be decoded again.

    The text does not change by a byte, and control tokens stay: those between answers,
    and those that a template has in the text of an answer. Where a template changed an
    answer's text, the tokenizer's tokens stay. Of an answer that calls tools, the text
    of the calls is a part, if the template writes them as the model did.
    """
    if not any(message.tokens for message in messages):
        return tokens
    text = _TokenizedText(tokens, vocabulary)
    reused: list[int] = []
    done = 0  # How many of `tokens` are in `reused`.
    at = 0  # The byte at which the next answer is searched.
    for message in messages:
        own = _OwnTokens(message.tokens, vocabulary)
        place = _find_answer(text, message, own, at)
        if place is None:
            continue
        at = place.end
        first = text.token_at_byte.get(place.start)
        if first is None or first < done:
            continue
        n_own, after = _matching_tokens(text, place, own)
        reused += [*tokens[done:first], *message.tokens[:n_own]]
        done = after if n_own else first
    return [*reused, *tokens[done:]]


_NO_TEXT = b"\xff"
"""Stands for a row of a picture: no text has this byte, so none is found across it."""


class _TokenizedText:
    """The bytes of tokens, and the token that begins at each byte."""

    def __init__(self, tokens: Sequence[int], vocabulary: LlamaVocab) -> None:
        pieces: list[bytes] = []
        for token in tokens:
            if token < 0:
                pieces.append(_NO_TEXT)
            else:
                pieces.append(vocabulary.piece(token) or vocabulary.token_text(token))
        self.data = b"".join(pieces)
        self.token_at_byte: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self._mark_starts: list[int] = []
        at = 0
        for i, piece in enumerate(pieces):
            self.token_at_byte[at] = i
            if tokens[i] in vocabulary.mark_tokens:
                self._marks[at] = tokens[i]
                self._mark_starts.append(at)
            at += len(piece)
        self.token_at_byte[at] = len(pieces)

    def find_marks(self, start: int, end: int) -> tuple[int, ...]:
        """The control tokens that begin within these bytes."""
        first = bisect_left(self._mark_starts, start)
        last = bisect_left(self._mark_starts, end)
        return tuple(self._marks[at] for at in self._mark_starts[first:last])


class _CompletedText(Struct, frozen=True):
    """What an answer's token completes."""

    text: bytes | None
    """None for a token that ends inside a character."""
    marks: tuple[int, ...]
    """The token itself if it is a control token."""


class _OwnTokens:
    """What an answer's own tokens say, up to the first token without text."""

    def __init__(self, tokens: Sequence[int], vocabulary: LlamaVocab) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.completed: list[_CompletedText] = []
        pending = ""
        for token in tokens:
            piece = vocabulary.piece(token) if 0 <= token < vocabulary.n_tokens else b""
            if not piece:
                break
            marks: tuple[int, ...] = ()
            if token in vocabulary.mark_tokens:
                marks = (token,)
            pending += decoder.decode(piece)
            if decoder.getstate()[0]:
                self.completed.append(_CompletedText(None, marks))
            else:
                self.completed.append(_CompletedText(pending.encode(), marks))
                pending = ""
        if self.completed and self.completed[-1].text is None:
            # The answer ended inside a character, which is shown as U+FFFD.
            last = pending + decoder.decode(b"", final=True)
            self.completed[-1] = replace(self.completed[-1], text=last.encode())

    @property
    def whole(self) -> bytes:
        return b"".join(each.text for each in self.completed if each.text)


class _AnswerPlace(Struct, frozen=True):
    """Where an answer is in the bytes of a prompt."""

    start: int
    end: int
    """Behind its last character that is no white space."""
    limit: int
    """Behind the last byte that its own tokens may replace."""


def _find_answer(
    text: _TokenizedText, message: ChatMessage, own: _OwnTokens, at: int
) -> _AnswerPlace | None:
    """None if the template changed its text."""
    shown = message.content
    if message.images:  # A picture is between two parts of it.
        shown = shown.rpartition(PICTURE_MARK)[2]
    content = shown.encode("utf-8", "replace")
    candidates = [content]
    if message.tool_calls:
        candidates = [*_list_beginnings(message, own), content]
    for candidate in candidates:
        written = candidate.rstrip()
        start = text.data.find(written, at)
        if not written or start < 0:
            continue
        end = start + len(written)
        if message.tool_calls:
            # What follows is compared token by token.
            return _AnswerPlace(start, end=end, limit=len(text.data))
        return _AnswerPlace(start, end=end, limit=start + len(content))
    return None


def _list_beginnings(message: ChatMessage, own: _OwnTokens) -> list[bytes]:
    """What of an answer with calls may be in a prompt: all of it, or its thinking.

    A template writes the calls of an answer anew, mostly as the model did. gpt-oss's
    puts the parts of a call's header in another order.
    """
    whole = own.whole
    reasoning = message.reasoning.strip().encode("utf-8", "replace")
    place = whole.find(reasoning)
    if not reasoning or place < 0:
        return [whole]
    return [whole, whole[: place + len(reasoning)]]


def _matching_tokens(
    text: _TokenizedText, place: _AnswerPlace, own: _OwnTokens
) -> tuple[int, int]:
    """How many of an answer's own tokens match at its place, and the token after them.

    They are counted up to the last one that ends where a token of the text ends. For
    example, an answer's tokens are "Hel", "lo" and ".", and a line feed follows it in
    the text, whose tokens are "Hello" and ".\\n". Two of the answer's match, and the
    text goes on with its second token.

    A control token matches only itself. A result of a tool may have the same letters as
    an answer, and there they are no control token.
    """
    n_own = 0
    after = -1
    at = place.start
    marks: tuple[int, ...] = ()
    for i, completed in enumerate(own.completed):
        marks += completed.marks
        piece = completed.text
        if piece is None:
            continue
        end = at + len(piece)
        if end > place.limit or not text.data.startswith(piece, at):
            break
        if text.find_marks(at, end) != marks:
            break
        at = end
        marks = ()
        if at in text.token_at_byte:
            n_own = i + 1
            after = text.token_at_byte[at]
    return n_own, after
