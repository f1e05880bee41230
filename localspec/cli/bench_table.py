"""How a bench looks in a terminal: a table."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.bench.card import machine, named, per_pass, rate, same, sentences
from localspec.bench.results import Report, Row
from localspec.clean import clean
from localspec.cli import marks
from localspec.units import milliseconds, percent

_BAR = 14
_ASCII = str.maketrans("×–·", "x-,")
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
    yield from sentences(report)


def _head(report: Report) -> Iterator[str]:
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    yield clean(f"{report.pair}: {report.model}{draft}", multiline=False)
    for line in machine(report):
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
    name = named(temperature)
    return f"{name:<15} plain  with tok/s{'':18}{'low–high':<9}  kept tok/pass same"


def _line(row: Row, scale: float) -> str:
    """One workload: speed without and with guesses, and how often the text is the same."""
    speed = low_high = ""
    if row.speedup is not None:
        speed = f"{row.speedup.median:5.2f}× {_bar(row.speedup.median, scale)}"
        low_high = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    return (
        f"{row.name:<10} {' ' if row.counted else '*'}    "
        f"{rate(row.plain_tps):>5} {rate(row.spec_tps):>5}  {speed:<{_BAR + 7}} {low_high:<9} "
        f"{percent(row.acceptance_rate):>5} {per_pass(row):>8} {same(row):>4}"
    )


def plain(line: str) -> str:
    """The line where stdout cannot show the real characters."""
    return line.translate(_ASCII) if marks.glyphs() is not marks.GLYPHS else line


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
