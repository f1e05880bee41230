"""Speeds that others published, and the one nearest to a computer.

They are in data/published.jsonl.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from localspec import draft_kinds
from localspec.machine import gpu_catalog, ram_speed
from localspec.machine.device import Device
from localspec.models.catalog import own_id
from localspec.protocol.json_values import from_json

_FILE = Path(__file__).parent.parent / "data" / "published.jsonl"
_MAX_DISTANCE = math.log(1.5)
"""A card whose bandwidth is further away than this factor says nothing of this one."""
_MARKS_IN_CPU_NAME = re.compile(r"\((?:R|TM)\)|(?: CPU)? @ .*| \d+-Core Processor")


Caveat = Literal["", "lower bound", "other engine", "quoted", "unusual"]
"""Why a row says less of llama.cpp on such a computer than others do.

`lower bound`: something else held it up, such as one PCIe lane.  `other engine`: a fork,
or a program with llama.cpp inside.  `quoted`: read where somebody else is quoted.
`unusual`: a limit of power, a build
with a known fault, memory that was paged.
"""


class PublishedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement that somebody published; None and empty are not stated."""

    model: str  # Its id in the catalogue.
    gpu: str  # As in gpus.yaml; empty if only the CPU computed.
    source: str
    date: str = ""
    cpu: str = ""
    ram: str = ""  # Such as "32 GB DDR4".
    engine: str = ""  # If it is not llama.cpp.
    caveat: Caveat = ""
    n_gpu: int = 1
    vram: float = 0.0  # GB of all cards.
    backend: str = ""
    quant: str = ""
    gib: float = 0.0  # Of the file.
    bytes: int = 0  # Of the file.
    depth: int = 0  # Tokens already in the context.
    n_cpu_moe: int | str = 0  # Layers whose experts are in RAM.
    in_ram: str = ""  # Which part of the model is in RAM.
    draft: str = ""  # model, ngram, or the kind of head.
    draft_max: int | str = 0
    acceptance: float | str = 0.0
    plain: float | None = None  # Tokens per second.
    speculative: float | None = None
    ctx: int = 0
    kv: str = ""  # Type of the KV cache.
    split: str = ""  # How several GPUs shared it: layer or tensor.
    gpu_layers: int = -1
    memory: int = 0  # MiB in use on the GPUs.
    memory_speculative: int = 0

    def describe(self) -> str:
        """RTX 3090, UD-Q4_K_XL, MTP: 41 → 63 tok/s (source, 2026-08)."""
        cpu = _MARKS_IN_CPU_NAME.sub("", self.cpu)
        setup = [self.gpu or cpu or "a CPU"]
        if self.n_gpu > 1:
            setup = [f"{self.n_gpu} x {self.gpu}"]
        if self.quant:
            setup.append(self.quant)
        if self.draft == "model":
            setup.append("a draft model")
        elif self.draft:
            setup.append(draft_kinds.head_title(self.draft) or self.draft)
        if self.is_partly_in_ram:
            setup.append("partly in RAM")
        measured = [speed for speed in (self.plain, self.speculative) if speed]
        speeds = " → ".join(f"{speed:.3g}" for speed in measured)
        month = self.date[:7]
        return f"{', '.join(setup)}: {speeds} tok/s ({self.source}, {month})"

    @property
    def is_partly_in_ram(self) -> bool:
        return bool(self.in_ram or self.n_cpu_moe)


@functools.cache
def load() -> tuple[PublishedRow, ...]:
    """Raises ValueError, which names line and field, for a row of another form."""
    rows = []
    for number, line in enumerate(_FILE.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(from_json(PublishedRow, json.loads(line)))
        except ValueError as error:
            raise ValueError(f"{_FILE.name}, line {number}: {error}") from None
    return tuple(rows)


def find_nearest(
    model: str,
    devices: Sequence[Device],
    draft_kind: str = "",
    *,
    cpu_reaches: float | None = None,
) -> PublishedRow | None:
    """The row of this model whose computer is most like these devices.

    Without devices it is a row of a CPU that reads its memory about as fast as this
    one, which reaches so many GB/s.

    None if no row's GPU has a bandwidth like the first device's. The order of what
    counts is that of `preference` below: first the number of GPUs, then the GPU itself,
    then its maker, and so on.
    """
    if not devices:
        return _find_nearest_cpu(model, cpu_reaches)
    gpu = gpu_catalog.match_device(devices[0])
    if gpu is None:
        return None
    by_name = {each.name: each for each in gpu_catalog.load()}

    def distance(row: PublishedRow) -> float:
        return abs(math.log(by_name[row.gpu].bandwidth / gpu.bandwidth))

    def preference(row: PublishedRow) -> tuple[bool | float, ...]:
        """The smallest is best; False is less than True."""
        return (
            row.n_gpu != len(devices),
            row.gpu != gpu.name,
            by_name[row.gpu].maker != gpu.maker,
            row.is_partly_in_ram,
            row.draft != draft_kind,
            row.plain is None or row.speculative is None,
            distance(row),
        )

    rows = [row for row in load() if row.model == own_id(model) and row.gpu]
    near = [row for row in rows if distance(row) <= _MAX_DISTANCE]
    return min(near, key=preference, default=None)


def _find_nearest_cpu(model: str, reached: float | None) -> PublishedRow | None:
    """The row of a CPU that reads its memory nearly as fast as `reached`, in GB/s.

    Rows of llama.cpp itself come before those of other programs.
    """
    if reached is None:
        return None

    def distance(row: PublishedRow) -> float:
        theirs = ram_speed.find_ram_speed(f"{row.cpu}, {row.ram}")
        return abs(math.log(theirs.bandwidth * theirs.share / reached))

    def preference(row: PublishedRow) -> tuple[bool | float, ...]:
        return row.caveat != "", distance(row)

    near = [row for row in load() if row.model == own_id(model) and not row.gpu]
    near = [row for row in near if row.caveat in ("", "other engine")]
    near = [row for row in near if distance(row) <= _MAX_DISTANCE]
    return min(near, key=preference, default=None)
