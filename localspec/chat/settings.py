"""What applies to the next turn: sampling, speculation, limits; how it is changed and shown."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from localspec import speculation
from localspec.chat.conversation import Conversation
from localspec.errors import UsageError
from localspec.models import catalog
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import DRAFT_MAX, GenerateCommand, SamplingParams, VerifyMode
from localspec.speculation import SPECS

COMPLETION_MAX_TOKENS = 256
"""Tokens of an answer where nobody said how many, of a model that does not know when to end."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Of the next turn.  None stands for what suits: see the words of each field."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
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
    overflow: OverflowPolicy = "ask"
    """What to do where a chat outgrows its context."""

    @classmethod
    def from_catalog(cls, suggested: catalog.PairSettings) -> ChatSettings:
        """As a pair's entry suggests."""
        plain = SamplingParams()
        temperature = suggested.temperature
        warm = plain if temperature is None else replace(plain, temperature=temperature)
        return cls(warm, draft_length=suggested.draft_max)

    def with_value(self, name: str, text: str) -> ChatSettings:
        """With one value as typed.  Raises UsageError, which names what is possible."""
        about = find_field(name)
        try:
            value = about.parse(text.strip().lower())
        except (ValueError, OverflowError):
            raise UsageError(
                f"{about.label} cannot be {shorten(text)!r}.", f"Possible: {about.hint}."
            ) from None
        if about.is_sampling:
            return replace(self, sampling=replace(self.sampling, **{about.attribute: value}))
        return replace(self, **{about.attribute: value})

    def format_value(self, name: str) -> str:
        """A value in words."""
        about = find_field(name)
        value = getattr(self.sampling if about.is_sampling else self, about.attribute)
        if value is None:
            return about.none_label
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What of a loaded pair decides how it is asked."""

    n_ctx: int
    template: str | None = None
    """`own`, a fallback's name, or None: it completes text."""
    thinking_markers: tuple[str, str] | None = None
    """The markers around thinking, where the template has them."""
    spec: str = "auto"
    spec_reason: str = ""
    """How the pair's entry wants to speculate, and why."""
    template_override: str | None = None
    """The fallback that was asked for, whatever the model brings."""
    draft_kind: str | None = None
    """`model`, or a head's; None without a draft."""

    @classmethod
    def from_ready(
        cls,
        ready: EngineReady,
        spec: str = "auto",
        spec_reason: str = "",
        *,
        raw: bool = False,
        template: str | None = None,
    ) -> LoadedModel:
        """Of what the engine said.  `raw`: complete text even with a chat model."""
        n_ctx = int((ready.settings.get("target") or {}).get("n_ctx") or 0)
        chat = ready.settings.get("chat") or {}
        markers = chat.get("thinking")
        kind = str(ready.settings.get("draft_kind") or "model") if ready.draft else None
        if raw:
            return cls(n_ctx, spec=spec, spec_reason=spec_reason, draft_kind=kind)
        return cls(
            n_ctx,
            template or chat.get("template"),
            (str(markers[0]), str(markers[1])) if markers else None,
            spec,
            spec_reason,
            template,
            kind,
        )

    def check(self, name: str, settings: ChatSettings) -> None:
        """Raise UsageError where a setting that was changed needs what the pair does not have."""
        if find_field(name).name == "spec" and self.n_ctx:
            speculation.check(settings.spec, self.draft_kind)

    @property
    def has_chat_template(self) -> bool:
        """Whether it answers messages, rather than going on with a text."""
        return self.template is not None


def build_request(
    settings: ChatSettings,
    conversation: Conversation,
    loaded: LoadedModel,
    *,
    probabilities: bool = False,
) -> GenerateCommand:
    """What to ask the engine for the last turn of a conversation."""
    length = settings.max_tokens
    if length is None:
        length = max(1, loaded.n_ctx) if loaded.has_chat_template else COMPLETION_MAX_TOKENS
    automatic = settings.spec == "auto"
    return GenerateCommand(
        text="" if loaded.has_chat_template else conversation.prompt_text(),
        messages=conversation.messages() if loaded.has_chat_template else (),
        said=() if loaded.has_chat_template else conversation.messages(),
        template=loaded.template_override,
        sampling=replace(settings.sampling, seed=conversation.answer_seed),
        max_tokens=length,
        stop=settings.stop,
        verify=settings.verify,
        spec=loaded.spec if automatic else settings.spec,
        why=loaded.spec_reason if automatic else "",
        begun=conversation.turns[-1].tokens,
        think_budget=settings.think_budget if loaded.has_chat_template else None,
        draft_length=settings.draft_length,
        exact=settings.exact,
        think=settings.think if loaded.has_chat_template else None,
        probabilities=probabilities,
    )


# --- What of a chat's settings can be typed by name: what is possible, and how it is read.

OverflowPolicy = Literal["ask", "stop", "drop", "summarise"]
"""Where a chat outgrows its context: ask the person, end there, or leave out the oldest turns, the
last with a summary in their place."""


@dataclass(frozen=True, slots=True)
class ChatSettingField:
    """One setting, as a person knows it."""

    name: str
    """As after `/set`, and on the command line with dashes."""
    label: str
    hint: str
    """What is possible."""
    parse: Callable[[str], Any]
    """The value of a text; raises ValueError."""
    attribute: str
    is_sampling: bool = False
    none_label: str = ""
    """The word for None."""
    choices: tuple[str, ...] = ()
    """Values that are words, for completion and menus."""


def _float_parser(
    low: float, high: float = math.inf, *, exclusive: bool = False
) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text.replace(",", "."))
        if not (low < value if exclusive else low <= value) or value > high or math.isinf(value):
            raise ValueError
        return value

    return read


def _int_parser(low: int, high: int = 2**31 - 1, none: str = "") -> Callable[[str], int | None]:
    def read(text: str) -> int | None:
        if none and text == none:
            return None
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def _choice_parser(values: Mapping[str, Any]) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError
        return values[text]

    return read


_SWITCH = {"on": True, "off": False}
_THINK = {**_SWITCH, "auto": None}
_SPEC = {"on": "auto"} | {word: word for word in SPECS}
_OVERFLOW = {word: word for word in get_args(OverflowPolicy)}
_VERIFY = {word: word for word in get_args(VerifyMode)}


def _choice_field(
    name: str, label: str, values: Mapping[str, Any], none: str = ""
) -> ChatSettingField:
    return ChatSettingField(
        name, label, ", ".join(values), _choice_parser(values), name, False, none, tuple(values)
    )


CHAT_SETTING_FIELDS: Mapping[str, ChatSettingField] = {
    about.name: about
    for about in (
        ChatSettingField(
            "temperature",
            "temperature",
            "0 (always the likeliest token) or more; 0.8 is usual",
            _float_parser(0),
            "temperature",
            True,
        ),
        ChatSettingField(
            "top_k", "top-k", "a whole number; 0 is off", _int_parser(0), "top_k", True
        ),
        ChatSettingField(
            "top_p",
            "top-p",
            "above 0, up to 1; 1 is off",
            _float_parser(0, 1, exclusive=True),
            "top_p",
            True,
        ),
        ChatSettingField("min_p", "min-p", "0 to 1; 0 is off", _float_parser(0, 1), "min_p", True),
        ChatSettingField(
            "repeat_penalty",
            "repeat penalty",
            "above 0; 1 is off",
            _float_parser(0, exclusive=True),
            "repeat_penalty",
            True,
        ),
        ChatSettingField(
            "repeat_last_n",
            "repeat window",
            "a whole number of tokens; 0 is off",
            _int_parser(0),
            "repeat_last_n",
            True,
        ),
        ChatSettingField(
            "max_tokens",
            "longest answer",
            "a whole number of tokens from 1, or auto",
            _int_parser(1, none="auto"),
            "max_tokens",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("spec", "speculation", _SPEC),
        ChatSettingField(
            "draft_max",
            "guesses a round",
            f"0 to {DRAFT_MAX}, or auto",
            _int_parser(0, DRAFT_MAX, none="auto"),
            "draft_length",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("verify", "guesses are checked by", _VERIFY),
        _choice_field("exact", "near-ties computed alone", _SWITCH),
        _choice_field("think", "thinking", _THINK, none="auto"),
        ChatSettingField(
            "think_budget",
            "thinking ends after",
            "a whole number of tokens, or auto",
            _int_parser(0, none="auto"),
            "think_budget",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("show_thinking", "thinking shown", _SWITCH),
        _choice_field("overflow", "when the context is full", _OVERFLOW),
    )
}
"""By name, in the order of a screen."""


def value_choices(name: str) -> tuple[str, ...]:
    """The words that a setting knows; none where it is a number, or no setting."""
    known = CHAT_SETTING_FIELDS.get(_normalize_name(name))
    return known.choices if known else ()


def find_field(name: str) -> ChatSettingField:
    """Raises UsageError, which names the nearest."""
    plain = _normalize_name(name)
    if plain in CHAT_SETTING_FIELDS:
        return CHAT_SETTING_FIELDS[plain]
    near = difflib.get_close_matches(plain, CHAT_SETTING_FIELDS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(CHAT_SETTING_FIELDS)}."
    raise UsageError(f"There is no setting called {shorten(name)!r}.", hint)


def _normalize_name(name: str) -> str:
    plain = name.strip().lower().replace("-", "_")
    return {"temp": "temperature", "draft_length": "draft_max"}.get(plain, plain)


def shorten(text: str) -> str:
    """What was typed, fit for a message."""
    return text if len(text) <= 40 else text[:39] + "…"
