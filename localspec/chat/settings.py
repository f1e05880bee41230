"""Chat settings: values, names, parsing, and the request they produce."""

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
"""Default max tokens of a completion model, which may never end by itself."""

OverflowPolicy = Literal["ask", "stop", "drop", "summarise"]
"""What to do when a chat exceeds its context: ask the user, stop, drop the oldest turns, or replace
them by a summary."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of the next turn. None means automatic."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    spec: str = "auto"
    """`auto`: the catalogue's setting for the pair, else whichever drafter is fastest."""
    draft_length: int | None = None
    verify: VerifyMode = "coupled"
    exact: bool = False
    think: bool | None = None
    think_budget: int | None = None
    """Thinking tokens after which the answer is forced to begin."""
    show_thinking: bool = False
    overflow: OverflowPolicy = "ask"

    @classmethod
    def from_catalog(cls, suggested: catalog.PairSettings) -> ChatSettings:
        sampling = SamplingParams()
        if suggested.temperature is not None:
            sampling = replace(sampling, temperature=suggested.temperature)
        return cls(sampling, draft_length=suggested.draft_max)

    def with_value(self, name: str, text: str) -> ChatSettings:
        """Return a copy with one value, given as typed text.

        Raises UsageError, with the possible values as its hint.
        """
        setting = find_field(name)
        try:
            value = setting.parse(text.strip().lower())
        except (ValueError, OverflowError):
            raise UsageError(
                f"{setting.label} cannot be {shorten(text)!r}.", f"Possible: {setting.hint}."
            ) from None
        if setting.is_sampling:
            return replace(self, sampling=replace(self.sampling, **{setting.attribute: value}))
        return replace(self, **{setting.attribute: value})

    def format_value(self, name: str) -> str:
        setting = find_field(name)
        value = getattr(self.sampling if setting.is_sampling else self, setting.attribute)
        if value is None:
            return setting.none_label
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The properties of a loaded pair that its requests depend on."""

    n_ctx: int
    template: str | None = None
    """`own`, the name of a built-in template, or None for a text-completion model."""
    thinking_markers: tuple[str, str] | None = None
    """The template's markers before and after thinking."""
    spec: str = "auto"
    spec_reason: str = ""
    """The catalogue's drafter for the pair (`spec`), and the reason."""
    template_override: str | None = None
    """A built-in template to use instead of the model's own."""
    draft_kind: str | None = None
    """`model` or a head type; None without a draft."""

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
        """`raw`: complete text even with a chat model."""
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
        """Raise UsageError if the changed setting `name` needs a drafter that the pair lacks."""
        if find_field(name).name == "spec" and self.n_ctx:
            speculation.check(settings.spec, self.draft_kind)

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None


def build_request(
    settings: ChatSettings,
    conversation: Conversation,
    loaded: LoadedModel,
    *,
    probabilities: bool = False,
) -> GenerateCommand:
    """Build the engine request for the last turn of a conversation."""
    max_tokens = settings.max_tokens
    if max_tokens is None:
        max_tokens = max(1, loaded.n_ctx) if loaded.has_chat_template else COMPLETION_MAX_TOKENS
    automatic = settings.spec == "auto"
    return GenerateCommand(
        text="" if loaded.has_chat_template else conversation.prompt_text(),
        messages=conversation.messages() if loaded.has_chat_template else (),
        said=() if loaded.has_chat_template else conversation.messages(),
        template=loaded.template_override,
        sampling=replace(settings.sampling, seed=conversation.answer_seed),
        max_tokens=max_tokens,
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


@dataclass(frozen=True, slots=True)
class ChatSettingField:
    """One setting that can be typed or chosen from a menu."""

    name: str
    """The name after `/set`; on the command line with dashes."""
    label: str
    hint: str
    """The possible values, as text."""
    parse: Callable[[str], Any]
    """Raises ValueError."""
    attribute: str
    is_sampling: bool = False
    """Whether `attribute` belongs to `SamplingParams`."""
    none_label: str = ""
    """The text for None."""
    choices: tuple[str, ...] = ()
    """Possible words, for completion and menus."""


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
    setting.name: setting
    for setting in (
        ChatSettingField(
            "temperature",
            "temperature",
            "0 (greedy) or more; 0.8 is common",
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
            "max tokens",
            "a whole number of tokens from 1, or auto",
            _int_parser(1, none="auto"),
            "max_tokens",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("spec", "speculation", _SPEC),
        ChatSettingField(
            "draft_max",
            "max draft tokens",
            f"0 to {DRAFT_MAX}, or auto",
            _int_parser(0, DRAFT_MAX, none="auto"),
            "draft_length",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("verify", "verification method", _VERIFY),
        _choice_field("exact", "exact mode", _SWITCH),
        _choice_field("think", "thinking", _THINK, none="auto"),
        ChatSettingField(
            "think_budget",
            "thinking budget",
            "a whole number of tokens, or auto",
            _int_parser(0, none="auto"),
            "think_budget",
            none_label="auto",
            choices=("auto",),
        ),
        _choice_field("show_thinking", "show thinking", _SWITCH),
        _choice_field("overflow", "when the context is full", _OVERFLOW),
    )
}
"""By name, in screen order."""


def value_choices(name: str) -> tuple[str, ...]:
    """The words a setting accepts; empty for a number or an unknown setting."""
    setting = CHAT_SETTING_FIELDS.get(_normalize_name(name))
    return setting.choices if setting else ()


def find_field(name: str) -> ChatSettingField:
    """Raises UsageError, with the most similar name as its hint."""
    normalized = _normalize_name(name)
    if normalized in CHAT_SETTING_FIELDS:
        return CHAT_SETTING_FIELDS[normalized]
    near = difflib.get_close_matches(normalized, CHAT_SETTING_FIELDS, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else f"Settings: {', '.join(CHAT_SETTING_FIELDS)}."
    raise UsageError(f"There is no setting called {shorten(name)!r}.", hint)


def _normalize_name(name: str) -> str:
    normalized = name.strip().lower().replace("-", "_")
    return {"temp": "temperature", "draft_length": "draft_max"}.get(normalized, normalized)


def shorten(text: str) -> str:
    """Cut typed text to 40 characters, for a message."""
    return text if len(text) <= 40 else text[:39] + "…"
