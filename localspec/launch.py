"""From what a person typed to a running engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from localspec import paths
from localspec.clean import clean
from localspec.errors import (
    DoesNotFitError,
    IncompatiblePairError,
    ModelFileError,
    OutOfMemoryError,
)
from localspec.fit import calibration, places, subject
from localspec.fit.advisor import Advice, Advisor, Wish
from localspec.fit.report import Fit
from localspec.machine import devices, measured
from localspec.machine.ledger import HOST
from localspec.models import catalog, header, heads, pairing, wanted
from localspec.models.wanted import Asked, NotHere, Wanted
from localspec.protocol.events import Event, Notice, Place, Ready
from localspec.protocol.wire import (
    Count,
    Generate,
    Inspect,
    Load,
    Measured,
    Probe,
    Replay,
    Replayed,
)
from localspec.units import gib
from localspec.worker import crashes
from localspec.worker.client import Worker

SETTINGS = "settings"
"""The code of the notice that says what was chosen, and why."""
HEAD = "head"
"""That of the one that says what drafts, where nobody named it."""

_PAUSE = 1.0
"""Seconds between two writes: one takes longer than a short answer."""


class Engine(Protocol):
    """A loaded pair, wherever it runs."""

    ready: Ready

    @property
    def measured(self) -> Measured | None:
        """What is known of the pair's costs on this machine."""
        ...

    def generate(self, request: Generate) -> Iterator[Event]: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The files to run, and how their pair wants to speculate."""

    target: Path
    draft: Path | None
    spec: str = "auto"
    why: str = ""
    suggested: catalog.Settings = field(default=catalog.Settings())
    """By the pair's entry; what a person says goes before."""
    found: str = ""
    """What kind of head was found, though nobody named it; the draft is that."""
    asked: tuple[str, str] | None = field(default=None, compare=False)
    """The reference by which they were opened, and what drafts: another, `auto` or `none`."""

    @property
    def lasting(self) -> tuple[str, str]:
        """What to ask for to have the same another day, perhaps from another folder."""
        if self.asked is not None:
            return self.asked
        return lasting(str(self.target), str(self.draft) if self.draft else "none")


def choose(model: str | None, draft: str) -> Choice:
    """The files for a model argument and a --draft argument (a reference, `auto` or `none`).

    Raises NotFoundError (NotHere where it can be downloaded), AccessError, ModelFileError or
    IncompatiblePairError: every file is looked at before it is used.
    """
    choice = _files(wanted.read(model or "demo"), draft)
    header.check(choice.target)
    _check_is_model(choice.target)
    if draft == "auto":
        choice = with_head(choice)
    if choice.draft is not None:
        header.check(choice.draft)
        _check_pair(choice.target, choice.draft)
    return choice


def lasting(model: str, draft: str) -> tuple[str, str]:
    """The same arguments, so that they mean the same files from another folder, too."""
    word = draft in ("auto", "none")
    return wanted.lasting(model), draft if word else wanted.lasting(draft)


def file(text: str) -> Path:
    """The file that a reference means, looked at.  Raises as `choose`."""
    found = wanted.read(text).target.located()
    header.check(found)
    return found


def _files(asked: Asked, draft: str) -> Choice:
    if draft == "none":
        return Choice(asked.target.located(), None)
    if draft != "auto":
        return Choice(asked.target.located(), _draft(draft))
    if asked.pair is None:
        return Choice(asked.target.located(), _usual_draft(asked.target))
    return _pair(asked, asked.pair)


def _pair(asked: Asked, pair: catalog.Pair) -> Choice:
    """What is missing of a pair is to be downloaded as the pair."""
    try:
        target, *drafts = [one.located() for one in asked.models]
    except NotHere as missing:
        raise NotHere(pair.title, asked.name) from missing
    draft = drafts[0] if drafts else None
    return Choice(target, draft, pair.spec, pair.why, pair.settings)


def _draft(text: str) -> Path:
    """The draft that a reference means; of a pair its own."""
    asked = wanted.read(text)
    return (asked.draft or asked.target).located()


def _usual_draft(target: Wanted) -> Path | None:
    """What the catalogue pairs a model with, if it is here."""
    if target.model is None:
        return None
    for pair in catalog.pairs_of(catalog.load(), target.model):
        if pair.draft is not None and pair.kind in ("model", *heads.RUN):
            draft = wanted.of(pair.draft)
            stored = draft.stored()
            found = stored.path if stored else draft.path
            if found and (pair.kind == "model" or heads.fits(header.read(target.located()), found)):
                return found
    return None


def says(choice: Choice) -> str:
    """That a head was found and is used, in a line; nothing where a person named the draft."""
    return heads.found(choice.found, choice.draft.name) if choice.found and choice.draft else ""


def with_head(choice: Choice) -> Choice:
    """A target alone, with the head that it brings or that lies beside it, if there is one."""
    if choice.draft is not None:
        return choice
    target = header.read(choice.target)
    if heads.predicts(target):  # its own file is its head
        return replace(choice, draft=choice.target, found="mtp")
    if (draft := heads.beside(choice.target, target)) is None:
        return choice
    return replace(choice, draft=draft, found=heads.kind(header.read(draft)))


def _check_is_model(target: Path) -> None:
    """Raise ModelFileError for a head: llama.cpp would abort for some."""
    if heads.is_head(header.read(target)):
        name = clean(target.name, multiline=False)
        what = f"{name} is a head, which is no model by itself."
        raise ModelFileError(what, f"Give its target: localspec run TARGET --draft {name}")


def _check_pair(target: Path, draft: Path) -> None:
    """Raise IncompatiblePairError by the headers alone, before an engine is started."""
    verdict = heads.judge(header.read(target), header.read(draft), draft)
    if not verdict.compatible:
        error = pairing.refusal(verdict, target.name, draft.name)
        more = "Some that go together: localspec pair suggest MODEL"
        raise IncompatiblePairError(error.message, f"{error.hint} {more}")


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


def start(
    asked: Load | Wish,
    *,
    probe: bool = False,
    say: Callable[[Event], None] = lambda _: None,
    hold: Callable[[Worker], None] = lambda _: None,
) -> Remembering:
    """Load the pair in a process of its own, with what earlier runs of it have shown.

    `probe`: measure what passes cost where nothing is known; `say` hears how that goes, and
    first a warning where the pair keeps crashing.  `hold` is given the process before it loads,
    so that another thread may close it.  Raises as `fitted`, and what the engine raised, or died
    of.
    """
    wish = asked if isinstance(asked, Wish) else Wish(asked)
    advice = fitted(wish) if isinstance(asked, Wish) else None
    load = advice.fit.load if advice else wish.load
    if (past := crashes.warning(load)) is not None:
        say(past)
    store = measured.Store(paths.state() / "measured.sqlite")
    name = measured.key(load)
    known = store.read(name)
    worker = Worker()
    hold(worker)
    try:
        _load(worker, replace(load, measured=known), advice)
        if probe and known is None:
            for event in worker.probe(Probe()):
                say(event)
    except BaseException:
        worker.close()
        raise
    found = wish.found if load.draft else ""
    return Remembering(worker, store, name, known, advice, found=found)


def _load(worker: Worker, load: Load, advice: Advice | None) -> None:
    """What ran out of memory says what was expected."""
    try:
        worker.load(load)
    except OutOfMemoryError as error:
        if advice is None:
            raise
        room = advice.fit.tightest
        was, now = room.device.free or 0, devices.free(room.device.name) or 0
        words = f"Expected {gib(room.total)}, with {gib(was)} free; {gib(now)} are free now."
        raise OutOfMemoryError(f"{error.message} {words}", error.hint) from error


def _about(load: Load) -> measured.About:
    """What the pair reads for a token, so that others can be priced by what it shows."""
    headers = [subject.of_file(Path(path)) for path in (load.target, load.draft) if path]
    place = places.here()
    return calibration.about(load, headers[0], (*headers, None)[1], place.hardware)


class Remembering:
    """An engine whose measurements are kept: after an answer, but not of every short one."""

    def __init__(
        self,
        worker: Worker,
        store: measured.Store,
        name: str,
        known: Measured | None = None,
        advice: Advice | None = None,
        *,
        found: str = "",
    ) -> None:
        self._worker, self._store, self._name, self._known = worker, store, name, known
        self._about = _about(advice.fit.load) if advice else None
        self._at = -_PAUSE
        self._kept = None if worker.measured is None else self._keep(worker.measured)
        self.ready = self._foretold(worker.ready, advice) if advice else worker.ready
        if found and self.ready.draft:
            said = Notice("info", HEAD, found)
            self.ready = replace(self.ready, notices=(*self.ready.notices, said))

    def _foretold(self, ready: Ready, advice: Advice) -> Ready:
        """With what was foretold beside what is used, which is kept; and why these settings."""
        fit = advice.fit
        names = {
            name
            for ledger in (fit.projection.target, fit.projection.draft)
            if ledger
            for name in ledger.on
        }
        predicted = {name: fit.projection.of(name).total for name in names}
        predicted[HOST] = predicted.get(HOST, 0) + fit.projection.output
        used = {name: size for name, size in ready.memory.items() if name in predicted and size}
        if used:
            self._store.write_memory(self._name, measured.Memory(predicted, used))
        memory = ready.memory | {"predicted": sum(predicted.values())}
        why = Notice("info", SETTINGS, f"Chosen: {advice.why}.")
        return replace(ready, memory=memory, notices=(*ready.notices, why))

    @property
    def worker(self) -> Worker:
        """For what only a process of its own can be asked: whether it is alive."""
        return self._worker

    @property
    def measured(self) -> Measured | None:
        return self._worker.measured or self._known

    def generate(self, request: Generate) -> Iterator[Event]:
        yield from self._worker.generate(request)
        if time.monotonic() - self._at >= _PAUSE:
            self._keep_news()

    def count(self, count: Count) -> int:
        """The tokens of a text, or of a chat's prompt.  Raises as `Worker.count`."""
        return self._worker.count(count)

    def inspect(self, inspect: Inspect) -> tuple[Place, ...]:
        """What the target gives to an answer's tokens.  Raises as `Worker.inspect`."""
        return self._worker.inspect(inspect)

    def probe(self, probe: Probe) -> Iterator[Event]:
        """Measure what passes cost.  Raises as `Worker.probe`."""
        return self._worker.probe(probe)

    def replay(self, replay: Replay) -> Replayed:
        """Feed an answer to the target alone.  Raises as `Worker.replay`."""
        return self._worker.replay(replay)

    def _keep_news(self) -> None:
        told = self._worker.measured
        if told is not None and told is not self._kept:
            self._keep(told)

    def _keep(self, told: Measured) -> Measured:
        self._store.write(self._name, told, self._about)
        self._kept, self._at = told, time.monotonic()
        return told

    def stop(self) -> None:
        self._worker.stop()

    def close(self) -> None:
        self._keep_news()
        self._worker.close()
