"""With what settings a pair runs best here: what fits, ranked by tokens a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from localspec.fit import changes, reason, report
from localspec.fit.report import Fit, Place
from localspec.fit.speed import Use
from localspec.machine.parameters import DEFAULT_CTX
from localspec.models.header import Header
from localspec.protocol.wire import KvType, Load

_ROOMY = 0.25
"""Of what may be used: a longer context than usual is taken where so much stays free."""
_WORTH = {"f16": 1.0, "bf16": 1.0, "f32": 1.0, "q8_0": 0.98, "q4_0": 0.92}
"""What an answer is worth with keys and values of this type."""
_SQUEEZED = 0.9
_CUT = 0.97
"""Sliding windows that keep only what they see: a guess taken back may change the last bits."""
_CELLS = 256
"""Contexts are multiples of it."""
_DRAFTED = 1.25
"""What a draft gains where nobody can say."""
_GPU_READS, _CPU_READS = 400e9, 40e9
"""Bytes a second where nothing is known, to tell what is faster than what."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked for; None is open."""

    load: Load
    ctx: int | None = None
    kv: KvType | None = None
    layers: int | None = None
    draft_layers: int | None = None
    found: str = ""
    """What a person should know of a draft that they did not name."""
    anyway: bool = False
    """Whether to load what does not fit by our reckoning."""


@dataclass(frozen=True, slots=True)
class Option:
    """One thing to change."""

    change: str
    """In words: context 4,096."""
    flags: str
    """As typed: --ctx 4096."""
    saves: int
    """Bytes, where the least is to spare."""
    costs: str
    fit: Fit


@dataclass(frozen=True, slots=True)
class Advice:
    """What was chosen, why, and what else there is."""

    fit: Fit
    why: str

    @property
    def fits(self) -> bool:
        """As far as anybody can tell."""
        return self.fit.verdict != "no"


class Advisor:
    """One pair on one place."""

    def __init__(
        self, target: Header, draft: Header | None, place: Place, use: Use | None = None
    ) -> None:
        self.target, self.draft, self.place = target, draft, place
        self.use = use

    def price(self, load: Load) -> Fit:
        return report.price(load, self.target, self.draft, self.place, self.use)

    def advise(self, wish: Wish) -> Advice:
        """The best that fits, or, where nothing does, what comes nearest.  Raises UsageError."""
        first = self.price(self._usual(wish))
        if first.verdict in ("fits", "unknown"):
            fit = self._longer(wish, first) if first.verdict == "fits" else first
            return Advice(fit, reason.why(fit, first, self.target.n_layer))
        found = max(self._candidates(wish), key=self._worth, default=first)
        if first.verdict == "tight" and self._worth(first) >= self._worth(found):
            found = first
        return Advice(found, reason.why(found, first, self.target.n_layer))

    def glance(self, wish: Wish) -> Fit:
        """Of a few usual settings the first that fits, else the last: for long lists."""
        usual = self._usual(wish)
        tries = [usual]
        if not wish.kv and usual.target_settings.flash_attn != "off":
            tries.append(changes.both(usual, kv_type="q8_0"))
        if not wish.ctx:
            tries.append(changes.both(tries[-1], n_ctx=changes.STEPS[-2]))
        fits = [self.price(tries[0])]
        while fits[-1].verdict not in ("fits", "unknown") and len(fits) < len(tries):
            fits.append(self.price(tries[len(fits)]))
        good = [fit for fit in fits if fit.verdict in ("fits", "unknown")]
        tight = [fit for fit in fits if fit.verdict == "tight"]
        return (good or tight or fits)[0]

    def longest(self, fit: Fit) -> int | None:
        """The largest context that fits with these settings otherwise; None: not even a small."""
        best, low, high = None, 1, -(-(fit.load.target_settings.n_ctx or DEFAULT_CTX) // _CELLS)
        while low <= high:
            middle = (low + high) // 2
            found = self.price(changes.both(fit.load, n_ctx=middle * _CELLS))
            if found.verdict in ("fits", "unknown"):
                best, low = middle * _CELLS, middle + 1
            else:
                high = middle - 1
        return best

    def options(self, fit: Fit) -> tuple[Option, ...]:
        """Single changes to these settings that save memory; what fits first, then the fastest."""
        devices = bool(self.place.devices)
        found = [
            Option(words, flags, _saved(fit, other), costs, other)
            for words, flags, costs, load in changes.single(fit.load, self.target, devices)
            if (other := self.price(load)) and _saved(fit, other) > 0
        ]
        return tuple(
            sorted(found, key=lambda one: (one.fit.verdict == "no", -self._worth(one.fit)))
        )

    # --- the search -----------------------------------------------------------------------

    def _usual(self, wish: Wish) -> Load:
        """All of both models on the devices, a usual context, the best keys and values."""
        ctx = wish.ctx or min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        target = replace(
            wish.load.target_settings,
            n_ctx=ctx,
            kv_type=wish.kv or "f16",
            n_gpu_layers=-1 if wish.layers is None else wish.layers,
        )
        draft = replace(
            wish.load.draft_settings,
            kv_type=wish.kv or "f16",
            n_gpu_layers=-1 if wish.draft_layers is None else wish.draft_layers,
        )
        return replace(wish.load, target_settings=target, draft_settings=draft)

    def _longer(self, wish: Wish, first: Fit) -> Fit:
        """A longer context on a card that has much to spare; a CPU reads too slowly to fill it."""
        if wish.ctx is not None or not self.place.devices:
            return first
        for ctx in changes.STEPS:
            if ctx <= (first.load.target_settings.n_ctx or 0):
                break
            if ctx > self.target.n_ctx_train:
                continue
            fit = self.price(changes.both(first.load, n_ctx=ctx))
            if fit.verdict == "fits" and _spare(fit) >= _ROOMY:
                return fit
        return first

    def _candidates(self, wish: Wish) -> Iterator[Fit]:
        """What fits, by each context, type of keys and values, and with or without the draft."""
        usual = self._usual(wish)
        for load in changes.drafts(usual):
            for kv in (wish.kv,) if wish.kv else ("f16", "q8_0"):
                if kv.startswith("q") and usual.target_settings.flash_attn == "off":
                    continue
                for ctx, whole in product(self._contexts(wish, usual), self._windows()):
                    one = changes.both(load, n_ctx=ctx, kv_type=kv)
                    yield from self._placed(changes.target_with(one, swa_full=whole), wish)

    def _windows(self) -> tuple[bool, ...]:
        """Whether layers with a sliding window keep everything, which makes going back exact."""
        return (True, False) if self.target.number("attention.sliding_window") else (True,)

    def _contexts(self, wish: Wish, usual: Load) -> tuple[int, ...]:
        most = usual.target_settings.n_ctx or DEFAULT_CTX
        return (most,) if wish.ctx else (most, *(one for one in changes.STEPS if one < most))

    def _placed(self, load: Load, wish: Wish) -> Iterator[Fit]:
        """As it is; else with experts in the computer's memory, or with fewer layers on devices."""
        whole = self.price(load)
        if whole.verdict in ("fits", "tight"):
            yield whole
        if whole.verdict == "fits" or not self.place.devices or wish.layers is not None:
            return
        if self.target.moe:
            apart = self.price(changes.target_with(load, cpu_moe=True))
            if apart.verdict in ("fits", "tight"):
                yield apart
                return
        fewer = self._most_layers(load)
        if fewer is not None and fewer.verdict in ("fits", "tight"):
            yield fewer

    def _most_layers(self, load: Load) -> Fit | None:
        """By halves: memory grows with layers."""
        best, low, high = None, 0, self.target.n_layer
        while low <= high:
            middle = (low + high) // 2
            fit = self.price(changes.target_with(load, n_gpu_layers=middle))
            if all(room.verdict == "fits" for room in fit.rooms):
                best, low = fit, middle + 1
            else:
                high = middle - 1
        return best

    def _worth(self, fit: Fit) -> float:
        """Tokens a second, less what a short context and coarse keys and values take from them."""
        settings = fit.load.target_settings
        goal = min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        length: float = min(1.0, (settings.n_ctx or goal) / goal) ** 0.25
        squeezed = _SQUEEZED if fit.verdict == "tight" else 1.0
        cut = 1.0 if settings.swa_full else _CUT
        return pace(fit) * length * _WORTH[settings.kv_type] * squeezed * cut


def pace(fit: Fit) -> float:
    """Tokens a second, about; where nobody knows, by what is read from where."""
    known = fit.speed.speculative or fit.speed.plain
    if known is not None:
        return (known[0] + known[1]) / 2
    device = sum(room.target.weights for room in fit.rooms)
    alone = 1 / (1e-3 + device / _GPU_READS + fit.host.target.weights / _CPU_READS)
    return alone * (_DRAFTED if fit.load.draft else 1.0)


def _spare(fit: Fit) -> float:
    """The share of what may be used that stays free, where it is least."""
    shares = [
        (room.spare or 0) / max(1, (room.device.free or 0) - room.reserve)
        for room in (*fit.rooms, fit.host)
        if room.total
    ]
    return min(shares, default=0.0)


def _saved(before: Fit, after: Fit) -> int:
    name = before.tightest.device.name
    rooms = {room.device.name: room.total for room in (*after.rooms, after.host)}
    return before.tightest.total - rooms.get(name, 0)
