"""What applies to the next turn: sampling, speculation, limits; how it is changed and shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from localspec import speculation
from localspec.chat.conversation import Conversation
from localspec.chat.fields import Overflow, field_of, short
from localspec.errors import UsageError
from localspec.models import catalog
from localspec.protocol.events import Ready
from localspec.protocol.wire import Generate, Sampling, VerifyMode

COMPLETION = 256
"""Tokens of an answer where nobody said how many, of a model that does not know when to end."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the next turn.  None stands for what suits: see the words of each field."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    spec: str = "auto"
    """`auto` is what the pair's entry says, or else whatever pays."""
    draft_length: int | None = None
    verify: VerifyMode = "coupled"
    exact: bool = False
    think: bool | None = None
    think_budget: int | None = None
    """Tokens after which thinking is ended and the answer begins."""
    show_thinking: bool = False
    overflow: Overflow = "ask"
    """What to do where a chat outgrows its context."""

    @classmethod
    def of(cls, suggested: catalog.Settings) -> Settings:
        """As a pair's entry suggests."""
        plain = Sampling()
        temperature = suggested.temperature
        warm = plain if temperature is None else replace(plain, temperature=temperature)
        return cls(warm, draft_length=suggested.draft_max)

    def changed(self, name: str, text: str) -> Settings:
        """With one value as typed.  Raises UsageError, which names what is possible."""
        about = field_of(name)
        try:
            value = about.read(text.strip().lower())
        except (ValueError, OverflowError):
            raise UsageError(
                f"{about.label} cannot be {short(text)!r}.", f"Possible: {about.hint}."
            ) from None
        if about.sampling:
            return replace(self, sampling=replace(self.sampling, **{about.attribute: value}))
        return replace(self, **{about.attribute: value})

    def shown(self, name: str) -> str:
        """A value in words."""
        about = field_of(name)
        value = getattr(self.sampling if about.sampling else self, about.attribute)
        if value is None:
            return about.none
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What of a loaded pair decides how it is asked."""

    n_ctx: int
    template: str | None = None
    """`own`, a fallback's name, or None: it completes text."""
    thinking: tuple[str, str] | None = None
    """The markers around thinking, where the template has them."""
    spec: str = "auto"
    why: str = ""
    """How the pair's entry wants to speculate, and why."""
    asked: str | None = None
    """The fallback that was asked for, whatever the model brings."""
    draft_kind: str | None = None
    """`model`, or a head's; None without a draft."""

    @classmethod
    def of(
        cls,
        ready: Ready,
        spec: str = "auto",
        why: str = "",
        *,
        raw: bool = False,
        template: str | None = None,
    ) -> Loaded:
        """Of what the engine said.  `raw`: complete text even with a chat model."""
        n_ctx = int((ready.settings.get("target") or {}).get("n_ctx") or 0)
        chat = ready.settings.get("chat") or {}
        markers = chat.get("thinking")
        kind = str(ready.settings.get("draft_kind") or "model") if ready.draft else None
        if raw:
            return cls(n_ctx, spec=spec, why=why, draft_kind=kind)
        return cls(
            n_ctx,
            template or chat.get("template"),
            (str(markers[0]), str(markers[1])) if markers else None,
            spec,
            why,
            template,
            kind,
        )

    def check(self, name: str, settings: Settings) -> None:
        """Raise UsageError where a setting that was changed needs what the pair does not have."""
        if field_of(name).name == "spec" and self.n_ctx:
            speculation.check(settings.spec, self.draft_kind)

    @property
    def chats(self) -> bool:
        """Whether it answers messages, rather than going on with a text."""
        return self.template is not None


def request(
    settings: Settings, conversation: Conversation, loaded: Loaded, *, probabilities: bool = False
) -> Generate:
    """What to ask the engine for the last turn of a conversation."""
    length = settings.max_tokens
    if length is None:
        length = max(1, loaded.n_ctx) if loaded.chats else COMPLETION
    automatic = settings.spec == "auto"
    return Generate(
        text="" if loaded.chats else conversation.text(),
        messages=conversation.messages() if loaded.chats else (),
        said=() if loaded.chats else conversation.messages(),
        template=loaded.asked,
        sampling=replace(settings.sampling, seed=conversation.answer_seed),
        max_tokens=length,
        stop=settings.stop,
        verify=settings.verify,
        spec=loaded.spec if automatic else settings.spec,
        why=loaded.why if automatic else "",
        begun=conversation.turns[-1].tokens,
        think_budget=settings.think_budget if loaded.chats else None,
        draft_length=settings.draft_length,
        exact=settings.exact,
        think=settings.think if loaded.chats else None,
        probabilities=probabilities,
    )
