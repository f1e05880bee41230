"""The settings that suit this machine, or why none do."""

from __future__ import annotations

from pathlib import Path

from localspec.clean import clean
from localspec.errors import (
    DoesNotFitError,
    ModelFileError,
)
from localspec.fit import places, subject
from localspec.fit.advisor import Advice, Advisor, Wish
from localspec.fit.report import Fit
from localspec.units import gib


def fitted(wish: Wish) -> Advice | None:
    """The settings that suit this machine, as far as they were left open.

    None where the files' sizes make no sense: llama.cpp has the last word on them.  Raises
    DoesNotFitError where it would need more memory than is free, UsageError where the context is
    absurd.
    """
    load = wish.load
    target = subject.of_file(Path(load.target))
    draft = subject.of_file(Path(load.draft)) if load.draft else None
    advisor = Advisor(target, draft, places.here(refresh=True))
    try:
        advice = advisor.advise(wish)
    except ModelFileError:
        return None
    fit = advice.fit
    if fit.verdict == "no" and fit.missing > fit.projection.error and not wish.anyway:
        raise _does_not_fit(advisor, fit, Path(load.target).name)
    return advice


def _does_not_fit(advisor: Advisor, fit: Fit, name: str) -> DoesNotFitError:
    room = fit.tightest
    free, where = room.device.free or 0, room.device.description or room.device.name
    where = "this computer" if room.device.kind == "cpu" else clean(where, multiline=False)
    name = clean(name, multiline=False)
    what = f"{name} would take {gib(room.total)}; {where} has {gib(free)} free."
    others = [one.flags for one in advisor.options(fit) if one.fit.verdict != "no" and one.flags]
    if (longest := advisor.longest(fit)) is not None:
        others = [f"--ctx {longest}", *(flags for flags in others if "--ctx" not in flags)]
    hint = f"This fits: {' or '.join(others)}." if others else "Smaller: localspec pair suggest."
    return DoesNotFitError(what, f"{hint} More: localspec fit; all the same: run --anyway")
