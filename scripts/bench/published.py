"""Estimated speeds beside published ones (localspec/data/published.jsonl), by group.

    bench.py published [--rows FILE] [--each]

One GPU with the whole model on it, plain decoding.  The ratio is the middle of the estimate over
the published speed; "inside" counts rows within the range that is shown.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from turns import table

from localspec.errors import LocalspecError
from localspec.fit import machine_profile, pair_shapes, published
from localspec.fit.advisor import SettingsAdvisor, SettingsRequest
from localspec.fit.published import PublishedRow
from localspec.fit.speed import UseCase
from localspec.machine import gpu_catalog
from localspec.models import catalog
from localspec.models.catalog import CatalogModel
from localspec.protocol.wire import ContextSettings, LoadCommand

GIB = 1 << 30


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rows", type=Path, metavar="FILE", help="other rows, a JSON object a line"
    )
    parser.add_argument("--each", action="store_true", help="a line for each row, too")


def main(args: argparse.Namespace) -> int:
    rows = published.load()
    if args.rows:
        lines = args.rows.read_text(encoding="utf-8").splitlines()
        rows = tuple(PublishedRow(**json.loads(line)) for line in lines)
    groups = defaultdict[str, list[tuple[float, bool, float]]](list)
    models, seen = catalog.load().models, set[tuple[object, ...]]()
    for row in rows:
        model = models.get(row.model)
        key = (row.model, row.gpu, row.quant, row.plain, row.backend)
        if model is None or key in seen or not is_comparable(row):
            continue
        seen.add(key)
        estimate = estimate_plain(row, model)
        if estimate is None or row.plain is None:
            continue
        low, high = estimate
        ratio = (low + high) / 2 / row.plain
        group = group_of(row, model)
        groups[group].append((ratio, low <= row.plain <= high, (high - low) / (high + low)))
        if args.each:
            print(f"{ratio:.2f}  {row.model}  {row.describe()}")
    print(table(list(report(groups))))
    return 0


def is_comparable(row: PublishedRow) -> bool:
    return bool(row.plain) and row.n_gpu == 1 and not row.in_ram and not row.n_cpu_moe


def group_of(row: PublishedRow, model: CatalogModel) -> str:
    maker = gpu_catalog.find(row.gpu).maker
    kind = "gpt-oss" if "gpt-oss" in row.model else "MoE" if model.active else "dense"
    return f"{maker}, {'hybrid' if kind == 'dense' and model.architecture == 'qwen35' else kind}"


def estimate_plain(row: PublishedRow, model: CatalogModel) -> tuple[float, float] | None:
    """None if the shape or the size is not known, or it does not fit."""
    same_file = row.quant.removeprefix("UD-") == model.quantization
    size = row.bytes or int(row.gib * GIB) or (same_file and model.size)
    if model.shape is None or not size:
        return None
    try:
        shape = pair_shapes.shape_from_numbers(model.shape, row.quant, size)
        machine = machine_profile.with_gpu(row.gpu, row.vram or None)
        context = min(max(row.depth, 0) + 512, model.shape.context)
        advisor = SettingsAdvisor(shape, None, machine, UseCase("chat", context=context))
        load = LoadCommand(model.id, None, ContextSettings(n_gpu_layers=-1))
        fit = advisor.advise(SettingsRequest(load, ctx=max(2048, context))).fit
    except (LocalspecError, ValueError):
        return None
    return fit.speed.plain if fit.verdict != "no" else None


def report(groups: dict[str, list[tuple[float, bool, float]]]) -> Iterator[list[str]]:
    yield ["group", "rows", "estimate / published", "inside", "half width"]
    everything = [each for rows in groups.values() for each in rows]
    for name, rows in (*sorted(groups.items()), ("all", everything)):
        ratios, inside, widths = zip(*rows, strict=True)
        yield [
            name,
            str(len(rows)),
            f"{median(ratios):.2f}",
            f"{sum(inside)}/{len(rows)}",
            f"{median(widths):.2f}",
        ]
