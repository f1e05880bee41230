"""The reports of `bench` (a table; Markdown or a row of data to share) and `pair test`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import median

from localspec.bench.draft_test import DraftJudgement
from localspec.bench.results import BenchReport, WorkloadResult
from localspec.chat.speculation_stats import known_rate
from localspec.machine import device_detection, gpu_catalog
from localspec.machine.cpu_and_ram import is_busy
from localspec.models import catalog
from localspec.models.catalog_entries import quantization_of
from localspec.report.lines import EMPTY_LINE, Line, format_columns, make_line
from localspec.sanitize import sanitize
from localspec.symbols import draw_bar
from localspec.units import count, gib, milliseconds, percent, token_rate

_MIN_GAIN = 1.03
_MIN_BREAK_EVEN = 0.97
"""A speed-up between these counts as no difference."""
_MIN_POSSIBLE_GAIN = 1.05
"""Below this best speed-up of any draft length, the pair cannot gain."""
_MAX_PLAUSIBLE_SHARE = 1.2
_SHOWN_VERIFY_WIDTH = 8
"""The tokens of the pass whose cost is shown, if it was measured."""
_BAR_WIDTH = 11
_LEAST_SCALE = 1.5
"""The speed-up at the end of the bars, if no workload has a higher one."""


def format_table(report: BenchReport, *, is_final: bool = True) -> Iterator[Line]:
    """A table of at most 77 columns below the file names, and its summary.

    Before the end there is no summary until the table has rows.
    """
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    names = f"{report.pair}: {report.model}{draft}"
    yield make_line(sanitize(names, multiline=False), "heading")
    for fact in _format_facts(report):
        yield make_line(sanitize(fact, multiline=False))
    speedups = [row.speedup.max for row in report.rows if row.speedup]
    scale = max([*speedups, _LEAST_SCALE])
    for temperature, rows in groupby(report.rows, lambda row: row.temperature):
        yield EMPTY_LINE
        yield make_line(_format_column_titles(temperature))
        for row in rows:
            yield make_line(_format_table_row(row, scale))
    if report.rows or is_final:
        yield EMPTY_LINE
        for text in _format_summary(report):
            yield make_line(text)


def _format_facts(report: BenchReport) -> Iterator[str]:
    """The machine, why the pair drafts, and what its passes cost."""
    yield from _format_machine(report)
    if is_busy(report.other_load):
        yield describe_busy(report.other_load)
    if report.why:
        yield f"ON, {report.why}"
    costs = report.measured
    if costs is None:
        return
    parts = [f"one pass {milliseconds(costs.t1_ms)}"]
    widths = [int(width) for width in costs.curve]
    shown_width = max(widths, default=1)
    if _SHOWN_VERIFY_WIDTH in widths:
        shown_width = _SHOWN_VERIFY_WIDTH
    if shown_width > 1:
        passes = costs.curve[str(shown_width)]
        parts.append(f"verifying {shown_width} tokens costs {passes:.1f} passes")
    if costs.c is not None:
        parts.append(f"a draft token {costs.c:.2f}")
    yield " · ".join(parts)


def _format_machine(report: BenchReport) -> Iterator[str]:
    """Two lines: hardware, then software."""
    machine = report.machine
    cpu = machine.cpu
    if machine.cores:
        cpu = f"{cpu}, {count(machine.cores, 'core')}"
    hardware = [cpu]
    if machine.memory:
        hardware.append(gib(machine.memory))
    hardware += [device for device in machine.devices if device != "CPU"]
    yield " · ".join(hardware)
    software = [machine.system]
    engine = machine.engine.get("llama_cpp_python")
    if engine:
        software.append(f"llama-cpp-python {engine}")
    if machine.threads:
        software.append(count(machine.threads, "thread"))
    yield " · ".join(software)


# The rows of the table: a name and its asterisk, two speeds, the speed-up as a number
# and a bar, its spread, and what explains it.


def _format_column_titles(temperature: float) -> str:
    name = f"temperature {temperature:g}"
    return f"{name:<15} plain  spec tok/s{'':15}low–high accept tok/pass same"


def _format_table_row(row: WorkloadResult, scale: float) -> str:
    asterisk = " " if row.counted else "*"
    plain_rate = _format_rate(row.plain_tps)
    rate = _format_rate(row.spec_tps)
    speedup = ""
    spread = ""
    if row.speedup is not None:
        bar = _draw_speedup_bar(row.speedup.median, scale)
        speedup = f"{row.speedup.median:5.2f}× {bar}"
        spread = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    speedup_width = len(" 1.23× ") + _BAR_WIDTH
    speeds = f"{plain_rate:>5} {rate:>5}  {speedup:<{speedup_width}} {spread:<9}"
    acceptance = percent(known_rate(row.drafts))
    per_pass = _format_tokens_per_pass(row)
    same = f"{row.identical}/{len(row.trials)}"
    causes = f"{acceptance:>5} {per_pass:>8} {same:>4}"
    return f"{row.name:<10} {asterisk}    {speeds} {causes}"


def _draw_speedup_bar(speedup: float, scale: float) -> str:
    """A bar whose full width is `scale`, with a tick at the speed of plain decoding.

    The tick is drawn only beyond the end of the bar. With a scale of 2, a speed-up of
    0.8 fills 4 of 11 cells, and the tick for 1.0 is in cell 6.
    """
    bar = draw_bar(speedup / scale, _BAR_WIDTH).ljust(_BAR_WIDTH)
    tick = round(_BAR_WIDTH / scale)
    if bar[tick : tick + 1] != " ":
        return bar
    return f"{bar[:tick]}┊{bar[tick + 1 :]}"


def _format_tokens_per_pass(row: WorkloadResult) -> str:
    mean = row.mean_accepted_length
    return "–" if mean is None else f"{mean:.1f}"


def _format_rate(tokens_per_second: float | None) -> str:
    """Without its unit."""
    return token_rate(tokens_per_second).removesuffix(" tok/s")


# --- The summary: means, verdict, and what limits the result.


def _format_summary(report: BenchReport) -> Iterator[str]:
    for mean in report.means:
        if mean.speedup is not None:
            over = count(mean.workloads, "workload")
            yield f"temperature {mean.temperature:g}: {mean.speedup:.2f}× plain over {over}"
    yield from _format_verdict(report)
    shares = [row.share_of_best or 0 for row in report.counted_rows]
    if any(share > _MAX_PLAUSIBLE_SHARE for share in shares):
        yield (
            "Some runs are faster than their measured costs allow: other programs were "
            "running. Repeat on an idle machine."
        )
    n_trials = len(report.trials)
    left_out = report.left_out
    if left_out:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in left_out.items())
        yield f"{sum(left_out.values())} of {n_trials} trials left out: {reasons}."
    if len(report.counted_rows) < len(report.rows):
        yield "* all trials left out: shown, but not part of the mean."
    n_different = sum(not trial.identical for trial in report.trials)
    if n_different:
        yield f"{n_different} of {n_trials} texts differ from plain: see `localspec verify`."
    if report.interrupted:
        yield "Interrupted: partial results."


def _format_verdict(report: BenchReport) -> Iterator[str]:
    """Whether speculation pays for this pair here, and the likely reason if not."""
    speedup = report.speedup
    if speedup is None:
        if report.interrupted:
            yield "Stopped before any result."
        else:
            yield "No trial counts: no result."
        return
    if speedup >= _MIN_GAIN:
        medians = [
            (row.speedup.median, row.name) for row in report.counted_rows if row.speedup
        ]
        best, name = max(medians)
        yield f"{speedup:.2f}× plain over all workloads; best: {best:.2f}× on {name}."
        return
    limits = [row.best.speedup for row in report.counted_rows if row.best]
    if speedup >= _MIN_BREAK_EVEN:
        yield f"No difference: {speedup:.2f}× plain."
    elif limits and max(limits) < _MIN_POSSIBLE_GAIN:
        yield f"This pair is too small to gain here: {speedup:.2f}× plain."
    else:
        yield f"Slower with speculation: {speedup:.2f}× plain."
    if limits:
        reach = f"{min(limits):.2f}×"
        highest = f"{max(limits):.2f}×"
        if highest != reach:
            reach = f"{reach} to {highest}"
        yield f"By the measured costs, the best fixed draft length would give {reach}."


# --- To share.


def format_markdown(report: BenchReport) -> Iterator[str]:
    yield f"### localspec bench: {_escape_markdown(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    files = f"- files: {report.model}, {draft}"
    if report.why:
        files += f" ({report.why})"
    yield _escape_markdown(files)
    yield f"- machine: {_escape_markdown(' · '.join(_format_machine(report)))}"
    if is_busy(report.other_load):
        yield f"- {describe_busy(report.other_load)}"
    costs = report.measured
    if costs is not None:
        parts = [f"{milliseconds(costs.t1_ms)} per pass"]
        if costs.c is not None:
            parts.append(f"draft cost ratio {costs.c:.3f}")
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
        cells = [_escape_markdown(cell) for cell in _markdown_cells(row)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for line in _format_summary(report):
        yield f"{_escape_markdown(line)}  "


def _markdown_cells(row: WorkloadResult) -> Iterator[str]:
    asterisk = "" if row.counted else "*"
    speed = row.speedup
    yield f"{row.name}{asterisk}"
    yield f"{row.temperature:g}"
    yield _format_rate(row.plain_tps)
    yield _format_rate(row.spec_tps)
    if speed is None:
        yield "–"
    else:
        yield f"{speed.median:.2f}× ({speed.min:.2f}–{speed.max:.2f})"
    yield percent(known_rate(row.drafts))
    yield _format_tokens_per_pass(row)
    yield percent(row.share_of_best)
    yield f"{row.identical}/{len(row.trials)}"


def _escape_markdown(text: str) -> str:
    """Untrusted text on one line, without meaning to Markdown and its tables."""
    clean = sanitize(text, multiline=False)
    return re.sub(r"[|*_`<>\[\]]", r"\\\g<0>", clean)


def format_published_row(report: BenchReport, target: Path, draft_kind: str) -> str:
    """A line of localspec/data/published.jsonl: medians at temperature 0."""
    rows = [row for row in report.counted_rows if row.temperature == 0]
    if not rows:
        return "No trial counts: no row."
    model = target.stem
    pair = catalog.load().pairs.get(catalog.own_id(report.pair))
    if pair is not None:
        model = pair.target.id
    device_name = report.machine.cpu
    backend = "CPU"
    gpus = device_detection.detect_devices().devices
    if gpus:
        backend = gpus[0].backend
        known_gpu = gpu_catalog.match_device(gpus[0])
        if known_gpu is not None:
            device_name = known_gpu.name
    values = {
        "model": model,
        "gpu": device_name,
        "n_gpu": len(gpus),
        "vram": round(sum(each.total or 0 for each in gpus) / 2**30),
        "backend": backend,
        "quant": quantization_of(target.name),
        "bytes": target.stat().st_size,
        "draft": draft_kind,
        "acceptance": _median_known(row.acceptance_rate for row in rows),
        "plain": _median_known(row.plain_tps for row in rows),
        "speculative": _median_known(row.spec_tps for row in rows),
        "source": "your name, or a link",
        "date": f"{date.today()}",
    }
    known = {name: value for name, value in values.items() if value}
    return json.dumps(known)


def _median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 3) if known else None


# --- The report of `pair test`: what each draft would reach for the target.

_SHOWN_DRAFT_LENGTHS = (1, 3, 5)
_JUDGEMENT_TITLES = (
    "DRAFT",
    "KIND",
    *(f"ACCEPTED AT {n}" for n in _SHOWN_DRAFT_LENGTHS),
    "BEST LENGTH",
    "TOK/S",
    "SPEED-UP",
)


def describe_busy(other_load: float | None) -> str:
    return (
        f"Other programs used {percent(other_load)} of the CPUs meanwhile: speeds measured "
        "then say little. Measure again when they have ended."
    )


def format_judgements(
    judgements: Sequence[DraftJudgement], other_load: float | None = None
) -> Iterator[Line]:
    """`judgements`: the fastest first. Beside other programs no speed is shown."""
    rows = [_JUDGEMENT_TITLES, *map(_judgement_cells, judgements)]
    if is_busy(other_load):
        n_rate_cells = 2 + len(_SHOWN_DRAFT_LENGTHS)  # After them come the speeds.
        rates = [(*row[:n_rate_cells], "–", "–", "–") for row in rows[1:]]
        yield from map(make_line, format_columns([_JUDGEMENT_TITLES, *rates]))
        yield make_line(describe_busy(other_load), "warning")
        return
    yield from map(make_line, format_columns(rows))
    fastest = judgements[0]
    yield make_line(f"Plain decoding: {fastest.plain_tps:.1f} tok/s.")
    if fastest.speedup <= 1:
        yield make_line("None is faster here: `auto` would pause it.")


def _judgement_cells(judgement: DraftJudgement) -> tuple[str, ...]:
    by_length = judgement.by_length
    rates = [known_rate(by_length[n].totals) for n in _SHOWN_DRAFT_LENGTHS]
    best = by_length[judgement.best_length]
    return (
        judgement.name.rpartition("/")[2],
        judgement.kind,
        *map(percent, rates),
        str(judgement.best_length),
        f"{best.tokens_per_second:.1f}",
        f"{judgement.speedup:.2f}×",
    )
