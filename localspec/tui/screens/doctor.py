"""What is wrong here: each finding with what it means, and a key where it can be mended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from textwrap import wrap

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.doctor import checks, findings
from localspec.doctor.command_runner import EXIT_STOPPED, CommandRunner
from localspec.doctor.findings import CommandLine, Finding, RepairAction
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize
from localspec.tui import clipboard
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import bindings_for, fit_footer, format_footer
from localspec.tui.screens.confirm import ConfirmScreen
from localspec.tui.widgets.log_view import LogView

ExamineArea = Callable[[str], Iterable[Finding]]
"""At one area; may take seconds."""
_STYLES = {
    "error": "bold $error",
    "warning": "bold $warning",
    "notice": "$accent",
    "ok": "$success",
}
_HEADINGS = {
    "error": "To mend",
    "warning": "To mend",
    "notice": "Worth knowing",
    "ok": "In order",
}


class DoctorScreen(CenteredLayout, Screen[None]):
    """Looks on a thread, area by area; the worst is listed first."""

    BINDINGS = bindings_for("doctor")
    AUTO_FOCUS = "#findings"

    class AreaExamined(Message):
        """At an area, or at all of them."""

        def __init__(self, run_number: int, findings: tuple[Finding, ...], next_area: str) -> None:
            super().__init__()
            self.run_number, self.findings, self.next_area = run_number, findings, next_area

    class RepairDone(Message):
        """What was done, or why not."""

        def __init__(self, text: str, *, failed: bool = False) -> None:
            super().__init__()
            self.text, self.failed = text, failed

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        examine: ExamineArea = checks.check_area,
        areas: Iterable[str] = tuple(checks.AREAS),
    ) -> None:
        super().__init__()
        self._runner, self._options = runner, options
        self._examine, self._areas = examine, tuple(areas)
        self._run_number = 0
        """Counts looks: what an older one still finds is not listed."""
        self._findings: tuple[Finding, ...] = ()
        self._listed_findings: list[Finding] = []
        """As they stand under one another."""
        self._last_pointed: Finding | None = None
        """With the pointer before it."""
        self._next_area = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Doctor", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield OptionList(id="findings", compact=True, markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, _: Resize) -> None:
        self._fill_list()

    # --- looking --------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether everything was looked at."""
        return not self._next_area

    def action_again(self) -> None:
        self._run_number += 1
        self._findings, self._next_area = (), self._areas[0]
        number = self._run_number
        self._fill_list()

        def examine_all() -> None:
            found: tuple[Finding, ...] = ()
            for area, after in zip(self._areas, (*self._areas[1:], ""), strict=True):
                found += tuple(self._examine(area))
                self.post_message(self.AreaExamined(number, found, after))

        threading.Thread(target=examine_all, daemon=True, name="doctor").start()

    @on(AreaExamined)
    def _area_examined(self, message: AreaExamined) -> None:
        if message.run_number == self._run_number:
            self._findings, self._next_area = message.findings, message.next_area
            self._fill_list()

    # --- what is listed -------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#findings", OptionList)

    @property
    def highlighted_finding(self) -> Finding | None:
        option = self._list.highlighted_option
        number = int(option.id or -1) if option is not None else -1
        return self._listed_findings[number] if 0 <= number < len(self._listed_findings) else None

    def _fill_list(self) -> None:
        """The list anew; a person who has moved the pointer keeps what it stood on."""
        before = (
            self.highlighted_finding
            if self._listed_findings and self.highlighted_finding is not self._listed_findings[0]
            else None
        )
        worst = (*findings.WORST_FIRST, "ok")
        self._listed_findings = sorted(self._findings, key=lambda one: worst.index(one.level))
        options: list[Option] = []
        number = 0
        for heading, group in groupby(self._listed_findings, lambda one: _HEADINGS[one.level]):
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(Content.styled(f" {heading}", "$muted bold"), disabled=True))
            for one in group:
                options.append(Option(self._finding_content(one, pointed=False), id=str(number)))
                number += 1
        self._list.clear_options()
        self._list.add_options(options)
        if self._listed_findings:
            place = self._listed_findings.index(before) if before in self._listed_findings else 0
            self._list.highlighted = self._list.get_option_index(str(place))
        if before is None:
            self._list.scroll_home(animate=False)
        self._update_hints()

    def _finding_content(self, finding: Finding, *, pointed: bool) -> Content:
        width = min(self.size.width, 112) - 8
        return finding_content(finding, self._options.glyphs, width, pointed=pointed)

    @on(OptionList.OptionHighlighted)
    def _highlight_changed(self) -> None:
        """The pointer does not need colour."""
        before, self._last_pointed = self._last_pointed, self.highlighted_finding
        for one in (before, self._last_pointed):
            if one is not None and one in self._listed_findings:
                number = self._listed_findings.index(one)
                line = self._finding_content(one, pointed=one is self._last_pointed)
                self._list.replace_option_prompt(str(number), line)
        self._update_hints()

    def _update_hints(self) -> None:
        """What it comes to, and the keys of the moment."""
        verdict = findings.format_counts(self._findings) or "Nothing is wrong"
        words = verdict if self.is_done else f"looking at {self._next_area} …"
        self.query_one("#machine", Static).update(Content(words))
        one, own = self.highlighted_finding, self._options.keymap
        now = {"doctor.mend": one.action.name} if one is not None and one.action else {}
        keys = format_footer(own, "doctor", label_overrides=now)
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 4)))

    # --- mending --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _repair_selected(self) -> None:
        self.action_mend()

    def action_mend(self) -> None:
        one = self.highlighted_finding
        if one is None or one.level == "ok":
            return
        if one.action is None:
            what = f"This is yours to do: {one.fix}" if one.fix else "Nothing need be done."
            self.notify(what, markup=False)
            return
        action = one.action
        if action.commands and self._runner.has_engine:
            what = "A model is loaded, and uses what would be replaced: leave its chat first."
            self.notify(what, severity="warning", markup=False)
            return

        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                self._run_repair(action)

        self.app.push_screen(ConfirmScreen(action.question, action.name), on_dismiss)

    def _run_repair(self, action: RepairAction) -> None:
        if action.commands:

            def ended(_: int | None) -> None:
                self.action_again()

            self.app.push_screen(
                CommandOutputScreen(action.name.capitalize(), action.commands), ended
            )
            return
        do = action.run

        def work() -> None:
            try:
                words = do() if do is not None else ""
            except LocalspecError as error:
                self.post_message(self.RepairDone(f"{error.message} {error.hint}", failed=True))
            except OSError as error:
                words = f"That failed: {error.strerror or error}"
                self.post_message(self.RepairDone(words, failed=True))
            else:
                self.post_message(self.RepairDone(words))

        threading.Thread(target=work, daemon=True, name="mend").start()

    @on(RepairDone)
    def _repair_done(self, message: RepairDone) -> None:
        words = sanitize(message.text, multiline=False)
        severity = "error" if message.failed else "information"
        self.notify(words, severity=severity, markup=False)  # type: ignore[arg-type]
        self.action_again()

    # --- the rest -------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Nothing in it names a person or a place."""
        if not self.is_done:
            self.notify("It is still looking.", markup=False)
            return
        self.notify(clipboard.copy(self.app, findings.format_report(self._findings)), markup=False)

    async def action_log(self) -> None:
        await self.app.run_action("log")

    def action_back(self) -> None:
        self.dismiss()


def finding_content(
    finding: Finding, glyphs: Glyphs, width: int, *, pointed: bool = False
) -> Content:
    """By sign and colour; below it what it means and what to do, where something is not right."""
    signs = {"error": glyphs.cross, "warning": "!", "notice": glyphs.dot, "ok": glyphs.check}
    what, *more = _wrap(finding.what, width) or [""]
    pointer = glyphs.pointer if pointed else " "
    calm = "$muted" if finding.level == "ok" else ""
    sign = (f"{signs[finding.level]:<3}", _STYLES[finding.level])
    lines = [Content.assemble((pointer, "$accent"), sign, (what, calm))]
    lines += [Content.styled(f"    {line}", calm) for line in more]
    if finding.level != "ok":
        for words, style in ((finding.explanation, "$muted"), (finding.fix, "$accent")):
            lines += [Content.styled(f"    {line}", style) for line in _wrap(words, width)]
    return Content("\n").join(lines)


def _wrap(text: str, width: int) -> list[str]:
    """A command is not cut within a word."""
    return wrap(sanitize(text, multiline=False), max(10, width), break_on_hyphens=False)


# --- Commands that run while one watches: their words as they come, and a key that stops them.

_OUTPUT_REFRESH_SECONDS = 0.1
"""Seconds: a compiler says more than one can read."""


class CommandOutputScreen(ModalScreen[int]):
    """Dismissed with the exit code, once it is known and a person has seen it."""

    BINDINGS = [Binding("escape,enter,q", "leave", "Stop; then: back")]  # noqa: RUF012
    AUTO_FOCUS = "LogView"

    class CommandsFinished(Message):
        """The last of them, or the first that failed."""

        def __init__(self, exit_code: int) -> None:
            super().__init__()
            self.exit_code = exit_code

    def __init__(self, title: str, commands: Sequence[CommandLine]) -> None:
        super().__init__()
        self._title = title
        self._output_lines: list[str] = []
        self._lock = threading.Lock()
        self._command_runner = CommandRunner(commands, self._add_output)
        self._exit_code: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(self._title, classes="heading", markup=False)
            yield LogView()
            yield Static("It runs.   esc stop", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.set_interval(_OUTPUT_REFRESH_SECONDS, self._draw_output)
        threading.Thread(target=self._run_commands, daemon=True, name="errand").start()

    def on_unmount(self) -> None:
        """Whoever leaves the app does not leave half an installation behind."""
        self._command_runner.stop()

    def _run_commands(self) -> None:
        self.post_message(self.CommandsFinished(self._command_runner.run()))

    def _add_output(self, line: str) -> None:
        """On the thread that listens."""
        with self._lock:
            self._output_lines.append(line)

    def _draw_output(self) -> None:
        with self._lock:
            said, self._output_lines = self._output_lines, []
        if said:
            self.query_one(LogView).append_lines(said)

    @on(CommandsFinished)
    def _commands_finished(self, message: CommandsFinished) -> None:
        self._draw_output()
        self._exit_code = message.exit_code
        words = {0: ("Done.", "$success"), EXIT_STOPPED: ("Stopped.", "$warning")}
        said, style = words.get(
            message.exit_code, (f"It failed: exit code {message.exit_code}.", "$error")
        )
        told = Content.assemble((said, f"bold {style}"), "   esc back")
        self.query_one(".hint", Static).update(told)

    def action_leave(self) -> None:
        if self._exit_code is not None:
            self.dismiss(self._exit_code)
            return
        self._command_runner.stop()
        self.query_one(".hint", Static).update("Stopping: it puts back what it has changed.")
