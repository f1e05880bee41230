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

_UNANSWERED_HINT = "/set think_budget N ends thinking after N tokens; /think off leaves it out."
_CONTEXT_FULL_HINT = "/undo takes back the last turn, /clear all of them; --ctx N gives more room."


class ChatLoop:
    """Asks and answers in turns; the engine may die at any time, the conversation stays."""

    def __init__(self, launch_options: ChatLaunchOptions, state: ChatState) -> None:
        self._launch_options, self.state = launch_options, state
        self._engine: launch.MeasuredEngine | None = None
        self._message_prompt = ReadlinePrompt("You: " if state.style.plain else "> ")
        self._interrupts = InterruptHandler()
        self._quit_hint_shown = False

    def run(self, on_loaded: Callable[[EngineReady], None] = lambda _: None) -> int:
        """Until the person leaves; the exit code.  Raises where the pair cannot be loaded."""
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

    # --- the engine -----------------------------------------------------------------------

    def _start_engine(self) -> launch.MeasuredEngine:
        opening, choice = self._launch_options, self._launch_options.choice
        probe = self.state.settings.spec == "auto" and choice.spec == "auto"
        self._engine = launch.start_engine(
            opening.load_request, probe=probe, notify=opening.on_event
        )
        ready = self._engine.ready
        self.state.ready = ready
        self.state.loaded = settings.LoadedModel.from_ready(
            ready, choice.spec, choice.spec_reason, raw=opening.raw, template=opening.template
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
        draft = sanitize(state.ready.draft or "", multiline=False)
        joint = ", drafted by " if state.style.plain else " with "
        pair = (
            f"{state.model_name}{joint}{draft.removesuffix('.gguf')}" if draft else state.model_name
        )
        if state.style.plain:
            self._print(f"Chat with {pair}. Type /help for commands, /exit to quit.")
        else:
            n_ctx = short_count(state.loaded.n_ctx)
            self._print(f"{pair} · context {n_ctx} · /help shows commands, Ctrl+D quits")
        if not state.loaded.has_chat_template:
            self._print("This model completes text: it goes on with what you type. Enter: more.")
        for line in state.recap:
            self._print(line)
        if state.mark_tokens and not state.style.plain:
            self._print(speculation_text.format_legend(state.style.colour))

    # --- one turn -------------------------------------------------------------------------

    def _run_turn(self) -> int | None:
        """Read what was typed, and do it; an exit code ends the chat."""
        begun, self.state.initial_text = self.state.initial_text, ""
        try:
            text = self._message_prompt.read_message(begun)
        except EOFError:
            self._print("")
            return 0
        except KeyboardInterrupt:
            return self._handle_interrupt()
        self._quit_hint_shown = False
        before, attached = self.state.conversation.take_snapshot(), self.state.attachments
        try:
            follows = self._handle_input(text)
            if follows == "quit":
                return 0
            if follows == "answer":
                return self._answer_turn(before, attached)
            self.state.update_recorder().save_metadata()
        except LocalspecError as error:
            self._print_error(error)
        except KeyboardInterrupt:  # while it loads again, say
            self._print("\nInterrupted.")
        return None

    def _handle_interrupt(self) -> int | None:
        """Ctrl+C at the prompt: the second time, or right after it stopped an answer, quits."""
        self._print("")
        if self._quit_hint_shown or self._interrupts.is_recent:
            return 130
        self._quit_hint_shown = True
        self._print("Ctrl+C once more, or Ctrl+D, quits.")
        return None

    def _handle_input(self, text: str) -> slash_handlers.NextStep:
        state = self.state
        found = slash_commands.parse(text)
        if isinstance(found, CommandCall):
            return slash_handlers.run_command(found, state, self._print)
        if isinstance(found, UnknownCommand):
            near = f" Did you mean {found.suggestion}?" if found.suggestion else ""
            self._print(f"There is no {found.text}.{near} /help shows all.")
            return "ask"
        if not text.strip() and not state.attachments:
            return self._handle_empty_input()
        state.conversation.ask(slash_commands.unescape(text).rstrip("\r"), state.attachments)
        state.attachments = ()
        return "answer"

    def _handle_empty_input(self) -> slash_handlers.NextStep:
        """Enter alone: again after a death, on with a text, else a hint."""
        state = self.state
        if state.engine_died:
            state.conversation.restart_answer()
            return "answer"
        if not state.loaded.has_chat_template and state.conversation.turns:
            state.conversation.ask("")
            return "answer"
        self._print("Type a message; /help shows commands.")
        return "ask"

    # --- one answer -----------------------------------------------------------------------

    def _answer_turn(
        self, before: ConversationSnapshot, attachments: tuple[Attachment, ...]
    ) -> int | None:
        """Answer the last turn; `before` is the chat as it was, should it be refused."""
        state, asked = self.state, self.state.conversation.turns[-1]
        state.update_recorder().record_question(asked)
        engine = self._engine or self._restart_engine(before)
        teller = ChatAnswerPrinter(
            state.style,
            state.model_name,
            state.loaded.thinking_markers,
            mark_tokens=state.mark_tokens,
            show_thinking=state.settings.show_thinking,
        )
        heard: list[Event] = []
        refusal: LocalspecError | None = None
        try:
            stopped_ms = self._stream_answer(engine, teller, heard)
        except KeyboardInterrupt:
            return 130
        except LocalspecError as error:
            refusal, stopped_ms = error, None
        finally:
            teller.finish()
        if refusal is not None and not any(isinstance(event, Round) for event in heard):
            state.conversation.restore(before)
            state.recorder.discard_turn(asked)
            state.attachments = attachments
            raise refusal
        state.conversation.add_events(heard)
        state.recorder.finish_answer()
        if refusal is not None:
            self._print_error(refusal)
        self._finish_answer(engine, teller, heard, stopped_ms)
        return None

    def _restart_engine(self, before: ConversationSnapshot) -> launch.MeasuredEngine:
        """After a death.  Where it fails nothing is lost, and Enter tries again."""
        conversation = self.state.conversation
        self.state.engine_died = True
        self._print("Loading the pair again …")
        try:
            return self._start_engine()
        except BaseException:
            if len(conversation.turns) == len(before.path):
                asked = conversation.turns[-1]
                conversation.restore(before)
                self.state.recorder.discard_turn(asked)
            raise

    def _stream_answer(
        self, engine: launch.MeasuredEngine, printer: ChatAnswerPrinter, events: list[Event]
    ) -> float | None:
        """Hear the answer; how many ms it took to stop, where Ctrl+C stopped it."""
        state = self.state
        how = RequestOptions(state.settings, state.loaded, self._launch_options.probabilities)

        def choose(full: ContextOverflow) -> OverflowPolicy:
            printer.start_new_line()
            return ask_overflow_choice(full, self._print)

        stopped_ms, stopper = None, self._interrupts
        with stopper.intercept(engine.stop):
            writer = AnswerGenerator(
                engine, state.conversation, how, choose, lambda: stopper.is_pressed
            )
            for event in writer.stream_events():
                events.append(event)
                self._write_event(event)
                state.recorder.record_events((event,))
                printer.on_event(event)
                if isinstance(event, GenerationFinished):
                    stopped_ms = self._interrupts.elapsed_ms
                elif self._interrupts.is_pressed:  # perhaps before the engine had anything to stop
                    engine.stop()
        return stopped_ms

    def _finish_answer(
        self,
        engine: launch.MeasuredEngine,
        printer: ChatAnswerPrinter,
        events: list[Event],
        stopped_ms: float | None,
    ) -> None:
        """What is said under an answer, or of a death."""
        state = self.state
        state.engine_died = bool(events) and isinstance(events[-1], EngineExit)
        for event in events[-1:]:
            if isinstance(event, EngineExit):
                self._close_engine()
                self._print_error(crashes.exit_error(event))
                self._print("Nothing is lost. Enter, or /retry, loads the pair again and answers.")
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
            words = speculation_text.format_status_line(state.last_answer)
            self._print(click.style(words, dim=True) if state.style.colour else words)
        if state.last_answer.is_context_full:
            self._print(_CONTEXT_FULL_HINT)
        if state.last_answer.ended_in_thinking:
            self._print(_UNANSWERED_HINT)
        if self._launch_options.show_stats:
            slash_handlers.run_command(CommandCall("stats"), state, self._print)

    # --- talk -----------------------------------------------------------------------------

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
        return (_CONTEXT_FULL_HINT, "Your message was not sent; Up brings it back.")
    return ()


# --- What to do when the context is full, asked at the terminal.

_CHOICE_TEXT: dict[OverflowPolicy, str] = {
    "drop": "leave out the oldest turns",
    "summarise": "have the model summarise them",
    "stop": "stop here",
}
_DO_NOT_SEND = "do not send it"


def ask_overflow_choice(
    full: ContextOverflow,
    print_line: Callable[[str], None],
    read_line: Callable[[], str] | None = None,
) -> OverflowPolicy:
    """The choice; `stop` at Ctrl+C, at Ctrl+D and where nothing is chosen."""
    read_line = read_line or sys.stdin.readline
    what = "The context is full" if full.mid_answer else "This does not fit well into the context"
    print_line(f"{what}: {full.used:,} of {full.n_ctx:,} tokens. The older turns stay in the chat.")
    for choice in full.choices:
        words = _DO_NOT_SEND if choice == "stop" and not full.mid_answer else _CHOICE_TEXT[choice]
        print_line(f"  {choice[0] if choice != 'summarise' else 'm'}: {words}")
    print_line("Type a letter and Enter (/set overflow NAME chooses for good):")
    with _interruptible():
        try:
            return _parse_choice(read_line().strip().lower(), full)
        except KeyboardInterrupt:
            return "stop"


def _parse_choice(text: str, full: ContextOverflow) -> OverflowPolicy:
    found: dict[str, OverflowPolicy] = {"d": "drop", "m": "summarise", "s": "stop"}
    found |= {choice: choice for choice in full.choices}
    choice = found.get(text, "stop")
    return choice if choice in full.choices else "stop"


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl+C ends the question, whatever it does around it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- Signals in a chat: Ctrl+C stops an answer, and what ends the chat leaves the terminal whole.

_QUIT_WINDOW_SECONDS = 1.0
"""Seconds in which a second Ctrl+C quits."""
_EXIT_SIGHUP = 129


class InterruptHandler:
    """When Ctrl+C stopped the last answer."""

    def __init__(self) -> None:
        self._pressed_at: float | None = None

    @property
    def is_pressed(self) -> bool:
        return self._pressed_at is not None

    @property
    def elapsed_ms(self) -> float | None:
        """Since it was pressed."""
        return None if self._pressed_at is None else (time.monotonic() - self._pressed_at) * 1e3

    @property
    def is_recent(self) -> bool:
        """Whether another now is the second of two."""
        return (
            self._pressed_at is not None
            and time.monotonic() - self._pressed_at < _QUIT_WINDOW_SECONDS
        )

    @contextmanager
    def intercept(self, stop: Callable[[], None]) -> Iterator[None]:
        """While an answer comes: the first calls `stop`, the second is a KeyboardInterrupt."""
        self._pressed_at = None

        def pressed(*_: int | FrameType | None) -> None:
            if self._pressed_at is not None:
                raise KeyboardInterrupt
            self._pressed_at = time.monotonic()
            stop()

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def exit_cleanly_on_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal become SystemExit: readline and the engine are put in order."""

    def end(number: int, _: FrameType | None) -> None:
        if number != signal.SIGTERM:
            _detach_terminal()
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _detach_terminal()  # the terminal is gone, and its signal still to come
        raise SystemExit(_EXIT_SIGHUP) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _detach_terminal() -> None:
    """Nobody is there to read."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            os.dup2(nowhere, stream)
