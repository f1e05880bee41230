"""The linear chat: `localspec run` without a prompt, on a terminal."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from msgspec import Struct

from localspec import launch
from localspec.chat import slash_commands
from localspec.chat.context_window import ContextOverflow
from localspec.chat.conversation import Turn
from localspec.chat.events_file import encode_call
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings, OverflowPolicy
from localspec.chat.slash_commands import CommandCall, UnknownCommand
from localspec.chat.tool_loop import CallState
from localspec.cli.answer_printer import ChatAnswerPrinter
from localspec.cli.chat_front_end import NOT_SENT_HINT, LinearFrontEnd, PendingTurn
from localspec.cli.hidden_typing import HiddenTyping, hide_typing
from localspec.cli.load_display import LoadDisplay
from localspec.cli.readline_prompt import ReadlinePrompt
from localspec.cli.run_tools import ToolArguments, find_allowed
from localspec.cli.terminal import Interrupt, stop_on_interrupt
from localspec.cli.tool_calls import CallHooks, ToolCallPrinter
from localspec.documents.reading import FileRequest
from localspec.errors import LocalspecError, OptionHint, PromptTooLongError, render_hint
from localspec.fit.advisor import SettingsRequest
from localspec.launch import Engine, ResolvedPair, StartEngine, idle_tasks
from localspec.models.audio_files import AudioData
from localspec.models.pictures import PictureData
from localspec.protocol.events import EngineReady, Event, Notice, Round, encode
from localspec.report import answer_stats
from localspec.report.answer_stats import AnswerStats
from localspec.report.lines import make_line
from localspec.report.overflow import describe_choice, describe_overflow, describe_usage
from localspec.report.pair_text import describe_toy
from localspec.report.speculation import view_speculation
from localspec.report.token_classes import format_legend
from localspec.tools.background_connections import BackgroundConnections
from localspec.tools.toolbox import Toolbox
from localspec.units import short_count

_UNANSWERED_HINT = (
    "/set think_budget N limits thinking to N tokens; /think off turns it off."
)
_QUIT_WINDOW_MS = 1000  # A second Ctrl+C within this time quits.
_CONTEXT_FULL_HINT = (
    "/undo removes the last turn, /clear all turns; --ctx N sets a larger context."
)
_EXIT_INTERRUPTED = 130


class ChatLaunchOptions(Struct, frozen=True):
    """What is needed to load the pair, at the start and after a crash."""

    build_load_request: Callable[[ChatSession], SettingsRequest]
    """For the pair and the context size of the session."""
    raw: bool = False
    template: str | None = None
    show_stats: bool = False
    probabilities: bool = False
    quiet: bool = False
    events_file: TextIO | None = None  # Receives every event as a JSON line.
    recap: tuple[str, ...] = ()  # Lines to show when a saved chat is continued.
    documents: Sequence[FileRequest] = ()
    """Files to attach to the first message."""
    pictures: Sequence[PictureData] = ()
    audio: Sequence[AudioData] = ()
    """What to attach to the first message besides."""
    tools: ToolArguments = ToolArguments()


class ChatLoop:
    """A chat on a terminal. The conversation survives a crash of the engine."""

    def __init__(
        self,
        launch_options: ChatLaunchOptions,
        front_end: LinearFrontEnd,
        load_engine: StartEngine = launch.start_engine,
        read_line: Callable[[str], str] = input,
    ) -> None:
        self._launch_options = launch_options
        self._front_end = front_end
        front_end.confirm = self._confirm
        self._load_engine = load_engine
        self.session = front_end.session
        self._print = front_end.print_line
        self._engine: Engine | None = None
        self._loaded_key: object = None  # The `ChatSession.load_key` of the last load.
        prompt = "You: " if front_end.style.plain else "> "
        self._message_prompt = ReadlinePrompt(prompt, read_line)
        self._interrupt = Interrupt()  # The last Ctrl+C while an answer streamed.
        self._quit_hint_shown = False
        self._typing: HiddenTyping
        self._printer: ChatAnswerPrinter
        self._rounds: list[Round] = []  # Those of the answer that is printed.
        self._toolbox = Toolbox()
        self.session.toolbox = self._toolbox
        self._connections = BackgroundConnections(self._toolbox)
        self._has_begun_to_connect = False
        self._has_allowed_named = False
        front_end.connections = self._connections
        hooks = CallHooks(
            show_input=self._show_input,
            start_new_line=self._start_new_line,
            on_turn=self._begin_turn,
            on_interrupt=self.session.stop,
            describe_rest=front_end.describe_rest,
            record=self._record_call,
        )
        self._call_printer = ToolCallPrinter(front_end.style, hooks)
        front_end.call_printer = self._call_printer

    def run(self, on_loaded: Callable[[EngineReady], None] = lambda _: None) -> int:
        """Chat until the user quits; returns the exit code.

        Raises LocalspecError if the pair cannot be loaded.
        """
        mark_pastes = self._message_prompt.marks_pastes
        with (
            exit_cleanly_on_signals(),
            hide_typing(mark_pastes=mark_pastes) as self._typing,
        ):
            try:
                for provider in self._launch_options.tools.open_folder():
                    self._toolbox.add(provider)
                on_loaded(self._start_engine().ready)
                self._print_welcome()
                self._begin_to_connect()
                self._attach_files()
                exit_code = None
                while exit_code is None:
                    exit_code = self._run_turn()
                return exit_code
            finally:
                self.session.close()
                self._print_notices(self.session.take_notices())
                self._connections.close()
                self._close_engine()

    # --- the engine
    # ----------------------------------------------------------------------------

    def _start_engine(self) -> Engine:
        options = self._launch_options
        session = self.session
        with LoadDisplay(quiet=options.quiet) as loading:
            engine = self._load_engine(
                options.build_load_request(session),
                probe=session.settings.spec == "auto" and session.pair.spec == "auto",
                notify=loading.show,
            )
        self._engine = engine
        self._front_end.ready = engine.ready
        self._front_end.engine = engine
        self._loaded_key = session.load_key
        session.attach_engine(engine, raw=options.raw, template=options.template)
        self._write_event(engine.ready)
        if not options.quiet:
            self._print_notices(engine.ready.notices)
        return engine

    def _close_engine(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
            self._front_end.engine = None

    def _load_if_changed(
        self, last_pair: ResolvedPair, last_settings: ChatSettings
    ) -> None:
        """Load another pair or context size; if that fails, go on as before."""
        session = self.session
        if session.load_key == self._loaded_key:
            return
        self._print("Loading the model …")
        self._close_engine()
        try:
            self._start_engine()
        except (LocalspecError, KeyboardInterrupt):
            if last_pair != session.pair:
                session.change_pair(last_pair)
            session.settings = last_settings
            session.save_metadata()
            self._print(f"The chat goes on with {session.pair_name}.")
            raise
        self._print(self._describe_pair())

    def _print_welcome(self) -> None:
        front_end = self._front_end
        loaded = self.session.loaded
        assert loaded is not None
        pair = self._describe_pair()
        if front_end.style.plain:
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
        is_new = len(self.session.conversation.questions) <= 1
        if is_new and self.session.is_toy and not self._launch_options.quiet:
            note = describe_toy("`localspec pair suggest`")
            front_end.print_report_line(make_line(note, "muted"))
        for line in self._launch_options.recap:
            self._print(line)
        if front_end.tokens_marked and not front_end.style.plain:
            legend = format_legend(with_marks=not front_end.style.colour)
            front_end.print_report_line(legend)

    def _attach_files(self) -> None:
        """What was named on the command line, as `/read`, `/image` and `/audio` do it."""
        for request in self._launch_options.documents:
            with self._printed_errors():
                self._front_end.read_document(request)
        session = self.session
        pictures = self._launch_options.pictures
        if pictures:
            with self._printed_errors():
                session.require_sight(name_others=True)
                shown = [session.pictures.add(each) for each in pictures]
                self._front_end.attach_pictures(lambda: shown)
        audio = self._launch_options.audio
        if audio:
            with self._printed_errors():
                session.require_hearing(name_others=True)
                heard = [session.pictures.add_audio(each) for each in audio]
                self._front_end.attach_pictures(lambda: heard)

    @contextmanager
    def _printed_errors(self) -> Iterator[None]:
        try:
            yield
        except LocalspecError as error:
            self._print_error(error)

    def _confirm(self, question: str) -> bool:
        with self._show_input():
            self._print(f"{question} Type y or n, and Enter:")
            try:
                answer = sys.stdin.readline()
            except KeyboardInterrupt:
                return False
        return answer.strip().lower() in ("y", "yes")

    def _describe_pair(self) -> str:
        session = self.session
        assert session.loaded is not None
        if self._front_end.style.plain:
            return session.pair_name
        return f"{session.pair_name} · context {short_count(session.loaded.n_ctx)}"

    # --- input
    # ----------------------------------------------------------------------------

    def _run_turn(self) -> int | None:
        """Read one message and handle it; returns an exit code to end the chat."""
        initial_text = self._front_end.take_initial_text()
        self._print_notices(self.session.take_notices())
        self._print_notices(self._connections.take_notices())
        try:
            with (
                idle_tasks.work_while_idle(self.session.pair.target),
                self._typing.shown(),
            ):
                text = self._message_prompt.read_message(initial_text)
        except EOFError:
            self._print("")
            return 0
        except KeyboardInterrupt:
            self._print("")
            return self._handle_interrupt()
        self._quit_hint_shown = False
        try:
            return self._handle_input(text)
        except LocalspecError as error:
            self._print_error(error)
        except KeyboardInterrupt:  # e.g. while the model reloads
            self._print("")
            self._print("Interrupted.")
        return None

    def _handle_interrupt(self) -> int | None:
        """Ctrl+C quits the second time, or soon after it ended an answer."""
        since = self._interrupt.elapsed_ms
        if self._quit_hint_shown or (since is not None and since < _QUIT_WINDOW_MS):
            return _EXIT_INTERRUPTED
        self._quit_hint_shown = True
        self._print("Press Ctrl+C again or Ctrl+D to quit.")
        return None

    def _handle_input(self, text: str) -> int | None:
        call = slash_commands.parse(text)
        if call is not None:
            return self._run_command(call)
        session = self.session
        question = slash_commands.unescape(text).rstrip("\r")
        is_empty = not question.strip() and not session.has_pending_files
        if is_empty and session.is_interrupted:
            return self._answer(PendingTurn(session.regenerate))
        if session.can_ask(question):
            turn = PendingTurn(lambda: session.ask(question), NOT_SENT_HINT)
            return self._answer(turn)
        self._print("Type a message, or /help for the commands.")
        return None

    def _run_command(self, call: CommandCall | UnknownCommand) -> int | None:
        session = self.session
        last_pair = session.pair
        last_settings = session.settings
        slash_commands.run(call, self._front_end)
        if self._front_end.has_quit:
            return 0
        turn = self._front_end.take_pending_turn()
        self._load_if_changed(last_pair, last_settings)
        return self._answer(turn) if turn is not None else None

    # --- answers
    # --------------------------------------------------------------------------

    def _answer(self, turn: PendingTurn) -> int | None:
        """Start a turn and print its answer. Loads the model first, after a crash.

        Returns an exit code to end the chat.
        """
        session = self.session
        if self._engine is None:
            self._print("Reloading the model …")
        try:
            engine = self._engine or self._start_engine()
            self._await_tools()
            turn.start()
        except LocalspecError as error:
            self._print_error(error, turn.not_sent_hint)
            return None
        self._printer = self._make_printer()
        self._rounds = []
        failure: LocalspecError | None = None
        stopped_ms: float | None = None
        try:
            stopped_ms = self._stream_answer(engine)
        except KeyboardInterrupt:
            return _EXIT_INTERRUPTED
        except LocalspecError as error:
            failure = error
        finally:
            self._call_printer.end_progress()
            self._printer.finish(self._rounds)
        if failure is None:
            self._print_status(stopped_ms)
            return None
        hint = turn.not_sent_hint if session.withdrawn_question else ""
        self._print_error(failure, hint)
        if session.is_interrupted:
            self._close_engine()
            self._print(
                "The chat is kept. Press Enter or type /retry to reload and answer again."
            )
        return None

    def _make_printer(self) -> ChatAnswerPrinter:
        session = self.session
        assert session.loaded is not None
        return ChatAnswerPrinter(
            self._front_end.style,
            session.model_name,
            # A completion model writes any text, most of all code.
            is_markdown=(
                session.loaded.has_chat_template and session.settings.is_free_text
            ),
            mark_tokens=self._front_end.tokens_marked,
            show_thinking=session.settings.show_thinking,
        )

    def _start_new_line(self) -> None:
        self._printer.start_new_line()

    def _begin_turn(self, _: Turn) -> None:
        """The answer goes on after calls of tools."""
        self._printer.finish(self._rounds)
        self._printer = self._make_printer()
        self._rounds = []

    def _stream_answer(self, engine: Engine) -> float | None:
        """Stream the answer.

        Returns the milliseconds from Ctrl+C to the end, None without Ctrl+C.
        """
        session = self.session

        def choose(overflow: ContextOverflow) -> OverflowPolicy:
            self._printer.start_new_line()
            with self._show_input():
                return ask_overflow_choice(overflow, self._print)

        stopped_ms = None
        with stop_on_interrupt(session.stop) as self._interrupt:
            deltas = session.stream_answer(
                engine,
                choose,
                probabilities=self._launch_options.probabilities,
                tools=self._call_printer,
            )
            for delta in deltas:
                self._write_event(delta.event)
                if isinstance(delta.event, Round):
                    self._rounds.append(delta.event)
                if delta.parts:
                    self._call_printer.end_progress()
                self._printer.print_delta(delta)
                if session.answer.finished is not None:
                    stopped_ms = self._interrupt.elapsed_ms
        return stopped_ms

    @contextmanager
    def _show_input(self) -> Iterator[None]:
        """For a question in the middle of an answer.

        What was typed before it answers nothing, and is kept for the next prompt.
        """
        self._front_end.keep_typed_text(self._typing.take_typed())
        with self._typing.shown():
            yield

    # --- tools
    # ----------------------------------------------------------------------------

    def _begin_to_connect(self) -> None:
        """Connect the servers, once a model is loaded that can call tools."""
        loaded = self.session.loaded
        is_able = loaded is not None and loaded.has_chat_template
        if self._has_begun_to_connect or not is_able:
            return
        self._has_begun_to_connect = True
        try:
            servers = self._launch_options.tools.choose_servers("all")
        except LocalspecError as error:
            self._print_error(error)
            return
        self._connections.start(servers)

    def _await_tools(self) -> None:
        """Wait for servers that still connect, so that the answer can use their tools."""
        self._begin_to_connect()
        if not self._has_begun_to_connect:
            return
        names = ", ".join(self._connections.connecting)
        if names:
            self._print(f"Connecting {names} … Ctrl+C goes on without waiting.")
            try:
                self._connections.wait()
            except KeyboardInterrupt:
                self._print("")
        self._print_notices(self._connections.take_notices())
        self._allow_named()

    def _allow_named(self) -> None:
        """Allow what --allow names, when the servers have told their tools."""
        if self._has_allowed_named:
            return
        self._has_allowed_named = True
        patterns = self._launch_options.tools.allowed
        try:
            self.session.approvals.allow_named(find_allowed(self._toolbox, patterns))
        except LocalspecError as error:
            self._print_error(error)

    def _record_call(self, state: CallState) -> None:
        if self._launch_options.events_file is not None:
            self._launch_options.events_file.write(encode_call(state) + "\n")

    def _print_status(self, stopped_ms: float | None) -> None:
        session = self.session
        front_end = self._front_end
        assert session.loaded is not None
        stats = AnswerStats(
            session.answer,
            view_speculation(session.stats),
            n_ctx=session.loaded.n_ctx,
            stopped_ms=stopped_ms,
        )
        front_end.last_answer = stats
        if front_end.style.plain:
            self._print(answer_stats.describe_status(stats))
        else:
            line = answer_stats.format_status_line(stats)
            front_end.print_report_line(make_line(line, "muted"))
        if stats.is_context_full:
            self._print(_CONTEXT_FULL_HINT)
        if session.answer.ended_in_thinking:
            self._print(_UNANSWERED_HINT)
        if self._launch_options.show_stats:
            front_end.show_statistics()

    def _write_event(self, event: Event) -> None:
        if self._launch_options.events_file is not None:
            self._launch_options.events_file.write(encode(event) + "\n")

    def _print_notices(self, notices: Iterable[Notice]) -> None:
        for notice in notices:
            hint = render_hint(notice.hint, _name_option)
            self._print(f"localspec: {notice.message} {hint}".rstrip())

    def _print_error(self, error: LocalspecError, next_step: str = "") -> None:
        self._print(f"localspec: {error.message}")
        hints = [render_hint(error.hint, _name_option)]
        if isinstance(error, PromptTooLongError):
            hints.append(_CONTEXT_FULL_HINT)
        hints.append(next_step)
        for hint in filter(None, hints):
            self._print(f"  {hint}")


def _name_option(option: OptionHint) -> str:
    """As the chat's command, where there is one."""
    if option.name in ("ctx", "spec") and option.value:
        return f"/{option.name} {option.value}"
    return str(option)


# --- a full context
# --------------------------------------------------------------------------------

_CHOICE_LETTERS: dict[OverflowPolicy, str] = {
    "drop": "d",
    "summarise": "m",
    "stop": "s",
}


def ask_overflow_choice(
    overflow: ContextOverflow, print_line: Callable[[str], None]
) -> OverflowPolicy:
    """Ask what to do with a full context; `stop` on Ctrl+C and any other input."""
    print_line(f"{describe_overflow(overflow)}: {describe_usage(overflow)}")
    policies: dict[str, OverflowPolicy] = {}
    for policy in overflow.choices:
        letter = _CHOICE_LETTERS[policy]
        policies[letter] = policy
        policies[policy] = policy
        choice = describe_choice(policy, overflow)
        print_line(f"  {letter}: {choice.label}. {choice.consequence}.")
    print_line("Type a letter and Enter (to always do the same: /set overflow NAME):")
    handler_before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typed = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        return "stop"
    finally:
        signal.signal(signal.SIGINT, handler_before)
    return policies.get(typed, "stop")


# --- signals
# --------------------------------------------------------------------------------

_EXIT_SIGHUP = 129


@contextmanager
def exit_cleanly_on_signals() -> Iterator[None]:
    """Turn SIGTERM and a closed terminal into SystemExit, so that cleanup runs."""

    def exit_(number: int, _: FrameType | None) -> None:
        if number != signal.SIGTERM:
            _detach_terminal()
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):
        numbers.append(signal.SIGHUP)
    handlers_before = {number: signal.signal(number, exit_) for number in numbers}
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _detach_terminal()  # the terminal is closed, SIGHUP is not delivered yet
        raise SystemExit(_EXIT_SIGHUP) from None
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)


def _detach_terminal() -> None:
    """Point stdin, stdout and stderr to null, as the terminal is closed."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            os.dup2(null, stream)
