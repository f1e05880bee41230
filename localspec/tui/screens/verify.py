"""The check for losslessness: whether guessing changes anything of what the model says here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping

from textual.content import Content

from localspec.bench import findings
from localspec.bench.losslessness import Effort, check
from localspec.bench.verdict import MODES, Finding, Report, Verdict
from localspec.clean import clean
from localspec.launch import Choice
from localspec.tui.keys import bindings
from localspec.tui.measuring.paragraphs import wrapped
from localspec.tui.measuring.parts import ABOUT, NAMES, Part, Parts
from localspec.tui.options import Options
from localspec.tui.runner import Inspecting, Runner
from localspec.tui.screens.measuring import MeasuringScreen
from localspec.units import duration

EFFORTS = {"quick": Effort(5.0, 32), "usual": Effort(), "thorough": Effort(90.0)}
_PARTS = 5
"""That take the time of an effort each."""
_NAME, _BAR = 15, 14
_HOW = (
    "Guessing is to make the model faster, not different. Its answers with guesses are held "
    "against plain ones, and what it samples against its own chances."
)
_VERDICTS: dict[Verdict | None, tuple[str, str, str]] = {
    "lossless": (
        "Nothing differs",
        "$success",
        "With guesses the model said what it says without: every answer that was compared came "
        "out the same, token by token.",
    ),
    "near-ties": (
        "Near-ties only",
        "$success",
        "Some answers differ, and only where two tokens were as good as equal: a pass over "
        "several tokens rounds otherwise than a pass over one. Nothing is wrong. With --exact "
        "such places are computed again, alone.",
    ),
    "divergent": (
        "DIFFERS",
        "$error",
        "Guessing changed what the model says, and rounding does not explain it. Speculation "
        "off (/spec off, --spec off) is safe. Please report this, with the JSON: j copies it.",
    ),
    None: ("Not finished", "$warning", "Nothing wrong was found so far."),
}


class VerifyScreen(MeasuringScreen[Finding]):
    """Part by part, then one word."""

    BINDINGS = bindings("measuring", "verify")
    WHAT = "Verify"
    PLACES = ("verify", "measuring")

    def __init__(
        self,
        name: str,
        choice: Choice,
        runner: Runner,
        options: Options,
        effort: Effort | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`effort`: in place of those that can be chosen."""
        super().__init__(name, choice, runner, options)
        self._given, self._clock = effort, clock
        self._chosen = "usual"
        self._parts: Parts | None = None
        self.report = Report()

    @property
    def effort(self) -> Effort:
        return self._given or EFFORTS[self._chosen]

    # --- checking -------------------------------------------------------------------------

    def began(self) -> None:
        self.report = Report()
        self._parts = Parts(self.effort.seconds, self._clock)

    def make(self, engine: Inspecting, stopped: Callable[[], bool]) -> Iterator[Finding]:
        draft = engine.ready.draft is not None
        return check(engine, draft=draft, effort=self.effort, stopped=stopped)

    def take(self, told: Finding) -> None:
        self.report.take(told)
        if self._parts is not None:
            self._parts.take(told)

    def whole(self) -> None:
        self.report.whole = True
        if self._parts is not None:
            self._parts.finish()

    # --- showing --------------------------------------------------------------------------

    def lines(self, width: int, height: int) -> Iterator[Content]:
        if self._parts is None:
            yield from self._before(width, height)
            return
        if self.phase == "done":
            yield from _verdict(self.report, width)
        said = dict(findings.rows(self.report))
        for part in self._parts:
            yield from self._part(part, said.get(part.name, ""), width)
        divergences = list(findings.divergences(self.report))
        if divergences:
            yield Content("")
            yield Content.styled("Where they differ", "$muted bold")
        for each in divergences:
            for n, line in enumerate(wrapped(clean(each, multiline=False), width - 4)):
                yield Content(f"{'    ' if n else '  '}{line}")

    def progress(self) -> str:
        if self.phase == "stopping":
            return "stopping"
        if self.phase == "running" and self._parts is not None:
            left = self._parts.seconds_left
            return f"about {duration(left)} left" if left >= 1 else ""
        if self.phase == "done":
            return f"{self.report.drafted:,} guesses looked at"
        return ""

    def _before(self, width: int, height: int) -> Iterator[Content]:
        if height > 12:
            for line in wrapped(_HOW, min(width, 90)):
                yield Content.styled(line, "$muted")
            yield Content("")
        for name in NAMES:
            yield Content.assemble(f"  {name:<{_NAME}}", (ABOUT[name], "$muted"))
        yield Content("")
        if self._given is None:
            marked = [
                (f" {name} ", "bold reverse" if name == self._chosen else "$muted")
                for name in EFFORTS
            ]
            yield Content.assemble("  How long a look  ", *marked)
        least = duration(_PARTS * self.effort.seconds + 1)
        yield Content("")
        yield self.waiting(f"About {least}; a slow computer takes longer.")

    def _part(self, part: Part, found: str, width: int) -> Iterator[Content]:
        """One that is done says what was found in place of its bar."""
        glyphs = self.options.glyphs
        if part.state == "done":
            lines = wrapped(clean(found, multiline=False), width - 3 - _NAME)
            bad = part.name in self._wrong()
            sign, style = (glyphs.bad, "$error") if bad else (glyphs.good, "$success")
            for n, line in enumerate(lines):
                mark, name = (sign, part.name) if n == 0 else ("", "")
                yield Content.assemble((f"{mark:<3}", style), f"{name:<{_NAME}}", line)
            return
        doing = part.state == "doing"
        over = self.phase in ("done", "failed")
        bar = glyphs.stroke(part.share, _BAR)
        said = "not finished" if doing and over else part.what
        yield Content.assemble(
            (f"{glyphs.pointer if doing and not over else ' ':<3}", "$accent"),
            f"{part.name:<{_NAME}}",
            (bar, "$accent"),
            (f"{glyphs.room * (_BAR - len(bar))}  ", "$muted"),
            (said, "$muted"),
        )

    def _wrong(self) -> set[str]:
        """Parts in which something differs that rounding does not explain."""
        report = self.report
        equal = {"temperature 0": report.greedy, "same seed": report.seeded}
        wrong = {
            name
            for name, sums in equal.items()
            if not all(each.near_tie(report.limit) for each in sums.divergences)
        }
        return wrong | {s.verify for s in report.samples.values() if s.bent(len(MODES))}

    def keys_now(self) -> Mapping[str, str]:
        choosing = self._given is None and self._parts is None
        shown = self.phase in ("done", "failed") and self._parts is not None
        return {
            "verify.less": "how long" if choosing else "",
            "verify.more": "how long" if choosing else "",
            "verify.document": "copy JSON" if shown else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        if self._parts is None:
            names = list(EFFORTS)
            at = names.index(self._chosen) + by
            self._chosen = names[max(0, min(at, len(names) - 1))]
            self.draw()

    def findings(self) -> str:
        if self._parts is None or self.ready is None:
            return ""
        return "\n".join(findings.lines(self.report, self.ready)) + "\n"

    def action_document(self) -> None:
        found = self._parts is not None and self.ready is not None
        self.copy(self._document() if found else "")

    def _document(self) -> str:
        assert self.ready is not None
        return json.dumps(findings.document(self.report, self.ready), indent=2)


def _verdict(report: Report, width: int) -> Iterator[Content]:
    """One word, and what it means."""
    word, style, meaning = _VERDICTS[report.verdict]
    yield Content.styled(f"  {word}  ", f"{style} bold reverse")
    yield Content("")
    if report.whole and not report.drafted:
        meaning = findings.NOTHING_GUESSED
    for line in wrapped(meaning, min(width, 90)):
        yield Content(line)
    yield Content("")
