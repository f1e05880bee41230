"""A chat as the prompt of the loaded model: its template, its thinking, what is to be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localspec.engine.thought import Thought
from localspec.errors import UsageError
from localspec.models.chat import fallbacks, thinking
from localspec.models.chat.renderer import LONGEST_SOURCE, Renderer
from localspec.protocol.events import Event, Notice, Prefill
from localspec.protocol.wire import Count, Generate, Inspect, Message, Rendered


class Vocabulary(Protocol):
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

    def show(self, text: str) -> None:
        """From now on the control tokens in a text stand for what they are called."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target is to read, and what follows from how it was made."""

    text: str
    said: tuple[Message, ...] = ()
    """What it is made of, where that is known."""
    notices: tuple[Notice, ...] = ()
    thinking: bool = False
    """Whether it ends inside a thinking part."""
    stop: tuple[str, ...] = ()
    """What ends the answer, where the model may have no token for it."""

    def told(self, events: Iterator[Event]) -> Iterator[Event]:
        """The events of the answer, and whether it begins in a thinking part."""
        for event in events:
            if self.thinking and isinstance(event, Prefill):
                yield replace(event, thinking=True)
            else:
                yield event


class Chat:
    """Makes prompts of chats for one loaded model."""

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        self._vocabulary = vocabulary
        self._tokens = vocabulary.special_texts()
        self._bos = self._tokens["bos_token"] if vocabulary.add_bos else ""
        self._markers = thinking.markers(source)
        self._told: set[str] = set()
        self._template: str | None = None
        """`own`, a fallback's name, or None where the model has none."""
        self._renderer: Renderer | None = None
        self.notices: tuple[Notice, ...] = ()
        """About the model's template as such."""
        if "{" not in source:  # llama.cpp knows some models that have none, and names a form
            self._template = "mistral-v7" if source.startswith("mistral-v7") else None
        elif len(source) > LONGEST_SOURCE:
            self._template = fallbacks.DEFAULT
            self.notices = (_too_long(len(source)),)
        else:
            self._template = "own"
            self._renderer = Renderer(source, self._tokens)
        if self._markers is not None:
            vocabulary.show("".join(thinking.closing(self._markers)))

    def settings(self) -> dict[str, Any]:
        """What `Ready.settings` tells of it."""
        found = list(thinking.closing(self._markers)) if self._markers else None
        return {"template": self._template, "thinking": found}

    def prompt(self, asked: Generate | Count | Inspect) -> Prompt:
        """The prompt of a request; its text as it is where there are no messages."""
        if not asked.messages:
            return Prompt(asked.text, asked.said)
        rendered = self.render(asked.messages, asked.template, asked.think)
        question = asked.messages[-1].content.strip()
        own = rendered.template == "own"
        text = rendered.text
        if self._bos:  # the tokenizer adds it
            text = text.removeprefix(self._bos)
        return Prompt(
            text,
            asked.messages,
            rendered.notices,
            own and thinking.is_open(text, question, self._markers),
            () if own else fallbacks.STOPS[rendered.template],
        )

    def render(
        self, messages: Sequence[Message], template: str | None, think: bool | None
    ) -> Rendered:
        """The text of a chat.  Raises UsageError where there is no template for it."""
        if not messages:
            raise UsageError("The chat is empty.", "Ask something.")
        name = template or self._template
        if name is None:
            raise UsageError(
                "This model has no chat template: it only continues text.",
                f"Give it a text, or choose one with --template: {', '.join(fallbacks.STOPS)}.",
            )
        if name == "own" and self._renderer is not None:
            return self._renderer.render(messages, think)
        # Late: jinja2 is needed in this process only here.
        from localspec.models.template import fallback  # noqa: PLC0415

        return fallback(messages, self._tokens, name)

    def thought(self, asked: Prompt, limit: int | None) -> Thought:
        """What follows the thinking of the answer to a prompt."""
        words, found = self._vocabulary, self._markers
        text = f"\n{thinking.closing(found).close}" if found else ""
        closing = [token for token in words.tokenize(text) if token != words.bos] if found else []
        return Thought(
            found, inside=asked.thinking, limit=limit, piece=words.piece, closing=closing
        )

    def news(self, notices: Sequence[Notice]) -> list[Notice]:
        """Those of a kind that was not told yet."""
        fresh = [notice for notice in notices if notice.code not in self._told]
        self._told |= {notice.code for notice in fresh}
        return fresh

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()


def _too_long(length: int) -> Notice:
    return Notice(
        "warning",
        "template-fallback",
        f"The model's chat template is not used: it has {length:,} characters. "
        f"Using {fallbacks.DEFAULT} instead.",
        f"Choose another with --template: {', '.join(fallbacks.STOPS)}.",
    )
