"""How much a text repeats itself, and how much of it stood in its prompt."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

_N = 4
_WORDS = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Distinct runs of four tokens among all; None where there is none."""
    grams = _grams(ids)
    return len(set(grams)) / len(grams) if grams else None


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's runs of four words that stand in the prompt; None where there is none.

    A word is a run of letters and digits, or one other visible character: white space is left
    out, and the prompt's token ids are not known here.
    """
    grams = _grams(_WORDS.findall(text))
    there = set(_grams(_WORDS.findall(prompt)))
    return sum(gram in there for gram in grams) / len(grams) if grams else None


def _grams(items: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    return [tuple(items[i : i + _N]) for i in range(len(items) - _N + 1)]
