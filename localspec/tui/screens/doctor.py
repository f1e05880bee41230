"""The diagnostics screen: every finding with an explanation, and a key to fix it if possible."""

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
"""Checks one area; may take seconds."""
_STYLES = {
    "error": "bold $error",
    "warning": "bold $warning",
    "notice": "$accent",
    "ok": "$success",
}
_HEADINGS = {
    "error": "Problems",
    "warning": "Problems",
    "notice": "Notes",
    "ok": "OK",
}


class DoctorScreen(CenteredLayout, Screen[None]):
    """Checks one area after another on a thread; lists the worst findings first."""

    BINDINGS = bindings_for("doctor")
    AUTO_FOCUS = "#findings"

    class AreaExamined(Message):
        """All findings so far; `next_area` is empty after the last area."""

        def __init__(self, run_number: int, findings: tuple[Finding, ...], next_area: str) -> None:
            super().__init__()
            self.run_number, self.findings, self.next_area = run_number, findings, next_area

    class RepairDone(Message):
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
        """Findings of an earlier run are ignored."""
        self._findings: tuple[Finding, ...] = ()
        self._listed_findings: list[Finding] = []
        """In display order."""
        self._last_pointed: Finding | None = None
        self._next_area = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Diagnostics", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield OptionList(id="findings", compact=True, markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, _: Resize) -> None:
        self._fill_list()

    # --- checking -------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return not self._next_area

    def action_again(self) -> None:
        self._run_number += 1
        self._findings, self._next_area = (), self._areas[0]
        number = self._run_number
        self._fill_list()

        def examine_all() -> None:
            found_so_far: tuple[Finding, ...] = ()
            for area, next_area in zip(self._areas, (*self._areas[1:], ""), strict=True):
                found_so_far += tuple(self._examine(area))
                self.post_message(self.AreaExamined(number, found_so_far, next_area))

        threading.Thread(target=examine_all, daemon=True, name="doctor").start()

    @on(AreaExamined)
    def _area_examined(self, message: AreaExamined) -> None:
        if message.run_number == self._run_number:
            self._findings, self._next_area = message.findings, message.next_area
            self._fill_list()

    # --- the list -------------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#findings", OptionList)

    @property
    def highlighted_finding(self) -> Finding | None:
        option = self._list.highlighted_option
        number = int(option.id or -1) if option is not None else -1
        return self._listed_findings[number] if 0 <= number < len(self._listed_findings) else None

    def _fill_list(self) -> None:
        """Rebuilds the list. The selection follows the worst finding until the user moves it."""
        selected = (
            self.highlighted_finding
            if self._listed_findings and self.highlighted_finding is not self._listed_findings[0]
            else None
        )
        order = (*findings.WORST_FIRST, "ok")
        self._listed_findings = sorted(
            self._findings, key=lambda finding: order.index(finding.level)
        )
        options: list[Option] = []
        number = 0
        for heading, group in groupby(
            self._listed_findings, lambda finding: _HEADINGS[finding.level]
        ):
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(Content.styled(f" {heading}", "$muted bold"), disabled=True))
            for finding in group:
                options.append(
                    Option(self._finding_content(finding, pointed=False), id=str(number))
                )
                number += 1
        self._list.clear_options()
        self._list.add_options(options)
        if self._listed_findings:
            index = (
                self._listed_findings.index(selected) if selected in self._listed_findings else 0
            )
            self._list.highlighted = self._list.get_option_index(str(index))
        if selected is None:
            self._list.scroll_home(animate=False)
        self._update_hints()

    def _finding_content(self, finding: Finding, *, pointed: bool) -> Content:
        width = min(self.size.width, 112) - 8
        return finding_content(finding, self._options.glyphs, width, pointed=pointed)

    @on(OptionList.OptionHighlighted)
    def _highlight_changed(self) -> None:
        """The selected row is marked with a pointer as well as with colour."""
        previous, self._last_pointed = self._last_pointed, self.highlighted_finding
        for finding in (previous, self._last_pointed):
            if finding is not None and finding in self._listed_findings:
                number = self._listed_findings.index(finding)
                content = self._finding_content(finding, pointed=finding is self._last_pointed)
                self._list.replace_option_prompt(str(number), content)
        self._update_hints()

    def _update_hints(self) -> None:
        """The verdict in the title, and the keys."""
        verdict = findings.format_counts(self._findings) or "No problems found"
        status = verdict if self.is_done else f"checking {self._next_area} …"
        self.query_one("#machine", Static).update(Content(status))
        finding, keymap = self.highlighted_finding, self._options.keymap
        labels = (
            {"doctor.mend": finding.action.name} if finding is not None and finding.action else {}
        )
        keys = format_footer(keymap, "doctor", label_overrides=labels)
        self.query_one("#hints", Static).update(Content(fit_footer(keys, self.size.width - 4)))

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
                self.post_message(self.RepairDone(f"{error.message} {error.hint}", failed=True))
            except OSError as error:
                text = f"The fix failed: {error.strerror or error}"
                self.post_message(self.RepairDone(text, failed=True))
            else:
                self.post_message(self.RepairDone(text))

        threading.Thread(target=work, daemon=True, name="repair").start()

    @on(RepairDone)
    def _repair_done(self, message: RepairDone) -> None:
        text = sanitize(message.text, multiline=False)
        severity = "error" if message.failed else "information"
        self.notify(text, severity=severity, markup=False)  # type: ignore[arg-type]
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
    first_line, *other_lines = _wrap(finding.what, width) or [""]
    pointer = glyphs.pointer if pointed else " "
    text_style = "$muted" if finding.level == "ok" else ""
    sign = (f"{signs[finding.level]:<3}", _STYLES[finding.level])
    lines = [Content.assemble((pointer, "$accent"), sign, (first_line, text_style))]
    lines += [Content.styled(f"    {line}", text_style) for line in other_lines]
    if finding.level != "ok":
        for text, style in ((finding.explanation, "$muted"), (finding.fix, "$accent")):
            lines += [Content.styled(f"    {line}", style) for line in _wrap(text, width)]
    return Content("\n").join(lines)


def _wrap(text: str, width: int) -> list[str]:
    """Breaks between words only, so that commands stay intact."""
    return wrap(sanitize(text, multiline=False), max(10, width), break_on_hyphens=False)


# --- running a repair's commands ----------------------------------------------------------

_OUTPUT_REFRESH_SECONDS = 0.1
"""Seconds between two updates: a compiler prints more than one can read."""


class CommandOutputScreen(ModalScreen[int]):
    """Runs commands and shows their output. Dismissed with the exit code, by a key."""

    BINDINGS = [Binding("escape,enter,q", "leave", "Stop, or go back")]  # noqa: RUF012
    AUTO_FOCUS = "LogView"

    class CommandsFinished(Message):
        """The exit code of the last command, or of the first that failed."""

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
            yield Static("Running …   esc stop", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.set_interval(_OUTPUT_REFRESH_SECONDS, self._draw_output)
        threading.Thread(target=self._run_commands, daemon=True, name="commands").start()

    def on_unmount(self) -> None:
        """Leaving the app must not leave a half-finished installation."""
        self._command_runner.stop()

    def _run_commands(self) -> None:
        self.post_message(self.CommandsFinished(self._command_runner.run()))

    def _add_output(self, line: str) -> None:
        """Called on the command runner's thread."""
        with self._lock:
            self._output_lines.append(line)

    def _draw_output(self) -> None:
        with self._lock:
            new_lines, self._output_lines = self._output_lines, []
        if new_lines:
            self.query_one(LogView).append_lines(new_lines)

    @on(CommandsFinished)
    def _commands_finished(self, message: CommandsFinished) -> None:
        self._draw_output()
        self._exit_code = message.exit_code
        results = {0: ("Done.", "$success"), EXIT_STOPPED: ("Stopped.", "$warning")}
        result, style = results.get(
            message.exit_code, (f"Failed with exit code {message.exit_code}.", "$error")
        )
        hint = Content.assemble((result, f"bold {style}"), "   esc back")
        self.query_one(".hint", Static).update(hint)

    def action_leave(self) -> None:
        if self._exit_code is not None:
            self.dismiss(self._exit_code)
            return
        self._command_runner.stop()
        self.query_one(".hint", Static).update("Stopping and undoing the changes …")
