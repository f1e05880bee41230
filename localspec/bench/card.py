"""What a bench comes to: in sentences, and as a card in Markdown to share."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.bench.results import Report, Row
from localspec.clean import clean
from localspec.units import gib, milliseconds, per_second, percent

_GAIN, _LOSS = 1.03, 0.97
"""Between these nothing was gained or lost."""
_ROOM = 1.05
"""A best draft length that gives less than this leaves no room to gain."""
_BEYOND = 1.2
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


def card(report: Report) -> Iterator[str]:
    """Markdown to paste where others compare."""
    yield f"### localspec bench: {_cell(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    why = f" ({report.why})" if report.why else ""
    yield _cell(f"- files: {report.model}, {draft}{why}")
    yield f"- machine: {_cell(' · '.join(machine(report)))}"
    cost = f"- costs: {milliseconds(report.t1_ms)} a pass"
    if report.c is not None:
        cost += f", draft cost ratio {report.c:.3f}"
    curve = ", ".join(f"v({w}) {v:.2f}" for w, v in report.verify_curve.items())
    yield cost + (f", {curve}" if curve else "")
    yield f"- {count(report.rounds, 'round')}, {report.max_tokens} tokens an answer"
    yield ""
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|---" + "|--:" * (len(_COLUMNS) - 1) + "|"
    for row in report.rows:
        yield _card_line(row)
    yield ""
    for line in sentences(report):
        yield _cell(line) + "  "


def _card_line(row: Row) -> str:
    speed = "–"
    if row.speedup is not None:
        speed = f"{row.speedup.median:.2f}× ({row.speedup.min:.2f}–{row.speedup.max:.2f})"
    cells = (
        row.name + ("" if row.counted else "*"),
        f"{row.temperature:g}",
        rate(row.plain_tps),
        rate(row.spec_tps),
        speed,
        percent(row.acceptance_rate),
        per_pass(row),
        percent(row.reached),
        same(row),
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def sentences(report: Report) -> Iterator[str]:
    """Everything that is said below the rows."""
    for mean in report.means:
        if mean.speedup is not None:
            over = count(mean.workloads, "workload")
            yield f"{named(mean.temperature)}: {mean.speedup:.2f}× plain over {over}"
    yield from verdict(report)
    yield from suspicion(report)
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


def verdict(report: Report) -> Iterator[str]:
    """Whether this pair gains anything here, and if not, why."""
    speedup = report.speedup
    if speedup is None:
        early = "Stopped before there was anything to compare."
        yield early if report.interrupted else "Nothing was measured that counts."
        return
    if speedup >= _GAIN:
        counted = [row for row in report.rows if row.counted and row.speedup]
        best = max(counted, key=lambda row: row.speedup.median if row.speedup else 0)
        assert best.speedup is not None
        top = f"{best.speedup.median:.2f}× on {best.name}"
        yield f"{speedup:.2f}× plain on all of these; most with {top}."
        return
    limits = [row.best.speedup for row in report.rows if row.counted and row.best]
    if speedup >= _LOSS:
        yield f"Nothing gained, nothing lost: {speedup:.2f}× plain."
    elif (limits and max(limits) < _ROOM) or "too small" in report.why:
        yield f"This pair is too small to gain here: {speedup:.2f}× plain."
    else:
        yield f"Slower with guesses: {speedup:.2f}× plain."
    if limits:
        reach = " to ".join(dict.fromkeys(f"{n:.2f}×" for n in (min(limits), max(limits))))
        yield f"The best fixed draft length would give {reach}, by the measured costs."


def suspicion(report: Report) -> Iterator[str]:
    """Runs that beat what their own costs allow."""
    if any(row.counted and (row.reached or 0) > _BEYOND for row in report.rows):
        yield "Some runs beat their measured costs: something else was running. Try it idle."


def machine(report: Report) -> Iterator[str]:
    """Two lines: the computer, and what runs on it."""
    here = report.machine
    parts = [here.cpu + (f", {count(here.cores, 'core')}" if here.cores else "")]
    parts += [gib(here.memory)] if here.memory else []
    yield " · ".join([*parts, *(device for device in here.devices if device != "CPU")])
    engine = here.engine.get("llama_cpp_python")
    parts = [here.system] + ([f"llama-cpp-python {engine}"] if engine else [])
    parts += [count(here.threads, "thread")] if here.threads else []
    yield " · ".join(parts)


def count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def per_pass(row: Row) -> str:
    return "–" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.1f}"


def same(row: Row) -> str:
    """In how many trials the text was plain decoding's."""
    return f"{sum(trial.identical for trial in row.trials)}/{len(row.trials)}"


def named(temperature: float | None) -> str:
    return f"temperature {temperature:g}"


def rate(tokens_per_second: float | None) -> str:
    """Without its unit."""
    return per_second(tokens_per_second).removesuffix(" tok/s")


def _cell(text: object) -> str:
    """Untrusted text inside a Markdown table."""
    plain = clean(str(text), multiline=False)
    return "".join("\\" + c if c in "|*_`<>[]" else c for c in plain)
