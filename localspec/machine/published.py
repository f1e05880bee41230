"""Speeds that others published (data/published.jsonl), and the one nearest to a
computer.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from localspec import draft_kinds
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.models.catalog import own_id
from localspec.protocol.json_values import from_json

_FILE = Path(__file__).parent.parent / "data" / "published.jsonl"
# Of two bandwidths: a card further away says nothing of this one.
_MAX_DISTANCE = math.log(1.5)


class PublishedRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A measurement that somebody published; None and empty are not stated."""

    model: str  # Its id in the catalogue.
    gpu: str  # As in gpus.yaml.
    source: str
    date: str = ""
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
    gpu_layers: int = -1
    memory: int = 0  # MiB in use on the GPUs.
    memory_speculative: int = 0

    def describe(self) -> str:
        """RTX 3090, UD-Q4_K_XL, MTP: 41 → 63 tok/s (source, 2026-08)."""
        method = draft_kinds.head_title(self.draft) or self.draft
        if self.draft == "model":
            method = "a draft model"
        cards = f"{self.n_gpu} x {self.gpu}" if self.n_gpu > 1 else self.gpu
        ram = "partly in RAM" if self.in_ram or self.n_cpu_moe else ""
        setup = ", ".join(filter(None, (cards, self.quant, method, ram)))
        speeds = [f"{speed:.3g}" for speed in (self.plain, self.speculative) if speed]
        return f"{setup}: {' → '.join(speeds)} tok/s ({self.source}, {self.date[:7]})"


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
    model: str, devices: Sequence[Device], draft_kind: str = ""
) -> PublishedRow | None:
    """Of this model on a GPU like the first of these devices; None if none is like it.

    The same GPU first, then its maker's, then what ran with and without a draft like
    this one.
    """
    gpu = gpu_catalog.match_device(devices[0]) if devices else None
    if gpu is None:
        return None
    gpus = {each.name: each for each in gpu_catalog.load()}

    def distance(row: PublishedRow) -> tuple[Any, ...]:
        other = gpus[row.gpu]
        return (
            row.n_gpu != len(devices),
            row.gpu != gpu.name,
            other.maker != gpu.maker,
            bool(row.in_ram or row.n_cpu_moe),
            row.draft != draft_kind,
            row.plain is None or row.speculative is None,
            abs(math.log(other.bandwidth / gpu.bandwidth)),
        )

    rows = [
        row
        for row in load()
        if row.model == own_id(model) and distance(row)[-1] <= _MAX_DISTANCE
    ]
    return min(rows, key=distance, default=None)
