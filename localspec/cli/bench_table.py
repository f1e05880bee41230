"""How a bench looks: a table for the terminal, a card in Markdown to share."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.bench.results import Report, Row
from localspec.clean import clean
from localspec.cli import marks
from localspec.units import gib, milliseconds, per_second, percent

_BAR = 14
_GAIN, _LOSS = 1.03, 0.97
"""Between these nothing was gained or lost."""
_ROOM = 1.05
"""A best draft length that gives less than this leaves no room to gain."""
_ASCII = str.maketrans("×–·", "x-,")
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
_BLOCKS = " ▏▎▍▌▋▊▉"


def table(report: Report) -> Iterator[str]:
    """Lines of at most 80 columns."""
    yield from _head(report)
    most = max((row.speedup.max for row in report.rows if row.speedup), default=1.0)
    temperature: float | None = None
    for row in report.rows:
        if row.temperature != temperature:
            temperature = row.temperature
            yield ""
            yield _titles(temperature)
        yield _line(row, max(most, 1.5))
    yield ""
    yield from _tail(report)


def _head(report: Report) -> Iterator[str]:
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    yield clean(f"{report.pair}: {report.model}{draft}", multiline=False)
    for line in _machine(report):
        yield clean(line, multiline=False)
    if report.why:
        yield clean(f"ON, {report.why}", multiline=False)
    if report.t1_ms is not None:
        wide = "8" if "8" in report.verify_curve else max(report.verify_curve, default="", key=int)
        parts = [f"one pass {milliseconds(report.t1_ms)}"]
        if wide and wide != "1":
            parts.append(f"{wide} tokens at once {report.verify_curve[wide]:.1f} passes")
        if report.c is not None:
            parts.append(f"a guess {report.c:.2f}")
        yield " · ".join(parts)


def _titles(temperature: float) -> str:
    name = _named(temperature)
    return f"{name:<15} plain  with tok/s{'':18}{'low–high':<9}  kept tok/pass same"


def _line(row: Row, scale: float) -> str:
    """One workload: speed without and with guesses, and how often the text is the same."""
    speed = low_high = ""
    if row.speedup is not None:
        speed = f"{row.speedup.median:5.2f}× {_bar(row.speedup.median, scale)}"
        low_high = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    return (
        f"{row.name:<10} {' ' if row.counted else '*'}    "
        f"{_rate(row.plain_tps):>5} {_rate(row.spec_tps):>5}  {speed:<{_BAR + 7}} {low_high:<9} "
        f"{percent(row.acceptance_rate):>5} {_per_pass(row):>8} {_same(row):>4}"
    )


def _tail(report: Report) -> Iterator[str]:
    for mean in report.means:
        if mean.speedup is not None:
            over = _count(mean.workloads, "workload")
            yield f"{_named(mean.temperature)}: {mean.speedup:.2f}× plain over {over}"
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
        yield "Nothing was measured that counts."
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


def card(report: Report) -> Iterator[str]:
    """Markdown to paste where others compare."""
    yield f"### localspec bench: {_cell(report.pair)}"
    yield ""
    draft = f"draft {report.draft}" if report.draft else "no draft model"
    why = f" ({report.why})" if report.why else ""
    yield _cell(f"- files: {report.model}, {draft}{why}")
    yield f"- machine: {_cell(' · '.join(_machine(report)))}"
    cost = f"- costs: {milliseconds(report.t1_ms)} a pass"
    if report.c is not None:
        cost += f", draft cost ratio {report.c:.3f}"
    curve = ", ".join(f"v({w}) {v:.2f}" for w, v in report.verify_curve.items())
    yield cost + (f", {curve}" if curve else "")
    yield f"- {_count(report.rounds, 'round')}, {report.max_tokens} tokens an answer"
    yield ""
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|---" + "|--:" * (len(_COLUMNS) - 1) + "|"
    for row in report.rows:
        yield _card_line(row)
    yield ""
    for line in _tail(report):
        yield _cell(line) + "  "


def _card_line(row: Row) -> str:
    speed = "–"
    if row.speedup is not None:
        speed = f"{row.speedup.median:.2f}× ({row.speedup.min:.2f}–{row.speedup.max:.2f})"
    cells = (
        row.name + ("" if row.counted else "*"),
        f"{row.temperature:g}",
        _rate(row.plain_tps),
        _rate(row.spec_tps),
        speed,
        percent(row.acceptance_rate),
        _per_pass(row),
        percent(row.reached),
        _same(row),
    )
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _machine(report: Report) -> Iterator[str]:
    """Two lines: the computer, and what runs on it."""
    machine = report.machine
    parts = [machine.cpu + (f", {_count(machine.cores, 'core')}" if machine.cores else "")]
    parts += [gib(machine.memory)] if machine.memory else []
    yield " · ".join([*parts, *(device for device in machine.devices if device != "CPU")])
    engine = machine.engine.get("llama_cpp_python")
    parts = [machine.system] + ([f"llama-cpp-python {engine}"] if engine else [])
    parts += [_count(machine.threads, "thread")] if machine.threads else []
    yield " · ".join(parts)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _per_pass(row: Row) -> str:
    return "–" if row.mean_accepted_length is None else f"{row.mean_accepted_length:.1f}"


def _same(row: Row) -> str:
    """In how many trials the text was plain decoding's."""
    return f"{sum(trial.identical for trial in row.trials)}/{len(row.trials)}"


def _named(temperature: float | None) -> str:
    return f"temperature {temperature:g}"


def plain(line: str) -> str:
    """The line where stdout cannot show the real characters."""
    return line.translate(_ASCII) if marks.glyphs() is not marks.GLYPHS else line


def _rate(rate: float | None) -> str:
    return per_second(rate).removesuffix(" tok/s")


def _bar(value: float, scale: float) -> str:
    """A bar with a tick where plain decoding stands."""
    plain, filled = round(_BAR / scale), value / scale * _BAR
    if marks.glyphs() is not marks.GLYPHS:
        bar, tick = "#" * round(filled), "|"
    else:
        eighths = round(filled * 8)
        bar, tick = "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip(), "┊"
    bar = f"{bar:<{_BAR}}"[:_BAR]
    return bar[:plain] + tick + bar[plain + 1 :] if bar[plain : plain + 1] == " " else bar


def _cell(text: object) -> str:
    """Untrusted text inside a Markdown table."""
    plain = clean(str(text), multiline=False)
    return "".join("\\" + c if c in "|*_`<>[]" else c for c in plain)
