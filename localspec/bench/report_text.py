"""The benchmark report as text: a table for the terminal, and a Markdown card to share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from localspec.bench.results import BenchReport, WorkloadResult
from localspec.sanitize import sanitize
from localspec.units import count, gib, milliseconds, percent, token_rate

_MIN_GAIN, _MIN_BREAK_EVEN = 1.03, 0.97  # A speed-up between these counts as no difference.
_MIN_POSSIBLE_GAIN = 1.05  # Below this best speed-up of any draft length, the pair cannot gain.
_MAX_PLAUSIBLE_SHARE = 1.2
_COLUMNS = (
    "workload",
    "T",
    "plain tok/s",
    "speculative tok/s",
    "speed-up",
    "acceptance rate",
    "tokens per pass",
    "of best",
    "same text",
)


_BAR_WIDTH = 11
_BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def format_table(report: BenchReport, *, is_final: bool = True) -> Iterator[str]:
    """A table of at most 77 columns, the file names apart, and a summary once it has rows."""
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    yield sanitize(f"{report.pair}: {report.model}{draft}", multiline=False)
    for line in format_machine(report):
        yield sanitize(line, multiline=False)
    if report.why:
        yield sanitize(f"ON, {report.why}", multiline=False)
    if report.t1_ms is not None:
        yield _format_costs(report, report.t1_ms)
    highest = max((row.speedup.max for row in report.rows if row.speedup), default=1.0)
    for temperature, rows in groupby(report.rows, lambda row: row.temperature):
        yield ""
        name = format_temperature(temperature)
        yield f"{name:<15} plain  spec tok/s{'':15}{'low–high':<8} accept tok/pass same"
        for row in rows:
            yield _format_table_row(row, max(highest, 1.5))
    if report.rows or is_final:
        yield ""
        yield from format_summary(report)


def _format_costs(report: BenchReport, t1_ms: float) -> str:
    curve = report.verify_curve
    width = "8" if "8" in curve else max(curve, default="", key=int)
    parts = [f"one pass {milliseconds(t1_ms)}"]
    if width and width != "1":
        parts.append(f"verifying {width} tokens costs {curve[width]:.1f} passes")
    if report.c is not None:
        parts.append(f"a draft token {report.c:.2f}")
    return " · ".join(parts)


def _format_table_row(row: WorkloadResult, scale: float) -> str:
    speed = low_high = ""
    if row.speedup is not None:
        speed = f"{row.speedup.median:5.2f}× {_speedup_bar(row.speedup.median, scale)}"
        low_high = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    return (
        f"{row.name:<10} {' ' if row.counted else '*'}    "
        f"{format_rate(row.plain_tps):>5} {format_rate(row.spec_tps):>5}  "
        f"{speed:<{_BAR_WIDTH + 7}} {low_high:<9} "
        f"{percent(row.acceptance_rate):>5} {format_tokens_per_pass(row):>8} "
        f"{format_identical(row):>4}"
    )


def _speedup_bar(value: float, scale: float) -> str:
    """A bar with a tick at 1.0, the speed of plain decoding."""
    plain, eighths = round(_BAR_WIDTH / scale), round(value / scale * _BAR_WIDTH * 8)
    bar = "█" * (eighths // 8) + _BAR_BLOCKS[eighths % 8].strip()
    bar = f"{bar:<{_BAR_WIDTH}}"[:_BAR_WIDTH]
    return f"{bar[:plain]}┊{bar[plain + 1 :]}" if bar[plain : plain + 1] == " " else bar


def format_markdown(report: BenchReport) -> Iterator[str]:
    """Markdown, to share the result."""
    yield f"### localspec bench: {_escape_cell(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    why = f" ({report.why})" if report.why else ""
    yield _escape_cell(f"- files: {report.model}, {draft}{why}")
    yield f"- machine: {_escape_cell(' · '.join(format_machine(report)))}"
    cost = f"- costs: {milliseconds(report.t1_ms)} per pass"
    if report.c is not None:
        cost += f", draft cost ratio {report.c:.3f}"
    curve = ", ".join(f"v({w}) {v:.2f}" for w, v in report.verify_curve.items())
    yield cost + (f", {curve}" if curve else "")
    yield f"- {count(report.rounds, 'round')}, {report.max_tokens} tokens per answer"
    yield ""
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|---" + "|--:" * (len(_COLUMNS) - 1) + "|"
    for row in report.rows:
        yield _format_markdown_row(row)
    yield ""
    for line in format_summary(report):
        yield _escape_cell(line) + "  "


def _format_markdown_row(row: WorkloadResult) -> str:
    speed = "–"
    if row.speedup is not None:
        speed = f"{row.speedup.median:.2f}× ({row.speedup.min:.2f}–{row.speedup.max:.2f})"
    cells = (
        row.name + ("" if row.counted else "*"),
        f"{row.temperature:g}",
        format_rate(row.plain_tps),
        format_rate(row.spec_tps),
        speed,
        percent(row.acceptance_rate),
        format_tokens_per_pass(row),
        percent(row.share_of_best),
        format_identical(row),
    )
    return "| " + " | ".join(_escape_cell(cell) for cell in cells) + " |"


def format_summary(report: BenchReport) -> Iterator[str]:
    """The lines below the table."""
    for mean in report.means:
        if mean.speedup is not None:
            over = count(mean.workloads, "workload")
            yield f"{format_temperature(mean.temperature)}: {mean.speedup:.2f}× plain over {over}"
    yield from format_verdict(report)
    yield from format_remarks(report)


def format_remarks(report: BenchReport) -> Iterator[str]:
    """What limits the result; nothing if all is well."""
    if any(row.counted and (row.share_of_best or 0) > _MAX_PLAUSIBLE_SHARE for row in report.rows):
        yield (
            "Some runs are faster than their measured costs allow: other programs were running. "
            "Repeat on an idle machine."
        )
    left_out = sum(report.left_out.values())
    if left_out:
        reasons = ", ".join(f"{reason} ({n})" for reason, n in report.left_out.items())
        yield f"{left_out} of {report.trials} trials left out: {reasons}."
    if any(not row.counted for row in report.rows):
        yield "* all trials left out: shown, but not part of the mean."
    differ = sum(not trial.identical for row in report.rows for trial in row.trials)
    if differ:
        yield f"{differ} of {report.trials} texts differ from plain: see `localspec verify`."
    if report.interrupted:
        yield "Interrupted: partial results."


def format_verdict(report: BenchReport) -> Iterator[str]:
    """Whether speculation pays for this pair on this machine, and the likely reason if not."""
    speedup = report.speedup
    if speedup is None:
        early = "Stopped before any result."
        yield early if report.interrupted else "No trial counts: no result."
        return
    if speedup >= _MIN_GAIN:
        counted = [row for row in report.rows if row.counted and row.speedup]
        best = max(counted, key=lambda row: row.speedup.median if row.speedup else 0)
        assert best.speedup is not None
        top = f"{best.speedup.median:.2f}× on {best.name}"
        yield f"{speedup:.2f}× plain over all workloads; best: {top}."
        return
    limits = [row.best.speedup for row in report.rows if row.counted and row.best]
    if speedup >= _MIN_BREAK_EVEN:
        yield f"No difference: {speedup:.2f}× plain."
    elif (limits and max(limits) < _MIN_POSSIBLE_GAIN) or "too small" in report.why:
        yield f"This pair is too small to gain here: {speedup:.2f}× plain."
    else:
        yield f"Slower with speculation: {speedup:.2f}× plain."
    if limits:
        reach = " to ".join(dict.fromkeys(f"{n:.2f}×" for n in (min(limits), max(limits))))
        yield f"By the measured costs, the best fixed draft length would give {reach}."


def format_machine(report: BenchReport) -> Iterator[str]:
    """Two lines: hardware, then software."""
    machine = report.machine
    parts = [machine.cpu + (f", {count(machine.cores, 'core')}" if machine.cores else "")]
    parts += [gib(machine.memory)] if machine.memory else []
    yield " · ".join([*parts, *(device for device in machine.devices if device != "CPU")])
    engine = machine.engine.get("llama_cpp_python")
    parts = [machine.system] + ([f"llama-cpp-python {engine}"] if engine else [])
    parts += [count(machine.threads, "thread")] if machine.threads else []
    yield " · ".join(parts)


def format_tokens_per_pass(row: WorkloadResult) -> str:
    return "–" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.1f}"


def format_identical(row: WorkloadResult) -> str:
    """Trials with plain decoding's text, of all."""
    return f"{sum(trial.identical for trial in row.trials)}/{len(row.trials)}"


def format_temperature(temperature: float | None) -> str:
    return f"temperature {temperature:g}"


def format_rate(tokens_per_second: float | None) -> str:
    """Without its unit."""
    return token_rate(tokens_per_second).removesuffix(" tok/s")


def _escape_cell(text: object) -> str:
    """Escapes untrusted text for a Markdown table."""
    plain = sanitize(str(text), multiline=False)
    return "".join("\\" + c if c in "|*_`<>[]" else c for c in plain)
