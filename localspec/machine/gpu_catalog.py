"""Catalog of GPUs (gpus.yaml): lookup by the names that people and drivers use."""

from __future__ import annotations

import difflib
import functools
import re
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import NotFoundError, UsageError
from localspec.machine.device import Device
from localspec.sanitize import sanitize

_GIB = 1 << 30
_MAX_VRAM_GIB = 4096

_VISIBLE_VRAM_SHARE = {"nvidia": 0.98, "amd": 0.995, "intel": 0.995}
"""Share of the sold memory that a runtime reports: CUDA reports 23.5 of an RTX 4090's
24 GiB.
"""
_SHARED_MEMORY_SHARE = 0.75
"""Share of system memory that an integrated GPU may use; Apple's above 36 GiB."""
_SMALL_MAC_SHARE = 2 / 3  # The same for Apple up to 36 GiB.
_SMALL_MAC_GIB = 36

_TRADEMARK = re.compile(r"\((?:r|tm|c)\)|[®™]")
_REMARK = re.compile(r"\([^)]*\)")  # Added by a driver: (RADV NAVI31).
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?)\s*(?:gib|gb|g)\b")
_LAPTOP = re.compile(r"\b(?:notebook|mobile)\b")
_is_ignored = re.compile(
    "nvidia|geforce|amd|radeon|intel|graphics|gpu|apple|chip|with"
).fullmatch
# Words people leave out, as in "4060".
_OPTIONAL_WORDS = {
    "rtx",
    "gtx",
    "rx",
    "arc",
    "pro",
    "ai",
}


class GpuSpec(Struct, frozen=True):
    """A GPU as it is sold."""

    name: str
    maker: Literal["nvidia", "amd", "intel", "apple"]
    kind: Literal["gpu", "igpu", "unified"]  # igpu and unified share system memory.
    vram_gib: tuple[float, ...]  # Sizes sold, the most common first.
    bandwidth: float  # Peak, GB/s.
    share: float = 0.75  # Of the bandwidth, reached by one-token passes.
    layer_ms: float = 0.05  # Time of a layer whatever its size.
    verify: float = 0.15  # Cost of a further token of a pass, in one-token passes.
    # Names of fields whose values are not confirmed.
    unconfirmed: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()

    def as_device(self, vram_gib: float | None = None) -> Device:
        """A simulated device with all memory free; `vram_gib` defaults to the common
        size.

        `total` is the memory a runtime reports, a little less than sold.  Raises UsageError for an
        impossible size.
        """
        size = self.vram_gib[0] if vram_gib is None else vram_gib
        if not 0 < size <= _MAX_VRAM_GIB:
            what = f"A GPU cannot have {size:g} GiB of memory."
            raise UsageError(what, f"Use 1 to {_MAX_VRAM_GIB} GiB.")
        share = _VISIBLE_VRAM_SHARE.get(self.maker, _SHARED_MEMORY_SHARE)
        if self.kind != "gpu":
            is_small_mac = self.maker == "apple" and size <= _SMALL_MAC_GIB
            share = _SMALL_MAC_SHARE if is_small_mac else _SHARED_MEMORY_SHARE
        total = int(size * _GIB * share)
        backend = {"nvidia": "CUDA", "apple": "Metal"}.get(self.maker, "Vulkan")
        return Device(
            name="Metal" if backend == "Metal" else f"{backend}0",
            description=f"{self.name}, {size:g} GiB",
            kind="igpu" if self.kind == "igpu" else "gpu",
            free=total,
            total=total,
            backend=backend,
            unified=self.kind != "gpu",
            simulated=True,
        )


@functools.cache
def load() -> tuple[GpuSpec, ...]:
    """All GPUs, in the order of the file."""
    import yaml  # noqa: PLC0415  takes 30 ms

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8")
    return tuple(
        GpuSpec(
            name=card["name"],
            maker=group["maker"],
            kind=group["kind"],
            vram_gib=tuple(map(float, card["vram"])),
            bandwidth=float(card["bandwidth"]),
            share=card.get("share", group["share"]),
            layer_ms=card.get("layer_ms", group["layer_ms"]),
            verify=group["verify"],
            unconfirmed=frozenset(card.get("unsure", ())),
            aliases=tuple(card.get("aliases", ())),
        )
        for group in yaml.load(text, Loader=loader)  # safe: a SafeLoader
        for card in group["cards"]
    )


def find(name: str) -> GpuSpec:
    """Finds a GPU as people type it: "RTX 4060", "4060 ti 16gb", "rx7900xtx", "M4 Pro".

    A size in the name selects that size.  Raises NotFoundError with the closest names.
    """
    query = name[:80].lower()
    key = "".join(_name_words(query))
    known = _gpus_by_short_name() | _gpus_by_name()
    gpus = known.get(key, ())
    if not gpus:
        shown = sanitize(name[:80], multiline=False) or "(empty)"
        names = {name: gpus[0].name for name, gpus in known.items()}
        close = difflib.get_close_matches(key, names, n=8, cutoff=0.5)
        closest = [*dict.fromkeys(names[name] for name in close)][:4] or [
            "RTX 4060",
            "RX 7800 XT",
        ]
        hint = f"Closest: {', '.join(closest)}; or use --vram GIB."
        raise NotFoundError(f"Unknown GPU: {shown}", hint)
    if not (match := _SIZE.search(query)):
        return gpus[0]
    size = float(match[1])
    for gpu in gpus:
        if size in gpu.vram_gib:
            return replace(gpu, vram_gib=(size,))
    sizes = ", ".join(f"{each:g}" for gpu in gpus for each in gpu.vram_gib)
    what = f"{gpus[0].name} is not sold with {size:g} GiB."
    raise NotFoundError(what, f"It has {sizes} GiB; or use --vram GIB.")


def match_device(device: Device) -> GpuSpec | None:
    """The GPU of a device, by its full name and memory size; None if ambiguous.

    Only exact names match: a laptop GPU is not the desktop GPU, an RTX 4060 not an RTX 4060 Ti.
    Of versions with different bandwidths the nearest size counts.  A size that is not sold is
    that of a rebuilt GPU, which keeps its bandwidth.
    """
    description = device.description.lower()
    gpus = _gpus_by_name().get("".join(_name_words(description.split(",")[0])), ())
    total = device.total
    if not gpus or total is None:
        return gpus[0] if len(gpus) == 1 else None
    sized = [replace(gpu, vram_gib=(size,)) for gpu in gpus for size in gpu.vram_gib]
    best = min(sized, key=lambda gpu: abs((gpu.as_device().total or 0) - total))
    # The share of system memory that a GPU reports varies.
    is_near = best.kind != "gpu" or abs(total / _GIB / best.vram_gib[0] - 1) <= 0.1
    return best if is_near or len({gpu.bandwidth for gpu in gpus}) == 1 else None


def _name_words(text: str) -> list[str]:
    """The significant words of a name: ["rtx", "4060", "ti"]."""
    text = _SIZE.sub(" ", _REMARK.sub(" ", _TRADEMARK.sub("", text.lower())))
    words = re.split(r"[\s_,\-]+", _LAPTOP.sub("laptop", text))
    return [word for word in words if word and not _is_ignored(word)]


@functools.cache
def _gpus_by_name() -> dict[str, tuple[GpuSpec, ...]]:
    """By full name and alias, in lower case without spaces."""
    by_name: dict[str, tuple[GpuSpec, ...]] = {}
    for gpu in load():
        for name in (gpu.name, *gpu.aliases):
            for key in {"".join(_name_words(name)), "".join(name.lower().split())}:
                by_name[key] = (*by_name.get(key, ()), gpu)
    return by_name


@functools.cache
def _gpus_by_short_name() -> dict[str, tuple[GpuSpec, ...]]:
    """By name without optional words, if that is unique."""
    names: dict[str, dict[str, list[GpuSpec]]] = {}
    for gpu in load():
        for name in (gpu.name, *gpu.aliases):
            key = "".join(
                word for word in _name_words(name) if word not in _OPTIONAL_WORDS
            )
            names.setdefault(key, {}).setdefault(gpu.name, []).append(gpu)
    return {
        key: tuple(next(iter(gpus.values())))
        for key, gpus in names.items()
        if key and len(gpus) == 1
    }
