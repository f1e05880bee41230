"""The linear chat as a front end of the slash commands: it prints lines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from localspec.chat import copying, document_attachment, tool_loop
from localspec.chat.conversation import CallResult
from localspec.chat.document_attachment import DocumentPart, PartChoice
from localspec.chat.front_end import CommandResult, PickerChoices
from localspec.chat.pictures import PictureLoader, load_each
from localspec.chat.session import ChatSession
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import (
    COMMANDS,
    describe_step,
    shorten_line,
    shorten_question,
)
from localspec.chat.tool_loop import CallState
from localspec.cli import report_printer, terminal
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.tool_calls import ToolCallPrinter
from localspec.documents.reading import (
    FileRequest,
    ScannedDocumentError,
    read_file,
)
from localspec.engine_process import engine_log
from localspec.errors import StorageError, UsageError
from localspec.launch import Engine
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import ToolCall
from localspec.report import tool_calls
from localspec.report.answer_stats import AnswerStats, format_stats
from localspec.report.lines import Line
from localspec.report.token_classes import format_legend
from localspec.sanitize import sanitize
from localspec.tools.approval import CallRequest
from localspec.tools.background_connections import BackgroundConnections
from localspec.units import count, duration, short_count

NOT_SENT_HINT = "Your message was not sent. Press Up to edit it."

_KEY_HELP = (
    ("Enter", "send; on an empty line: continue the text, or retry after a crash"),
    ("\\ at the end", "continue the message on the next line"),
    ('"""', "start and end a message of several lines"),
    ("Tab", "complete a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stop the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)
_NAME_WIDTH = 15  # Cells of a setting or key, before its value.
_WIDE_NAME_WIDTH = 36  # Cells of a command or model.
_TOOL_NAME_WIDTH = 28
_NUMBER_WIDTH = 5  # Cells of the number of a page.
_LOG_LINES = 12
_MAX_LISTED_PARTS = 15


def _decline(_: str) -> bool:
    return False


class PendingTurn(Struct, frozen=True):
    """A turn that the loop is to start, and answer."""

    start: Callable[[], None]
    not_sent_hint: str = ""


class LinearFrontEnd:
    """How the linear chat shows its session."""

    def __init__(
        self, session: ChatSession, style: OutputStyle, *, mark_tokens: bool = False
    ) -> None:
        self._session = session
        self.style = style
        self.tokens_marked = mark_tokens
        self.ready: EngineReady | None = None
        self.engine: Engine | None = None
        self.confirm: Callable[[str], bool] = _decline
        """Asks the user; the loop knows how."""
        self.last_answer: AnswerStats | None = None
        self.has_quit = False
        self.connections: BackgroundConnections | None = None
        self.call_printer = ToolCallPrinter(style)
        self._initial_text = ""
        self._pending_turn: PendingTurn | None = None

    @property
    def session(self) -> ChatSession:
        return self._session

    def take_initial_text(self) -> str:
        """The text to insert at the next prompt, to be edited."""
        text = self._initial_text
        self._initial_text = ""
        return text

    def keep_typed_text(self, text: str) -> None:
        """Text that was typed before a question, for the next prompt."""
        self._initial_text += text

    def take_pending_turn(self) -> PendingTurn | None:
        turn = self._pending_turn
        self._pending_turn = None
        return turn

    # --- printing
    # --------------------------------------------------------------------------------

    def print_line(self, line: str) -> None:
        """Print text on standard error, after the answer so far; wrapped at words."""
        sys.stdout.flush()
        terminal.echo_wrapped(line, err=True)

    def print_report_line(self, line: Line) -> None:
        """Like `print_line`, with the colours of the line's roles."""
        sys.stdout.flush()
        report_printer.echo_wrapped_line(line, err=True, colour=self.style.colour)

    def _print_row(self, name: str, text: str, width: int = _NAME_WIDTH) -> None:
        if self.style.plain:
            self.print_line(f"{name}: {text}")
            return
        start = f"  {name:<{width}} "
        column = width + 3
        if 2 * column > terminal.terminal_width():
            # The texts would have less room than the names.
            terminal.echo_wrapped(start + text, err=True, indent=" " * 6)
            return
        if len(name) > width and text:
            # The name has a line of its own, so that all texts begin in one column.
            terminal.echo_wrapped(start.rstrip(), err=True, indent=" " * 6)
            start = " " * column
        terminal.echo_wrapped(start + text, err=True, indent=" " * column)

    # --- what the slash commands need
    # --------------------------------------------------------------------------------

    def warn_if_busy(self) -> bool:
        return False  # Nothing can be typed while an answer is generated.

    def show_message(self, message: str) -> None:
        self.print_line(message)

    def show_result(self, result: CommandResult, *, turns_changed: bool) -> None:
        self.print_line(result.message)
        self._initial_text = result.input_text or ""

    def pick(self, command: str, choices: PickerChoices) -> None:
        self.print_line(f"This chat: {self.session.pair_name}")
        rows = choices.load()
        current = choices.find_current(self.session.pair)
        for row in rows:
            parts = [row.name, row.about, "this chat" if row.word == current else ""]
            about = ", ".join(part for part in parts if part and part != row.word)
            self._print_row(row.word, about, _WIDE_NAME_WIDTH)
        self.print_line(f"Type /{command} and {choices.placeholder}.")

    def regenerate(self) -> None:
        self._pending_turn = PendingTurn(self.session.regenerate)

    def edit_last(self, question: str) -> None:
        if question:
            start = partial(self.session.edit_last, question)
            self._pending_turn = PendingTurn(start, NOT_SENT_HINT)
        else:
            last = self.session.last_question
            self._initial_text = f"/edit {sanitize(last)}"

    def copy_text(self, select: Callable[[], str]) -> None:
        write = None
        if not self.style.plain:
            write = partial(terminal.echo_styled, newline=False)
        message = copying.copy(select(), write)
        if not message:
            raise StorageError("No clipboard is available.", "Type: /save answer.txt")
        self.print_line(message)

    def run_long(self, work: Callable[[], str]) -> None:
        self.print_line(work())

    def read_document(self, request: FileRequest) -> None:
        session = self.session
        try:
            document = read_file(request)
        except ScannedDocumentError as error:
            self._offer_scan(request, error)
            return
        self._count_tools()
        if not document_attachment.needs_choice(session, request, document):
            result = document_attachment.attach(session, document)
            self.show_result(result, turns_changed=False)
            return
        self._suggest_parts(
            document_attachment.choose_parts(session, document), request
        )

    def _count_tools(self) -> None:
        """What the tools take of the context is not left for a document."""
        tools = self.session.find_uncounted_tools()
        if tools and self.engine is not None and self.engine.alive:
            n_tokens = self.session.count_tools(self.engine, tools)
            self.session.tool_costs[tools] = n_tokens

    def _offer_scan(self, request: FileRequest, error: ScannedDocumentError) -> None:
        """Raises the error if the model does not see."""
        session = self.session
        if session.loaded is None or not session.loaded.sees:
            raise document_attachment.name_seeing_models(error)
        self._count_tools()
        scan = document_attachment.read_scan(request)
        pictures = document_attachment.load_scan(session, request, scan)
        if self.engine is not None:
            session.picture_costs |= session.count_pictures(self.engine, pictures)
        if document_attachment.needs_page_choice(session, request, scan, pictures):
            self._suggest_parts(
                document_attachment.choose_pages(session, scan, pictures), request
            )
            return
        question = document_attachment.ask_about_scan(session, scan, pictures)
        if not self.confirm(question):
            self.print_line(f"{scan.name} is not attached.")
            return
        for picture in pictures:
            session.add_picture(picture)
        self.print_line(f"Attached to your next message: {scan.label}.")

    def _suggest_parts(self, choice: PartChoice, request: FileRequest) -> None:
        if choice.unit != "line":  # Lines are too many to be listed.
            self._list_parts(choice.parts)
        result = document_attachment.suggest_parts(choice, request)
        self.show_result(result, turns_changed=False)

    def _list_parts(self, parts: Sequence[DocumentPart]) -> None:
        for part in parts[:_MAX_LISTED_PARTS]:
            tokens = document_attachment.count_short(part.n_tokens, "token")
            about = ", ".join(filter(None, (tokens, part.title)))
            self._print_row(f"{part.number}", about, _NUMBER_WIDTH)
        n_more = len(parts) - _MAX_LISTED_PARTS
        if n_more > 0:
            self.print_line(f"and {n_more} more")

    def remove_attachments(self) -> None:
        self.session.pending_attachments = ()
        self.print_line(document_attachment.NO_FILES)

    def attach_pictures(self, *loaders: PictureLoader) -> None:
        """Raises what a loader raises, after the pictures of the others are attached."""
        session = self.session
        loaded = load_each(loaders)
        pictures = loaded.pictures
        if self.engine is not None and self.engine.alive:
            session.picture_costs |= session.count_pictures(self.engine, pictures)
        for picture in pictures:
            session.add_picture(picture)
            name = sanitize(picture.name, multiline=False)
            extent = f"{picture.width} x {picture.height}"
            if picture.seconds is not None:
                extent = duration(max(1, picture.seconds))
            parts = [name, extent]
            cost = session.picture_costs.get(picture.sha256)
            if cost is not None:
                parts.append(cost.text)
            self.print_line(f"Attached to your next message: {', '.join(parts)}.")
        if loaded.problem is not None:
            raise loaded.problem

    def mark_tokens(self, *, marked: bool) -> None:
        self.tokens_marked = marked
        if not marked:
            self.print_line("Tokens are not marked.")
        elif self.style.plain:
            self.print_line("The rounds are listed after each answer.")
        else:
            legend = format_legend(with_marks=not self.style.colour)
            self.print_report_line(legend)

    def load_anyway(self) -> None:
        self.print_line("The model is already loaded.")

    def start_benchmark(self) -> None:
        pair = self.session.recorder.pair
        command = f"localspec bench {shlex.quote(pair.model)}"
        if pair.draft != "auto":
            command += f" --draft {shlex.quote(pair.draft)}"
        self.print_line(
            "Quit this chat first, so that nothing else uses the computer. Then run:"
        )
        self.print_line(command)

    def show_commands(self) -> None:
        for command in COMMANDS:
            aliases = [f"/{alias}" for alias in command.aliases]
            usage = ", ".join([command.usage, *aliases])
            self._print_row(usage, command.help, _WIDE_NAME_WIDTH)
        self.print_line("To send a message that begins with a slash, type two slashes.")

    def show_keys(self) -> None:
        for name, text in _KEY_HELP:
            self._print_row(name, text)

    def show_turns(self) -> None:
        """Lists the turns, with the answering model if there are several.

        The answer after calls of tools is listed below its question if it was
        regenerated.
        """
        self.session.require_turns()
        conversation = self.session.conversation
        names = self.session.name_answers()
        models = {turn.model for turn in conversation.turns}
        for number, turn in enumerate(conversation.questions, 1):
            notes = [conversation.format_branch(turn.id)]
            if len(models) > 1:
                notes.append(names[turn.model])
            line = f"{number:>3}  {shorten_question(turn)}"
            shown_notes = ", ".join(filter(None, notes))
            if shown_notes:
                line += f"  ({shown_notes})"
            self.print_line(line)
            for step_number, step in enumerate(conversation.list_steps(turn.id), 1):
                branch = conversation.format_branch(step.id)
                if branch and step.is_tool_step:
                    name = f"{number}.{step_number}"
                    line = f"{name:>5}  {describe_step(step)}  ({branch})"
                    self.print_line(line)
        for turn in conversation.undone_turns()[-1:]:
            self.print_line(f"     undone: {shorten_question(turn)}")

    def show_settings(self) -> None:
        for name, text in self._describe_state():
            self._print_row(name, text)

    def _describe_state(self) -> Iterator[tuple[str, str]]:
        session = self.session
        loaded = session.loaded
        assert self.ready is not None and loaded is not None, (
            "a chat begins when its pair is loaded"
        )
        yield "model", session.model_name
        yield "file", self.ready.model
        yield "draft", session.draft_name or "none"
        template_names = {None: "none (text completion)", "own": "the model's own"}
        yield "template", template_names.get(loaded.template, str(loaded.template))
        used = session.answer.context_tokens
        yield "context", f"{short_count(used)} of {short_count(loaded.n_ctx)} tokens"
        if session.n_omitted_turns:
            is_summarised = bool(session.conversation.dropped.summary)
            how = "sent as a summary" if is_summarised else "not sent to the model"
            yield "oldest turns", f"{session.n_omitted_turns} {how}"
        yield "system prompt", shorten_line(session.conversation.system) or "none"
        suggested = session.pair.suggested_settings
        for name, field in CHAT_SETTING_FIELDS.items():
            value = session.settings.format_value(name)
            if self.style.plain:
                yield name, value
            else:
                source = session.settings.find_source(name, suggested)
                about = ", ".join(filter(None, (source, field.hint)))
                yield name, f"{value:<10}  {about}"

    def show_statistics(self) -> None:
        stats = self.last_answer
        if stats is None or stats.answer.finished is None:
            raise UsageError(
                "No statistics yet.", "They appear after the first answer."
            )
        session = self.session
        lines = format_stats(
            stats.view,
            stats.answer.joined_totals,
            session.conversation.seed,
            plain=self.style.plain,
        )
        for line in lines:
            self.print_report_line(line)
        suggested = session.pair.suggested_settings
        self.print_line(f"sampling: {session.settings.describe_sampling(suggested)}")

    def show_tools(self) -> None:
        """Lists the providers with their tools, then the servers that have none."""
        session = self.session
        tools = () if session.toolbox is None else session.toolbox.all_definitions()
        missing = [] if self.connections is None else self.connections.list_missing()
        if not tools and not missing:
            self.print_line("The model can call no tools.")
            self.print_line(
                "/folder DIR offers a folder; add a server with localspec tools add."
            )
            return
        always = {saved.fingerprint for saved in session.approvals.allowed_always()}
        for tool in tools:
            assert session.toolbox is not None
            state = "off"
            if session.toolbox.is_enabled(tool.full_name):
                state = "on"
                if tool.fingerprint in always:
                    state = "on, always allowed"
            name = tool_calls.shorten_name(tool.full_name)
            about = tool_calls.first_line(tool.description)
            width = terminal.terminal_width() - _TOOL_NAME_WIDTH - len(state) - 6
            if not self.style.plain and len(about) > width > 0:
                about = f"{about[: width - 1]}…"
            self._print_row(name, f"{state}: {about}", _TOOL_NAME_WIDTH)
        for server in missing:
            self._print_row(server.name, server.why, _TOOL_NAME_WIDTH)
        if session.completes_text:
            self.print_line("This model has no chat template, so it calls no tools.")
        else:
            self.print_line("To turn off a tool, or all of a server: /tools off NAME")

    def describe_rest(self, n_unsaved: int) -> str:
        """How to see all of a result, of the n-th call after those that are saved."""
        return f"/tools {len(self._list_calls()) + n_unsaved}: all of it"

    def _list_calls(self) -> list[tuple[ToolCall, CallResult]]:
        """The calls of the selected path that have results."""
        calls: dict[str, ToolCall] = {}
        found: list[tuple[ToolCall, CallResult]] = []
        for turn in self.session.conversation.turns:
            for result in turn.results:
                if result.call_id in calls:
                    found.append((calls[result.call_id], result))
            calls = {call.id: call for call in turn.calls}
        return found

    def show_tool_call(self, number: int) -> None:
        calls = self._list_calls()
        if not 1 <= number <= len(calls):
            n_calls = count(len(calls), "call")
            raise UsageError(f"There is no call {number}.", f"The chat has {n_calls}.")
        call, result = calls[number - 1]
        request = CallRequest(
            call_id=call.id,
            name=result.tool,
            tool=None,
            arguments=tool_calls.read_arguments(call.arguments),
            arguments_text=call.arguments,
        )
        state = CallState(request, tool_loop.find_phase(result), result)
        self.call_printer.print_whole(state)

    def show_engine_log(self) -> None:
        path = engine_log.log_path()
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines[-_LOG_LINES:]:
            self.print_line(line)
        if lines:
            self.print_line(f"Full log: {path}")
        else:
            self.print_line("The engine log is empty.")

    def quit(self) -> None:
        self.has_quit = True
