"""The diagnostics screen: every finding with an explanation, and a key to fix it if possible."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.notifications import SeverityLevel
from textual.screen import ModalScreen, Screen
from textual.widgets import OptionList, Static

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
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.problem_text import problem_text
from localspec.tui.screens.confirm import ConfirmScreen
from localspec.tui.text.wrapping import wrap_words
from localspec.tui.widgets.log_view import LogView
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import KeyLine, TitleLine

ExamineArea = Callable[[str], Iterable[Finding]]
"""Checks one area; may take seconds."""
_STYLES = {
    "error": "bold $error",
    "warning": "bold $warning",
    "notice": "$accent",
    "ok": "$success",
}
_HEADINGS = {"error": "Problems", "warning": "Problems", "notice": "Notes", "ok": "OK"}


class DoctorScreen(CenteredLayout, Screen[None]):
    """Checks one area after another on a thread; lists the worst findings first."""

    BINDINGS = bindings_for("doctor")
    AUTO_FOCUS = "#findings"

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
        self._list = PointerList[Finding](
            "findings", lambda each: f"{each.id} {each.what}", self._draw_finding
        )
        self._run_number = 0
        """Findings of an earlier run are ignored."""
        self._findings: tuple[Finding, ...] = ()
        self._next_area = ""

    def compose(self) -> ComposeResult:
        yield TitleLine("Diagnostics")
        yield self._list
        yield KeyLine()

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self) -> None:
        self._fill_list()

    # --- checking -------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return not self._next_area

    def action_again(self) -> None:
        self._run_number += 1
        number = self._run_number
        self._areas_examined(number, (), self._areas[0])

        def examine_all() -> None:
            found_so_far: tuple[Finding, ...] = ()
            for area, next_area in zip(self._areas, (*self._areas[1:], ""), strict=True):
                found_so_far += tuple(self._examine(area))
                self.call_later(self._areas_examined, number, found_so_far, next_area)

        threading.Thread(target=examine_all, daemon=True, name="doctor").start()

    def _areas_examined(
        self, run_number: int, findings: tuple[Finding, ...], next_area: str
    ) -> None:
        """All findings so far; `next_area` is empty after the last area."""
        if run_number == self._run_number:
            self._findings, self._next_area = findings, next_area
            self._fill_list()

    # --- the list -------------------------------------------------------------------------

    @property
    def highlighted_finding(self) -> Finding | None:
        return self._list.highlighted_row

    def _fill_list(self) -> None:
        """Rebuilds the list. The pointer follows the worst finding until the user moves it."""
        was_moved = bool(self._list.highlighted_index)
        order = (*findings.WORST_FIRST, "ok")
        worst_first = sorted(self._findings, key=lambda finding: order.index(finding.level))
        self._list.set_sections(
            [
                (Content.styled(f" {heading}", "$muted bold"), list(group))
                for heading, group in groupby(worst_first, lambda each: _HEADINGS[each.level])
            ]
        )
        if not was_moved and worst_first:
            self._list.point_at(0)
            self._list.scroll_home(animate=False)
        self._update_hints()

    def _draw_finding(self, finding: Finding, pointed: bool) -> Content:
        width = min(self.size.width, 112) - 8
        return finding_content(finding, self._options.glyphs, width, pointed=pointed)

    @on(OptionList.OptionHighlighted)
    def _update_hints(self) -> None:
        """The verdict in the title, and the keys."""
        verdict = findings.format_counts(self._findings) or "No problems found"
        status = verdict if self.is_done else f"checking {self._next_area} …"
        self.query_one(TitleLine).show_status(status)
        finding = self.highlighted_finding
        action = finding.action if finding is not None else None
        labels = {"doctor.mend": action.name} if action is not None else {}
        keys = format_footer(self._options.keymap, "doctor", label_overrides=labels)
        self.query_one(KeyLine).show_keys(keys)

    # --- repairing ------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _repair_selected(self) -> None:
        self.action_mend()

    def action_mend(self) -> None:
        finding = self.highlighted_finding
        if finding is None or finding.level == "ok":
            return
        if finding.action is None:
            text = f"Fix it by hand: {finding.fix}" if finding.fix else "Nothing to fix."
            self.notify(text, markup=False)
            return
        action = finding.action
        if action.commands and self._runner.has_engine:
            text = "The loaded model uses these files. Leave its chat first."
            self.notify(text, severity="warning", markup=False)
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
        repair = action.run

        def work() -> None:
            try:
                text = repair() if repair is not None else ""
            except LocalspecError as error:
                self.call_later(self._repair_done, problem_text(error), failed=True)
            except OSError as error:
                text = f"The fix failed: {error.strerror or error}"
                self.call_later(self._repair_done, text, failed=True)
            else:
                self.call_later(self._repair_done, text)

        threading.Thread(target=work, daemon=True, name="repair").start()

    def _repair_done(self, text: str, *, failed: bool = False) -> None:
        severity: SeverityLevel = "error" if failed else "information"
        self.notify(sanitize(text, multiline=False), severity=severity, markup=False)
        self.action_again()

    # --- other keys -----------------------------------------------------------------------

    def action_copy(self) -> None:
        """The report contains no personal data and no paths."""
        if not self.is_done:
            self.notify("The checks are still running.", markup=False)
            return
        self.notify(clipboard.copy(self.app, findings.format_report(self._findings)), markup=False)

    async def action_log(self) -> None:
        await self.app.run_action("log")

    def action_back(self) -> None:
        self.dismiss()


def finding_content(
    finding: Finding, glyphs: Glyphs, width: int, *, pointed: bool = False
) -> Content:
    """A finding with its level sign; below it the explanation and the fix unless it is OK."""
    signs = {"error": glyphs.cross, "warning": "!", "notice": glyphs.dot, "ok": glyphs.check}
    subject = f"{finding.area}: "
    first_line, *other_lines = wrap_words(f"{subject}{finding.what}", width)
    pointer = glyphs.pointer if pointed else " "
    text_style = "$muted" if finding.level == "ok" else ""
    sign = (f"{signs[finding.level]:<3}", _STYLES[finding.level])
    subject, what = first_line[: len(subject)], first_line[len(subject) :]
    line = Content.assemble((pointer, "$accent"), sign, (subject, "bold"), (what, text_style))
    lines = [line]
    lines += [Content.styled(f"    {line}", text_style) for line in other_lines]
    if finding.level != "ok":
        for text, style in ((finding.explanation, "$muted"), (finding.fix, "$accent")):
            if text:
                lines += [Content.styled(f"    {line}", style) for line in wrap_words(text, width)]
    return Content("\n").join(lines)


# --- running a repair's commands ----------------------------------------------------------

_OUTPUT_REFRESH_SECONDS = 0.1
"""Seconds between two updates: a compiler prints more than one can read."""


class CommandOutputScreen(ModalScreen[int]):
    """Runs commands and shows their output. Dismissed with the exit code, by a key."""

    BINDINGS = [Binding("escape,enter,q", "leave", "Stop, or go back")]  # noqa: RUF012
    AUTO_FOCUS = "LogView"

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
            yield Static("Running …   esc stop", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.set_interval(_OUTPUT_REFRESH_SECONDS, self._draw_output)
        threading.Thread(target=self._run_commands, daemon=True, name="commands").start()

    def on_unmount(self) -> None:
        """Leaving the app must not leave a half-finished installation."""
        self._command_runner.stop()

    def _run_commands(self) -> None:
        self.call_later(self._commands_finished, self._command_runner.run())

    def _add_output(self, line: str) -> None:
        """Called on the command runner's thread."""
        with self._lock:
            self._output_lines.append(line)

    def _draw_output(self) -> None:
        with self._lock:
            new_lines, self._output_lines = self._output_lines, []
        if new_lines:
            self.query_one(LogView).append_lines(new_lines)

    def _commands_finished(self, exit_code: int) -> None:
        """The exit code of the last command, or of the first that failed."""
        self._draw_output()
        self._exit_code = exit_code
        results = {0: ("Done.", "$success"), EXIT_STOPPED: ("Stopped.", "$warning")}
        result, style = results.get(exit_code, (f"Failed with exit code {exit_code}.", "$error"))
        hint = Content.assemble((result, f"bold {style}"), "   esc back")
        self.query_one(".hint", Static).update(hint)

    def action_leave(self) -> None:
        if self._exit_code is not None:
            self.dismiss(self._exit_code)
            return
        self._command_runner.stop()
        self.query_one(".hint", Static).update("Stopping and undoing the changes …")
