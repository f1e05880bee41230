"""What can draft, by the name that a person types: one list for --spec, /spec, Python and files."""

from __future__ import annotations

from typing import Literal, get_args

from localspec.errors import UsageError

Spec = Literal["auto", "off", "model", "lookup", "eagle3", "mtp", "dspark", "dflash"]
SPECS: tuple[str, ...] = get_args(Spec)
WITHOUT_DRAFT = ("off", "lookup")
"""Of these, the ones for which no draft is loaded."""
ALWAYS = ("auto", *WITHOUT_DRAFT)
"""Every pair has these."""
DRAFTERS = tuple(spec for spec in SPECS if spec not in ("auto", "off"))


def available(kind: str | None) -> tuple[str, ...]:
    """What a pair can be asked for.

    `kind` is its draft's: `model` or a head's name, None without a draft.  `model` is the draft,
    whatever it is.
    """
    has = ALWAYS if kind is None else (*ALWAYS, "model", kind)
    return tuple(spec for spec in SPECS if spec in has)


def check(spec: str, kind: str | None) -> None:
    """Raise UsageError, naming what the pair has, where it has no such drafter."""
    if spec not in SPECS:
        what = f"There is no way of speculating called {spec!r}."
        raise UsageError(what, f"Use: {', '.join(SPECS)}.")
    has = available(kind)
    if spec in has:
        return
    hint = f"Use one of: {', '.join(has)}."
    if kind is None:
        what = f"Drafting by {spec!r} needs a draft model, and none is loaded."
        raise UsageError(what, f"{hint} Or give a draft: --draft FILE")
    draft = "a model" if kind == "model" else f"a head ({kind})"
    raise UsageError(f"This pair cannot draft by {spec!r}: its draft is {draft}.", hint)
