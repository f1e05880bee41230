"""What may be asked of an answer and of a machine, by keyword, and what the values stand for."""

from __future__ import annotations

import difflib
import inspect
import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar, get_args

from localspec.chat.settings import Settings
from localspec.errors import UsageError
from localspec.models import catalog
from localspec.protocol.wire import FlashAttention, KvType, Split, VerifyMode
from localspec.speculation import Spec

_Method = TypeVar("_Method", bound=Callable[..., Any])
LARGEST_SEED = 2**63 - 1


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
    split: Split | Sequence[float] | None
    """A way, or shares of the devices."""
    cpu_moe: bool | None
    threads: int | None
    draft_threads: int | None
    flash_attn: FlashAttention | None


@dataclass(frozen=True, slots=True)
class Way:
    """How an answer is to be made."""

    settings: Settings
    seed: int
    raw: bool = False
    probabilities: bool = False


_BESIDE = ("stop", "seed", "raw", "probabilities")
"""Those that the settings of a chat do not have, or have otherwise."""


def way(given: AnswerOptions, suggested: catalog.Settings, spec: str, seed: int | None) -> Way:
    """What these options mean for a pair.  Raises UsageError, TypeError for an unknown name."""
    options = known(given, AnswerOptions)
    settings = Settings.of(suggested).changed("spec", spec)
    for name, value in options.items():
        if name not in _BESIDE:
            settings = settings.changed(name, _typed(value))
    settings = replace(settings, stop=_stops(options.get("stop", ())))
    seed = options.get("seed", seed)
    return Way(
        settings,
        secrets.randbits(31) if seed is None else whole("seed", seed, 0, LARGEST_SEED),
        bool(options.get("raw")),
        bool(options.get("probabilities")),
    )


def known(given: Mapping[str, Any], names: type) -> dict[str, Any]:
    """What was given, without what is None.  Raises TypeError where there is no such option."""
    for name in given:
        if name not in names.__annotations__:
            near = difflib.get_close_matches(name, names.__annotations__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"There is no option called {name!r}.{hint}")
    return {name: value for name, value in given.items() if value is not None}


def whole(name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    """A whole number between these.  Raises UsageError."""
    try:
        number = operator.index(value)
    except TypeError:
        number = low - 1
    if not low <= number <= high or isinstance(value, bool):
        raise UsageError(f"{name} cannot be {value!r}.", f"Possible: {low} to {high}.")
    return number


def one_of(name: str, value: Any, words: Any) -> Any:
    """One of the words of a Literal.  Raises UsageError."""
    if value not in get_args(words):
        raise UsageError(f"{name} cannot be {value!r}.", f"Possible: {', '.join(get_args(words))}.")
    return value


def spelled(options: type) -> Callable[[_Method], _Method]:
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


def _typed(value: Any) -> str:
    """As a person would type it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _stops(given: Any) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"stop cannot be {given!r}.", "Possible: a text, or several; none empty.")
    return texts
