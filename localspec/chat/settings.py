"""Chat settings: values, names, parsing, and the request they produce."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from localspec import speculation_methods
from localspec.chat.conversation import Conversation
from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models import catalog
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import DRAFT_MAX, GenerateCommand, SamplingParams, VerifyMode
from localspec.speculation_methods import SPECS

COMPLETION_MAX_TOKENS = 256
"""Default max tokens of a completion model, which may never end by itself."""

_MAX_CONTEXT = 100_000_000

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
    seed: int | None = None
    """Seed of the answers; None: that of the conversation."""
    ctx: int | None = None
    """Context size to load with, in tokens; None: what fits."""
    grammar: str = ""
    """A GBNF grammar that answers follow."""
    json_schema: str = ""
    """A JSON Schema that answers satisfy, as JSON."""

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
            value = setting.parse(text.strip() if setting.is_text else text.strip().lower())
        except (ValueError, OverflowError, RecursionError):
            raise UsageError(
                f"{setting.label} cannot be {shorten(text)!r}.", f"Possible: {setting.hint}."
            ) from None
        if setting.is_sampling:
            return replace(self, sampling=replace(self.sampling, **{setting.attribute: value}))
        return replace(self, **{setting.attribute: value})

    def requested_spec(self, loaded: LoadedModel) -> str:
        """With `auto`, the catalogue's setting for the pair."""
        return loaded.spec if self.spec == "auto" else self.spec

    def format_value(self, name: str) -> str:
        setting = find_field(name)
        value = getattr(self.sampling if setting.is_sampling else self, setting.attribute)
        if setting.name == "stop":
            return _format_stop(value)
        if value is None or value == "":
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
    """`model`, `crossvocab` or a head type; None without a draft."""

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
        kind = ready.settings.get("draft_kind") or ("model" if ready.draft else None)
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
            speculation_methods.check(settings.spec, self.draft_kind)

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None


def build_request(
    settings: ChatSettings,
    conversation: Conversation,
    loaded: LoadedModel,
    *,
    probabilities: bool = False,
    seed: int | None = None,
) -> GenerateCommand:
    """Build the engine request for the last turn; its seed is derived unless `seed` is given."""
    seed = conversation.derive_seed(settings.seed) if seed is None else seed
    max_tokens = settings.max_tokens
    if max_tokens is None:
        max_tokens = max(1, loaded.n_ctx) if loaded.has_chat_template else COMPLETION_MAX_TOKENS
    return GenerateCommand(
        text="" if loaded.has_chat_template else conversation.prompt_text(),
        messages=conversation.messages() if loaded.has_chat_template else (),
        said=() if loaded.has_chat_template else conversation.messages(),
        template=loaded.template_override,
        sampling=replace(settings.sampling, seed=seed),
        max_tokens=max_tokens,
        stop=settings.stop,
        verify=settings.verify,
        spec=settings.requested_spec(loaded),
        why=loaded.spec_reason if settings.spec == "auto" else "",
        begun=conversation.turns[-1].tokens,
        think_budget=settings.think_budget if loaded.has_chat_template else None,
        draft_length=settings.draft_length,
        think=settings.think if loaded.has_chat_template else None,
        probabilities=probabilities,
        grammar=settings.grammar,
        json_schema=settings.json_schema,
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
    none_label: str = ""
    """The text for None."""
    choices: tuple[str, ...] = ()
    """Possible words, for completion and menus."""
    is_text: bool = False
    """Whether upper and lower case differ."""

    @property
    def is_sampling(self) -> bool:
        """Whether the value belongs to `SamplingParams`."""
        return self.name in _SAMPLING_NAMES

    @property
    def attribute(self) -> str:
        """The attribute of `SamplingParams`, or of `ChatSettings`."""
        return "draft_length" if self.name == "draft_max" else self.name


_SAMPLING_NAMES = {item.name for item in fields(SamplingParams)} - {"seed"}


def _float_parser(
    low: float, high: float = math.inf, *, exclusive: bool = False
) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text.replace(",", "."))
        if not (low < value if exclusive else low <= value) or value > high or math.isinf(value):
            raise ValueError
        return value

    return read


def _int_parser(low: int, high: int = 2**31 - 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError
        return value

    return read


def _int_or_auto(
    name: str, label: str, hint: str, low: int, high: int = 2**31 - 1
) -> ChatSettingField:
    parse_int = _int_parser(low, high)

    def read(text: str) -> int | None:
        return None if text == "auto" else parse_int(text)

    return ChatSettingField(name, label, f"{hint}, or auto", read, "auto", ("auto",))


def _choice(
    name: str,
    label: str,
    values: Mapping[str, Any],
    none: str = "",
    older: Mapping[str, Any] | None = None,
) -> ChatSettingField:
    """`older`: values that earlier versions wrote."""
    accepted = {**(older or {}), **values}

    def read(text: str) -> Any:
        if text not in accepted:
            raise ValueError
        return accepted[text]

    return ChatSettingField(name, label, ", ".join(values), read, none, tuple(values))


def _parse_stop(text: str) -> tuple[str, ...]:
    if text.lower() in ("", "none"):
        return ()
    body = json.loads(text) if text.startswith("[") else [text.replace("\\n", "\n")]
    if not all(isinstance(item, str) and item for item in body):
        raise ValueError
    return tuple(body)


def _format_stop(texts: tuple[str, ...]) -> str:
    if not texts:
        return "none"
    text = texts[0].replace("\n", "\\n").strip()
    is_plain = not text.startswith("[") and _parse_stop(text) == texts
    return text if is_plain else json.dumps(texts)


def _parse_json_schema(text: str) -> str:
    if text.lower() in ("", "off"):
        return ""
    path = Path(os.path.expanduser(text))
    try:
        is_file = not text.startswith("{") and os.path.isfile(path)
        schema = check_json_schema(path.read_text(encoding="utf-8") if is_file else text)
    except (OSError, UsageError) as error:
        raise ValueError from error
    return json.dumps(json.loads(schema), ensure_ascii=False)  # one line


_SWITCH = {"on": True, "off": False}
_SWITCH_OR_AUTO = {**_SWITCH, "auto": None}
_SPEC = {"on": "auto"} | {word: word for word in SPECS}
_OVERFLOW = {word: word for word in get_args(OverflowPolicy)}
_VERIFY = {word: word for word in get_args(VerifyMode)}
_TOKENS = "a whole number of tokens"
_FIELDS = (
    ChatSettingField(
        "temperature", "temperature", "0 (greedy) or more; 0.8 is common", _float_parser(0)
    ),
    ChatSettingField("top_k", "top-k", "a whole number; 0 is off", _int_parser(0)),
    ChatSettingField(
        "top_p", "top-p", "above 0, up to 1; 1 is off", _float_parser(0, 1, exclusive=True)
    ),
    ChatSettingField("min_p", "min-p", "0 to 1; 0 is off", _float_parser(0, 1)),
    ChatSettingField(
        "repeat_penalty", "repeat penalty", "above 0; 1 is off", _float_parser(0, exclusive=True)
    ),
    ChatSettingField("repeat_last_n", "repeat window", f"{_TOKENS}; 0 is off", _int_parser(0)),
    _int_or_auto("max_tokens", "max tokens", f"{_TOKENS} from 1", 1),
    ChatSettingField(
        "stop",
        "stop strings",
        'a text (\\n is a new line), or several: ["a", "b"]; none',
        _parse_stop,
        choices=("none",),
        is_text=True,
    ),
    _int_or_auto("seed", "seed", "a whole number", 0, 2**63 - 1),
    ChatSettingField(
        "json_schema",
        "JSON schema",
        "a JSON Schema, or the path of its file: answers follow it; off",
        _parse_json_schema,
        "off",
        ("off",),
        is_text=True,
    ),
    _choice("spec", "speculation", _SPEC),
    _int_or_auto("draft_max", "max draft tokens", f"0 to {DRAFT_MAX}", 0, DRAFT_MAX),
    _choice("verify", "verification method", _VERIFY),
    _choice("exact", "exact mode", _SWITCH, older={"auto": False}),
    _choice("think", "thinking", _SWITCH_OR_AUTO, none="auto"),
    _int_or_auto("think_budget", "thinking budget", _TOKENS, 0),
    _choice("show_thinking", "show thinking", _SWITCH),
    _choice("overflow", "when the context is full", _OVERFLOW),
)
CHAT_SETTING_FIELDS: Mapping[str, ChatSettingField] = {item.name: item for item in _FIELDS}
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


def check_json_schema(text: str) -> str:
    """Raise UsageError unless the text is a JSON object; the engine checks the schema itself."""
    try:
        is_object = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The JSON Schema is not valid JSON: {error}.") from error
    if not is_object:
        raise UsageError("A JSON Schema is an object.", 'For example: {"type": "object"}')
    return text


def parse_context_size(text: str) -> int | None:
    """Parse `8192`, `8k` (8,192) or `auto`. Raises UsageError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    digits = word.removesuffix("k").replace(",", "").replace("_", "")
    if not digits.isdecimal() or not 0 < int(digits[:10]) <= _MAX_CONTEXT:
        raise UsageError(
            f"A context cannot have {shorten(text)!r} tokens.", "For example: /ctx 8192, or 16k."
        )
    return int(digits[:10]) * (1024 if word.endswith("k") else 1)


def _normalize_name(name: str) -> str:
    normalized = name.strip().lower().replace("-", "_")
    return {"temp": "temperature", "draft_length": "draft_max"}.get(normalized, normalized)


def shorten(text: str) -> str:
    """Cut typed text to 40 characters, for a message."""
    return text if len(text) <= 40 else text[:39] + "…"
