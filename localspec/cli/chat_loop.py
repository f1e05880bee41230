"""The linear chat: `localspec run` without a prompt, on a terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

import click

from localspec import launch
from localspec.chat import settings, slash_commands
from localspec.chat.context_window import AnswerGenerator, ContextOverflow, RequestOptions
from localspec.chat.conversation import Attachment, ConversationSnapshot
from localspec.chat.settings import OverflowPolicy
from localspec.chat.slash_commands import CommandCall, UnknownCommand
from localspec.cli import slash_handlers, speculation_text
from localspec.cli.answer_printer import ChatAnswerPrinter
from localspec.cli.chat_state import ChatLaunchOptions, ChatState
from localspec.cli.readline_prompt import ReadlinePrompt
from localspec.cli.speculation_text import AnswerStats
from localspec.errors import LocalspecError, PromptTooLongError
from localspec.protocol.events import (
    EngineExit,
    EngineReady,
    Event,
    GenerationFinished,
    Round,
    encode,
)
from localspec.sanitize import sanitize
from localspec.units import short_count
from localspec.worker import crashes

_UNANSWERED_HINT = "/set think_budget N limits thinking to N tokens; /think off turns it off."
_CONTEXT_FULL_HINT = "/undo removes the last turn, /clear all turns; --ctx N sets a larger context."


class ChatLoop:
    """A chat on a terminal.  The conversation survives a crash of the engine."""

    def __init__(self, launch_options: ChatLaunchOptions, state: ChatState) -> None:
        self._launch_options, self.state = launch_options, state
        self._engine: launch.MeasuredEngine | None = None
        self._message_prompt = ReadlinePrompt("You: " if state.style.plain else "> ")
        self._interrupts = InterruptHandler()
        self._quit_hint_shown = False

    def run(self, on_loaded: Callable[[EngineReady], None] = lambda _: None) -> int:
        """Chat until the user quits; returns the exit code.

        Raises LocalspecError if the pair cannot be loaded.
        """
        with exit_cleanly_on_signals():
            try:
                self._start_engine()
                assert self.state.ready is not None
                on_loaded(self.state.ready)
                self._print_welcome()
                while (code := self._run_turn()) is None:
                    pass
                return code
            finally:
                self.state.recorder.close()
                self._close_engine()

    def _start_engine(self) -> launch.MeasuredEngine:
        options, choice = self._launch_options, self._launch_options.choice
        probe = self.state.settings.spec == "auto" and choice.spec == "auto"
        self._engine = launch.start_engine(
            options.load_request, probe=probe, notify=options.on_event
        )
        ready = self._engine.ready
        self.state.ready = ready
        self.state.loaded = settings.LoadedModel.from_ready(
            ready, choice.spec, choice.spec_reason, raw=options.raw, template=options.template
        )
        self.state.recorder.pair = replace(
            self.state.recorder.pair,
            name=self.state.model_name,
            thinking=self.state.loaded.thinking_markers,
        )
        self._write_event(ready)
        for notice in ready.notices:
            self._print(f"localspec: {sanitize(notice.message, multiline=False)}")
        return self._engine

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _print_welcome(self) -> None:
        state = self.state
        assert state.ready is not None
        draft = sanitize(state.ready.draft or "", multiline=False).removesuffix(".gguf")
        joint = ", drafted by " if state.style.plain else " with "
        pair = f"{state.model_name}{joint}{draft}" if draft else state.model_name
        if state.style.plain:
            self._print(f"Chat with {pair}. Type /help for commands, /exit to quit.")
        else:
            n_ctx = short_count(state.loaded.n_ctx)
            self._print(f"{pair} · context {n_ctx} · /help lists the commands, Ctrl+D quits")
        if not state.loaded.has_chat_template:
            self._print("Text-completion model: type the beginning; an empty Enter continues.")
        for line in state.recap:
            self._print(line)
        if state.mark_tokens and not state.style.plain:
            self._print(speculation_text.format_legend(state.style.colour))

    def _run_turn(self) -> int | None:
        """Read one message and handle it; returns an exit code to end the chat."""
        initial_text, self.state.initial_text = self.state.initial_text, ""
        try:
            text = self._message_prompt.read_message(initial_text)
        except EOFError:
            self._print("")
            return 0
        except KeyboardInterrupt:
            return self._handle_interrupt()
        self._quit_hint_shown = False
        snapshot, attachments = self.state.conversation.take_snapshot(), self.state.attachments
        try:
            next_step = self._handle_input(text)
            if next_step == "quit":
                return 0
            if next_step == "answer":
                return self._answer_turn(snapshot, attachments)
            self.state.update_recorder().save_metadata()
        except LocalspecError as error:
            self._print_error(error)
        except KeyboardInterrupt:  # e.g. while the model reloads
            self._print("\nInterrupted.")
        return None

    def _handle_interrupt(self) -> int | None:
        """Ctrl+C at the prompt quits the second time, or right after it stopped an answer."""
        self._print("")
        if self._quit_hint_shown or self._interrupts.is_recent:
            return 130
        self._quit_hint_shown = True
        self._print("Press Ctrl+C again or Ctrl+D to quit.")
        return None

    def _handle_input(self, text: str) -> slash_handlers.NextStep:
        state = self.state
        command = slash_commands.parse(text)
        if isinstance(command, CommandCall):
            return slash_handlers.run_command(command, state, self._print)
        if isinstance(command, UnknownCommand):
            near = f" Did you mean {command.suggestion}?" if command.suggestion else ""
            self._print(f"Unknown command {command.text}.{near} /help lists the commands.")
            return "ask"
        if not text.strip() and not state.attachments:
            return self._handle_empty_input()
        state.conversation.ask(slash_commands.unescape(text).rstrip("\r"), state.attachments)
        state.attachments = ()
        return "answer"

    def _handle_empty_input(self) -> slash_handlers.NextStep:
        """An empty Enter: retry after a crash, continue a text completion, else show a hint."""
        state = self.state
        if state.engine_died:
            state.conversation.restart_answer()
            return "answer"
        if not state.loaded.has_chat_template and state.conversation.turns:
            state.conversation.ask("")
            return "answer"
        self._print("Type a message, or /help for the commands.")
        return "ask"

    def _answer_turn(
        self, snapshot: ConversationSnapshot, attachments: tuple[Attachment, ...]
    ) -> int | None:
        """Answer the last turn; restore `snapshot` if the request is refused."""
        state, turn = self.state, self.state.conversation.turns[-1]
        state.update_recorder().record_question(turn)
        engine = self._engine or self._restart_engine(snapshot)
        printer = ChatAnswerPrinter(
            state.style,
            state.model_name,
            state.loaded.thinking_markers,
            mark_tokens=state.mark_tokens,
            show_thinking=state.settings.show_thinking,
        )
        events: list[Event] = []
        failure: LocalspecError | None = None
        try:
            stopped_ms = self._stream_answer(engine, printer, events)
        except KeyboardInterrupt:
            return 130
        except LocalspecError as error:
            failure, stopped_ms = error, None
        finally:
            printer.finish()
        if failure is not None and not any(isinstance(event, Round) for event in events):
            state.conversation.restore(snapshot)
            state.recorder.discard_turn(turn)
            state.attachments = attachments
            raise failure
        state.conversation.add_events(events)
        state.recorder.finish_answer()
        if failure is not None:
            self._print_error(failure)
        self._finish_answer(engine, printer, events, stopped_ms)
        return None

    def _restart_engine(self, snapshot: ConversationSnapshot) -> launch.MeasuredEngine:
        """Reload after a crash.  On failure the chat is unchanged and an empty Enter retries."""
        conversation = self.state.conversation
        self.state.engine_died = True
        self._print("Reloading the model …")
        try:
            return self._start_engine()
        except BaseException:
            if len(conversation.turns) == len(snapshot.path):
                turn = conversation.turns[-1]
                conversation.restore(snapshot)
                self.state.recorder.discard_turn(turn)
            raise

    def _stream_answer(
        self, engine: launch.MeasuredEngine, printer: ChatAnswerPrinter, events: list[Event]
    ) -> float | None:
        """Stream the answer; returns the ms from Ctrl+C to the end, None without Ctrl+C."""
        state = self.state
        options = RequestOptions(state.settings, state.loaded, self._launch_options.probabilities)

        def choose(overflow: ContextOverflow) -> OverflowPolicy:
            printer.start_new_line()
            return ask_overflow_choice(overflow, self._print)

        stopped_ms, interrupts = None, self._interrupts
        with interrupts.intercept(engine.stop):
            generator = AnswerGenerator(
                engine, state.conversation, options, choose, lambda: interrupts.is_pressed
            )
            for event in generator.stream_events():
                events.append(event)
                self._write_event(event)
                state.recorder.record_events((event,))
                printer.on_event(event)
                if isinstance(event, GenerationFinished):
                    stopped_ms = interrupts.elapsed_ms
                elif interrupts.is_pressed:  # the first stop may have come before the start
                    engine.stop()
        return stopped_ms

    def _finish_answer(
        self,
        engine: launch.MeasuredEngine,
        printer: ChatAnswerPrinter,
        events: list[Event],
        stopped_ms: float | None,
    ) -> None:
        """Print the status line of an answer, or explain a crash."""
        state = self.state
        state.engine_died = bool(events) and isinstance(events[-1], EngineExit)
        for event in events[-1:]:
            if isinstance(event, EngineExit):
                self._close_engine()
                self._print_error(crashes.exit_error(event))
                self._print(
                    "The chat is kept. Press Enter or type /retry to reload and answer again."
                )
        if printer.finished is None:
            return
        measured = engine.worker.measured
        state.last_answer = AnswerStats(
            printer.finished,
            printer.totals,
            printer.plan,
            1e3 / measured.t1_ms if measured else None,
            state.loaded.n_ctx,
            stopped_ms,
        )
        if state.style.plain:
            self._print(speculation_text.format_status_sentences(state.last_answer))
        else:
            line = speculation_text.format_status_line(state.last_answer)
            self._print(click.style(line, dim=True) if state.style.colour else line)
        if state.last_answer.is_context_full:
            self._print(_CONTEXT_FULL_HINT)
        if state.last_answer.ended_in_thinking:
            self._print(_UNANSWERED_HINT)
        if self._launch_options.show_stats:
            slash_handlers.run_command(CommandCall("stats"), state, self._print)

    def _write_event(self, event: Event) -> None:
        if self._launch_options.events_file is not None:
            self._launch_options.events_file.write(encode(event) + "\n")

    def _print(self, line: str) -> None:
        sys.stdout.flush()
        click.echo(line, err=True, color=self.state.style.colour)

    def _print_error(self, error: LocalspecError) -> None:
        self._print(f"localspec: {sanitize(error.message, multiline=False)}")
        for hint in (sanitize(error.hint, multiline=False), *_extra_hints(error)):
            if hint:
                self._print(f"  {hint}")


def _extra_hints(error: LocalspecError) -> tuple[str, ...]:
    if isinstance(error, PromptTooLongError):
        return (_CONTEXT_FULL_HINT, "Your message was not sent. Press Up to edit it.")
    return ()


_CHOICE_TEXT: dict[OverflowPolicy, str] = {
    "drop": "leave out the oldest turns",
    "summarise": "let the model summarise the oldest turns",
    "stop": "stop here",
}
_DO_NOT_SEND = "do not send the message"


def ask_overflow_choice(
    overflow: ContextOverflow,
    print_line: Callable[[str], None],
    read_line: Callable[[], str] | None = None,
) -> OverflowPolicy:
    """Ask what to do with a full context; `stop` on Ctrl+C, Ctrl+D and any other input."""
    read_line = read_line or sys.stdin.readline
    mid_answer = overflow.mid_answer
    what = "The context is full" if mid_answer else "The conversation exceeds the context"
    print_line(
        f"{what} ({overflow.used:,} / {overflow.n_ctx:,} tokens). Older turns stay in the chat."
    )
    for choice in overflow.choices:
        text = _DO_NOT_SEND if choice == "stop" and not mid_answer else _CHOICE_TEXT[choice]
        print_line(f"  {choice[0] if choice != 'summarise' else 'm'}: {text}")
    print_line("Type a letter and Enter (to always do the same: /set overflow NAME):")
    with _interruptible():
        try:
            return _parse_choice(read_line().strip().lower(), overflow)
        except KeyboardInterrupt:
            return "stop"


def _parse_choice(text: str, overflow: ContextOverflow) -> OverflowPolicy:
    names: dict[str, OverflowPolicy] = {"d": "drop", "m": "summarise", "s": "stop"}
    names |= {choice: choice for choice in overflow.choices}
    choice = names.get(text, "stop")
    return choice if choice in overflow.choices else "stop"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl+C raises KeyboardInterrupt here, whatever handler is installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_QUIT_WINDOW_SECONDS = 1.0
"""A second Ctrl+C within this time quits."""
_EXIT_SIGHUP = 129


class InterruptHandler:
    """Ctrl+C while an answer streams."""

    def __init__(self) -> None:
        self._pressed_at: float | None = None

    @property
    def is_pressed(self) -> bool:
        return self._pressed_at is not None

    @property
    def elapsed_ms(self) -> float | None:
        return None if self._pressed_at is None else (time.monotonic() - self._pressed_at) * 1e3

    @property
    def is_recent(self) -> bool:
        """Whether a Ctrl+C now counts as the second of two."""
        return (
            self._pressed_at is not None
            and time.monotonic() - self._pressed_at < _QUIT_WINDOW_SECONDS
        )

    @contextmanager
    def intercept(self, stop: Callable[[], None]) -> Iterator[None]:
        """The first Ctrl+C calls `stop`, the second raises KeyboardInterrupt."""
        self._pressed_at = None

        def handle(*_: int | FrameType | None) -> None:
            if self._pressed_at is not None:
                raise KeyboardInterrupt
            self._pressed_at = time.monotonic()
            stop()

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def exit_cleanly_on_signals() -> Iterator[None]:
    """Turn SIGTERM and a closed terminal into SystemExit, so that cleanup runs."""

    def exit_(number: int, _: FrameType | None) -> None:
        if number != signal.SIGTERM:
            _detach_terminal()
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, exit_) for number in numbers}
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _detach_terminal()  # the terminal is closed, SIGHUP is not delivered yet
        raise SystemExit(_EXIT_SIGHUP) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _detach_terminal() -> None:
    """Point stdin, stdout and stderr to null, as the terminal is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            os.dup2(null, stream)
