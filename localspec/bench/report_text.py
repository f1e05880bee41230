"""What a bench comes to: in sentences, and as a card in Markdown to share."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.bench.results import BenchReport, WorkloadResult
from localspec.sanitize import sanitize
from localspec.units import gib, milliseconds, percent, token_rate

_MIN_GAIN, _MIN_BREAK_EVEN = 1.03, 0.97
"""Between these nothing was gained or lost."""
_MIN_POSSIBLE_GAIN = 1.05
"""A best draft length that gives less than this leaves no room to gain."""
_MAX_PLAUSIBLE_SHARE = 1.2
_COLUMNS = (
    "workload",
    "T",
    "plain tok/s",
    "with guesses",
    "speed-up",
    "kept",
    "tokens per pass",
    "of best",
    "same text",
)


def format_markdown(report: BenchReport) -> Iterator[str]:
    """Markdown to paste where others compare."""
    yield f"### localspec bench: {_escape_cell(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    why = f" ({report.why})" if report.why else ""
    yield _escape_cell(f"- files: {report.model}, {draft}{why}")
    yield f"- machine: {_escape_cell(' · '.join(format_machine(report)))}"
    cost = f"- costs: {milliseconds(report.t1_ms)} a pass"
    if report.c is not None:
        cost += f", draft cost ratio {report.c:.3f}"
    curve = ", ".join(f"v({w}) {v:.2f}" for w, v in report.verify_curve.items())
    yield cost + (f", {curve}" if curve else "")
    yield f"- {format_count(report.rounds, 'round')}, {report.max_tokens} tokens an answer"
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
    """Everything that is said below the rows."""
    for mean in report.means:
        if mean.speedup is not None:
            over = format_count(mean.workloads, "workload")
            yield f"{format_temperature(mean.temperature)}: {mean.speedup:.2f}× plain over {over}"
    yield from format_verdict(report)
    yield from format_interference_warning(report)
    left = sum(report.left_out.values())
    if left:
        reasons = ", ".join(f"{why} ({n})" for why, n in report.left_out.items())
        yield f"{left} of {report.trials} trials left out: {reasons}."
    if any(not row.counted for row in report.rows):
        yield "* all trials left out: shown, but in no mean."
    differ = sum(not trial.identical for row in report.rows for trial in row.trials)
    if differ:
        yield f"{differ} of {report.trials} texts differ from plain: `localspec verify` tells why."
    if report.interrupted:
        yield "Interrupted: this is what there was."


def format_verdict(report: BenchReport) -> Iterator[str]:
    """Whether this pair gains anything here, and if not, why."""
    speedup = report.speedup
    if speedup is None:
        early = "Stopped before there was anything to compare."
        yield early if report.interrupted else "Nothing was measured that counts."
        return
    if speedup >= _MIN_GAIN:
        counted = [row for row in report.rows if row.counted and row.speedup]
        best = max(counted, key=lambda row: row.speedup.median if row.speedup else 0)
        assert best.speedup is not None
        top = f"{best.speedup.median:.2f}× on {best.name}"
        yield f"{speedup:.2f}× plain on all of these; most with {top}."
        return
    limits = [row.best.speedup for row in report.rows if row.counted and row.best]
    if speedup >= _MIN_BREAK_EVEN:
        yield f"Nothing gained, nothing lost: {speedup:.2f}× plain."
    elif (limits and max(limits) < _MIN_POSSIBLE_GAIN) or "too small" in report.why:
        yield f"This pair is too small to gain here: {speedup:.2f}× plain."
    else:
        yield f"Slower with guesses: {speedup:.2f}× plain."
    if limits:
        reach = " to ".join(dict.fromkeys(f"{n:.2f}×" for n in (min(limits), max(limits))))
        yield f"The best fixed draft length would give {reach}, by the measured costs."


def format_interference_warning(report: BenchReport) -> Iterator[str]:
    """Runs that beat what their own costs allow."""
    if any(row.counted and (row.share_of_best or 0) > _MAX_PLAUSIBLE_SHARE for row in report.rows):
        yield "Some runs beat their measured costs: something else was running. Try it idle."


def format_machine(report: BenchReport) -> Iterator[str]:
    """Two lines: the computer, and what runs on it."""
    here = report.machine
    parts = [here.cpu + (f", {format_count(here.cores, 'core')}" if here.cores else "")]
    parts += [gib(here.memory)] if here.memory else []
    yield " · ".join([*parts, *(device for device in here.devices if device != "CPU")])
    engine = here.engine.get("llama_cpp_python")
    parts = [here.system] + ([f"llama-cpp-python {engine}"] if engine else [])
    parts += [format_count(here.threads, "thread")] if here.threads else []
    yield " · ".join(parts)


def format_count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def format_tokens_per_pass(row: WorkloadResult) -> str:
    return "–" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.1f}"


def format_identical(row: WorkloadResult) -> str:
    """In how many trials the text was plain decoding's."""
    return f"{sum(trial.identical for trial in row.trials)}/{len(row.trials)}"


def format_temperature(temperature: float | None) -> str:
    return f"temperature {temperature:g}"


def format_rate(tokens_per_second: float | None) -> str:
    """Without its unit."""
    return token_rate(tokens_per_second).removesuffix(" tok/s")


def _escape_cell(text: object) -> str:
    """Untrusted text inside a Markdown table."""
    plain = sanitize(str(text), multiline=False)
    return "".join("\\" + c if c in "|*_`<>[]" else c for c in plain)
