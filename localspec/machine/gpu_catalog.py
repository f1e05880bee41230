"""Graphics cards that may not be here, by the names people and drivers give them: gpus.yaml."""

from __future__ import annotations

import difflib
import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from localspec.errors import NotFoundError, UsageError
from localspec.machine.device import Device
from localspec.sanitize import sanitize

_CATALOG_FILE = Path(__file__).with_name("gpus.yaml")
_GIB = 1 << 30
_MAX_VRAM_GIB = 4096
"""GiB that anybody may ask for."""

_VISIBLE_VRAM_SHARE = {"nvidia": 0.98, "amd": 0.995, "intel": 0.995}
"""How much of what is sold a runtime shows: of an RTX 4090's 24 GiB CUDA shows 23.5."""
_SHARED_MEMORY_SHARE = 0.75
"""The share of a computer's memory that its integrated GPU may take; Apple's above 36 GiB."""
_SMALL_MAC_SHARE = 2 / 3
"""Apple's up to 36 GiB."""
_SMALL_MAC_GIB = 36

_TRADEMARK = re.compile(r"\((?:r|tm|c)\)|[®™]")
_REMARK = re.compile(r"\([^)]*\)")
"""What a driver adds: (RADV NAVI31)."""
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?)\s*(?:gib|gb|g)\b")
_LAPTOP = re.compile(r"\b(?:notebook|mobile)\b")
_IGNORED_WORDS = {
    "nvidia",
    "geforce",
    "amd",
    "radeon",
    "intel",
    "graphics",
    "gpu",
    "apple",
    "chip",
    "with",
}
_OPTIONAL_WORDS = {"rtx", "gtx", "rx", "arc", "pro", "ai"}
"""Left out by people who say "4060"."""


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One card, or a computer's own GPU, as it is sold."""

    name: str
    maker: Literal["nvidia", "amd", "intel", "apple"]
    kind: Literal["gpu", "igpu", "unified"]
    """Integrated and unified ones use the computer's memory."""
    vram_gib: tuple[float, ...]
    """GiB as sold, the usual first."""
    bandwidth: float
    """Peak, GB/s."""
    tflops: float
    """FP16 of the shaders."""
    sources: str = ""
    unconfirmed: frozenset[str] = frozenset()
    """Which of its numbers are not confirmed."""
    aliases: tuple[str, ...] = ()

    def as_device(self, vram_gib: float | None = None) -> Device:
        """This card as if it were here and nobody used it; `vram` in GiB, else the usual.

        `total` is what a program is shown, a little less than what is sold.  Raises UsageError
        where the size makes no sense.
        """
        size = self.vram_gib[0] if vram_gib is None else vram_gib
        if not 0 < size <= _MAX_VRAM_GIB:
            what = f"{size:g} GiB is no size of a card."
            raise UsageError(what, f"Say one between 1 and {_MAX_VRAM_GIB} GiB.")
        total = int(size * _GIB * self._visible_share(size))
        brand = {"nvidia": ("CUDA", "CUDA0"), "apple": ("Metal", "Metal")}
        backend, name = brand.get(self.maker, ("Vulkan", "Vulkan0"))
        return Device(
            name=name,
            description=f"{self.name}, {size:g} GiB",
            kind="igpu" if self.kind == "igpu" else "gpu",
            free=total,
            total=total,
            backend=backend,
            unified=self.kind != "gpu",
            simulated=True,
        )

    def _visible_share(self, size: float) -> float:
        if self.kind == "gpu":
            return _VISIBLE_VRAM_SHARE[self.maker]
        return (
            _SMALL_MAC_SHARE
            if self.maker == "apple" and size <= _SMALL_MAC_GIB
            else _SHARED_MEMORY_SHARE
        )


@functools.cache
def load() -> tuple[GpuSpec, ...]:
    """All cards, in the file's order."""
    import yaml  # noqa: PLC0415  30 ms, not before it is needed

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    groups = yaml.load(
        _CATALOG_FILE.read_text(encoding="utf-8"), Loader=loader
    )  # safe: a SafeLoader
    return tuple(_parse_gpu(group, entry) for group in groups for entry in group["cards"])


def _parse_gpu(group: dict[str, Any], entry: dict[str, Any]) -> GpuSpec:
    return GpuSpec(
        name=entry["name"],
        maker=group["maker"],
        kind=group["kind"],
        vram_gib=tuple(map(float, entry["vram"])),
        bandwidth=float(entry["bandwidth"]),
        tflops=float(entry["tflops"]),
        sources=str(entry["sources"]),
        unconfirmed=frozenset(entry.get("unsure", ())),
        aliases=tuple(entry.get("aliases", ())),
    )


def find(name: str) -> GpuSpec:
    """The card that a person means: "RTX 4060", "4060 ti 16gb", "rx7900xtx", "M4 Pro".

    With a size in the name the card has that size only.  Raises NotFoundError with the closest.
    """
    asked = name[:80].lower()
    key, size = "".join(_name_words(asked)), _parse_size(asked)
    shown = sanitize(name[:80], multiline=False) or "nothing"
    found = _gpus_by_name().get(key) or _gpus_by_short_name().get(key) or ()
    if not found:
        close = ", ".join(_closest_names(asked))
        raise NotFoundError(f"No card is known as {shown}.", f"Closest: {close}; or --vram GIB.")
    if size is None:
        return found[0]
    sized = _with_size(found, size)
    if sized is None:
        sizes = ", ".join(f"{one:g}" for card in found for one in card.vram_gib)
        what = f"{found[0].name} is not sold with {size:g} GiB."
        raise NotFoundError(what, f"It has {sizes} GiB; or --vram GIB.")
    return sized


def match_device(device: Device) -> GpuSpec | None:
    """The card that a device is, by its full name and size; None where that is not clear.

    A laptop's chip is never taken for the desktop's, nor one card for a longer name's.
    """
    said = device.description.lower()
    found = _gpus_by_name().get("".join(_name_words(said.split(",")[0])), ())
    if not found or device.total is None:
        return found[0] if len(found) == 1 else None
    if found[0].kind != "gpu":  # how much of the memory it shows differs
        return found[0]
    near = [
        (abs(device.total / _GIB - size), replace(card, vram_gib=(size,)))
        for card in found
        for size in card.vram_gib
    ]
    distance, best = min(near, key=lambda one: one[0])
    return best if distance <= 0.1 * best.vram_gib[0] else None


def _with_size(gpus: tuple[GpuSpec, ...], size: float) -> GpuSpec | None:
    for card in gpus:
        if size in card.vram_gib:
            return replace(card, vram_gib=(size,))
    return None


def _parse_size(text: str) -> float | None:
    found = _SIZE.search(text)
    return float(found[1]) if found else None


def _name_words(text: str) -> list[str]:
    """What tells one card from another, in order: ["rtx", "4060", "ti"]."""
    text = _SIZE.sub(" ", _REMARK.sub(" ", _TRADEMARK.sub("", text.lower())))
    return [
        word for word in re.split(r"[\s_\-]+", _LAPTOP.sub("laptop", text)) if _is_significant(word)
    ]


def _is_significant(word: str) -> bool:
    return bool(word) and word not in _IGNORED_WORDS


@functools.cache
def _gpus_by_name() -> dict[str, tuple[GpuSpec, ...]]:
    """Cards by their full names, lower case and without spaces."""
    found: dict[str, tuple[GpuSpec, ...]] = {}
    for card in load():
        for name in (card.name, *card.aliases):
            for key in {"".join(_name_words(name)), "".join(name.lower().split())}:
                found[key] = (*found.get(key, ()), card)
    return found


@functools.cache
def _gpus_by_short_name() -> dict[str, tuple[GpuSpec, ...]]:
    """Cards by what people type when in a hurry, where only one name can be meant."""
    names: dict[str, dict[str, list[GpuSpec]]] = {}
    for card in load():
        for name in (card.name, *card.aliases):
            key = "".join(word for word in _name_words(name) if word not in _OPTIONAL_WORDS)
            names.setdefault(key, {}).setdefault(card.name, []).append(card)
    return {
        key: tuple(next(iter(cards.values())))
        for key, cards in names.items()
        if key and len(cards) == 1
    }


def _closest_names(query: str) -> list[str]:
    names = {
        name: cards[0].name for name, cards in (_gpus_by_short_name() | _gpus_by_name()).items()
    }
    key = "".join(_name_words(query))
    close = difflib.get_close_matches(key, names, n=8, cutoff=0.5)
    return list(dict.fromkeys(names[name] for name in close))[:4] or ["RTX 4060", "RX 7800 XT"]
