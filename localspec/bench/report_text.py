"""The benchmark report as text: a table for the terminal, and a Markdown card to share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import median

from localspec.bench.results import BenchReport, WorkloadResult
from localspec.machine import device_detection, gpu_catalog
from localspec.models import catalog
from localspec.models.catalog_entries import quantization_of
from localspec.sanitize import sanitize
from localspec.symbols import draw_bar
from localspec.units import count, gib, milliseconds, percent, token_rate

# A speed-up between these counts as no difference.
_MIN_GAIN, _MIN_BREAK_EVEN = (
    1.03,
    0.97,
)
# Below this best speed-up of any draft length, the pair cannot gain.
_MIN_POSSIBLE_GAIN = 1.05
_MAX_PLAUSIBLE_SHARE = 1.2
_BAR_WIDTH = 11


def format_table(report: BenchReport, *, is_final: bool = True) -> Iterator[str]:
    """A table of at most 77 columns, the file names apart, and a summary once it has
    rows.
    """
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    lines = [f"{report.pair}: {report.model}{draft}", *_format_machine(report)]
    lines += [f"ON, {report.why}"] if report.why else []
    yield from (sanitize(line, multiline=False) for line in lines)
    yield from _format_costs(report)
    highest = max((row.speedup.max for row in report.rows if row.speedup), default=1.0)
    for temperature, rows in groupby(report.rows, lambda row: row.temperature):
        yield ""
        name = f"temperature {temperature:g}"
        yield f"{name:<15} plain  spec tok/s{'':15}{'low–high':<8} accept tok/pass same"
        for row in rows:
            yield _format_table_row(row, max(highest, 1.5))
    if report.rows or is_final:
        yield ""
        yield from _format_summary(report)


def _format_costs(report: BenchReport) -> Iterator[str]:
    if (costs := report.measured) is None:
        return
    width = "8" if "8" in costs.curve else max(costs.curve, default="1", key=int)
    text = f"one pass {milliseconds(costs.t1_ms)}"
    if width != "1":
        text += f" · verifying {width} tokens costs {costs.curve[width]:.1f} passes"
    yield text + (f" · a draft token {costs.c:.2f}" if costs.c is not None else "")


def _format_table_row(row: WorkloadResult, scale: float) -> str:
    speed = low_high = ""
    if row.speedup is not None:
        speed = f"{row.speedup.median:5.2f}× {_speedup_bar(row.speedup.median, scale)}"
        low_high = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    return (
        f"{row.name:<10} {' ' if row.counted else '*'}    "
        f"{_format_rate(row.plain_tps):>5} {_format_rate(row.spec_tps):>5}  "
        f"{speed:<{_BAR_WIDTH + 7}} {low_high:<9} "
        f"{percent(row.acceptance_rate):>5} {_format_tokens_per_pass(row):>8} "
        f"{f'{row.identical}/{len(row.trials)}':>4}"
    )


def _speedup_bar(value: float, scale: float) -> str:
    """A bar with a tick at 1.0, the speed of plain decoding."""
    plain, bar = (
        round(_BAR_WIDTH / scale),
        draw_bar(value / scale, _BAR_WIDTH).ljust(_BAR_WIDTH),
    )
    return f"{bar[:plain]}┊{bar[plain + 1 :]}" if bar[plain : plain + 1] == " " else bar


def format_markdown(report: BenchReport) -> Iterator[str]:
    """Markdown, to share the result."""
    yield f"### localspec bench: {_escape_cell(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    why = f" ({report.why})" if report.why else ""
    yield _escape_cell(f"- files: {report.model}, {draft}{why}")
    yield f"- machine: {_escape_cell(' · '.join(_format_machine(report)))}"
    if (costs := report.measured) is not None:
        parts = [f"{milliseconds(costs.t1_ms)} per pass"]
        parts += [f"draft cost ratio {costs.c:.3f}"] if costs.c is not None else []
        parts += [f"v({width}) {v:.2f}" for width, v in costs.curve.items()]
        yield f"- costs: {', '.join(parts)}"
    yield f"- {count(report.rounds, 'round')}, {report.max_tokens} tokens per answer"
    yield ""
    yield (
        "| workload | T | plain tok/s | speculative tok/s | speed-up | acceptance rate "
        "| tokens per pass | of best | same text |"
    )
    yield "|---" + "|--:" * 8 + "|"
    for row in report.rows:
        yield "| " + " | ".join(map(_escape_cell, _markdown_cells(row))) + " |"
    yield ""
    for line in _format_summary(report):
        yield _escape_cell(line) + "  "


def _markdown_cells(row: WorkloadResult) -> Iterator[str]:
    yield row.name + ("" if row.counted else "*")
    yield f"{row.temperature:g}"
    yield _format_rate(row.plain_tps)
    yield _format_rate(row.spec_tps)
    speed = row.speedup
    yield f"{speed.median:.2f}× ({speed.min:.2f}–{speed.max:.2f})" if speed else "–"
    yield percent(row.acceptance_rate)
    yield _format_tokens_per_pass(row)
    yield percent(row.share_of_best)
    yield f"{row.identical}/{len(row.trials)}"


def _format_summary(report: BenchReport) -> Iterator[str]:
    """The lines below the table: means, verdict, and what limits the result."""
    for mean in report.means:
        if mean.speedup is not None:
            over = count(mean.workloads, "workload")
            yield f"temperature {mean.temperature:g}: {mean.speedup:.2f}× plain over {over}"
    yield from _format_verdict(report)
    if any(
        (row.share_of_best or 0) > _MAX_PLAUSIBLE_SHARE for row in report.counted_rows
    ):
        yield (
            "Some runs are faster than their measured costs allow: other programs were running. "
            "Repeat on an idle machine."
        )
    n_trials, left_out = len(report.trials), report.left_out
    if left_out:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in left_out.items())
        yield f"{sum(left_out.values())} of {n_trials} trials left out: {reasons}."
    if len(report.counted_rows) < len(report.rows):
        yield "* all trials left out: shown, but not part of the mean."
    if differ := sum(not trial.identical for trial in report.trials):
        yield f"{differ} of {n_trials} texts differ from plain: see `localspec verify`."
    if report.interrupted:
        yield "Interrupted: partial results."


def _format_verdict(report: BenchReport) -> Iterator[str]:
    """Whether speculation pays for this pair on this machine, and the likely reason if
    not.
    """
    speedup = report.speedup
    if speedup is None:
        early = "Stopped before any result."
        yield early if report.interrupted else "No trial counts: no result."
        return
    if speedup >= _MIN_GAIN:
        counted = [
            (row.speedup.median, row.name) for row in report.counted_rows if row.speedup
        ]
        best, name = max(counted)
        yield f"{speedup:.2f}× plain over all workloads; best: {best:.2f}× on {name}."
        return
    limits = [row.best.speedup for row in report.counted_rows if row.best]
    if speedup >= _MIN_BREAK_EVEN:
        yield f"No difference: {speedup:.2f}× plain."
    elif (limits and max(limits) < _MIN_POSSIBLE_GAIN) or "too small" in report.why:
        yield f"This pair is too small to gain here: {speedup:.2f}× plain."
    else:
        yield f"Slower with speculation: {speedup:.2f}× plain."
    if limits:
        reach = " to ".join(
            dict.fromkeys(f"{n:.2f}×" for n in (min(limits), max(limits)))
        )
        yield f"By the measured costs, the best fixed draft length would give {reach}."


def format_published_row(
    report: BenchReport, target: Path, draft: str
) -> Iterator[str]:
    """A line of localspec/data/published.jsonl: medians at temperature 0.

    `draft`: its kind.
    """
    rows = [row for row in report.counted_rows if row.temperature == 0]
    if not rows:
        yield "No trial counts: no row."
        return
    pair = catalog.load().pairs.get(catalog.own_id(report.pair))
    gpus = device_detection.detect_devices().devices
    gpu = gpu_catalog.match_device(gpus[0]) if gpus else None
    values = {
        "model": pair.target.id if pair else target.stem,
        "gpu": gpu.name if gpu else report.machine.cpu,
        "n_gpu": len(gpus),
        "vram": round(sum(each.total or 0 for each in gpus) / 2**30),
        "backend": gpus[0].backend if gpus else "CPU",
        "quant": quantization_of(target.name),
        "bytes": target.stat().st_size,
        "draft": draft,
        "acceptance": _median(row.acceptance_rate for row in rows),
        "plain": _median(row.plain_tps for row in rows),
        "speculative": _median(row.spec_tps for row in rows),
        "source": "your name, or a link",
        "date": f"{date.today()}",
    }
    yield json.dumps({name: value for name, value in values.items() if value})


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None


def _format_machine(report: BenchReport) -> Iterator[str]:
    """Two lines: hardware, then software."""
    machine = report.machine
    parts = [
        machine.cpu + (f", {count(machine.cores, 'core')}" if machine.cores else "")
    ]
    parts += [gib(machine.memory)] if machine.memory else []
    yield " · ".join(
        [*parts, *(device for device in machine.devices if device != "CPU")]
    )
    engine = machine.engine.get("llama_cpp_python")
    parts = [machine.system] + ([f"llama-cpp-python {engine}"] if engine else [])
    parts += [count(machine.threads, "thread")] if machine.threads else []
    yield " · ".join(parts)


def _format_tokens_per_pass(row: WorkloadResult) -> str:
    return (
        "–" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.1f}"
    )


def _format_rate(tokens_per_second: float | None) -> str:
    """Without its unit."""
    return token_rate(tokens_per_second).removesuffix(" tok/s")


def _escape_cell(text: str) -> str:
    """Escapes untrusted text for a Markdown table."""
    plain = sanitize(text, multiline=False)
    return "".join("\\" + c if c in "|*_`<>[]" else c for c in plain)
