"""What if: another card, another context, another type of keys and values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from textual.content import Content

from localspec.clean import clean
from localspec.fit import hardware
from localspec.fit.hardware import TYPICAL_CPU
from localspec.fit.report import Fit, Place
from localspec.machine import cards
from localspec.machine.cards import Card
from localspec.machine.ledger import HOST
from localspec.protocol.wire import KvType
from localspec.tui.text.wrapping import fitted
from localspec.tui.wizard import words

Dial = Literal["card", "context", "kv"]
DIALS: tuple[Dial, ...] = ("card", "context", "kv")
CONTEXTS = (None, *(1 << n for n in range(11, 18)))
KVS: tuple[KvType | None, ...] = (None, "f16", "q8_0", "q4_0")
HERE = "this computer"
_LONGEST = 28
"""Cells of a card's name."""
_One = TypeVar("_One")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """None is: as it is here, and what suits it best."""

    card: Card | None = None
    """With the one size that is meant."""
    ctx: int | None = None
    kv: KvType | None = None

    def turned(self, dial: Dial, by: int) -> WhatIf:
        """The next choice of one dial, round and round."""
        if dial == "card":
            return replace(self, card=_next((None, *every_card()), self.card, by))
        if dial == "context":
            return replace(self, ctx=_next(CONTEXTS, self.ctx, by))
        return replace(self, kv=_next(KVS, self.kv, by))


class Places:
    """The place of each card, made once."""

    def __init__(self, here: Callable[[], Place]) -> None:
        self._look = here
        self._here: Place | None = None
        self._known: dict[Card, Place] = {}

    def of(self, card: Card | None) -> Place:
        """Looks at this computer at first, which takes a second."""
        if self._here is None:
            self._here = self._look()
        if card is None:
            return self._here
        if card not in self._known:
            self._known[card] = _with_card(self._here, card)
        return self._known[card]

    def known(self, card: Card | None) -> Place | None:
        """Without waiting; None: this computer was not looked at yet."""
        return None if self._here is None else self.of(card)


def _with_card(here: Place, card: Card) -> Place:
    """This computer with that card instead of its own: only what its processor has shown stays."""
    device = card.device()
    shown = {key: rate for key, rate in here.hardware.learnt.items() if key[0] == HOST}
    known = hardware.of((device,), here.hardware.rates.get(HOST, TYPICAL_CPU))
    return replace(here, devices=(device,), hardware=replace(known, learnt=shown))


@functools.cache
def every_card() -> tuple[Card, ...]:
    """Each with one size, in the file's order."""
    return tuple(replace(card, vram=(size,)) for card in cards.load() for size in card.vram)


def named(card: Card | None) -> str:
    return clean(f"{card.name}, {card.vram[0]:g} GiB", multiline=False) if card else HERE


def _next(choices: tuple[_One, ...], now: _One, by: int) -> _One:
    at = choices.index(now) if now in choices else 0
    return choices[(at + by) % len(choices)]


def line(what: WhatIf, dial: Dial, fit: Fit | None, width: int) -> Content:
    """The three dials in so many cells, the one that the arrows turn between ‹ and ›."""
    wide = width >= 74
    said = {
        "card": fitted(named(what.card), _LONGEST, "…").rstrip(),
        "context": f"{'context ' if width >= 48 else ''}{_context(what, fit)}",
        "kv": f"{'KV ' if width >= 48 else ''}{_kv(what, fit)}",
    }
    parts: list[Content] = [Content.styled("what if  ", "$muted")] if wide else []
    for name in DIALS:
        text = f"‹ {said[name]} ›" if name == dial else f"  {said[name]}  " if wide else said[name]
        parts += [Content.styled(text, "bold $accent" if name == dial else "$muted"), Content(" ")]
    return Content.assemble(*parts[:-1])


def _context(what: WhatIf, fit: Fit | None) -> str:
    chosen = fit.load.target_settings.n_ctx if fit else None
    return words.context(what.ctx or chosen)


def _kv(what: WhatIf, fit: Fit | None) -> str:
    return what.kv or (fit.load.target_settings.kv_type if fit else "auto")
