"""From a script's words to what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.api.options import Way
from localspec.chat.conversation import Conversation
from localspec.chat.settings import Loaded, request
from localspec.errors import UsageError
from localspec.launch import Choice
from localspec.models.chat import fallbacks
from localspec.protocol.events import Ready
from localspec.protocol.wire import Count, Generate, Message

Messages = Sequence[Mapping[str, str] | Message]
"""Turns of a chat: {"role": "system" | "user" | "assistant", "content": …}."""

_ROLES = ("system", "user", "assistant")
_LENGTH = 512
"""Tokens after a text where nobody said how many; a chat's answer may fill the context."""


@dataclass(frozen=True, slots=True)
class Question:
    """A text or a chat, to be asked of the pair when it is loaded, or loaded again."""

    choice: Choice
    way: Way
    text: str = ""
    messages: tuple[Message, ...] = ()
    template: str | None = None

    def __call__(self, ready: Ready) -> tuple[Generate, Loaded]:
        """What the engine is asked.  Raises UsageError where the model cannot chat."""
        drafts = ready.draft is not None
        loaded = Loaded.of(
            ready,
            self.choice.spec if drafts else "auto",
            self.choice.why if drafts else "",
            raw=self.way.raw,
            template=self.template,
        )
        if self.messages and not loaded.chats:
            raise UsageError(
                f"{ready.model} has no chat template: it only continues text.",
                f"Use generate(), or LLM(…, template=…) with {', '.join(fallbacks.STOPS)}.",
            )
        conversation = Conversation(self.way.seed)
        conversation.ask(self.text)
        settings = self.way.settings
        if not self.messages and settings.max_tokens is None:
            settings = replace(settings, max_tokens=_LENGTH)
        asked = request(settings, conversation, loaded, probabilities=self.way.probabilities)
        sampling = replace(asked.sampling, seed=self.way.seed)  # one answer: the seed itself
        return replace(asked, sampling=sampling, messages=self.messages or asked.messages), loaded

    def count(self, ready: Ready) -> Count:
        """For the tokens of the same prompt."""
        asked, _ = self(ready)
        return Count(asked.text, asked.messages, asked.template, asked.think)


def words(prompt: object) -> str:
    """A text to go on with.  Raises UsageError."""
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f"The prompt cannot be {prompt!r}.", "Give a text that is not empty.")
    return prompt


def turns(given: str | Messages) -> tuple[Message, ...]:
    """The turns of a chat; a text alone is the user's.  Raises UsageError."""
    if isinstance(given, str):
        given = [Message("user", words(given))]
    found = tuple(_turn(one) for one in given)
    if not found:
        raise UsageError("The chat is empty.", "Ask something.")
    return found


def _turn(given: Mapping[str, str] | Message) -> Message:
    if isinstance(given, Message):
        return given
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES or not isinstance(content, str):
        raise UsageError(
            f"A message cannot be {given!r}.",
            f'Possible: {{"role": …, "content": a text}}, the role one of {", ".join(_ROLES)}.',
        )
    return Message(role, content)
