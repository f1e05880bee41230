"""What is wrong here: each finding with what it means, and a key where it can be mended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import groupby
from textwrap import wrap

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.clean import clean
from localspec.doctor import examination, report
from localspec.doctor.finding import Action, Finding
from localspec.errors import LocalspecError
from localspec.tui import clipping
from localspec.tui.glyphs import Glyphs
from localspec.tui.keys import bindings, fitting, footer
from localspec.tui.middle import Middle
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.confirm import ConfirmScreen
from localspec.tui.screens.errand import ErrandScreen

Look = Callable[[str], Iterable[Finding]]
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


class DoctorScreen(Middle, Screen[None]):
    """Looks on a thread, area by area; the worst is listed first."""

    BINDINGS = bindings("doctor")
    AUTO_FOCUS = "#findings"

    class Looked(Message):
        """At an area, or at all of them."""

        def __init__(self, number: int, found: tuple[Finding, ...], next: str) -> None:  # noqa: A002
            super().__init__()
            self.number, self.found, self.next = number, found, next

    class Mended(Message):
        """What was done, or why not."""

        def __init__(self, words: str, *, failed: bool = False) -> None:
            super().__init__()
            self.words, self.failed = words, failed

    def __init__(
        self,
        runner: Runner,
        options: Options,
        look: Look = examination.look,
        areas: Iterable[str] = tuple(examination.AREAS),
    ) -> None:
        super().__init__()
        self._runner, self._options = runner, options
        self._look, self._areas = look, tuple(areas)
        self._number = 0
        """Counts looks: what an older one still finds is not listed."""
        self._found: tuple[Finding, ...] = ()
        self._listed: list[Finding] = []
        """As they stand under one another."""
        self._at: Finding | None = None
        """With the pointer before it."""
        self._next = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static("Doctor", id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        yield OptionList(id="findings", compact=True, markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, _: Resize) -> None:
        self._fill()

    # --- looking --------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether everything was looked at."""
        return not self._next

    def action_again(self) -> None:
        self._number += 1
        self._found, self._next = (), self._areas[0]
        number = self._number
        self._fill()

        def work() -> None:
            found: tuple[Finding, ...] = ()
            for area, after in zip(self._areas, (*self._areas[1:], ""), strict=True):
                found += tuple(self._look(area))
                self.post_message(self.Looked(number, found, after))

        threading.Thread(target=work, daemon=True, name="doctor").start()

    @on(Looked)
    def _looked(self, message: Looked) -> None:
        if message.number == self._number:
            self._found, self._next = message.found, message.next
            self._fill()

    # --- what is listed -------------------------------------------------------------------

    @property
    def _list(self) -> OptionList:
        return self.query_one("#findings", OptionList)

    @property
    def pointed(self) -> Finding | None:
        option = self._list.highlighted_option
        number = int(option.id or -1) if option is not None else -1
        return self._listed[number] if 0 <= number < len(self._listed) else None

    def _fill(self) -> None:
        """The list anew; a person who has moved the pointer keeps what it stood on."""
        before = self.pointed if self._listed and self.pointed is not self._listed[0] else None
        worst = (*report.WORST_FIRST, "ok")
        self._listed = sorted(self._found, key=lambda one: worst.index(one.level))
        options: list[Option] = []
        number = 0
        for heading, group in groupby(self._listed, lambda one: _HEADINGS[one.level]):
            if options:
                options.append(Option("", disabled=True))
            options.append(Option(Content.styled(f" {heading}", "$muted bold"), disabled=True))
            for one in group:
                options.append(Option(self._told(one, pointed=False), id=str(number)))
                number += 1
        self._list.clear_options()
        self._list.add_options(options)
        if self._listed:
            place = self._listed.index(before) if before in self._listed else 0
            self._list.highlighted = self._list.get_option_index(str(place))
        if before is None:
            self._list.scroll_home(animate=False)
        self._explain()

    def _told(self, one: Finding, *, pointed: bool) -> Content:
        width = min(self.size.width, 112) - 8
        return told(one, self._options.glyphs, width, pointed=pointed)

    @on(OptionList.OptionHighlighted)
    def _point(self) -> None:
        """The pointer does not need colour."""
        before, self._at = self._at, self.pointed
        for one in (before, self._at):
            if one is not None and one in self._listed:
                number = self._listed.index(one)
                line = self._told(one, pointed=one is self._at)
                self._list.replace_option_prompt(str(number), line)
        self._explain()

    def _explain(self) -> None:
        """What it comes to, and the keys of the moment."""
        verdict = report.counts(self._found) or "Nothing is wrong"
        words = verdict if self.done else f"looking at {self._next} …"
        self.query_one("#machine", Static).update(Content(words))
        one, own = self.pointed, self._options.keymap
        now = {"doctor.mend": one.action.name} if one is not None and one.action else {}
        keys = footer(own, "doctor", now=now)
        self.query_one("#hints", Static).update(Content(fitting(keys, self.size.width - 4)))

    # --- mending --------------------------------------------------------------------------

    @on(OptionList.OptionSelected)
    def _selected(self) -> None:
        self.action_mend()

    def action_mend(self) -> None:
        one = self.pointed
        if one is None or one.level == "ok":
            return
        if one.action is None:
            what = f"This is yours to do: {one.fix}" if one.fix else "Nothing need be done."
            self.notify(what, markup=False)
            return
        action = one.action
        if action.commands and self._runner.busy:
            what = "A model is loaded, and uses what would be replaced: leave its chat first."
            self.notify(what, severity="warning", markup=False)
            return

        def agreed(yes: bool | None) -> None:
            if yes:
                self._mend(action)

        self.app.push_screen(ConfirmScreen(action.question, action.name), agreed)

    def _mend(self, action: Action) -> None:
        if action.commands:

            def ended(_: int | None) -> None:
                self.action_again()

            self.app.push_screen(ErrandScreen(action.name.capitalize(), action.commands), ended)
            return
        do = action.do

        def work() -> None:
            try:
                words = do() if do is not None else ""
            except LocalspecError as error:
                self.post_message(self.Mended(f"{error.message} {error.hint}", failed=True))
            except OSError as error:
                words = f"That failed: {error.strerror or error}"
                self.post_message(self.Mended(words, failed=True))
            else:
                self.post_message(self.Mended(words))

        threading.Thread(target=work, daemon=True, name="mend").start()

    @on(Mended)
    def _mended(self, message: Mended) -> None:
        words = clean(message.words, multiline=False)
        severity = "error" if message.failed else "information"
        self.notify(words, severity=severity, markup=False)  # type: ignore[arg-type]
        self.action_again()

    # --- the rest -------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Nothing in it names a person or a place."""
        if not self.done:
            self.notify("It is still looking.", markup=False)
            return
        self.notify(clipping.copy(self.app, report.text(self._found)), markup=False)

    async def action_log(self) -> None:
        await self.app.run_action("log")

    def action_back(self) -> None:
        self.dismiss()


def told(one: Finding, glyphs: Glyphs, width: int, *, pointed: bool = False) -> Content:
    """By sign and colour; below it what it means and what to do, where something is not right."""
    signs = {"error": glyphs.bad, "warning": "!", "notice": glyphs.dot, "ok": glyphs.good}
    what, *more = _wrapped(one.what, width) or [""]
    pointer = glyphs.pointer if pointed else " "
    calm = "$muted" if one.level == "ok" else ""
    sign = (f"{signs[one.level]:<3}", _STYLES[one.level])
    lines = [Content.assemble((pointer, "$accent"), sign, (what, calm))]
    lines += [Content.styled(f"    {line}", calm) for line in more]
    if one.level != "ok":
        for words, style in ((one.means, "$muted"), (one.fix, "$accent")):
            lines += [Content.styled(f"    {line}", style) for line in _wrapped(words, width)]
    return Content("\n").join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """A command is not cut within a word."""
    return wrap(clean(text, multiline=False), max(10, width), break_on_hyphens=False)
