"""What may be asked of an answer and of a machine, by keyword, and what the values stand for."""

from __future__ import annotations

import difflib
import inspect
import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, get_args

from localspec import hints, launch
from localspec.chat.conversation import Conversation
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.errors import LocalspecError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import ResolvedPair
from localspec.models import catalog
from localspec.models.chat_template import builtin_templates
from localspec.models.resolver import NotDownloadedError
from localspec.protocol.events import EngineReady, Event, Notice
from localspec.protocol.wire import (
    DRAFT_MAX,
    ChatMessage,
    ContextSettings,
    CountCommand,
    FlashAttention,
    GenerateCommand,
    KvType,
    LoadCommand,
    SplitMode,
    VerifyMode,
)
from localspec.speculation import WITHOUT_DRAFT, Spec
from localspec.worker.engine_process import EngineProcess

_Method = TypeVar("_Method", bound=Callable[..., Any])
MAX_SEED = 2**63 - 1


class AnswerOptions(TypedDict, total=False):
    """Of one answer.  Left out or None, each is as on the command line."""

    max_tokens: int | None
    """Of `generate` and `stream` 512, of `chat` what the context holds."""
    temperature: float | None
    """0 is greedy; the pair's own, else 0.8."""
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    stop: str | Sequence[str] | None
    """The answer ends before any of these texts."""
    seed: int | None
    """The LLM's own, else drawn; `Answer.seed` tells."""
    verify: VerifyMode | None
    """How guesses are checked; each way keeps the model's own distribution."""
    spec: Spec | None
    """What guesses: the LLM's own, else what pays."""
    draft_max: int | None
    """Guesses a round."""
    exact: bool | None
    """Compute near-ties again, alone."""
    think: bool | None
    """For templates that ask whether to think first."""
    raw: bool | None
    """Continue the text as it is, without a chat template."""
    probabilities: bool | None
    """Each token with its chances and what else could have been said."""


class MachineOptions(TypedDict, total=False):
    """How a pair is loaded.  Left out or None, what suits this machine."""

    ctx: int | None
    kv: KvType | None
    gpu_layers: int | None
    draft_gpu_layers: int | None
    main_gpu: int | None
    split: SplitMode | Sequence[float] | None
    """A way, or shares of the devices."""
    cpu_moe: bool | None
    threads: int | None
    draft_threads: int | None
    flash_attn: FlashAttention | None


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How an answer is to be made."""

    settings: ChatSettings
    seed: int
    raw: bool = False
    probabilities: bool = False


_SEPARATE_OPTIONS = ("stop", "seed", "raw", "probabilities")
"""Those that the settings of a chat do not have, or have otherwise."""


def parse_answer_options(
    given: AnswerOptions, suggested: catalog.PairSettings, spec: str, seed: int | None
) -> GenerationOptions:
    """What these options mean for a pair.  Raises UsageError, TypeError for an unknown name."""
    options = select_given(given, AnswerOptions)
    settings = ChatSettings.from_catalog(suggested).with_value("spec", spec)
    for name, value in options.items():
        if name not in _SEPARATE_OPTIONS:
            settings = settings.with_value(name, _to_setting_text(value))
    settings = replace(settings, stop=_to_stop_strings(options.get("stop", ())))
    seed = options.get("seed", seed)
    return GenerationOptions(
        settings,
        secrets.randbits(31) if seed is None else check_int("seed", seed, 0, MAX_SEED),
        bool(options.get("raw")),
        bool(options.get("probabilities")),
    )


def select_given(given: Mapping[str, Any], names: type) -> dict[str, Any]:
    """What was given, without what is None.  Raises TypeError where there is no such option."""
    for name in given:
        if name not in names.__annotations__:
            near = difflib.get_close_matches(name, names.__annotations__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"There is no option called {name!r}.{hint}")
    return {name: value for name, value in given.items() if value is not None}


def check_int(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    """A whole number between these.  Raises UsageError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high or isinstance(value, bool):
        raise UsageError(f"{name} cannot be {value!r}.", f"Possible: {low} to {high}.")
    return number


def check_choice(name: str, value: Any, literal: Any) -> Any:
    """One of the words of a Literal.  Raises UsageError."""
    if value not in get_args(literal):
        raise UsageError(
            f"{name} cannot be {value!r}.", f"Possible: {', '.join(get_args(literal))}."
        )
    return value


def expand_signature(options: type) -> Callable[[_Method], _Method]:
    """Have help() and a notebook show each option of a method, instead of `**options`."""

    def spell(method: _Method) -> _Method:
        signature = inspect.signature(method)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        hints = {
            name: getattr(hint, "__forward_arg__", hint)  # as written here
            for name, hint in options.__annotations__.items()
        }
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in hints.items()
        ]
        method.__signature__ = signature.replace(parameters=own + more)  # type: ignore[attr-defined]
        return method

    return spell


def _to_setting_text(value: Any) -> str:
    """As a person would type it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _to_stop_strings(given: Any) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"stop cannot be {given!r}.", "Possible: a text, or several; none empty.")
    return texts


# --- From a script's words to what the engine is asked.

ChatMessages = Sequence[Mapping[str, str] | ChatMessage]
"""Turns of a chat: {"role": "system" | "user" | "assistant", "content": …}."""

_ROLES = ("system", "user", "assistant")
_DEFAULT_MAX_TOKENS = 512
"""Tokens after a text where nobody said how many; a chat's answer may fill the context."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A text or a chat, to be asked of the pair when it is loaded, or loaded again."""

    pair: ResolvedPair
    options: GenerationOptions
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None

    def __call__(self, ready: EngineReady) -> tuple[GenerateCommand, LoadedModel]:
        """What the engine is asked.  Raises UsageError where the model cannot chat."""
        drafts = ready.draft is not None
        loaded = LoadedModel.from_ready(
            ready,
            self.pair.spec if drafts else "auto",
            self.pair.spec_reason if drafts else "",
            raw=self.options.raw,
            template=self.template,
        )
        if self.messages and not loaded.has_chat_template:
            raise UsageError(
                f"{ready.model} has no chat template: it only continues text.",
                (
                    "Use generate(), or LLM(…, template=…) with "
                    f"{', '.join(builtin_templates.STOP_STRINGS)}."
                ),
            )
        conversation = Conversation(self.options.seed)
        conversation.ask(self.text)
        settings = self.options.settings
        if not self.messages and settings.max_tokens is None:
            settings = replace(settings, max_tokens=_DEFAULT_MAX_TOKENS)
        asked = build_request(
            settings, conversation, loaded, probabilities=self.options.probabilities
        )
        sampling = replace(asked.sampling, seed=self.options.seed)  # one answer: the seed itself
        return replace(asked, sampling=sampling, messages=self.messages or asked.messages), loaded

    def build_count(self, ready: EngineReady) -> CountCommand:
        """For the tokens of the same prompt."""
        asked, _ = self(ready)
        return CountCommand(asked.text, asked.messages, asked.template, asked.think)


def check_prompt(prompt: object) -> str:
    """A text to go on with.  Raises UsageError."""
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(f"The prompt cannot be {prompt!r}.", "Give a text that is not empty.")
    return prompt


def to_messages(given: str | ChatMessages) -> tuple[ChatMessage, ...]:
    """The turns of a chat; a text alone is the user's.  Raises UsageError."""
    if isinstance(given, str):
        given = [ChatMessage("user", check_prompt(given))]
    found = tuple(_to_message(one) for one in given)
    if not found:
        raise UsageError("The chat is empty.", "Ask something.")
    return found


def _to_message(given: Mapping[str, str] | ChatMessage) -> ChatMessage:
    if isinstance(given, ChatMessage):
        return given
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES or not isinstance(content, str):
        raise UsageError(
            f"A message cannot be {given!r}.",
            f'Possible: {{"role": …, "content": a text}}, the role one of {", ".join(_ROLES)}.',
        )
    return ChatMessage(role, content)


# --- From what a script names to the files and the settings that are loaded.


@dataclass(frozen=True, slots=True)
class PairEngineFactory:
    """Loads the pair, each time with the settings that fit then."""

    load_request: SettingsRequest
    probe: bool

    def __call__(
        self, on_worker: Callable[[EngineProcess], None], notify: Callable[[Notice], None]
    ) -> launch.MeasuredEngine:
        """Raises as `launch.start`."""

        def hear(event: Event) -> None:
            if isinstance(event, Notice):
                notify(event)

        return launch.start_engine(
            self.load_request, probe=self.probe, notify=hear, on_worker=on_worker
        )


_MAX_PULLS = 2
"""Downloads: a target, and a draft that was named beside it."""


def check_pair_arguments(spec: str, seed: int | None, template: str | None) -> None:
    """Raise UsageError where one of these makes no sense, before anything is looked for."""
    check_choice("spec", spec, Spec)
    if seed is not None:
        check_int("seed", seed, 0, MAX_SEED)
    if template is not None:
        builtin_templates.load_source(template)


def resolve_files(model: str, draft: str, *, pull: bool) -> launch.ResolvedPair:
    """The files that these mean, downloaded where they may be.  Raises as `launch.choose`."""
    for _ in range(_MAX_PULLS):
        try:
            return launch.resolve_pair(model, draft)
        except NotDownloadedError as missing:
            if not pull:
                missing.hint += " — or say LLM(…, pull=True)."
                raise
            _pull_missing(missing.pull_reference)
        except LocalspecError as error:
            error.hint = hints.for_python(error.hint)
            raise
    return launch.resolve_pair(model, draft)


def check_drafter(choice: launch.ResolvedPair, spec: str) -> None:
    """Raise UsageError where the pair has no drafter of that name, before it is loaded."""
    try:
        launch.check_drafter(choice, spec)
    except UsageError as error:
        error.hint = hints.for_python(error.hint)
        raise


def _pull_missing(reference: str) -> None:
    """Fetch what is missing, after a look at headers and at the disk; resumes what was begun."""
    # Late: most scripts run what is here.
    from localspec.models import pull_plan, resolver  # noqa: PLC0415
    from localspec.models.hub.client import HubClient  # noqa: PLC0415
    from localspec.models.hub.download import download_file  # noqa: PLC0415

    hub = HubClient()
    found = pull_plan.build(hub, [resolver.resolve(reference)])
    found.check()
    for item in found.models:
        for piece in item.files:
            if piece.origin in ("", "hub"):
                download_file(hub, piece.job)


def build_load_request(
    pair: launch.ResolvedPair, spec: str, given: MachineOptions
) -> SettingsRequest:
    """What to load, as far as these options say.  Raises UsageError, or TypeError."""
    options = select_given(given, MachineOptions)
    ctx = _int_option(options, "ctx", 1)
    kv = check_choice("kv", options["kv"], KvType) if "kv" in options else None
    layers = _int_option(options, "gpu_layers", 0)
    draft_layers = _int_option(options, "draft_gpu_layers", 0)
    threads = _int_option(options, "threads", 1)
    target = ContextSettings(
        n_gpu_layers=-1 if layers is None else layers,
        main_gpu=_int_option(options, "main_gpu", 0) or 0,
        kv_type=kv or "f16",
        cpu_moe=bool(options.get("cpu_moe")),
        flash_attn=check_choice("flash_attn", options.get("flash_attn", "auto"), FlashAttention),
        n_ctx=ctx or pair.suggested_settings.ctx,
        n_threads=threads,
        **_split_settings(options.get("split", "layer")),
    )
    draft = replace(
        target,
        cpu_moe=False,
        n_gpu_layers=-1 if draft_layers is None else draft_layers,
        n_threads=_int_option(options, "draft_threads", 1) or threads,
    )
    path = str(pair.draft) if pair.draft and spec not in WITHOUT_DRAFT else None
    load = LoadCommand(str(pair.target), path, target, draft, DRAFT_MAX)
    return SettingsRequest(
        load, ctx=target.n_ctx, kv=kv, n_gpu_layers=layers, draft_n_gpu_layers=draft_layers
    )


def _int_option(options: dict[str, Any], name: str, low: int) -> int | None:
    return check_int(name, options[name], low) if name in options else None


def _split_settings(given: str | Sequence[float]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"split_mode": check_choice("split", given, SplitMode)}
    try:
        return {"tensor_split": tuple(float(share) for share in given)}
    except (TypeError, ValueError):
        raise UsageError(f"split cannot be {given!r}.", "Possible: shares, as [3, 1].") from None
