"""A chat as the prompt of the loaded model: its template, its thinking, what is to be told."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localspec.engine.thinking_budget import ThinkingBudget
from localspec.errors import UsageError
from localspec.models.chat_template import builtin_templates, thinking_tags
from localspec.models.chat_template.render_process import MAX_SOURCE_CHARS, TemplateRenderer
from localspec.protocol.events import Event, Notice, Prefill
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    InspectCommand,
    RenderResult,
)


class PromptVocabulary(Protocol):
    @property
    def add_bos(self) -> bool: ...

    @property
    def bos(self) -> int: ...

    def tokenize(self, text: str) -> list[int]: ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for."""
        ...

    def special_texts(self) -> dict[str, str]:
        """bos_token, eos_token, …; empty where the model has none."""
        ...

    def show_control_tokens(self, text: str) -> None:
        """From now on the control tokens in a text stand for what they are called."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is to read, and what follows from how it was made."""

    text: str
    messages: tuple[ChatMessage, ...] = ()
    """What it is made of, where that is known."""
    notices: tuple[Notice, ...] = ()
    opens_thinking: bool = False
    """Whether it ends inside a thinking part."""
    stop: tuple[str, ...] = ()
    """What ends the answer, where the model may have no token for it."""

    def mark_thinking(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events of the answer, and whether it begins in a thinking part."""
        for event in events:
            if self.opens_thinking and isinstance(event, Prefill):
                yield replace(event, thinking=True)
            else:
                yield event


class PromptBuilder:
    """Makes prompts of chats for one loaded model."""

    def __init__(self, vocabulary: PromptVocabulary, source: str) -> None:
        self._vocabulary = vocabulary
        self._special_texts = vocabulary.special_texts()
        self._bos = self._special_texts["bos_token"] if vocabulary.add_bos else ""
        self._markers = thinking_tags.detect_tags(source)
        self._reported_codes: set[str] = set()
        self._template: str | None = None
        """`own`, a fallback's name, or None where the model has none."""
        self._renderer: TemplateRenderer | None = None
        self.notices: tuple[Notice, ...] = ()
        """About the model's template as such."""
        if "{" not in source:  # llama.cpp knows some models that have none, and names a form
            self._template = "mistral-v7" if source.startswith("mistral-v7") else None
        elif len(source) > MAX_SOURCE_CHARS:
            self._template = builtin_templates.DEFAULT_TEMPLATE
            self.notices = (_template_too_long(len(source)),)
        else:
            self._template = "own"
            self._renderer = TemplateRenderer(source, self._special_texts)
        if self._markers is not None:
            vocabulary.show_control_tokens("".join(thinking_tags.with_answer_prefix(self._markers)))

    def ready_settings(self) -> dict[str, Any]:
        """What `Ready.settings` tells of it."""
        found = list(thinking_tags.with_answer_prefix(self._markers)) if self._markers else None
        return {"template": self._template, "thinking": found}

    def build_prompt(self, command: GenerateCommand | CountCommand | InspectCommand) -> Prompt:
        """The prompt of a request; its text as it is where there are no messages."""
        if not command.messages:
            return Prompt(command.text, command.said)
        rendered = self.render(command.messages, command.template, command.think)
        question = command.messages[-1].content.strip()
        own = rendered.template == "own"
        text = rendered.text
        if self._bos:  # the tokenizer adds it
            text = text.removeprefix(self._bos)
        return Prompt(
            text,
            command.messages,
            rendered.notices,
            own and thinking_tags.is_open(text, question, self._markers),
            () if own else builtin_templates.STOP_STRINGS[rendered.template],
        )

    def render(
        self, messages: Sequence[ChatMessage], template: str | None, think: bool | None
    ) -> RenderResult:
        """The text of a chat.  Raises UsageError where there is no template for it."""
        if not messages:
            raise UsageError("The chat is empty.", "Ask something.")
        name = template or self._template
        if name is None:
            raise UsageError(
                "This model has no chat template: it only continues text.",
                (
                    "Give it a text, or choose one with --template: "
                    f"{', '.join(builtin_templates.STOP_STRINGS)}."
                ),
            )
        if name == "own" and self._renderer is not None:
            return self._renderer.render(messages, think)
        # Late: jinja2 is needed in this process only here.
        from localspec.models.chat_template.jinja_render import render_builtin  # noqa: PLC0415

        return render_builtin(messages, self._special_texts, name)

    def make_thinking_budget(self, prompt: Prompt, limit: int | None) -> ThinkingBudget:
        """What follows the thinking of the answer to a prompt."""
        words, found = self._vocabulary, self._markers
        text = f"\n{thinking_tags.with_answer_prefix(found).close}" if found else ""
        closing = [token for token in words.tokenize(text) if token != words.bos] if found else []
        return ThinkingBudget(
            found,
            is_open=prompt.opens_thinking,
            limit=limit,
            piece=words.piece,
            closing_tokens=closing,
        )

    def new_notices(self, notices: Sequence[Notice]) -> list[Notice]:
        """Those of a kind that was not told yet."""
        fresh = [notice for notice in notices if notice.code not in self._reported_codes]
        self._reported_codes |= {notice.code for notice in fresh}
        return fresh

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()


def _template_too_long(length: int) -> Notice:
    return Notice(
        "warning",
        "template-fallback",
        f"The model's chat template is not used: it has {length:,} characters. "
        f"Using {builtin_templates.DEFAULT_TEMPLATE} instead.",
        f"Choose another with --template: {', '.join(builtin_templates.STOP_STRINGS)}.",
    )


# --- The tokens of a prompt, with each earlier answer as the model itself wrote it.


class ReuseVocabulary(Protocol):
    @property
    def n_tokens(self) -> int: ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for; none for control tokens."""
        ...

    def token_text(self, token: int) -> bytes:
        """How the vocabulary writes a token, a control token too."""
        ...


def reuse_answer_tokens(
    tokens: list[int], messages: Sequence[ChatMessage], vocabulary: ReuseVocabulary
) -> list[int]:
    """`tokens` with the answers' own where they stand for the very same text.

    The text stays what it is, byte for byte, and control tokens between the answers stay.  What a
    template changed of an answer is as the tokenizer writes it.
    """
    if not any(message.tokens for message in messages):
        return tokens
    text = _TokenizedText(tokens, vocabulary)
    found: list[int] = []
    done = at = 0
    for message in messages:
        content = message.content.encode("utf-8", "replace")
        start = text.data.find(content.rstrip(), at)
        if start < 0 or not content.strip():
            continue
        at = start + len(content.rstrip())
        first = text.token_at_byte.get(start)
        if first is None or first < done:
            continue
        own, after = _matching_tokens(
            text, start, len(content), _completed_texts(message.tokens, vocabulary)
        )
        found += [*tokens[done:first], *message.tokens[:own]]
        done = after if own else first
    return [*found, *tokens[done:]]


class _TokenizedText:
    """What tokens say, and at which byte each begins."""

    def __init__(self, tokens: Sequence[int], vocabulary: ReuseVocabulary) -> None:
        pieces = [vocabulary.piece(token) or vocabulary.token_text(token) for token in tokens]
        self.data = b"".join(pieces)
        self.token_at_byte: dict[int, int] = {}
        """Of the token that begins at a byte."""
        at = 0
        for i, piece in enumerate(pieces):
            self.token_at_byte[at] = i
            at += len(piece)
        self.token_at_byte[at] = len(pieces)


def _completed_texts(tokens: Sequence[int], vocabulary: ReuseVocabulary) -> list[bytes | None]:
    """The text that each token of an answer completes; None where it ends within a character.

    Ends before a token that stands for no text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found: list[bytes | None] = []
    held = ""
    for token in tokens:
        piece = vocabulary.piece(token) if 0 <= token < vocabulary.n_tokens else b""
        if not piece:
            break
        held += decoder.decode(piece)
        if decoder.getstate()[0]:
            found.append(None)
        else:
            found.append(held.encode())
            held = ""
    if found and found[-1] is None:  # the answer was cut there, and its text shows U+FFFD
        found[-1] = (held + decoder.decode(b"", final=True)).encode()
    return found


def _matching_tokens(
    text: _TokenizedText, start: int, length: int, completed_texts: Sequence[bytes | None]
) -> tuple[int, int]:
    """How many of an answer's own tokens say what stands at `start`, and the place after that."""
    own, after, at = 0, -1, start
    for i, piece in enumerate(completed_texts):
        if piece is None:
            continue
        if at + len(piece) > start + length or not text.data.startswith(piece, at):
            break
        at += len(piece)
        if at in text.token_at_byte:
            own, after = i + 1, text.token_at_byte[at]
    return own, after
