"""The diagnostics screen: every finding, its explanation, and a key to fix it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import OptionList

from localspec.doctor import checks, findings
from localspec.doctor.findings import Finding, RepairAction
from localspec.doctor.repairs import RepairRunner
from localspec.errors import LocalspecError
from localspec.report.doctor import LEVELS, format_findings, summarize_problems
from localspec.report.lines import plain_text
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ConfirmScreen
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import bindings_for, format_footer, key_label
from localspec.tui.notices import copy_text, problem_text, screen_hint
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.report_content import role_style
from localspec.tui.text.wrapping import wrap_words
from localspec.tui.widgets.log_view import LogView
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import CenteredLayout, KeyLine, TitleLine

_HEADINGS = {"error": "Problems", "warning": "Problems", "notice": "Notes", "ok": "OK"}


class DoctorScreen(CenteredLayout, Screen[None]):
    """Checks one area after another on a thread; lists the worst findings first.

    While a repair runs commands, and until a key is pressed, their output replaces the
    list.
    """

    BINDINGS = bindings_for("doctor")
    AUTO_FOCUS = "#findings"

    def __init__(
        self,
        runner: EngineRunner,
        options: AppOptions,
        examine: Callable[[str], Iterable[Finding]] = checks.check_area,
    ) -> None:
        """`examine` checks one area; it may take seconds."""
        super().__init__()
        self._runner = runner
        self._options = options
        self._examine = examine
        self._list = PointerList[Finding](
            "findings",
            lambda finding: f"{finding.id} {finding.what}",
            self._draw_finding,
        )
        self._run_number = 0  # Findings of an earlier run are ignored.
        self._findings: tuple[Finding, ...] = ()
        self._next_area = ""
        # The repair whose output is shown, and its result; empty while it runs.
        self._repair_runner: RepairRunner | None = None
        self._result = ""

    def compose(self) -> ComposeResult:
        yield TitleLine("Diagnostics")
        yield self._list
        yield LogView()
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one(LogView).display = False
        self.action_again()

    def on_resize(self) -> None:
        self._fill_list()

    def on_unmount(self) -> None:
        """Leaving the app must not leave a half-finished installation."""
        if self._repair_runner is not None:
            self._repair_runner.stop()

    @property
    def is_done(self) -> bool:
        return not self._next_area

    @property
    def highlighted_finding(self) -> Finding | None:
        return self._list.highlighted_row

    def action_again(self) -> None:
        if self._repair_runner is not None:  # it changes what is checked
            return
        self._run_number += 1
        number = self._run_number
        areas = tuple(checks.AREAS)
        self._areas_examined(number, (), areas[0])

        def examine_all() -> None:
            found_so_far: tuple[Finding, ...] = ()
            for area, next_area in zip(areas, (*areas[1:], ""), strict=True):
                found_so_far += tuple(self._examine(area))
                self.call_later(self._areas_examined, number, found_so_far, next_area)

        def failed(error: LocalspecError) -> None:
            if number == self._run_number:
                self._checks_failed(error)

        run_on_thread(self, "doctor", examine_all, failed=failed)

    def _areas_examined(
        self, run_number: int, findings: tuple[Finding, ...], next_area: str
    ) -> None:
        """All findings so far; `next_area` is empty after the last area."""
        if run_number == self._run_number:
            self._findings = findings
            self._next_area = next_area
            self._fill_list()

    def _checks_failed(self, error: LocalspecError) -> None:
        """The areas after the one that failed are not checked."""
        failure = Finding(
            "check-failed",
            self._next_area,
            "error",
            f"the check failed: {error.message}",
            fix=screen_hint(error.hint),
        )
        self._areas_examined(self._run_number, (*self._findings, failure), "")

    def _fill_list(self) -> None:
        """Rebuilds the list.

        The pointer follows the worst finding until the user moves it.
        """
        was_moved = bool(self._list.highlighted_index)
        order = (*findings.WORST_FIRST, "ok")
        worst_first = sorted(
            self._findings, key=lambda finding: order.index(finding.level)
        )
        groups = groupby(worst_first, lambda finding: _HEADINGS[finding.level])
        sections = [
            (Content.styled(heading, "$muted bold"), list(rows))
            for heading, rows in groups
        ]
        self._list.set_sections(sections)
        if not was_moved and worst_first:
            self._list.point_at(0)
            self._list.scroll_home(animate=False)
        self._update_hints()

    def _draw_finding(self, finding: Finding) -> Content:
        """Its sign and text; below it the explanation and the fix, unless it is OK."""
        width = min(self.size.width, 112) - 8
        look = LEVELS[finding.level]
        sign_style = role_style(look.role)
        if finding.level in ("error", "warning"):
            sign_style = f"bold {sign_style}"
        is_ok = finding.level == "ok"
        style = "$muted" if is_ok else ""
        subject = f"{finding.area}: "
        first_line, *other_lines = wrap_words(f"{subject}{finding.what}", width)
        lines = [
            Content.assemble(
                (f"{look.sign:<3}", sign_style),
                (subject, "bold"),
                (first_line[len(subject) :], style),
            )
        ]
        lines += [Content.styled(f"   {line}", style) for line in other_lines]
        if finding.explanation and not is_ok:
            for line in wrap_words(finding.explanation, width):
                lines.append(Content.styled(f"   {line}", "$muted"))
        if finding.fix and not is_ok:
            for line in wrap_words(finding.fix, width):
                lines.append(Content.styled(f"   {line}", "$accent"))
        return Content("\n").join(lines)

    @on(OptionList.OptionHighlighted)
    def _update_hints(self) -> None:
        self.query_one(TitleLine).show_status(self._status())
        self.query_one(KeyLine).show_keys(self._key_hints())

    def _status(self) -> str:
        if self._repair_runner is not None:
            return self._result or "Running …"
        if not self.is_done:
            return f"checking {self._next_area} …"
        return summarize_problems(self._findings)

    def _key_hints(self) -> str:
        if self._repair_runner is not None:
            label = "back" if self._result else "stop"
            return f"{key_label('doctor.back', self._options.keymap)} {label}"
        labels = {}
        finding = self.highlighted_finding
        if finding is not None and finding.action is not None:
            labels["doctor.repair"] = finding.action.name
        return format_footer(self._options.keymap, "doctor", label_overrides=labels)

    @on(OptionList.OptionSelected)
    def action_repair(self) -> None:
        if self._repair_runner is not None:
            self.action_back()
            return
        finding = self.highlighted_finding
        if finding is None or finding.level == "ok":
            return
        action = finding.action
        if action is None:
            text = "Nothing to fix."
            if finding.fix:
                text = f"Fix it by hand: {finding.fix}"
            self.notify(text, markup=False)
        elif action.commands and self._runner.host is not None:
            text = "The loaded model uses these files. Leave its chat first."
            self.notify(text, severity="warning", markup=False)
        else:
            self._ask_to_repair(action)

    def _ask_to_repair(self, action: RepairAction) -> None:
        def on_dismiss(confirmed: bool | None) -> None:
            if confirmed:
                self._repair(action)

        self.app.push_screen(ConfirmScreen(action.question, action.name), on_dismiss)

    def _repair(self, action: RepairAction) -> None:
        """On a thread; the output of commands is shown until a key is pressed."""
        log = self.query_one(LogView)

        def add_line(line: str) -> None:
            self.call_later(log.append_lines, [line])

        runner = RepairRunner(action, add_line)

        def run() -> None:
            self.call_later(self._repair_ended, *runner.run())

        if action.commands:
            self._repair_runner = runner
            self._show_output(True)

        def failed(error: LocalspecError) -> None:
            self._repair_ended(False, problem_text(error))

        run_on_thread(self, "repair", run, failed=failed)

    def _repair_ended(self, succeeded: bool, text: str) -> None:
        if self._repair_runner is not None:
            self._result = text
            # Also here, because a narrow title cannot hold it.
            self.query_one(LogView).append_lines([text])
            self._update_hints()
            return
        severity: SeverityLevel = "information" if succeeded else "error"
        self.notify(text, severity=severity, markup=False)
        self.action_again()

    def _show_output(self, shown: bool) -> None:
        log = self.query_one(LogView)
        log.set_lines(())
        log.display = shown
        self._list.display = not shown
        if shown:
            log.focus()
        else:
            self._list.focus()
        self._update_hints()

    def action_copy(self) -> None:
        """The report contains no personal data and no paths."""
        if self.is_done:
            lines = list(map(plain_text, format_findings(self._findings)))
            copy_text(self.app, lambda: "\n".join(lines))
        else:
            self.notify("The checks are still running.", markup=False)

    async def action_log(self) -> None:
        await self.app.run_action("log")

    def action_back(self) -> None:
        if self._repair_runner is None:
            self.dismiss()
        elif self._result:
            self._repair_runner = None
            self._result = ""
            self._show_output(False)
            self.action_again()
        else:
            self._repair_runner.stop()
            self.query_one(TitleLine).show_status("Stopping and undoing the changes …")
