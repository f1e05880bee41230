"""`localspec run`: answer a prompt, or start a chat."""

from __future__ import annotations

import itertools
import os
import random
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import ceil
from pathlib import Path
from typing import IO, Any, TextIO

import click
from click.core import ParameterSource
from msgspec import Struct
from msgspec.structs import replace

from localspec import config, launch
from localspec.chat import presets
from localspec.chat.context_window import check_answer
from localspec.chat.conversation import (
    Attachment,
    Conversation,
    Turn,
    format_question,
)
from localspec.chat.document_attachment import count_short, name_seeing_models
from localspec.chat.events_file import encode_call
from localspec.chat.history import (
    ChatHistory,
    SavedChat,
    name_answers,
    name_chat_model,
)
from localspec.chat.pictures import PictureCost
from localspec.chat.session import BYTES_PER_TOKEN, ChatSession
from localspec.chat.settings import (
    ANSWER_OPTIONS,
    ChatSettings,
    LoadedModel,
    build_request,
)
from localspec.chat.speculation_stats import SpeculationStats
from localspec.chat.tool_loop import CallState
from localspec.chat.tool_steps import ToolSteps
from localspec.cli import global_options, options, terminal
from localspec.cli.answer_printer import AnswerPrinter, OutputStyle
from localspec.cli.load_display import LoadDisplay
from localspec.cli.options import CommandArguments
from localspec.cli.run_tools import (
    ToolArguments,
    find_allowed,
    has_servers,
    open_toolbox,
)
from localspec.cli.tool_calls import CallHooks, CallRefuser, ToolCallPrinter
from localspec.documents.document import Document
from localspec.documents.reading import (
    FileRequest,
    Scan,
    ScannedDocumentError,
    parse_file_request,
    read_file,
    read_scanned_file,
)
from localspec.errors import (
    LocalspecError,
    PromptTooLongError,
    StorageError,
    UsageError,
)
from localspec.fit.advisor import SettingsRequest
from localspec.launch import recent_pairs, sight
from localspec.models.audio_files import AudioData, load_audio
from localspec.models.pictures import (
    MAX_REQUEST_PICTURES,
    PictureData,
    load_picture,
)
from localspec.protocol.events import EngineReady, Event, GenerationFinished, encode
from localspec.protocol.wire import (
    CountCommand,
    CountResult,
    GenerateCommand,
    PictureRef,
)
from localspec.report.tool_calls import first_line, shorten_name
from localspec.sanitize import sanitize
from localspec.text_decoding import decode_text
from localspec.tools.approval import Approvals
from localspec.tools.toolbox import Toolbox
from localspec.units import count, size_limit

_MAX_PROMPT_BYTES = 64 * 1024 * 1024
_DEFAULT_MAX_TOKENS = 512
# A pipe that nobody writes to or closes would look like a slow model.
_PIPE_NOTICE_SECONDS = 2.0


class RunArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `run`, but MODEL."""

    prompt: str | None
    files: tuple[str, ...]
    images: tuple[str, ...]
    audio: tuple[str, ...]
    system: str
    preset: str | None
    raw: bool
    template: str | None
    draft: str
    anyway: bool
    tokens: bool
    stats: bool
    as_json: bool
    events: str | None
    probabilities: bool
    quiet: bool
    verbose: bool
    no_color: bool
    chat: str | None
    private: bool
    yes: bool
    folder: str | None
    tools: tuple[str, ...]
    allow: tuple[str, ...]

    @property
    def tool_arguments(self) -> ToolArguments:
        return ToolArguments(self.folder, self.tools, self.allow)

    @property
    def output_style(self) -> OutputStyle:
        return OutputStyle(
            plain=global_options.is_plain(),
            colour=global_options.use_colour(no_color=self.no_color),
            quiet=self.quiet,
        )


class ChatAttachments(Struct, frozen=True):
    """What goes with the first message of a chat."""

    documents: Sequence[FileRequest]
    pictures: Sequence[PictureData]
    audio: Sequence[AudioData]


class TypedPrompt(Struct, frozen=True):
    """The prompt of one answer, and the documents, pictures and audio that go with it."""

    text: str
    documents: tuple[Document, ...] = ()
    pictures: tuple[PictureData, ...] = ()
    """The pictures, and the pages of scans."""
    audio: tuple[AudioData, ...] = ()
    scans: tuple[Scan, ...] = ()
    """Those whose pages are among the pictures."""
    scan: ScannedDocumentError | None = None
    """The error of the first scan, for a model that does not see."""

    @property
    def has_media(self) -> bool:
        return bool(self.pictures or self.audio)

    def put_media(self) -> tuple[PictureRef, ...]:
        """Its pictures and its audio, as a message names them."""
        pictures = map(sight.put_picture, self.pictures)
        return (*pictures, *map(sight.put_audio, self.audio))

    @property
    def attachments(self) -> list[Attachment]:
        return [Attachment(each.label, each.text) for each in self.documents]

    @property
    def length_hint(self) -> str:
        """How to send less; empty if no document has parts to choose from."""
        for document in self.documents:
            if len(document.numbers) > 1:
                return _suggest_half(document.name, document.unit, document.numbers)
        for scan in self.scans:
            if len(scan.numbers) > 1:
                return _suggest_half(scan.name, "page", scan.numbers)
        return ""


def _suggest_half(name: str, unit: str, numbers: Sequence[int]) -> str:
    """The first half of several parts."""
    last = numbers[len(numbers) // 2 - 1]
    return f"Choose parts: --file '{name} {unit}s {numbers[0]}-{last}'"


@click.command("run")
@options.PROMPT
@options.SAMPLING
@options.SPECULATION
@options.MACHINE
@options.OUTPUT
@options.HISTORY
@options.TOOLS
@options.YES
def command(model: str | None, **given: Any) -> int:
    """Answer a prompt with MODEL, or start a chat if there is no prompt.

    MODEL is a pair or a model of the catalogue, user/repo:QUANT, or the path of a .gguf
    file. Without MODEL: the pair set in config.toml, else the pair of the last run,
    else SmolLM2 135M if its package is installed, else the demo. Chats are saved; see
    `localspec history`.

    \b
    localspec run demo -p "def __repr__(self):" --tokens --stats
    localspec run qwen3-8b+qwen3-0.6b
    localspec run big.gguf --draft small.gguf -p "Once upon a time"
    localspec run gemma-3-4b --image photo.jpg -p "What is this?"
    localspec run gemma-4-e4b --audio voice.mp3 -p "What is said?"
    localspec run qwen3-8b --folder notes --allow folder -p "Which notes are about tea?"
    localspec run big.gguf
    localspec run --continue
    """
    arguments = options.read_arguments(RunArguments, given)
    is_chat = _is_chat(arguments)
    requests = tuple(map(parse_file_request, arguments.files))
    saved_chat = _resume_chat(is_chat, arguments.chat)
    text = "" if is_chat else _read_prompt(arguments.prompt, quiet=arguments.quiet)
    _check_exclusive(arguments)
    files = _PromptFiles()
    if not is_chat:
        files = _read_files(requests, arguments)
        if not arguments.quiet:
            _show_documents(files)
    pictures = [*_load_pictures(arguments.images), *files.pictures]
    audio = [load_audio(Path(os.path.expanduser(file))) for file in arguments.audio]
    if len(pictures) + len(audio) > MAX_REQUEST_PICTURES:
        raise UsageError(
            f"A prompt has at most {MAX_REQUEST_PICTURES} pictures and audio files, and "
            f"these are {len(pictures) + len(audio)}.",
            "Choose pages, for example: --file 'scan.pdf pages 1-3'",
        )
    if arguments.preset and not arguments.system:
        system = presets.find(arguments.preset).system or ""
        arguments = replace(arguments, system=system)
    model, draft = _resolve_pair(model, arguments, saved_chat, is_chat=is_chat)
    if not arguments.quiet and sys.stderr.isatty():
        _warn_unused_gpu()
    pair = options.resolve_or_pull(
        model, draft, yes=arguments.yes, quiet=arguments.quiet
    )
    pair_refs = launch.make_portable_refs(model, draft)
    recent_pairs.save_last(*pair_refs)
    pair = replace(pair, requested_refs=pair_refs)
    recent_pairs.add_if_path(pair, model)
    spec = options.resolve_drafter(pair, arguments.options["spec"])
    arguments = replace(arguments, options={**arguments.options, "spec": spec})
    with _open_events_file(arguments.events) as events_file:
        if is_chat:
            attached = ChatAttachments(requests, pictures, audio)
            return _run_chat(pair, saved_chat, events_file, arguments, attached)
        prompt = TypedPrompt(
            text,
            files.documents,
            pictures=tuple(pictures),
            audio=tuple(audio),
            scans=files.scans,
            scan=files.scan_error,
        )
        return _run_once(pair, prompt, events_file, arguments)


class _PromptFiles(Struct, frozen=True):
    """What `--file` has given for one answer."""

    documents: tuple[Document, ...] = ()
    scans: tuple[Scan, ...] = ()
    scan_error: ScannedDocumentError | None = None  # Of the first of them.

    @property
    def pictures(self) -> list[PictureData]:
        return list(itertools.chain.from_iterable(scan.pictures for scan in self.scans))


def _read_files(
    requests: Sequence[FileRequest], arguments: RunArguments
) -> _PromptFiles:
    """Reads a scan as pictures, unless the options leave no way to show them."""
    has_sight = arguments.options["image_model"] != launch.NO_PROJECTOR
    documents: list[Document] = []
    scans: list[Scan] = []
    first_error: ScannedDocumentError | None = None
    for request in requests:
        try:
            documents.append(read_file(request))
        except ScannedDocumentError as error:
            if arguments.raw or not has_sight:
                raise
            scans.append(read_scanned_file(request))
            first_error = first_error or error
    return _PromptFiles(tuple(documents), tuple(scans), first_error)


def _show_documents(files: _PromptFiles) -> None:
    for scan in files.scans:
        pages = count(len(scan.pictures), "page")
        terminal.notify(
            f"{scan.name} has no text: a model that sees gets {pages} of it."
        )
    for document in files.documents:
        n_bytes = len(document.text.encode("utf-8", "replace"))
        tokens = count_short(ceil(n_bytes / BYTES_PER_TOKEN), "token")
        parts = [document.label, document.note, f"about {tokens}"]
        terminal.notify(f"Reading {', '.join(filter(None, parts))}.")


def _load_pictures(files: Sequence[str]) -> list[PictureData]:
    """The pictures of --image, checked before a model is loaded for them."""
    if len(files) > MAX_REQUEST_PICTURES:
        raise UsageError(
            f"--image is given {len(files)} times; a prompt has at most "
            f"{MAX_REQUEST_PICTURES} pictures.",
            "Give fewer.",
        )
    return [load_picture(Path(os.path.expanduser(file))) for file in files]


def _check_exclusive(arguments: RunArguments) -> None:
    """Raise UsageError if two options exclude each other."""
    if arguments.raw and arguments.template:
        raise UsageError("--raw uses no template.", "Leave out --raw or --template.")
    for option, files in (("--image", arguments.images), ("--audio", arguments.audio)):
        if arguments.raw and files:
            raise UsageError(
                f"{option} needs a chat template, and --raw uses none.",
                f"Leave out --raw or {option}.",
            )
        if files and arguments.options["image_model"] == launch.NO_PROJECTOR:
            raise UsageError(
                f"{option} needs a projector, and --image-model none leaves it out.",
                "Leave out one of them.",
            )
    if arguments.options["json_schema"] and arguments.options["grammar"]:
        raise UsageError(
            "--json-schema and --grammar cannot be used together.", "Give one."
        )
    if arguments.tool_arguments.are_named:
        _check_tools(arguments)


def _check_tools(arguments: RunArguments) -> None:
    """Raise UsageError if an option leaves no calls of tools."""
    for name, value in (
        ("--raw", arguments.raw),
        ("--json-schema", arguments.options["json_schema"]),
        ("--grammar", arguments.options["grammar"]),
    ):
        if value:
            raise UsageError(
                f"Tools cannot be used with {name}.", f"Leave out {name}, or the tools."
            )


def _warn_unused_gpu() -> None:
    from localspec.doctor import llama_build  # noqa: PLC0415  late: only for a terminal

    finding = llama_build.find_unused_gpu()
    if finding is not None:
        terminal.notify(f"{finding.what}.", finding.fix)
        terminal.echo(
            f"  Hide this notice: localspec doctor --dismiss {finding.id}", err=True
        )


def _is_chat(arguments: RunArguments) -> bool:
    if arguments.prompt is not None or arguments.as_json or sys.stdin is None:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def _run_chat(
    pair: launch.ResolvedPair,
    saved_chat: SavedChat | None,
    events_file: TextIO | None,
    arguments: RunArguments,
    attached: ChatAttachments,
) -> int:
    # Late imports: only a chat needs them.
    from localspec.cli.chat_front_end import LinearFrontEnd  # noqa: PLC0415
    from localspec.cli.chat_loop import ChatLaunchOptions, ChatLoop  # noqa: PLC0415

    session = _create_session(
        pair, saved_chat, _build_chat_settings(pair, arguments), arguments
    )
    style = arguments.output_style

    def build_load_request(session: ChatSession) -> SettingsRequest:
        # The chat may have changed them.
        changed: dict[str, Any] = {
            "ctx": session.settings.ctx,
            "exact": session.settings.exact,
            "draft_max": session.settings.draft_length,
        }
        names_projector = arguments.options["image_model"] != launch.NO_PROJECTOR
        if session.pair.target != pair.target and names_projector:
            changed["image_model"] = None  # It was for the model of the start.
        request = _build_load_request(session.pair, arguments, changed)
        return session.keep_model_file(request)

    recap: tuple[str, ...] = ()
    if saved_chat is not None:
        recap = tuple(_format_recap(saved_chat, plain=style.plain))
    launch_options = ChatLaunchOptions(
        build_load_request,
        raw=arguments.raw,
        template=arguments.template,
        show_stats=arguments.stats,
        probabilities=arguments.probabilities,
        quiet=arguments.quiet,
        events_file=events_file,
        recap=recap,
        documents=attached.documents,
        pictures=attached.pictures,
        audio=attached.audio,
        tools=arguments.tool_arguments,
    )
    front_end = LinearFrontEnd(session, style, mark_tokens=arguments.tokens)
    chat_loop = ChatLoop(launch_options, front_end)
    if arguments.verbose:
        return chat_loop.run(on_loaded=_print_ready)
    return chat_loop.run()


def _build_load_request(
    pair: launch.ResolvedPair, arguments: RunArguments, changed: options.OptionValues
) -> SettingsRequest:
    """How to load the pair; `changed` are options that differ from the typed ones."""
    return options.build_load_request(
        pair,
        {**arguments.options, **changed},
        spec=arguments.options["spec"],
        anyway=arguments.anyway,
    )


def _build_chat_settings(
    pair: launch.ResolvedPair, arguments: RunArguments
) -> ChatSettings:
    preferences = config.load()
    return replace(
        _build_settings(pair, arguments),
        overflow=preferences.get("chats.overflow"),
        show_thinking=preferences.get("chats.show_thinking"),
    )


def _run_once(
    pair: launch.ResolvedPair,
    prompt: TypedPrompt,
    events_file: TextIO | None,
    arguments: RunArguments,
) -> int:
    if not arguments.tool_arguments.are_named:
        if arguments.allow:
            raise UsageError(
                "--allow names a tool, but no tools are offered.",
                "Offer some: --folder DIR, or --tools SERVER.",
            )
        return _answer_prompt(pair, prompt, events_file, arguments, toolbox=None)
    toolbox = open_toolbox(arguments.tool_arguments)
    try:
        return _answer_prompt(pair, prompt, events_file, arguments, toolbox)
    finally:
        toolbox.close()


def _answer_prompt(
    pair: launch.ResolvedPair,
    prompt: TypedPrompt,
    events_file: TextIO | None,
    arguments: RunArguments,
    toolbox: Toolbox | None,
) -> int:
    allowed: list[str] = []
    if toolbox is not None:
        allowed = find_allowed(toolbox, arguments.allow)
    seed = arguments.options["seed"]
    if seed is None:
        seed = random.getrandbits(31)
    conversation = Conversation(seed, arguments.system)
    conversation.ask(prompt.text, prompt.attachments)
    settings = _build_settings(pair, arguments)
    settings = replace(settings, max_tokens=settings.max_tokens or _DEFAULT_MAX_TOKENS)
    changed: dict[str, Any] = {"exact": settings.exact}
    sees_results = toolbox is not None and has_servers(toolbox)
    needs_no_projector = not prompt.has_media and not sees_results
    if needs_no_projector and arguments.options["image_model"] is None:
        changed["image_model"] = launch.NO_PROJECTOR  # Nothing is there to be seen.
    load_request = _build_load_request(pair, arguments, changed)
    if prompt.has_media and load_request.load.projector is None:
        if prompt.scan is not None:
            raise name_seeing_models(prompt.scan)
        target = pair.names().target
        if prompt.pictures:
            raise sight.no_sight_error(target, pair.portable_refs[0])
        raise sight.no_hearing_error(target, pair.portable_refs[0])
    with LoadDisplay(quiet=arguments.quiet) as loading:
        engine = launch.start_engine(load_request, notify=loading.show)
    try:
        if arguments.verbose:
            _print_ready(engine.ready)
        loaded = LoadedModel.from_ready(
            engine.ready,
            pair.spec,
            pair.spec_reason,
            raw=arguments.raw,
            template=arguments.template,
        )
        loaded.check_thinking(settings)
        media: tuple[PictureRef, ...] = ()
        if prompt.has_media:
            media = prompt.put_media()
            sight.require_senses(engine.ready, media)

        def build(tools: str) -> GenerateCommand:
            request = build_request(
                settings,
                conversation,
                loaded,
                probabilities=arguments.probabilities,
                seed=conversation.seed,
                tools=tools,
            )
            if media:
                request = _add_media(request, media)
            return request

        if prompt.scan is not None and not arguments.quiet:
            with_pictures = build("")
            without = replace(with_pictures, messages=conversation.messages())
            counted = _count_prompt(engine, with_pictures)
            n_rows = counted.tokens - _count_prompt(engine, without).tokens
            cost = PictureCost(n_rows, counted.picture_seconds)
            terminal.notify(f"The pictures take {cost.text}.")
        printer = AnswerPrinter(
            arguments.output_style,
            engine.ready,
            as_json=arguments.as_json,
            is_markdown=loaded.has_chat_template and settings.is_free_text,
            mark_tokens=arguments.tokens,
            show_stats=arguments.stats,
        )
        stream = _PromptStream(engine, loaded, build, printer, events_file)
        try:
            if toolbox is None:
                is_finished = stream.answer()
            else:
                front_end = _make_front_end(arguments, printer, events_file)
                approvals = Approvals(reads_saved=_can_ask(arguments))
                approvals.allow_named(allowed)
                max_calls = int(config.load().get("tools.max_calls"))
                steps = ToolSteps(
                    toolbox,
                    approvals,
                    front_end,
                    max_calls=max_calls,
                    notify=terminal.notify_of,
                )
                is_finished = stream.answer_in_steps(steps)
        except PromptTooLongError as error:
            error.hint = f"{error.hint} {prompt.length_hint}".strip()
            raise
        sampling = settings.describe_sampling(pair.suggested_settings)
        printer.print_result(stream.requests, loaded, sampling, engine.measured)
        return 0 if is_finished else 130
    finally:
        engine.close()


def _can_ask(arguments: RunArguments) -> bool:
    """Whether a person can be asked about a call: a document is for a program."""
    return terminal.can_prompt_user() and not arguments.as_json


def _make_front_end(
    arguments: RunArguments, printer: AnswerPrinter, events_file: TextIO | None
) -> ToolCallPrinter:
    def record(state: CallState) -> None:
        if events_file is not None:
            events_file.write(encode_call(state) + "\n")

    kind = ToolCallPrinter if _can_ask(arguments) else CallRefuser
    hooks = CallHooks(start_new_line=printer.end_line, record=record)
    front_end = kind(arguments.output_style, hooks)
    printer.clear_progress = front_end.end_progress
    return front_end


def _add_media(
    request: GenerateCommand, media: tuple[PictureRef, ...]
) -> GenerateCommand:
    """The request, whose last message has pictures and audio, before its text."""
    if not request.messages:
        raise UsageError(
            "Pictures and audio need a chat template, and this model has none.",
            "Choose one with --template.",
        )
    *earlier, question = request.messages
    question = replace(question, images=media)
    return replace(request, messages=(*earlier, question))


def _count_prompt(engine: launch.Engine, request: GenerateCommand) -> CountResult:
    command = CountCommand(messages=request.messages, template=request.template)
    return engine.count(command)


def _show_nothing() -> None:
    """For an answer whose calls are printed with its text, or that has none."""


class _PromptStream:
    """Streams the answer of a prompt to a printer, and its events to a file."""

    def __init__(
        self,
        engine: launch.Engine,
        loaded: LoadedModel,
        build: Callable[[str], GenerateCommand],
        printer: AnswerPrinter,
        events_file: TextIO | None,
    ) -> None:
        """`build` makes the request, with the tools that it offers, as JSON."""
        self._engine = engine
        self._loaded = loaded
        self._build = build
        self._printer = printer
        self._events_file = events_file
        self._show(engine.ready)
        self.requests: list[GenerateCommand] = []
        """One for each step of the answer."""

    def answer(self) -> bool:
        """Whether the answer was not stopped by Ctrl+C."""
        return self._stream(self._build(""), _show_nothing)

    def answer_in_steps(self, steps: ToolSteps) -> bool:
        """As `answer`, with calls of tools between the steps."""
        if not self._loaded.has_chat_template:
            raise UsageError(
                "Tools need a chat template, and this model has none.",
                "Choose one with --template.",
            )
        stop = threading.Event()
        has_more = True
        while has_more:
            request = self._build(steps.tools)
            answer = steps.begin_answer(len(request.messages), self._loaded)
            self._printer.begin_step(answer)
            request = steps.add_messages(self._engine, request, self._loaded)
            show_progress: Callable[[], None] = partial(steps.show_progress, answer)
            if self._printer.prints_calls:
                show_progress = _show_nothing
            if not self._stream(request, show_progress):
                return False
            with terminal.stop_on_interrupt(stop.set):
                has_more = steps.run_calls(answer, stop)
        self._printer.add_calls(steps.calls)
        return not steps.is_stopped

    def _stream(
        self, request: GenerateCommand, show_progress: Callable[[], None]
    ) -> bool:
        """`show_progress` shows the calls that are written, after each event."""
        engine = self._engine
        printer = self._printer
        self.requests.append(request)
        stats = SpeculationStats()
        end: GenerationFinished | None = None
        with terminal.stop_on_interrupt(engine.stop) as interrupt:
            try:
                for event in engine.generate(request):
                    if isinstance(event, GenerationFinished):
                        end = event
                        printer.on_event(event)
                    else:
                        stats.add(event)
                        self._show(event)
                    show_progress()
                    check_answer(
                        engine, event, lambda: interrupt.pressed_at is not None
                    )
            except LocalspecError as error:
                error.said = printer.answer.text
                raise
            finally:
                printer.clear_progress()
                printer.end_line()
                if end is not None:
                    # What the engine has measured follows the end of the answer.
                    stats.measured = engine.measured
                    self._write(stats.add(end).event)
        return interrupt.pressed_at is None

    def _show(self, event: Event) -> None:
        self._write(event)
        self._printer.on_event(event)

    def _write(self, event: Event) -> None:
        if self._events_file is not None:
            self._events_file.write(encode(event) + "\n")


def _read_prompt(given: str | None, *, quiet: bool) -> str:
    """The prompt of -p, then a blank line and what is piped."""
    if given is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError(
            "There is no prompt.", 'Give one: localspec run demo -p "import os"'
        )
    is_read = given is None or _is_piped(sys.stdin)
    piped = _read_pipe(sys.stdin.buffer, quiet=quiet) if is_read else ""
    text = "\n\n".join(filter(None, (given, piped)))
    if not text:
        raise UsageError(
            "The prompt is empty.", 'Give one: localspec run demo -p "import os"'
        )
    return text


def _is_piped(stdin: TextIO | None) -> bool:
    """Whether someone writes to standard input: a pipe, a file or a socket."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode if stdin is not None else 0
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_pipe(stdin: IO[bytes], *, quiet: bool) -> str:
    """Standard input as text; blank lines alone count as empty."""

    def warn() -> None:
        if sys.stderr.isatty():
            terminal.notify("Reading standard input. To use only -p: < /dev/null")

    notice = threading.Timer(_PIPE_NOTICE_SECONDS, warn)
    notice.daemon = True
    notice.start()
    data = stdin.read(_MAX_PROMPT_BYTES + 1)
    notice.cancel()
    if len(data) > _MAX_PROMPT_BYTES:
        raise UsageError(
            f"The prompt is longer than {size_limit(_MAX_PROMPT_BYTES)}.",
            "No context is that large.",
        )
    try:
        text, note = decode_text(data)
    except ValueError as error:
        raise UsageError("Standard input is not text.", "Pipe text into it.") from error
    if note and not quiet:
        terminal.notify(f"Standard input is not UTF-8: {note}.")
    return text if text.strip() else ""


def _build_settings(pair: launch.ResolvedPair, arguments: RunArguments) -> ChatSettings:
    settings = options.build_settings(pair, arguments.options)
    if not arguments.preset:
        return settings
    return _merge_settings(presets.find(arguments.preset).apply(settings), settings)


def _open_events_file(path: str | None) -> AbstractContextManager[TextIO | None]:
    """Open FILE of --events before loading, so that a wrong path fails at once."""
    if not path:
        return nullcontext()
    try:
        return Path(path).open("w", buffering=1, encoding="utf-8", errors="replace")
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}."
        raise StorageError(what, "Give --events a writable path.") from error


def _print_ready(ready: EngineReady) -> None:
    names = {"model": ready.model, "draft": ready.draft, "devices": ready.devices}
    for name, value in (names | ready.settings).items():
        terminal.echo(f"{name}: {value}", err=True)


# --- saved chats
# --------------------------------------------------------------------------

_RECAP_TURNS = 2  # Turns shown when a chat is continued.
_RECAP_LINES = 6  # Lines shown of each question and each answer.


def _resume_chat(is_chat: bool, chat: str | None) -> SavedChat | None:
    """The chat of --continue; None without that option."""
    if chat is None:
        return None
    if not is_chat:
        raise UsageError(
            "--continue needs a chat on a terminal.", "Leave out -p and --json."
        )
    from localspec.cli.history import find_chat_id, open_history  # noqa: PLC0415  late: only here

    with open_history() as history:
        return history.load_chat(find_chat_id(history, chat), with_events=False)


def _resolve_pair(
    model: str | None,
    arguments: RunArguments,
    saved_chat: SavedChat | None,
    *,
    is_chat: bool,
) -> tuple[str, str]:
    """The references of target and draft.

    They are those of the named pair; else the saved chat's; else the default of
    `recent_pairs.resolve_default`.
    """
    draft = arguments.draft
    if model is None and saved_chat is not None and saved_chat.list_entry.pair.model:
        saved_pair = saved_chat.list_entry.pair
        if draft == "auto":
            draft = saved_pair.draft
        return saved_pair.model, draft
    model, draft, why = recent_pairs.resolve_default(model, draft)
    names_model_itself = is_chat
    if why and not names_model_itself and not arguments.quiet:
        terminal.notify(f"Answering with {model}, {why}.")
    return model, draft


def _create_session(
    pair: launch.ResolvedPair,
    saved_chat: SavedChat | None,
    settings: ChatSettings,
    arguments: RunArguments,
) -> ChatSession:
    """The session of this chat.

    Raises InUseError if another window has the chat open.
    """
    session = ChatSession(
        pair,
        arguments.options["seed"],
        _open_history(arguments),
        saved_chat,
        settings=settings,
        system=arguments.system,
    )
    if session.recorder.lock_error is not None:
        raise session.recorder.lock_error
    if saved_chat is not None:
        if arguments.preset:
            session.settings = settings
        else:
            session.settings = _merge_settings(saved_chat.settings, settings)
        if arguments.system:
            session.conversation.system = arguments.system
    return session


def _open_history(arguments: RunArguments) -> ChatHistory | None:
    """The history to save in; None for a private chat.

    Also None, with a warning, if it cannot be opened.
    """
    if arguments.private or not config.load().get("chats.keep"):
        return None
    history: ChatHistory | None = None
    try:
        history = ChatHistory.open()
        error = history.write_error
        for notice in history.take_notices():
            terminal.notify(notice.message, notice.hint)
    except LocalspecError as failure:
        error = failure
    if error is not None and not arguments.quiet:
        terminal.notify(f"This chat will not be saved: {error.message}", error.hint)
    return history


def _merge_settings(
    saved_settings: ChatSettings, given_settings: ChatSettings
) -> ChatSettings:
    """The settings of the saved chat, overridden by the command line's."""
    context = click.get_current_context()
    values = {
        name: given_settings.get(option)
        for name, option in ANSWER_OPTIONS.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return saved_settings.with_values(values)


def _format_recap(chat: SavedChat, *, plain: bool) -> Iterator[str]:
    entry = chat.list_entry
    conversation = chat.conversation
    turns = conversation.turns
    questions = conversation.questions
    names = name_answers(name_chat_model(entry.pair), entry.pair, turns)
    yield f"Chat {entry.id}, {count(len(questions), 'turn')}: {entry.title}"
    if len(questions) > _RECAP_TURNS:
        if plain:
            yield "Last turns:"
        else:
            yield "…"
    shown: list[Turn] = []
    for question in questions[-_RECAP_TURNS:]:
        shown += conversation.list_steps(question.id)
    for turn in shown:
        if plain:
            name = names[turn.model] or "Answer"
            yield from _format_turn(turn, chat, "You: ", f"{name}: ")
        else:
            yield from _format_turn(turn, chat, "> ", "")
    if turns and turns[-1].is_unfinished:
        yield "The last answer was interrupted. Press Enter or type /retry to generate it again."


def _format_turn(
    turn: Turn, chat: SavedChat, question_prefix: str, answer_prefix: str
) -> Iterator[str]:
    question = [f"[{each.word}: {sanitize(each.name)}]" for each in turn.pictures]
    question += sanitize(format_question(turn)).splitlines()
    for result in turn.results:
        yield f"{shorten_name(result.tool)}: {first_line(result.text)}"
    if question:
        yield f"{question_prefix}{question[0]}"
        yield from question[1:_RECAP_LINES]
        if len(question) > _RECAP_LINES:
            yield "…"
    answer = sanitize(turn.visible_answer(chat.list_entry.pair.thinking)).splitlines()
    if len(answer) > _RECAP_LINES:
        answer = ["…", *answer[-_RECAP_LINES:]]
    if answer:
        yield f"{answer_prefix}{answer[0]}"
        yield from answer[1:]
