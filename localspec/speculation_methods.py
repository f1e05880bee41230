"""Speculation methods by name: one list for --spec, /spec, Python and the catalogue."""

from __future__ import annotations

from typing import Literal, get_args

from localspec.errors import Hint, UsageError

Spec = Literal[
    "auto", "off", "model", "lookup", "eagle3", "mtp", "dspark", "dflash", "crossvocab"
]
SPECS: tuple[str, ...] = get_args(Spec)
WITHOUT_DRAFT = ("off", "lookup")  # Methods for which no draft model is loaded.
ALWAYS = ("auto", *WITHOUT_DRAFT)  # Methods that every pair supports.
DRAFTERS = tuple(spec for spec in SPECS if spec not in ("auto", "off"))


def available(kind: str | None) -> tuple[str, ...]:
    """The methods that a pair supports.

    `kind` is that of its draft: `model`, `crossvocab` (a model with another vocabulary), a head's
    name; None without a draft.  The method `model` means a draft of any kind.
    """
    supported = (*ALWAYS, "model", kind) if kind else ALWAYS
    return tuple(spec for spec in SPECS if spec in supported)


def overlap_error(verify: str) -> UsageError:
    """Drafting cannot overlap with a verification method that draws from the draft's
    law.
    """
    return UsageError(
        f"Overlapped drafting does not work with verification {verify}.",
        Hint("Use {verify=coupled} or match with {overlap=on}."),
    )


def check(spec: str, kind: str | None) -> None:
    """Raise UsageError, with the supported methods, unless a pair supports `spec`."""
    if spec not in SPECS:
        message = f"Unknown speculation method {spec!r}."
        raise UsageError(message, f"Use one of: {', '.join(SPECS)}.")
    if spec in (supported := available(kind)):
        return
    hint = f"Use one of: {', '.join(supported)}."
    if kind is None:
        message = (
            f"Speculation method {spec!r} needs a draft model, and none is loaded."
        )
        raise UsageError(message, Hint(f"{hint} Or add a draft model: {{draft=FILE}}"))
    names = {"model": "a model", "crossvocab": "a model with another vocabulary"}
    draft = names.get(kind, f"a head ({kind})")
    raise UsageError(
        f"This pair does not support {spec!r}: its draft is {draft}.", hint
    )
