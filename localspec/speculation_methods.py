"""Speculation methods by name: one list for --spec, /spec, Python and the catalogue."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from localspec.errors import UsageError

Spec = Literal["auto", "off", "model", "lookup", "eagle3", "mtp", "dspark", "dflash", "crossvocab"]
SPECS: tuple[str, ...] = get_args(Spec)
WITHOUT_DRAFT = ("off", "lookup")
"""Methods for which no draft model is loaded."""
ALWAYS = ("auto", *WITHOUT_DRAFT)
"""Methods that every pair supports."""
DRAFTERS = tuple(spec for spec in SPECS if spec not in ("auto", "off"))


def available(kinds: Collection[str]) -> tuple[str, ...]:
    """The methods that a pair supports.

    `kinds` are those of its drafts: `model`, `crossvocab` (a model with another vocabulary), a
    head's name; empty without a draft.  The method `model` means the pair's first draft, of any
    kind.
    """
    supported = (*ALWAYS, "model", *kinds) if kinds else ALWAYS
    return tuple(spec for spec in SPECS if spec in supported)


def check(spec: str, kinds: Collection[str]) -> None:
    """Raise UsageError, with the supported methods, unless a pair supports `spec`."""
    if spec not in SPECS:
        message = f"Unknown speculation method {spec!r}."
        raise UsageError(message, f"Use one of: {', '.join(SPECS)}.")
    supported = available(kinds)
    if spec in supported:
        return
    hint = f"Use one of: {', '.join(supported)}."
    if not kinds:
        message = f"Speculation method {spec!r} needs a draft model, and none is loaded."
        raise UsageError(message, f"{hint} Or add a draft model: --draft FILE")
    names = {"model": "a model", "crossvocab": "a model with another vocabulary"}
    drafts = " and ".join(names.get(kind, f"a head ({kind})") for kind in kinds)
    draft = "its draft is" if len(kinds) == 1 else "its drafts are"
    raise UsageError(f"This pair does not support {spec!r}: {draft} {drafts}.", hint)
