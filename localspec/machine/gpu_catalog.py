"""Catalog of GPUs (gpus.yaml): lookup by the names that people and drivers use."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import NotFoundError, UsageError
from localspec.machine.device import Device
from localspec.sanitize import sanitize

_GIB = 1 << 30
_MAX_VRAM_GIB = 4096

_VISIBLE_VRAM_SHARE = {"nvidia": 0.98, "amd": 0.995, "intel": 0.995}
"""Share of the sold memory that a runtime reports.

CUDA reports 23.5 of an RTX 4090's 24 GiB.
"""
_SHARED_MEMORY_SHARE = 0.75
"""Share of system memory that an integrated GPU may use."""
_MAC_SHARES = ((8, 2 / 3), (24, 0.74), (48, 0.78), (96, 0.81), (512, 0.84))
"""The same of Macs up to a size in GiB, as macOS 15 and later have it.

llama.cpp's logs (recommendedMaxWorkingSetSize) show 12,713 MB of 16 GiB, 14,302 of 18,
19,070 of 24, 26,801 of 32, 30,151 of 36, 55,663 of 64 and 115,449 of 128.
"""

_TRADEMARK = re.compile(r"\((?:r|tm|c)\)|[®™]")
_REMARK = re.compile(r"\([^)]*\)")  # Added by a driver: (RADV NAVI31).
_SIZE = re.compile(r"\b(\d+(?:\.\d+)?)\s*(?:gib|gb|g)\b")
_BARE_SIZE = re.compile(r"\d{1,3}(?:\.\d+)?")
_PART = re.compile(r"\d+|[^\d]+")  # Of a word: 7900xtx has two.
_LAPTOP = re.compile(r"\b(?:notebook|mobile)\b")
_is_ignored = re.compile(
    "nvidia|geforce|amd|radeon|intel|graphics|gpu|apple|chip|with"
).fullmatch
_OPTIONAL_WORDS = {"rtx", "gtx", "rx", "arc", "pro", "ai"}
"""Words people leave out, as in "4060"."""
_BACKENDS = {"nvidia": "CUDA", "apple": "Metal", "amd": "Vulkan", "intel": "Vulkan"}


_DEFAULT_ERROR = 0.2


class GpuSpec(Struct, frozen=True):
    """A GPU as it is sold."""

    name: str
    maker: Literal["nvidia", "amd", "intel", "apple"]
    kind: Literal["gpu", "igpu", "unified"]  # igpu and unified share system memory.
    vram_gib: tuple[float, ...]  # Sizes sold, the most common first.
    bandwidth: float  # Peak, GB/s.
    generation: str = ""
    share: float = 0.75  # Of the bandwidth, reached by one-token passes.
    layer_ms: float = 0.05  # Time of a layer whatever its size.
    verify: float = 0.15  # Cost of a further token of a pass, in one-token passes.
    error: float = _DEFAULT_ERROR  # Relative, of the speed of a dense model.
    has_own_speed: bool = False  # Unlike the others of its generation.
    by_backend: tuple[tuple[str, str, float], ...] = ()
    """Those of the four above that another backend has: backend, field and value."""
    # Names of fields whose values are not confirmed.
    unconfirmed: frozenset[str] = frozenset()
    aliases: tuple[str, ...] = ()

    def for_backend(self, backend: str) -> GpuSpec:
        """With the speeds that this backend reaches on it."""
        changes = {}
        for name, constant, value in self.by_backend:
            if name == backend:
                changes[constant] = value
        return replace(self, **changes)

    def as_device(self, vram_gib: float | None = None) -> Device:
        """A simulated device with all memory free.

        `vram_gib` defaults to the size that is sold most. `total` is the memory that a
        runtime reports, a little less than sold. Raises UsageError for an impossible
        size.
        """
        size = self.vram_gib[0] if vram_gib is None else vram_gib
        if not 0 < size <= _MAX_VRAM_GIB:
            what = f"A GPU cannot have {size:g} GB of memory."
            raise UsageError(what, f"Use 1 to {_MAX_VRAM_GIB} GB.")
        total = int(size * _GIB * self._visible_share(size))
        backend = _BACKENDS[self.maker]
        name = f"{backend}0"
        if backend == "Metal":
            name = backend
        kind: Literal["gpu", "igpu"] = "gpu"
        if self.kind == "igpu":
            kind = "igpu"
        return Device(
            name=name,
            description=f"{self.name}, {size:g} GB",
            kind=kind,
            free=total,
            total=total,
            backend=backend,
            unified=self.kind != "gpu",
            simulated=True,
        )

    def _visible_share(self, size: float) -> float:
        """The share of the sold memory that a runtime reports as the GPU's."""
        if self.kind == "gpu":
            return _VISIBLE_VRAM_SHARE.get(self.maker, _SHARED_MEMORY_SHARE)
        if self.maker != "apple":
            return _SHARED_MEMORY_SHARE
        shares = [share for most, share in _MAC_SHARES if size <= most]
        return next(iter(shares), _MAC_SHARES[-1][1])


@functools.cache
def load() -> tuple[GpuSpec, ...]:
    """All GPUs, in the order of the file."""
    import yaml  # noqa: PLC0415  takes 30 ms

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8")
    gpus = []
    for group in yaml.load(text, Loader=loader):  # safe: a SafeLoader
        for card in group["cards"]:
            gpu = GpuSpec(
                name=card["name"],
                maker=group["maker"],
                kind=group["kind"],
                vram_gib=tuple(map(float, card["vram"])),
                bandwidth=float(card["bandwidth"]),
                generation=group["generation"],
                share=card.get("share", group["share"]),
                layer_ms=card.get("layer_ms", group["layer_ms"]),
                verify=group["verify"],
                error=card.get("error", group.get("error", _DEFAULT_ERROR)),
                has_own_speed="share" in card,
                by_backend=tuple(_list_backends(group.get("backends", {}))),
                unconfirmed=frozenset(card.get("unsure", ())),
                aliases=tuple(card.get("aliases", ())),
            )
            gpus.append(gpu)
    return tuple(gpus)


def _list_backends(
    backends: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, str, float]]:
    for backend, constants in backends.items():
        for name, value in constants.items():
            yield backend, name, value


def find(name: str) -> GpuSpec:
    """Find a GPU as people type it: "4060 ti 16", "laptop 4060", "rx7900xtx".

    Its words may be in any order.  A size in the name, with or without GB, selects that
    size; without one `vram_gib` has all that are sold.  Raises NotFoundError with the
    closest names.
    """
    gpus, size = _split_name(name)
    if not gpus:
        shown = sanitize(name[:80], multiline=False) or "(empty)"
        key = "".join(_name_words(name[:80]))
        closest = ", ".join(_find_closest_names(key, _known_gpus()))
        hint = f"Closest: {closest}; or use --vram GB."
        raise NotFoundError(f"Unknown GPU: {shown}", hint)
    if size is None:
        return gpus[0]
    for gpu in gpus:
        if size in gpu.vram_gib:
            return replace(gpu, vram_gib=(size,))
    what = f"{gpus[0].name} is not sold with {size:g} GB."
    raise NotFoundError(
        what, f"It has {_join_sizes(_sizes(gpus))} GB; or use --vram GB."
    )


def describe_assumption(name: str) -> str:
    """Which size `find` takes of several, if the name leaves it open; else empty."""
    gpus, size = _split_name(name)
    sizes = _sizes(gpus)
    if size is not None or len(sizes) < 2:
        return ""
    return (
        f"{gpus[0].name} is sold with {_join_sizes(sizes)} GB; {sizes[0]:g} is assumed. "
        f'Say the size: --gpu "{gpus[0].name.removeprefix("Apple ")} {sizes[-1]:g}".'
    )


def _sizes(gpus: Sequence[GpuSpec]) -> list[float]:
    """All sizes in which a GPU is sold; the first is the one that `find` assumes."""
    sizes: list[float] = []
    for gpu in gpus:
        sizes += gpu.vram_gib
    return sizes


def _join_sizes(sizes: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in sizes)


def _split_name(name: str) -> tuple[tuple[GpuSpec, ...], float | None]:
    """The GPUs of a name, which differ in size only, and the size that it says."""
    query = name[:80].lower()
    match = _SIZE.search(query)
    gpus = _find_all(query)
    if match:
        return gpus, float(match[1])
    if gpus:
        return gpus, None

    # The size may lack its unit: "M4 Pro 48".
    words = query.replace(",", " ").split()
    for index, word in enumerate(words):
        if not _BARE_SIZE.fullmatch(word):
            continue
        gpus = _find_all(" ".join(words[:index] + words[index + 1 :]))
        if gpus:
            return gpus, float(word)
    return (), None


def _find_all(query: str) -> tuple[GpuSpec, ...]:
    """The GPUs of a name, which differ in size; empty if it is none."""
    words = _name_words(query)
    gpus = _known_gpus().get("".join(words))
    return gpus or _gpus_by_parts().get(_sort_parts(words), ())


def _find_closest_names(
    key: str, known: Mapping[str, Sequence[GpuSpec]], n: int = 4
) -> list[str]:
    names: list[str] = []
    for close_key in difflib.get_close_matches(key, known, n=2 * n, cutoff=0.5):
        gpu = known[close_key][0]
        if gpu.name not in names:
            names.append(gpu.name)
    return names[:n] or ["RTX 4060", "RX 7800 XT"]


def match_device(device: Device) -> GpuSpec | None:
    """The GPU of a device, by its full name and memory size; None if ambiguous.

    Only exact names match: a laptop GPU is not the desktop GPU, an RTX 4060 not an RTX
    4060 Ti. If several sizes are sold under the name, the nearest one counts. A size
    that is far from all of them is that of a rebuilt GPU. That keeps its bandwidth, so
    it matches if all sizes of the name have the same one.
    """
    name, _, _ = device.description.lower().partition(",")
    gpus = _gpus_by_name().get("".join(_name_words(name)), ())
    total = device.total
    if total is None:
        return gpus[0] if len(gpus) == 1 else None

    sold: list[GpuSpec] = []
    for gpu in gpus:
        sold += [replace(gpu, vram_gib=(size,)) for size in gpu.vram_gib]

    def distance(gpu: GpuSpec) -> int:
        size = gpu.as_device().total or 0
        return abs(size - total)

    nearest = min(sold, key=distance, default=None)
    if nearest is None or nearest.kind != "gpu":
        # The share of system memory that such a GPU reports varies.
        return nearest
    is_sold_size = abs(total / _GIB / nearest.vram_gib[0] - 1) <= 0.1
    bandwidths = {gpu.bandwidth for gpu in gpus}
    if is_sold_size or len(bandwidths) == 1:
        return nearest
    return None


def _name_words(text: str) -> list[str]:
    """The significant words of a name.

    "NVIDIA GeForce RTX(TM) 4060 Ti 16GB" becomes ["rtx", "4060", "ti"].
    """
    text = _TRADEMARK.sub("", text.lower())
    text = _REMARK.sub(" ", text)
    text = _SIZE.sub(" ", text)
    text = _LAPTOP.sub("laptop", text)
    words = re.split(r"[\s_,\-]+", text)
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


def _known_gpus() -> dict[str, tuple[GpuSpec, ...]]:
    return _gpus_by_short_name() | _gpus_by_name()


def _sort_parts(words: Sequence[str]) -> tuple[str, ...]:
    """The parts of the words of a name, so that their order does not count."""
    parts: list[str] = []
    for word in words:
        parts += _PART.findall(word)
    return tuple(sorted(parts))


_Key = TypeVar("_Key", str, tuple[str, ...])


@functools.cache
def _gpus_by_parts() -> dict[tuple[str, ...], tuple[GpuSpec, ...]]:
    """By sorted parts of the name, with and without optional words."""
    found: dict[tuple[str, ...], list[GpuSpec]] = {}
    for gpu, words in _iter_names():
        needed = [word for word in words if word not in _OPTIONAL_WORDS]
        for key in {_sort_parts(words), _sort_parts(needed)} - {()}:
            found.setdefault(key, []).append(gpu)
    return _drop_ambiguous(found)


@functools.cache
def _gpus_by_short_name() -> dict[str, tuple[GpuSpec, ...]]:
    """By name without optional words."""
    found: dict[str, list[GpuSpec]] = {}
    for gpu, words in _iter_names():
        needed = [word for word in words if word not in _OPTIONAL_WORDS]
        if needed:
            found.setdefault("".join(needed), []).append(gpu)
    return _drop_ambiguous(found)


def _iter_names() -> Iterator[tuple[GpuSpec, list[str]]]:
    """Each GPU with the words of its name, and of each alias."""
    for gpu in load():
        for name in (gpu.name, *gpu.aliases):
            yield gpu, _name_words(name)


def _drop_ambiguous(
    found: Mapping[_Key, Sequence[GpuSpec]],
) -> dict[_Key, tuple[GpuSpec, ...]]:
    """Without the keys of GPUs whose names differ."""
    unique = {}
    for key, gpus in found.items():
        if len({gpu.name for gpu in gpus}) == 1:
            unique[key] = tuple(dict.fromkeys(gpus))
    return unique
