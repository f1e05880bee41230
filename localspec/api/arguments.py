"""Arguments of the Python API: checks, and conversion to engine requests."""

from __future__ import annotations

import difflib
import inspect
import io
import os
import reprlib
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from localspec import launch
from localspec.chat.conversation import Conversation
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.config import other_spellings
from localspec.config.option_types import SWITCH
from localspec.config.options import OPTIONS, RETIRED
from localspec.errors import UsageError
from localspec.launch import ResolvedPair, sight
from localspec.models.audio_files import accept_audio, load_audio
from localspec.models.chat_template import builtin_templates
from localspec.models.model_lookup import NotDownloadedError
from localspec.models.pictures import (
    PICTURE_MARK,
    accept_picture,
    load_picture,
    without_marks,
)
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import (
    ChatMessage,
    FlashAttention,
    GenerateCommand,
    KvType,
    PictureRef,
    SplitMode,
    VerifyChoice,
)

_Method = TypeVar("_Method", bound=Callable[..., Any])
ChatMessages = Sequence[Mapping[str, Any] | ChatMessage]
"""Messages of a chat: {"role": "system" | "user" | "assistant", "content": …}.

With pictures: {"role": "user", "content": "What is this?", "images": ["photo.jpg"]}, or
in their places: {"role": "user", "content": [{"type": "image", "image": …}, {"type":
"text", "text": …}]}. A picture is a path, the bytes of a file, or a picture of Pillow.
Audio is given alike, as "audio" and {"type": "audio", "audio": …}: a path, or the bytes of
a WAV, MP3 or FLAC file.
"""

_ROLES = ("system", "user", "assistant")
_DEFAULT_MAX_TOKENS = 512  # Default for a text; a chat's answer may fill the context.


class AnswerOptions(TypedDict, total=False):
    """Options of one answer.

    A missing option or None means the default of the command line.
    """

    max_tokens: int | None
    """Default: 512 for `generate` and `stream`, the whole context for `chat`."""
    temperature: float | None
    """0 is greedy. Default: the catalogue's value for the pair, else 0.8."""
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    dry_multiplier: float | None
    """DRY: the penalty for tokens that extend a repeated sequence; 0 is off."""
    dry_base: float | None
    dry_allowed_length: int | None
    xtc_probability: float | None
    """XTC: how often only the least likely of the tokens above `xtc_threshold` is kept."""
    xtc_threshold: float | None
    stop: str | Sequence[str] | None
    """Stop strings: the answer ends before the first of them."""
    seed: int | None
    """Default: the LLM's seed, else random; `Answer.seed` has the value used."""
    verify: VerifyChoice | None
    """Verification method; all of them keep the target's distribution."""
    spec: str | None  # Drafter. Default: the LLM's, else chosen automatically.
    draft_max: int | None  # Max draft tokens.
    exact: bool | None
    """Without effect, with a warning: exact mode is an option of `LLM`."""
    think: bool | None  # Turn thinking on or off, if the chat template supports it.
    raw: bool | None  # Complete the text without a chat template.
    probabilities: bool | None
    """Add to each token its probabilities and the alternatives."""
    json_schema: str | Mapping[str, Any] | type | None
    """Answer with JSON that satisfies this JSON Schema, or this class of Pydantic."""
    grammar: str | None  # Answer with a text of this GBNF grammar.


class MachineOptions(TypedDict, total=False):
    """Load settings of a pair. A missing option or None means automatic."""

    ctx: int | None
    kv: KvType | None
    draft_kv: KvType | None
    """Type of the draft's KV cache. Default: f16; less lowers its acceptance rate."""
    gpu_layers: int | None
    draft_gpu_layers: int | None
    main_gpu: int | None
    split: SplitMode | Sequence[float] | None
    """A split mode, or one share for each device."""
    cpu_moe: int | Literal["all"] | None
    """Layers of a mixture of experts whose experts stay in RAM, from the first on."""
    threads: int | None
    draft_threads: int | None
    flash_attn: FlashAttention | None
    image_model: str | os.PathLike[str] | None
    """The projector (mmproj) by which the model sees, or "none". Default: the one beside
    the model.
    """
    image_tokens: int | None  # Max tokens of a picture.
    workers: str | Sequence[str] | None
    """Addresses of at most two computers that run `localspec worker`.

    Each is `HOST` or `HOST:PORT`.
    """
    exact: bool | None
    """On a CPU, attention that computes passes of every width alike. Default: False."""
    overlap: bool | None
    """Draft while the target verifies.

    Default: across devices, where it is worth it.
    """


# Options of extras that are not installed are no options.
for _name in list(MachineOptions.__annotations__):
    if _name not in OPTIONS:
        del MachineOptions.__annotations__[_name]


def parse_answer_options(
    given: AnswerOptions, pair: ResolvedPair, spec: str, seed: int | None
) -> dict[str, Any]:
    """Fields of `AnswerRequest`, with the pair's defaults.

    Raises UsageError for a bad value, TypeError for an unknown name.
    """
    values = {"spec": spec, "seed": seed} | check_options(given, AnswerOptions)
    for (front_end, name), instead in RETIRED.items():
        if front_end == "python" and values.pop(name, None) is not None:
            warnings.warn(f"{name} is ignored here: {instead}.", stacklevel=2)
    raw = values.pop("raw", None)
    probabilities = values.pop("probabilities", None)
    asked_seed = values.pop("seed", None)
    seed = asked_seed
    if seed is None:
        seed = secrets.randbits(31)
    settings = ChatSettings.from_catalog(pair.suggested_settings, values.get("think"))
    settings = settings.with_values(values)
    settings = replace(settings, seed=asked_seed)
    return {
        "settings": settings,
        "seed": seed,
        "raw": raw,
        "probabilities": probabilities,
    }


def check_options(given: Mapping[str, Any], names: type) -> dict[str, Any]:
    """Check the options that are not None.

    Raises UsageError for a bad value, TypeError for an unknown name.
    """
    for name in given:
        if name not in names.__annotations__:
            near = difflib.get_close_matches(name, names.__annotations__, n=1)
            own_name = other_spellings.find_option_name(name)
            if own_name in names.__annotations__:
                near = [own_name]
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"There is no option called {name!r}.{hint}")
    return {
        name: check_option(name, value)
        for name, value in given.items()
        if value is not None
    }


def check_option(name: str, value: Any) -> Any:
    """Raise UsageError, with the possible values as its hint, for a bad value.

    A switch is True or False here, not a word such as `on`.
    """
    value_type = SWITCH  # Options of Python alone, such as `raw`, are switches.
    if name in OPTIONS:
        value_type = OPTIONS[name].value_type
    is_word = isinstance(value, str) and value_type is not SWITCH
    if is_word and value in value_type.synonyms:
        word = value_type.synonyms[value]
        value = value_type.words[word]
    try:
        return value_type.check(value)
    except (ValueError, TypeError):
        possible = value_type.possible.removesuffix(", or auto")
        if True in value_type.words.values():  # A switch.
            possible = "True, False"
        raise UsageError(
            f"{name} cannot be {value!r}.", f"Possible: {possible}."
        ) from None


def expand_signature(options: type) -> Callable[[_Method], _Method]:
    """Make help() and notebooks list each option of a method, instead of `**options`."""

    def decorate(method: _Method) -> _Method:
        signature = inspect.signature(method)
        parameters = [
            p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD
        ]
        for name, annotation in options.__annotations__.items():
            keyword = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None
            )
            shown = getattr(annotation, "__forward_arg__", annotation)
            parameters.append(keyword.replace(annotation=shown))
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


# --- prompts


class AnswerRequest(Struct, frozen=True):
    """A text or a chat to answer."""

    pair: ResolvedPair
    settings: ChatSettings
    seed: int
    raw: bool | None = None
    probabilities: bool | None = None
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    template: str | None = None

    def check_tools(self) -> None:
        """Raises UsageError if an option leaves no calls."""
        if self.raw:
            raise UsageError("raw=True leaves no tools.", "Leave out one of them.")
        if not self.settings.is_free_text:
            raise UsageError(
                "Tools cannot be used with json_schema or grammar.",
                "Leave out one of them.",
            )

    def build(
        self, ready: EngineReady, tools: str = ""
    ) -> tuple[GenerateCommand, LoadedModel]:
        """For the loaded pair. `tools` are those that are offered, as JSON.

        Raises UsageError for messages without a chat template.
        """
        loaded = LoadedModel.from_ready(
            ready,
            self.pair.spec,
            self.pair.spec_reason,
            raw=bool(self.raw),
            template=self.template,
        )
        for message in self.messages:
            sight.require_senses(ready, message.images)
        if self.messages and not loaded.has_chat_template:
            names = ", ".join(builtin_templates.STOP_STRINGS)
            raise UsageError(
                f"{ready.model} has no chat template: it only completes text.",
                f"Use generate(), or LLM(…, template=…) with {names}.",
            )
        conversation = Conversation(self.seed)
        conversation.ask(self.text)
        settings = self.settings
        loaded.check_thinking(settings)
        if not self.messages and settings.max_tokens is None:
            settings = replace(settings, max_tokens=_DEFAULT_MAX_TOKENS)
        request = build_request(
            settings,
            conversation,
            loaded,
            probabilities=bool(self.probabilities),
            seed=self.seed,
            tools=tools,
        )
        if self.messages:
            request = replace(request, messages=self.messages)
        return request, loaded


def check_prompt(prompt: object) -> str:
    """Raise UsageError unless the prompt is a text that is not empty."""
    if not isinstance(prompt, str) or not prompt:
        raise UsageError(
            f"The prompt cannot be {prompt!r}.", "Give a text that is not empty."
        )
    return prompt


def to_messages(given: str | ChatMessages) -> tuple[ChatMessage, ...]:
    """Convert the messages of a chat; a single text is a user message.

    Raises UsageError.
    """
    if isinstance(given, str):
        given = [ChatMessage("user", check_prompt(given))]
    if not isinstance(given, Iterable):
        raise UsageError(
            f"A chat cannot be {given!r}.", "Give a text, or a list of messages."
        )
    messages = tuple(_to_message(message) for message in given)
    if not messages:
        raise UsageError("The chat is empty.", "Add a message.")
    return messages


def _to_message(given: Mapping[str, Any] | ChatMessage) -> ChatMessage:
    if isinstance(given, ChatMessage):
        return given
    role = None
    content: Any = None
    if isinstance(given, Mapping):
        role = given.get("role")
        content = given.get("content")
    if role not in _ROLES or not isinstance(content, Sequence):
        raise _not_a_message(given)
    media: list[_Media] = []
    for name, kind in _MEDIA_FIELDS.items():
        values = given.get(name) or ()
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise _not_a_message(given)
        media += [_Media(kind, value) for value in values]
    if isinstance(content, str):
        text = without_marks(content)
    else:
        text, placed = _join_content_parts(content, given)
        media += placed
    refs = [_to_ref(each, n) for n, each in enumerate(media, 1)]
    return ChatMessage(role, text, images=tuple(refs))


class _Media(Struct, frozen=True):
    """A picture or audio of a message, as it was given."""

    kind: Literal["image", "audio"]
    value: Any


_MEDIA_FIELDS: Mapping[str, Literal["image", "audio"]] = {
    "images": "image",
    "audio": "audio",
}
"""The fields of a message that are lists of pictures or audio."""


def _to_ref(media: _Media, number: int) -> PictureRef:
    if media.kind == "audio":
        return _to_audio(media.value, number)
    return _to_picture(media.value, number)


def _not_a_message(given: object) -> UsageError:
    roles = ", ".join(_ROLES)
    hint = f'Possible: {{"role": …, "content": a text}}, the role one of {roles}.'
    return UsageError(f"A message cannot be {_shorten(given)}.", hint)


def _shorten(given: object) -> str:
    """A wrong value, without the bytes of a whole picture."""
    return reprlib.repr(given) if _has_bytes(given) else repr(given)


def _has_bytes(given: object) -> bool:
    if isinstance(given, Mapping):
        return any(map(_has_bytes, given.values()))
    if isinstance(given, list | tuple):
        return any(map(_has_bytes, given))
    return isinstance(given, bytes | bytearray)


def _join_content_parts(
    parts: Iterable[Any], given: Mapping[str, Any]
) -> tuple[str, list[_Media]]:
    """The text of a message in parts, and its pictures and audio: each has a mark there."""
    texts: list[str] = []
    placed: list[_Media] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(without_marks(part["text"]))
        elif kind == "image" and part.get("image") is not None:
            texts.append(PICTURE_MARK)
            placed.append(_Media("image", part["image"]))
        elif kind == "audio" and part.get("audio") is not None:
            texts.append(PICTURE_MARK)
            placed.append(_Media("audio", part["audio"]))
        else:
            raise _not_a_message(given)
    return "".join(texts), placed


def _to_picture(given: Any, number: int) -> PictureRef:
    """A picture that the engine can read: of a path, bytes, or a picture of Pillow.

    Raises PictureError, NotFoundError or StorageError if it cannot be used.
    """
    name = f"picture {number}"
    if isinstance(given, str | os.PathLike):
        picture = load_picture(Path(os.path.expanduser(given)))
    elif isinstance(given, bytes | bytearray | memoryview):
        picture = accept_picture(bytes(given), name)
    elif callable(getattr(given, "save", None)):
        buffer = io.BytesIO()
        given.save(buffer, "PNG")
        picture = accept_picture(buffer.getvalue(), name)
    else:
        raise UsageError(
            f"A picture cannot be {_shorten(given)}.",
            "Give the path of a file, its bytes, or a picture of Pillow.",
        )
    return sight.put_picture(picture)


def _to_audio(given: Any, number: int) -> PictureRef:
    """Audio that the engine can read: of a path or bytes.

    Raises AudioError, NotFoundError or StorageError if it cannot be used.
    """
    if isinstance(given, str | os.PathLike):
        audio = load_audio(Path(os.path.expanduser(given)))
    elif isinstance(given, bytes | bytearray | memoryview):
        audio = accept_audio(bytes(given), f"audio {number}")
    else:
        raise UsageError(
            f"Audio cannot be {_shorten(given)}.",
            "Give the path of a WAV, MP3 or FLAC file, or its bytes.",
        )
    return sight.put_audio(audio)


# --- models and settings to load


def check_pair_arguments(spec: str, seed: int | None, template: str | None) -> None:
    """Raise UsageError for a bad value, before any file is resolved."""
    check_option("spec", spec)
    if seed is not None:
        check_option("seed", seed)
    if template is not None:
        builtin_templates.load_source(template)


def to_reference(name: str, given: str | os.PathLike[str]) -> str:
    """Raise UsageError unless it is a text that is not empty, or a path."""
    text = given
    if isinstance(given, os.PathLike):
        text = os.fspath(given)
    if not isinstance(text, str) or not text.strip():
        raise UsageError(
            f"{name} cannot be {given!r}.", "Give a name, user/repo:QUANT or a path."
        )
    return text


def resolve_files(model: str, draft: str, *, pull: bool) -> launch.ResolvedPair:
    """Resolve the pair's files, and download them if `pull`.

    Raises as `launch.resolve_pair`.
    """

    def pull_missing(missing: NotDownloadedError) -> None:
        if not pull:
            missing.hint += " — or use LLM(…, pull=True)."
            raise missing
        _pull(missing.pull_reference)

    return launch.resolve_or_pull(model, draft, pull_missing)


def _pull(reference: str) -> None:
    """Download a pair or model, after checking headers and disk space.

    Resumes old downloads.
    """
    # Late imports: most scripts use downloaded models.
    from localspec.fit import machine_profile, suggestions  # noqa: PLC0415
    from localspec.models import pull_plan  # noqa: PLC0415
    from localspec.models.hub.client import HubClient  # noqa: PLC0415
    from localspec.models.hub.download import download_file  # noqa: PLC0415

    hub = HubClient()
    request = suggestions.resolve_best_file(
        reference, machine_profile.detect, launch.saved_criteria()
    )
    plan = pull_plan.build(hub, [request])
    plan.check()
    for model in plan.models:
        for file in model.all_files:
            if file.origin in ("", "hub"):
                download_file(hub, file.job)
