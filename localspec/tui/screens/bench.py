"""The bench: what a pair gains on this computer, kind of text by kind of text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from textual.content import Content

from localspec.bench import card, workloads
from localspec.bench.course import Asked, Begun, Measuring, Over, Told, course, extent
from localspec.bench.results import Report
from localspec.bench.trial import Way
from localspec.chat import transcript
from localspec.clean import clean
from localspec.errors import AccessError
from localspec.launch import Choice
from localspec.tui.keys import bindings
from localspec.tui.measuring.bars import table
from localspec.tui.measuring.costs import costs
from localspec.tui.measuring.paragraphs import wrapped
from localspec.tui.measuring.standing import Standing, reported
from localspec.tui.options import Options
from localspec.tui.runner import Inspecting, Runner
from localspec.tui.screens.measuring import MeasuringScreen
from localspec.units import duration

_TOKENS = 64
"""Of an answer; as the command."""
_TEMPERATURE = 0.8
_HOW = (
    "Every text is completed plain and with guesses, in turns and with the same seed. What comes "
    "out is the same; how fast is what is measured."
)


class BenchScreen(MeasuringScreen[Told]):
    """Choose, start, watch, share."""

    BINDINGS = bindings("measuring", "bench")
    WHAT = "Bench"
    PLACES = ("bench", "measuring")

    def __init__(
        self,
        name: str,
        choice: Choice,
        runner: Runner,
        options: Options,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(name, choice, runner, options)
        self._clock = clock
        self._known = workloads.load()
        self._off: set[int] = set()
        """What is left out: workloads by their place, and last the second temperature."""
        self._at = 0
        self._standing: Standing | None = None
        self._preparing = ""
        self._over: Over | None = None
        self._began = self._took = 0.0

    @property
    def asked(self) -> Asked:
        """By what is chosen now."""
        chosen = tuple(w for n, w in enumerate(self._known) if n not in self._off)
        temperatures = (0.0,) if len(self._known) in self._off else (0.0, _TEMPERATURE)
        way = Way(_TOKENS, self.choice.spec, self.choice.why)
        return Asked(self.pair_name, chosen, temperatures, way)

    # --- measuring ------------------------------------------------------------------------

    def refusal(self) -> str:
        chosen = self.asked.workloads
        return "" if chosen else "Nothing is chosen: space takes what one stands on."

    def began(self) -> None:
        self._standing, self._over = Standing(self.asked), None
        self._preparing = "measuring passes"
        self._began = self._clock()

    def make(self, engine: Inspecting, stopped: Callable[[], bool]) -> Iterator[Told]:
        return course(engine, self.asked, stopped, self._clock)

    def take(self, told: Told) -> None:
        if isinstance(told, Over):
            self._over, self.error = told, told.error
            self._took = self._clock() - self._began
        elif isinstance(told, Measuring):
            self._preparing = told.why or self._preparing
        elif self._standing is not None:
            if isinstance(told, Begun):
                self._preparing = ""
            self._standing.take(told)

    @property
    def report(self) -> Report | None:
        """What was found, where something was."""
        return self._over.report if self._over and self._over.report.rows else None

    # --- showing --------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> Iterator[Content]:
        glyphs = self.options.glyphs
        if self._over is not None:
            yield from _outcome(self._over.report, width)
            if self._over.report.rows:
                yield Content("")
                told = len(list(_outcome(self._over.report, width)))
                lines = list(reported(self._over.report))
                yield from table(lines, width, height - told - 12, glyphs)
                yield Content("")
            yield from costs(self._over.report, width)
            yield from _rest(self._over.report, width)
        elif self._standing is not None and self.phase in ("running", "stopping"):
            bar = glyphs.bar(self._standing.share, width)
            yield Content.assemble((bar, "$accent"), (glyphs.room * (width - len(bar)), "$muted"))
            yield Content("")
            yield from table(list(self._standing.lines()), width, height - 2, glyphs)
        else:
            yield from self._before(width, height)

    def progress(self) -> str:
        standing, dot = self._standing, self.options.glyphs.dot
        if self.phase == "stopping":
            return "stopping after this answer"
        if self.phase == "running" and standing is not None:
            if self._preparing:
                return clean(self._preparing, multiline=False)
            left = duration(standing.seconds_left or 0.0)
            return f"{_answers(standing, self.size.width)} {dot} about {left} left"
        if self.phase == "done" and standing is not None:
            stopped = self.experiment is not None and self.experiment.stopped
            how = "stopped" if stopped else duration(self._took)
            return f"{_answers(standing, self.size.width)} {dot} {how}"
        return ""

    def _before(self, width: int, height: int) -> Iterator[Content]:
        for line in (clean(_files(self.choice), multiline=False), *wrapped(_HOW, min(width, 90))):
            if height > 14:
                yield Content.styled(line, "$muted")
        if height > 14:
            yield Content("")
        names = [(w.name, w.title) for w in self._known]
        names.append((f"at {_TEMPERATURE:g}", "this temperature, too, beside 0"))
        for n, (name, about) in enumerate(names):
            if n == len(self._known) and height > 14:
                yield Content("")
            yield self._choice_line(n, name, about)
        yield Content("")
        yield self.waiting(self._extent())

    def _choice_line(self, n: int, name: str, about: str) -> Content:
        glyphs = self.options.glyphs
        pointer = glyphs.pointer if n == self._at else " "
        sign, style = (glyphs.dot, "$muted") if n in self._off else (glyphs.good, "")
        return Content.assemble(
            (f"{pointer} ", "$accent"),
            (f"{sign:<3}", style or "$success"),
            (f"{name:<12}", style),
            (about, "$muted"),
        )

    def _extent(self) -> str:
        """How much it is, and how long that takes."""
        if not self.asked.workloads:
            return self.refusal()
        engine = self.runner.engine
        how_much = extent(self.asked, engine.measured if engine is not None else None)
        rounds = f" in {how_much.rounds} rounds" if how_much.rounds > 1 else ""
        long = duration(max(how_much.seconds, 1.0))
        return f"{how_much.answers} answers of {_TOKENS} tokens{rounds}: about {long}."

    def keys_now(self) -> Mapping[str, str]:
        choosing = self.phase in ("loading", "ready")
        return {
            "bench.toggle": "on or off" if choosing else "",
            "bench.save": "save" if self.report and self.phase in ("done", "failed") else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def point(self, by: int) -> None:
        self._at = (self._at + by) % (len(self._known) + 1)

    def action_choose(self) -> None:
        if self.phase in ("loading", "ready"):
            self._off ^= {self._at}
            self.draw()

    def findings(self) -> str:
        report = self.report
        return "\n".join(card.card(report)) + "\n" if report is not None else ""

    def action_save(self) -> None:
        """Beside whoever started the app, under a name that nothing has yet."""
        text = self.findings()
        if not text:
            self.notify("There is nothing to save yet.", markup=False)
            return
        try:
            path = _free(self.pair_name)
            transcript.save(path, text, overwrite=False)
        except AccessError as error:
            words = clean(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False)
        else:
            self.notify(f"Saved to {clean(str(path.absolute()), multiline=False)}", markup=False)


def _answers(standing: Standing, width: int) -> str:
    return f"{standing.done} of {standing.of}{' answers' * (width >= 80)}"


def _free(pair: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-.+" else "-" for letter in pair)[:60]
    names = (f"localspec-bench-{name}{n}.md" for n in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in map(Path, names) if not path.exists())


def _files(choice: Choice) -> str:
    draft = choice.draft
    if draft is None:
        return f"{choice.target.name}, without a draft: copying"
    if draft == choice.target:
        return f"{choice.target.name} with a layer of its own"
    return f"{choice.target.name} with {draft.name}"


def _outcome(report: Report, width: int) -> Iterator[Content]:
    """What it comes to, first."""
    first, *rest = card.verdict(report)
    gains = report.speedup is not None and report.speedup >= 1
    for line in wrapped(first, width):
        yield Content.styled(line, "bold $success" if gains else "bold")
    for sentence in rest:
        for line in wrapped(sentence, width):
            yield Content.styled(line, "$muted")


def _rest(report: Report, width: int) -> Iterator[Content]:
    """What else is to be said, last."""
    said = set(card.verdict(report))
    yield Content("")
    for sentence in card.sentences(replace(report, means=())):
        if sentence not in said:
            for line in wrapped(sentence, width):
                yield Content.styled(line, "$muted")
