"""Chat settings: values, and the request they produce."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import fields, replace

from localspec import draft_kinds
from localspec.chat import examples
from localspec.chat.conversation import Conversation
from localspec.config import options, other_spellings
from localspec.config.option_types import Option
from localspec.config.options import OPTIONS
from localspec.errors import UsageError
from localspec.models import catalog, maker_sampling
from localspec.models.chat_template import generic_tools
from localspec.models.chat_template.thinking_effort import check_thinking
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import GenerateCommand, SamplingParams, VerifyChoice

COMPLETION_MAX_TOKENS = 256
"""Default of a completion model, which may never end by itself."""
_MAX_CONTEXT = 100_000_000
OverflowPolicy = options.OverflowPolicy
CHAT_SETTING_FIELDS: Mapping[str, Option] = {
    each.name: each for each in options.select("chat")
}
"""By name."""

_FIELD_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Answer": ("temperature", "max_tokens", "stop", "seed", "json_schema"),
    "Thinking": ("think", "think_budget", "show_thinking"),
    "Speculation": ("spec", "draft_max", "verify", "exact"),
    "Sampling": ("top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    "Context": ("overflow",),
}
_RARE_FIELDS = "Rare samplers"
_RARE_PREFIXES = ("dry_", "xtc_")


def group_setting_fields() -> dict[str, list[Option]]:
    """The settings by the headings of the sheet: what is set most often comes first.

    A speculation option of `extras/` joins its group, any other new one "Answer".
    """
    groups: dict[str, list[Option]] = {}
    listed: set[str] = set()
    for heading, names in _FIELD_GROUPS.items():
        groups[heading] = [CHAT_SETTING_FIELDS[name] for name in names]
        listed.update(names)
    speculation = list(options.select("chat", "speculation"))
    rare: list[Option] = []
    for option in CHAT_SETTING_FIELDS.values():
        if option.name in listed:
            continue
        if option.name.startswith(_RARE_PREFIXES):
            rare.append(option)
        elif option in speculation:
            groups["Speculation"].append(option)
        else:
            groups["Answer"].append(option)
    groups[_RARE_FIELDS] = rare
    return groups


class ChatSettings(Struct, frozen=True):
    """Settings of the next turn. None means automatic."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    spec: str = "auto"  # `auto`: the catalogue's for the pair, else the fastest.
    draft_length: int | None = None
    verify: VerifyChoice = "auto"
    exact: bool = False
    think: bool | None = None
    effort: str = ""  # How hard to think: a word of `thinking_effort.EFFORTS`.
    think_budget: int | None = None
    """Thinking tokens after which the answer is forced to begin."""
    show_thinking: bool = False
    overflow: OverflowPolicy = "ask"
    seed: int | None = None
    """The seed that was asked for; its texts can be had again. None: nobody asked, and
    answers have the conversation's.
    """
    ctx: int | None = None  # Context size to load with, in tokens; None: what fits.
    grammar: str = ""  # A GBNF grammar that answers follow.
    json_schema: str = ""  # A JSON Schema that answers satisfy, as JSON.

    @classmethod
    def from_catalog(
        cls, suggested: catalog.PairSettings, think: bool | None = None
    ) -> ChatSettings:
        """The values of the target's makers, then those of the pair."""
        values: dict[str, Any] = maker_sampling.parameters(
            suggested.sampling, thinks=think
        )
        sampling = SamplingParams(**values)
        if suggested.temperature is not None:
            sampling = replace(sampling, temperature=suggested.temperature)
        return cls(sampling, draft_length=suggested.draft_max)

    def with_value(self, name: str, text: str) -> ChatSettings:
        """Return a copy with one value, given as typed text.

        Raises UsageError, with the possible values as its hint.
        """
        option = find_field(name)
        try:
            value = option.value_type.parse(text)
        except ValueError:
            raise UsageError(
                f"{option.label} cannot be {shorten(text)!r}.",
                f"Possible: {option.hint}.",
            ) from None
        return self.with_values({option.name: value})

    def with_values(self, values: Mapping[str, Any]) -> ChatSettings:
        """Return a copy with these values, by the names of their options."""
        sampling: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in values.items():
            if name in _SAMPLING_NAMES:
                sampling[name] = value
            else:
                others[OPTIONS[name].attribute] = value
        return replace(self, sampling=replace(self.sampling, **sampling), **others)

    def get(self, option: Option) -> Any:
        owner = self.sampling if option.name in _SAMPLING_NAMES else self
        return getattr(owner, option.attribute)

    @property
    def is_free_text(self) -> bool:
        """Whether answers follow no grammar or schema, and so may be Markdown."""
        return not self.grammar and not self.json_schema

    def requested_spec(self, loaded: LoadedModel) -> str:
        """With `auto`, the catalogue's setting for the pair."""
        return loaded.spec if self.spec == "auto" else self.spec

    @property
    def repeats_texts(self) -> bool:
        """Whether the same seed gives the same text again, up to rounding."""
        is_greedy = self.sampling.temperature <= 0
        return is_greedy or self.spec == "off" or self.requested_verifier == "coupled"

    @property
    def requested_verifier(self) -> VerifyChoice:
        """With `auto` and a seed, the method whose texts the seed reproduces."""
        if self.verify == "auto" and self.seed is not None:
            return "coupled"
        return self.verify

    def format_value(self, name: str) -> str:
        option = find_field(name)
        return option.value_type.format(self.get(option))

    def find_source(self, name: str, suggested: catalog.PairSettings) -> str:
        """Who has set a sampling value: its makers, the pair, the default, or the user."""
        if name not in _SAMPLING_NAMES:
            return ""
        value = getattr(self.sampling, name)
        if name == "temperature" and suggested.temperature is not None:
            if value == suggested.temperature:
                return "pair (catalogue)"
            return "yours"
        makers = suggested.sampling
        if makers:
            for thinks in (self.think, None, False):
                recommended = maker_sampling.parameters(makers, thinks=thinks)
                if value == recommended.get(name):
                    return maker_sampling.source_title(makers, thinks=thinks)
        if value == getattr(SamplingParams(), name):
            return "default"
        return "yours"

    def describe_sampling(self, suggested: catalog.PairSettings) -> str:
        """The values in use, by where they are from."""
        by_source: dict[str, list[str]] = {}
        for option in options.select("request"):
            source = self.find_source(option.name, suggested)
            if not source:
                continue
            if source != "default" or option.name in _ALWAYS_DESCRIBED:
                value = f"{option.label} {option.value_type.format(self.get(option))}"
                by_source.setdefault(source, []).append(value)
        groups = []
        for source, values in by_source.items():
            groups.append(f"{', '.join(values)} ({source})")
        return "; ".join(groups)


_ALWAYS_DESCRIBED = ("temperature", "top_k", "top_p", "min_p")
_SAMPLING_NAMES = {item.name for item in fields(SamplingParams)} - {"seed"}
_FIELD_NAMES = _SAMPLING_NAMES | {item.name for item in fields(ChatSettings)}
ANSWER_OPTIONS = {
    name: each for name, each in OPTIONS.items() if each.attribute in _FIELD_NAMES
}
"""The options that have a value in `ChatSettings`, by name."""


class LoadedModel(Struct, frozen=True):
    """What prompts and settings need to know about the loaded pair."""

    n_ctx: int
    template: str | None = None
    """`own`, or a built-in one's name; None: a text-completion model."""
    thinking_markers: tuple[str, str] | None = None
    """What the template writes before and after thinking."""
    thinking_controls: tuple[str, ...] = ()  # As in `thinking_effort.ThinkingControl`.
    spec: str = "auto"  # The catalogue's drafter for the pair.
    spec_reason: str = ""
    template_override: str | None = None
    """A built-in template to use instead of the model's own."""
    draft_kind: str | None = None
    """A name of `draft_kinds.py`; None without a draft."""
    draft_max: int = 0
    """The most draft tokens of a round that it was loaded for; 0: unknown, or none."""
    sees: bool = False  # Whether it takes pictures, by a projector.
    hears: bool = False  # Whether it takes audio.
    max_picture_rows: int = 0  # About the tokens that a large picture takes.
    tool_format: str = ""
    """How it writes calls: a row of `tool_formats.py`. Empty without a template."""

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
        """`spec` and `spec_reason`: the catalogue's drafter for the pair, and why.

        If that drafter needs the pair's draft, and the draft was left out because memory
        is short, the drafter is `auto`.
        """
        if ready.draft is None and not draft_kinds.runs_with_every_pair(spec):
            spec = "auto"
            spec_reason = ""
        target = ready.settings.get("target") or {}
        draft_kind = ready.settings.get("draft_kind")
        if not draft_kind and ready.draft:
            draft_kind = "model"
        loaded = cls(
            n_ctx=int(target.get("n_ctx") or 0),
            spec=spec,
            spec_reason=spec_reason,
            draft_kind=draft_kind or None,
            draft_max=int(ready.settings.get("draft_max") or 0),
        )
        if raw:
            return loaded
        chat = ready.settings.get("chat") or {}
        images = ready.settings.get("images") or {}
        markers = None
        start, end = chat.get("thinking") or ("", "")
        if start or end:
            markers = (str(start), str(end))
        loaded = replace(
            loaded,
            template=chat.get("template"),
            sees=bool(images) and images.get("max_rows") != 0,
            hears=bool(images.get("audio")),
            max_picture_rows=int(images.get("max_rows") or 0),
            thinking_markers=markers,
            thinking_controls=tuple(chat.get("thinking_controls") or ()),
            tool_format=chat.get("tools") or generic_tools.FORMAT,
        )
        if template:
            loaded = replace(
                loaded,
                template=template,
                thinking_controls=(),
                template_override=template,
                tool_format=generic_tools.FORMAT,
            )
        return loaded

    def check(self, name: str, settings: ChatSettings) -> None:
        """Check a changed setting.

        Raises UsageError if it needs a drafter, or thinking, that the pair lacks.
        """
        name = find_field(name).name
        if name == "spec" and self.n_ctx:
            draft_kinds.check(settings.spec, self.draft_kind)
        elif name == "think":
            check_thinking(self.thinking_controls, think=settings.think)
        elif name == "think_budget":
            check_thinking(self.thinking_controls, budget=settings.think_budget)

    def check_thinking(self, settings: ChatSettings) -> None:
        """Raises UsageError if the settings need thinking that the model does not have."""
        check_thinking(
            self.thinking_controls,
            think=settings.think,
            effort=settings.effort,
            budget=settings.think_budget,
        )

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
    tools: str = "",
) -> GenerateCommand:
    """Build the engine request for the last turn.

    Its seed is derived from the conversation's unless `seed` is given. `tools`: those
    that are offered, as JSON; a completion model is offered none.
    """
    if seed is None:
        seed = conversation.derive_seed(settings.seed)
    example = examples.find(conversation.turns[-1].question)
    spec = settings.requested_spec(loaded)
    reason = ""
    if settings.spec == "auto":
        reason = loaded.spec_reason
        if example is not None and spec == "auto" and example.spec != "auto":
            spec = example.spec
            reason = examples.EXAMPLE_REASON
    request = GenerateCommand(
        template=loaded.template_override,
        sampling=replace(settings.sampling, seed=seed),
        stop=settings.stop,
        verify=settings.requested_verifier,
        spec=spec,
        why=reason,
        resumed_tokens=conversation.turns[-1].tokens,
        draft_length=settings.draft_length,
        probabilities=probabilities,
        grammar=settings.grammar,
        json_schema=settings.json_schema,
    )
    max_tokens = settings.max_tokens
    if not loaded.has_chat_template:
        if max_tokens is None and example is not None:
            max_tokens = example.max_tokens
        if max_tokens is None:
            max_tokens = COMPLETION_MAX_TOKENS
        return replace(
            request,
            text=conversation.prompt_text(),
            prior_messages=conversation.messages(),
            max_tokens=max_tokens,
            think_budget=None,
            think=None,
            effort="",
        )
    if max_tokens is None:
        max_tokens = max(1, loaded.n_ctx)
    stop = settings.stop
    if tools and loaded.tool_format == generic_tools.FORMAT:
        # A model that was not trained for tools goes on with a result of its own.
        stop = (*stop, generic_tools.RESULT_OPENING)
    return replace(
        request,
        text="",
        messages=conversation.messages(),
        tools=tools,
        stop=stop,
        max_tokens=max_tokens,
        think_budget=settings.think_budget,
        think=settings.think,
        effort=settings.effort,
    )


def value_choices(name: str) -> tuple[str, ...]:
    """The words a setting accepts; empty for a number or an unknown setting."""
    setting = CHAT_SETTING_FIELDS.get(_normalize_name(name))
    if setting is None:
        return ()
    return tuple(setting.value_type.all_words())


def find_field(name: str) -> Option:
    """Raises UsageError, with the most similar name as its hint."""
    normalized = _normalize_name(name)
    if normalized in CHAT_SETTING_FIELDS:
        return CHAT_SETTING_FIELDS[normalized]
    hint = f"Settings: {', '.join(CHAT_SETTING_FIELDS)}."
    spelling = other_spellings.find_name(name)
    near = difflib.get_close_matches(normalized, CHAT_SETTING_FIELDS, n=1, cutoff=0.5)
    if spelling is not None:
        at_start = f"It is chosen at the start: localspec run {spelling.ours}"
        hint = spelling.hint or at_start
    elif near:
        hint = f"Did you mean {near[0]}?"
    raise UsageError(f"There is no setting called {shorten(name)!r}.", hint)


def parse_context_size(text: str) -> int | None:
    """Parse `8192`, `8k` (8,192) or `auto`. Raises UsageError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    digits = word.removesuffix("k").replace(",", "").replace("_", "")
    if not digits.isdecimal() or not 0 < int(digits[:10]) <= _MAX_CONTEXT:
        raise UsageError(
            f"A context cannot have {shorten(text)!r} tokens.",
            "For example: /ctx 8192, or 16k.",
        )
    size = int(digits[:10])
    if word.endswith("k"):
        size *= 1024
    return size


def _normalize_name(name: str) -> str:
    """Our name of a setting; `num_predict`, another program's, is `max_tokens`."""
    normalized = other_spellings.normalize_name(name)
    if normalized in CHAT_SETTING_FIELDS:
        return normalized
    return other_spellings.find_option_name(name) or normalized


def shorten(text: str) -> str:
    """Cut typed text to 40 characters, for a message."""
    return text if len(text) <= 40 else text[:39] + "…"
