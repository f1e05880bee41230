"""Files of one's own: what they would take, and how fast they would be, from their headers."""

from __future__ import annotations

from pathlib import Path

from localspec.errors import LocalspecError
from localspec.fit import subject
from localspec.fit.advisor import Advisor, Wish
from localspec.fit.report import Place
from localspec.protocol.wire import Load
from localspec.tui.wizard import words


def priced(target: str, draft: str, place: Place) -> str:
    """Two lines, or nothing where the files say nothing; some 100 ms: on a thread."""
    try:
        first = subject.of_file(Path(target))
        second = subject.of_file(Path(draft)) if draft else None
        fit = Advisor(first, second, place).advise(Wish(Load(target, draft or None))).fit
    except (LocalspecError, ValueError):
        return ""
    at = words.context(fit.load.target_settings.n_ctx)
    said = f"{words.verdict(fit)}, with context {at}"
    speed = fit.speed
    if speed.plain is None:
        return f"{said}\nspeed unknown: {speed.why}"
    beside = "with draft" if draft else "with copying"
    return f"{said}\n{words.rate(speed.plain)}, {beside} {words.rate(speed.speculative)}"
