"""The linear chat: `localspec run` without a prompt, on a terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

import click
from msgspec import Struct

from localspec import launch
from localspec.chat import session_commands, slash_commands
from localspec.chat.context_window import ContextOverflow
from localspec.chat.session import ChatSession
from localspec.chat.settings import OverflowPolicy
from localspec.chat.slash_commands import CommandCall, UnknownCommand
from localspec.cli import slash_handlers, speculation_text
from localspec.cli.answer_printer import ChatAnswerPrinter
from localspec.cli.readline_prompt import ReadlinePrompt
from localspec.cli.slash_handlers import LinearChatView
from localspec.cli.speculation_text import AnswerStats
from localspec.cli.terminal import Interrupt, stop_on_interrupt
from localspec.errors import LocalspecError, OptionHint, PromptTooLongError, render_hint
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine, StartEngine, idle_tasks
from localspec.protocol.events import EngineReady, Event, Notice, encode
from localspec.units import short_count

_UNANSWERED_HINT = (
    "/set think_budget N limits thinking to N tokens; /think off turns it off."
)
_QUIT_WINDOW_MS = 1000  # A second Ctrl+C within this time quits.
_NOT_SENT_HINT = "Your message was not sent. Press Up to edit it."
_CONTEXT_FULL_HINT = (
    "/undo removes the last turn, /clear all turns; --ctx N sets a larger context."
)


class ChatLaunchOptions(Struct, frozen=True):
    """What is needed to load the pair, at the start and after a crash."""

    build_load_request: Callable[[ChatSession], SettingsRequest]
    """For the pair and the context size of the session."""
    raw: bool = False
    template: str | None = None
    show_stats: bool = False
    probabilities: bool = False
    on_event: Callable[[Event], None] = lambda _: None
    events_file: TextIO | None = None  # Receives every event as a JSON line.
    recap: tuple[str, ...] = ()  # Lines to show when a saved chat is continued.


class ChatLoop:
    """A chat on a terminal.  The conversation survives a crash of the engine."""

    def __init__(
        self,
        launch_options: ChatLaunchOptions,
        view: LinearChatView,
        load_engine: StartEngine = launch.start_engine,
        read_line: Callable[[str], str] = input,
    ) -> None:
        self._launch_options, self._view, self._load_engine = (
            launch_options,
            view,
            load_engine,
        )
        self.session: ChatSession = view.session
        self._print = view.print_line
        self._engine: Engine | None = None
        self._loaded_key: object = None  # The `ChatSession.load_key` of the last load.
        self._message_prompt = ReadlinePrompt(
            "You: " if view.style.plain else "> ", read_line
        )
        self._interrupt = Interrupt()  # The last Ctrl+C while an answer streamed.
        self._quit_hint_shown = False

    def run(self, on_loaded: Callable[[EngineReady], None] = lambda _: None) -> int:
        """Chat until the user quits; returns the exit code.

        Raises LocalspecError if the pair cannot be loaded.
        """
        with exit_cleanly_on_signals():
            try:
                on_loaded(self._start_engine().ready)
                self._print_welcome()
                while (code := self._run_turn()) is None:
                    pass
                return code
            finally:
                self.session.close()
                self._print_notices(self.session.take_notices())
                self._close_engine()

    def _start_engine(self) -> Engine:
        options, session = self._launch_options, self.session
        probe = session.settings.spec == "auto" and session.pair.spec == "auto"
        request = options.build_load_request(session)
        engine = self._load_engine(request, probe=probe, notify=options.on_event)
        self._engine, self._view.ready = engine, engine.ready
        self._loaded_key = session.load_key
        session.attach_engine(engine, raw=options.raw, template=options.template)
        self._write_event(engine.ready)
        self._print_notices(engine.ready.notices)
        return engine

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _print_welcome(self) -> None:
        view, loaded = self._view, self.session.loaded
        assert loaded is not None
        pair = self._describe_pair()
        if view.style.plain:
            self._print(f"Chat with {pair}. Type /help for commands, /exit to quit.")
        else:
            self._print(f"{pair} · /help lists the commands, Ctrl+D quits")
        if loaded.has_chat_template:
            self._print("Ask a question, for example: What is a bicycle?")
        else:
            example = self.session.example_beginning
            self._print(
                f"Text-completion model: type the beginning, for example {example}"
            )
            self._print("An empty Enter continues.")
        for line in self._launch_options.recap:
            self._print(line)
        if view.mark_tokens and not view.style.plain:
            view.print_styled(speculation_text.format_legend(view.style.colour))

    def _describe_pair(self) -> str:
        view, session = self._view, self.session
        assert view.ready is not None and session.loaded is not None
        draft = (view.ready.draft or "").replace(".gguf", "")
        joint = ", drafted by " if view.style.plain else " with "
        pair = f"{session.model_name}{joint}{draft}" if draft else session.model_name
        return (
            pair
            if view.style.plain
            else f"{pair} · context {short_count(session.loaded.n_ctx)}"
        )

    # --- input
    # ----------------------------------------------------------------------------

    def _run_turn(self) -> int | None:
        """Read one message and handle it; returns an exit code to end the chat."""
        initial_text, self._view.initial_text = self._view.initial_text, ""
        self._print_notices(self.session.take_notices())
        try:
            with idle_tasks.work_while_idle(self.session.pair.target):
                text = self._message_prompt.read_message(initial_text)
        except EOFError:
            self._print("")
            return 0
        except KeyboardInterrupt:
            self._print("")
            since = self._interrupt.elapsed_ms
            if self._quit_hint_shown or (since is not None and since < _QUIT_WINDOW_MS):
                return 130
            self._quit_hint_shown = True
            self._print("Press Ctrl+C again or Ctrl+D to quit.")
            return None
        self._quit_hint_shown = False
        try:
            return self._handle_input(text)
        except LocalspecError as error:
            self._print_error(error)
        except KeyboardInterrupt:  # e.g. while the model reloads
            self._print("")
            self._print("Interrupted.")
        return None

    def _handle_input(self, text: str) -> int | None:
        command = slash_commands.parse(text)
        if isinstance(command, UnknownCommand):
            self._print(command.message)
        elif isinstance(command, CommandCall):
            return self._run_command(command)
        else:
            question, session = slash_commands.unescape(text).rstrip("\r"), self.session
            is_empty = not question.strip() and not session.pending_attachments
            if is_empty and session.is_interrupted:
                return self._answer(session.regenerate)
            if session.can_ask(question):
                return self._answer(lambda: session.ask(question), _NOT_SENT_HINT)
            self._print("Type a message, or /help for the commands.")
        return None

    def _run_command(self, call: CommandCall) -> int | None:
        session, argument = self.session, call.argument.strip()
        if call.name == "exit":
            return 0
        if call.name == "regen":
            session.require_turns()
            if argument:
                self._run_session_command(CommandCall("model", argument))
            return self._answer(session.regenerate)
        if call.name == "edit" and argument:
            session.require_turns()
            return self._answer(lambda: session.edit_last(argument), _NOT_SENT_HINT)
        is_changing = bool(argument) and call.name in session_commands.SESSION_COMMANDS
        if call.name in slash_handlers.HANDLERS and not is_changing:
            session_commands.check_argument(call)
            slash_handlers.HANDLERS[call.name](call, self._view)
        else:
            self._run_session_command(call)
        return None

    def _run_session_command(self, call: CommandCall) -> None:
        session = self.session
        pair, settings = session.pair, session.settings
        result = session_commands.run_command(session, call)
        self._print(result.message)
        self._view.initial_text = result.input_text or ""
        if session.load_key == self._loaded_key:
            return
        self._print("Loading the model …")
        self._close_engine()
        try:
            self._start_engine()
        except (LocalspecError, KeyboardInterrupt):  # the chat goes on as before
            if pair != session.pair:
                session.change_pair(pair)
            session.settings = settings
            session.save_metadata()
            self._print(f"The chat goes on with {session.pair_name}.")
            raise
        self._print(self._describe_pair())

    # --- answers
    # --------------------------------------------------------------------------

    def _answer(
        self, start_turn: Callable[[], None], not_sent_hint: str = ""
    ) -> int | None:
        """Start a turn and print its answer.  Loads the model first, after a crash."""
        if self._engine is None:
            self._print("Reloading the model …")
        session, view = self.session, self._view
        try:
            engine = self._engine or self._start_engine()
            start_turn()
        except LocalspecError as error:
            self._print_error(error, not_sent_hint)
            return None
        printer = ChatAnswerPrinter(
            view.style,
            session.model_name,
            mark_tokens=view.mark_tokens,
            show_thinking=session.settings.show_thinking,
        )
        failure: LocalspecError | None = None
        try:
            stopped_ms = self._stream_answer(engine, printer)
        except KeyboardInterrupt:
            return 130
        except LocalspecError as error:
            failure, stopped_ms = error, None
        finally:
            printer.finish(session.answer.rounds)
        if failure is not None:
            self._print_error(
                failure, not_sent_hint if session.withdrawn_question else ""
            )
            if session.is_interrupted:
                self._close_engine()
                self._print(
                    "The chat is kept. Press Enter or type /retry to reload and answer again."
                )
        else:
            self._print_status(engine, stopped_ms)
        return None

    def _stream_answer(
        self, engine: Engine, printer: ChatAnswerPrinter
    ) -> float | None:
        """Stream the answer; returns the ms from Ctrl+C to the end, None without
        Ctrl+C.
        """

        def choose(overflow: ContextOverflow) -> OverflowPolicy:
            printer.start_new_line()
            return ask_overflow_choice(overflow, self._print)

        stopped_ms, session = None, self.session
        with stop_on_interrupt(session.stop) as self._interrupt:
            for delta in session.stream_answer(
                engine, choose, probabilities=self._launch_options.probabilities
            ):
                self._write_event(delta.event)
                printer.print_delta(delta)
                if session.answer.finished is not None:
                    stopped_ms = self._interrupt.elapsed_ms
        return stopped_ms

    def _print_status(self, engine: Engine, stopped_ms: float | None) -> None:
        session, style = self.session, self._view.style
        assert session.loaded is not None
        session.update_costs(engine)
        stats = AnswerStats(
            session.answer, session.stats.plain_speed, session.loaded.n_ctx, stopped_ms
        )
        self._view.last_answer = stats
        line = speculation_text.format_status_line(stats, plain=style.plain)
        self._view.print_styled(click.style(line, dim=True))
        if stats.is_context_full:
            self._print(_CONTEXT_FULL_HINT)
        if session.answer.ended_in_thinking:
            self._print(_UNANSWERED_HINT)
        if self._launch_options.show_stats:
            slash_handlers.HANDLERS["stats"](CommandCall("stats"), self._view)

    def _write_event(self, event: Event) -> None:
        if self._launch_options.events_file is not None:
            self._launch_options.events_file.write(encode(event) + "\n")

    def _print_notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            hint = render_hint(notice.hint, _name_option)
            self._print(f"localspec: {notice.message} {hint}".rstrip())

    def _print_error(self, error: LocalspecError, next_step: str = "") -> None:
        self._print(f"localspec: {error.message}")
        full = _CONTEXT_FULL_HINT if isinstance(error, PromptTooLongError) else ""
        own = render_hint(error.hint, _name_option)
        for hint in filter(None, (own, full, next_step)):
            self._print(f"  {hint}")


def _name_option(option: OptionHint) -> str:
    """As the chat's command, where there is one."""
    is_command = option.name in ("ctx", "spec") and option.value
    return f"/{option.name} {option.value}" if is_command else str(option)


_CHOICE_TEXT: dict[OverflowPolicy, tuple[str, str]] = {
    "drop": ("d", "leave out the oldest turns"),
    "summarise": ("m", "let the model summarise the oldest turns"),
    "stop": ("s", "stop here"),
}


def ask_overflow_choice(
    overflow: ContextOverflow, print_line: Callable[[str], None]
) -> OverflowPolicy:
    """Ask what to do with a full context; `stop` on Ctrl+C, Ctrl+D and any other input."""
    is_full = overflow.mid_answer
    what = "The context is full" if is_full else "The conversation exceeds the context"
    print_line(
        f"{what} ({overflow.used:,} / {overflow.n_ctx:,} tokens). Older turns stay in the chat."
    )
    names: dict[str, OverflowPolicy] = {}
    for choice in overflow.choices:
        letter, text = _CHOICE_TEXT[choice]
        names |= {letter: choice, choice: choice}
        text = text if is_full or choice != "stop" else "do not send the message"
        print_line(f"  {letter}: {text}")
    print_line("Type a letter and Enter (to always do the same: /set overflow NAME):")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        choice = names.get(sys.stdin.readline().strip().lower(), "stop")
    except KeyboardInterrupt:
        choice = "stop"
    finally:
        signal.signal(signal.SIGINT, before)
    return choice


_EXIT_SIGHUP = 129


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
