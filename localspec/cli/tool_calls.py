"""Calls of tools on a terminal without a full screen: shown, asked about, and folded.

All of it goes to standard error: on standard output is only the answer's text.
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from localspec.chat.conversation import Turn
from localspec.chat.tool_loop import CallState
from localspec.cli import report_printer, terminal
from localspec.cli.answer_printer import OutputStyle
from localspec.report import tool_calls
from localspec.report.lines import Line, Role, Span, make_line
from localspec.report.tool_calls import CallArgument
from localspec.tools.approval import CallDecision, CallRequest, Verdict
from localspec.tools.tool_types import StopSignal
from localspec.units import count

_LETTERS: Mapping[Verdict, str] = {"once": "o", "chat": "c", "always": "a", "no": "n"}
_WORDS_TO_SHOW_ALL = ("v", "view")
_MAX_VALUE_LINES = 12
_MAX_VALUE_CHARACTERS = 1_200
"""How much of one argument a question shows, unless the person asks for all of it."""
_INDENT = "    "
_PLAIN_SIGNS = {" · ": ", ", "…": "...", "“": '"', "”": '"'}
_NOT_NAMED = "It was not allowed on the command line, and nobody can be asked."
"""What the model is told of a call that only `--allow` could have allowed."""


def parse_decision(typed: str) -> CallDecision | None:
    """What a person typed at the question; None if it is no answer to it.

    `o` is once, `n it is Rome` is no with a reason. An empty line is no answer, so that
    an Enter that was typed too early allows nothing.
    """
    word, _, rest = typed.strip().partition(" ")
    word = word.rstrip(",.:;").lower()
    for verdict, letter in _LETTERS.items():
        if word not in (letter, verdict):
            continue
        if verdict == "no":
            return CallDecision("no", rest.strip())
        if rest:
            return None
        return CallDecision(verdict)
    return None


class CallHooks(Struct, frozen=True, kw_only=True):
    """What the command around a `ToolCallPrinter` does for it."""

    show_input: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while a person types."""
    start_new_line: Callable[[], None] = lambda: None
    """Ends a line of the answer."""
    on_turn: Callable[[Turn], None] = lambda _: None
    """Another answer begins, after calls."""
    on_interrupt: Callable[[], None] = lambda: None
    """Stops the answer, after Ctrl+C at a question."""
    describe_rest: Callable[[int], str] = lambda _: ""
    """How to see the whole result of the n-th call since the last turn."""
    record: Callable[[CallState], None] = lambda _: None
    """Receives each call with its result."""


class ToolCallPrinter:
    """A `ToolFrontEnd` that prints lines, and asks the person at the terminal."""

    def __init__(
        self,
        style: OutputStyle,
        hooks: CallHooks = CallHooks(),  # noqa: B008  frozen
    ) -> None:
        self._style = style
        self._hooks = hooks
        self._n_unsaved = 0
        """How many calls have got results since the last turn."""
        self._asked_id = ""
        """The call that was asked about last: its arguments are on the screen."""
        self._progress = terminal.ProgressLine(quiet=style.quiet, interval=math.inf)

    def begin_turn(self, turn: Turn) -> None:
        self._n_unsaved = 0
        self._hooks.on_turn(turn)

    # --- asking
    # ----------------------------------------------------------------------------

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        """Ask until there is an answer. Ctrl+C stops the whole answer.

        What was typed before the question allows nothing.
        """
        self._progress.clear()
        self._hooks.start_new_line()
        self._asked_id = request.call_id
        with self._hooks.show_input():
            terminal.discard_typed()
            self._print_question(request)
            while not stop.is_set():
                typed = _read_line()
                if typed is None:
                    self._hooks.on_interrupt()
                    return CallDecision("stopped")
                if typed.strip().lower() in _WORDS_TO_SHOW_ALL:
                    self.print_arguments(request, is_whole=True)
                    self._print_choices()
                    continue
                decision = parse_decision(typed)
                if decision is not None:
                    return decision
                self._print("Type o, c, a or n, and Enter:")
        return CallDecision("stopped")

    def _print_question(self, request: CallRequest) -> None:
        self._print(tool_calls.CALL_QUESTION, "warning")
        self._print(f"  {tool_calls.call_name(request)}", "strong")
        self.print_arguments(request, is_whole=False)
        if request.tool is not None:
            provider = tool_calls.describe_provider(request.tool)
            self._print(f"  It is run by {provider}.")
            for words in (
                tool_calls.describe_description(request.tool),
                tool_calls.describe_claims(request.tool),
            ):
                if words:
                    self._print(f"  {words}", "muted")
        self._print_choices()

    def _print_choices(self) -> None:
        for choice in tool_calls.CALL_CHOICES:
            letter = _LETTERS[choice.verdict]
            label = f"  {letter}  {choice.label}"
            if self._style.plain:
                label = f"{letter}, {choice.label}"
            self._print_line((Span(label, "strong"), Span(f": {choice.consequence}")))
        self._print("Type a letter and Enter; behind n you can say why:")

    def print_arguments(self, request: CallRequest, *, is_whole: bool) -> None:
        """Each argument with its value; a long one is cut unless `is_whole`."""
        arguments = tool_calls.describe_arguments(request)
        if not arguments:
            self._print_indented("without arguments")
        has_cut = False
        for argument in arguments:
            shown = argument
            if not is_whole:
                shown = _cut_argument(argument)
            if shown is not argument:
                has_cut = True
            first, *more = shown.text.split("\n")
            self._print_indented(f"{shown.name}: {first}")
            for line in more:
                self._print_indented(f"  {line}")
        if has_cut:
            self._print("  Some of it is not shown. Type v and Enter to see all.")

    # --- what becomes of a call
    # ----------------------------------------------------------------------------

    def show_call(self, state: CallState) -> None:
        if state.phase == "asking":
            return  # The question shows the whole call.
        if state.phase == "writing":
            self._show_writing(state)
            return
        self._progress.clear()
        self._hooks.start_new_line()
        is_asked = state.request.call_id == self._asked_id
        if state.phase == "running":
            if not is_asked:
                self._print_call(state)
            name = tool_calls.call_name(state.request)
            self._progress.show(f"running {name}, Ctrl+C stops it")
            return
        if state.result is not None:
            self._n_unsaved += 1
            self._hooks.record(state)
        if state.request.problem or (state.result is None and not is_asked):
            self._print_call(state)
        self._print_outcome(state)

    def _show_writing(self, state: CallState) -> None:
        """The end of a call that the model writes, on a line that is redrawn."""
        self._hooks.start_new_line()
        name = tool_calls.call_name(state.request)
        arguments = tool_calls.summarise_arguments(state.request)
        self._progress.show(f"{name}  {arguments}")

    def end_progress(self) -> None:
        """Remove the line that is redrawn, before other text is printed."""
        self._progress.clear()

    def _print_call(self, state: CallState) -> None:
        """The call in one line, for one that nobody is asked about."""
        name = tool_calls.call_name(state.request)
        arguments = tool_calls.summarise_arguments(state.request)
        text = f"▸ {name}"
        if self._style.plain:
            text = f"Tool {name}"
        if arguments:
            text += f"  {arguments}"
        if not self._style.quiet:
            self._print(text, "accent")

    def _print_outcome(self, state: CallState) -> None:
        look = tool_calls.look_of_call(state)
        text = tool_calls.describe_outcome(state)
        if not self._style.plain:
            text = f"{look.sign} {text}"
        result = state.result
        rest = ""
        if result is not None and tool_calls.is_folded(result.text):
            rest = self._hooks.describe_rest(self._n_unsaved)
        line = [Span(f"  {text}", look.role)]
        if rest:
            line.append(Span(f"  ({rest})", "muted"))
        if not self._style.quiet:
            self._print_line(tuple(line))

    def print_whole(self, state: CallState) -> None:
        """A call with all of its arguments and all of its result."""
        self._print(f"  {tool_calls.call_name(state.request)}", "strong")
        self.print_arguments(state.request, is_whole=True)
        look = tool_calls.look_of_call(state)
        words = f"{look.words}:"
        if not self._style.plain:
            words = f"{look.sign} {words}"
        self._print(f"  {words}", look.role)
        if state.result is not None:
            for line in tool_calls.show_exactly(state.result.text).split("\n"):
                self._print_indented(line)

    # --- lines
    # ----------------------------------------------------------------------------

    def _print(self, text: str, role: Role = "text") -> None:
        self._print_line(make_line(text, role))

    def _print_line(self, line: Line) -> None:
        sys.stdout.flush()
        if self._style.plain:
            line = tuple(Span(_spell_signs(span.text), span.role) for span in line)
        report_printer.echo_wrapped_line(line, err=True, colour=self._style.colour)

    def _print_indented(self, line: str) -> None:
        """A line of a model's text, which stays right of our own words."""
        terminal.echo_wrapped(f"{_INDENT}{line}", err=True, indent=f"{_INDENT}  ")


class CallRefuser(ToolCallPrinter):
    """Refuses what `--allow` does not name, because nobody can be asked."""

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        self._hooks.start_new_line()
        name = tool_calls.call_name(request)
        arguments = tool_calls.summarise_arguments(request)
        call = name
        if arguments:
            call = f"{name}, {arguments}"
        self._asked_id = request.call_id
        terminal.notify(f"Not allowed: {call}", f"To allow it: --allow {name}")
        return CallDecision("no", _NOT_NAMED)


def _spell_signs(text: str) -> str:
    """The text of a report in plain mode, which has no signs."""
    for sign, words in _PLAIN_SIGNS.items():
        text = text.replace(sign, words)
    return text


def _cut_argument(argument: CallArgument) -> CallArgument:
    """The argument itself if it is short, else its beginning and what is left out."""
    text = argument.text
    lines = text[:_MAX_VALUE_CHARACTERS].split("\n")
    shown = "\n".join(lines[:_MAX_VALUE_LINES])
    if shown == text:
        return argument
    n_left_out = count(len(text) - len(shown), "more character")
    return CallArgument(argument.name, f"{shown}\n... {n_left_out}")


def _read_line() -> str | None:
    """A line that a person types; None after Ctrl+C, and `n` at the end of input.

    While an answer is generated, the first Ctrl+C only stops the engine, and a read that
    waits would go on.
    """
    handler_before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typed = sys.stdin.readline()
    except KeyboardInterrupt:
        return None
    finally:
        signal.signal(signal.SIGINT, handler_before)
    return typed or "n"
