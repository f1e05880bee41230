"""Files of one's own: what they would take, and how fast they would be, from their headers."""

from __future__ import annotations

from pathlib import Path

from localspec import launch
from localspec.errors import LocalspecError
from localspec.fit import subject
from localspec.fit.advisor import Advisor, Wish
from localspec.fit.report import Place
from localspec.launch import Choice
from localspec.models import heads
from localspec.protocol.wire import Load
from localspec.tui.wizard import words


def priced(target: str, draft: str, place: Place) -> str:
    """Two lines, or nothing where the files say nothing; some 100 ms: on a thread."""
    try:
        choice = launch.with_head(Choice(Path(target), Path(draft) if draft else None))
        first = subject.of_file(choice.target)
        second = subject.of_file(choice.draft) if choice.draft else None
        load = Load(target, str(choice.draft) if choice.draft else None)
        fit = Advisor(first, second, place).advise(Wish(load)).fit
    except (LocalspecError, ValueError):
        return ""
    at = words.context(fit.load.target_settings.n_ctx)
    said = f"{words.verdict(fit)}, with context {at}"
    speed = fit.speed
    if speed.plain is None:
        return f"{said}\nspeed unknown: {speed.why}"
    kind = heads.drafting(first, second) if second else "lookup"
    names = {"lookup": "with copying", "model": "with draft", "mtp": "with its own MTP layer"}
    beside = names.get(kind) or f"with the {heads.NAMES[kind]} head"
    return f"{said}\n{words.rate(speed.plain)}, {beside} {words.rate(speed.speculative)}"
