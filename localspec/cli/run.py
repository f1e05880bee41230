"""`localspec run`: answer a prompt, or start a chat."""

from __future__ import annotations

import itertools
import os
import random
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TextIO

import click

from localspec import config, launch
from localspec.chat import presets
from localspec.chat.context_window import check_answer
from localspec.chat.conversation import Conversation
from localspec.chat.history import SavedChat
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.cli import global_options, options, resume
from localspec.cli.answer_printer import AnswerPrinter, PrintOptions
from localspec.cli.terminal import stop_on_interrupt
from localspec.errors import LocalspecError, StorageError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import recent_pairs
from localspec.protocol.events import EngineReady, encode
from localspec.protocol.wire import GenerateCommand
from localspec.sanitize import sanitize

_MAX_PROMPT_BYTES = 64 * 1024 * 1024
_DEFAULT_MAX_TOKENS = 512
_PIPE_NOTICE_SECONDS = 2.0  # A pipe that nobody writes to or closes would look like a slow model.


@click.command("run")
@options.PROMPT
@options.SAMPLING
@options.SPECULATION
@options.MACHINE
@options.OUTPUT
@options.HISTORY
@options.YES
def command(model: str | None, **given: Any) -> int:
    """Answer a prompt with MODEL, or start a chat if there is no prompt.

    MODEL is a pair or a model of the catalogue, user/repo:QUANT, or the path of a .gguf file.
    Without MODEL: the pair set in config.toml, else the pair of the last run, else SmolLM2 135M if
    its package is installed, else the demo.
    Chats are saved; see `localspec history`.

    \b
    localspec run demo -p "def fibonacci(n):" --tokens --stats
    localspec run qwen3-8b+qwen3-0.6b
    localspec run big.gguf --draft small.gguf -p "Once upon a time"
    localspec run big.gguf
    localspec run --continue
    """
    is_chat = _is_chat(given)
    saved_chat = resume.resume_chat(is_chat, given["chat"])
    text = "" if is_chat else _read_prompt(given["prompt"])
    if given["raw"] and given["template"]:
        raise UsageError("--raw uses no template.", "Leave out --raw or --template.")
    if given["json_schema"] and given["grammar"]:
        raise UsageError("--json-schema and --grammar cannot be used together.", "Give one.")
    if given["preset"]:
        given["system"] = given["system"] or presets.find(given["preset"]).system or ""
    model, draft = resume.resolve_pair(model, given["draft"], saved_chat)
    if not given["quiet"] and sys.stderr.isatty():
        _warn_unused_gpu()
    pair = options.resolve_or_pull(model, draft, yes=given["yes"], quiet=given["quiet"])
    pair_refs = launch.make_portable_refs(model, draft)
    recent_pairs.save_last(*pair_refs)
    pair = replace(pair, requested_refs=pair_refs)
    recent_pairs.add_if_path(pair)
    given["spec"] = options.resolve_drafter(pair, given["spec"])
    with _open_events_file(given["events"]) as events_file:
        if is_chat:
            return _run_chat(pair, saved_chat, events_file, given)
        seed = random.getrandbits(31) if given["seed"] is None else given["seed"]
        conversation = Conversation(seed, given["system"])
        conversation.ask(text)
        return _run_once(pair, conversation, events_file, given)


def _warn_unused_gpu() -> None:
    from localspec.doctor import llama_build  # noqa: PLC0415  late: only for a terminal

    if (finding := llama_build.find_unused_gpu()) is not None:
        click.echo(f"localspec: {finding.what}.\n  {finding.fix}", err=True)
        click.echo(f"  Hide this notice: localspec doctor --dismiss {finding.id}", err=True)


def _is_chat(given: dict[str, Any]) -> bool:
    if given["prompt"] is not None or given["as_json"] or sys.stdin is None:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def _run_chat(
    pair: launch.ResolvedPair,
    saved_chat: SavedChat | None,
    events_file: TextIO | None,
    given: dict[str, Any],
) -> int:
    # Late imports: only a chat needs them.
    from localspec.cli.answer_printer import ChatOutputStyle  # noqa: PLC0415
    from localspec.cli.chat_loop import ChatLaunchOptions, ChatLoop  # noqa: PLC0415
    from localspec.cli.slash_handlers import LinearChatView  # noqa: PLC0415

    session = resume.create_session(pair, saved_chat, _build_chat_settings(given, pair), given)
    style = ChatOutputStyle(
        global_options.is_plain(),
        global_options.use_colour(no_color=given["no_color"]),
        given["quiet"],
    )

    def print_line(line: str) -> None:
        sys.stdout.flush()
        click.echo(line, err=True, color=style.colour)

    def build_load_request(session: ChatSession) -> SettingsRequest:
        changed = given | {"ctx": session.settings.ctx, "exact": session.settings.exact}
        return options.build_load_request(session.pair, changed)

    launch_options = ChatLaunchOptions(
        build_load_request,
        raw=given["raw"],
        template=given["template"],
        show_stats=given["stats"],
        probabilities=given["probabilities"],
        on_event=options.make_notice_printer(given["quiet"]),
        events_file=events_file,
        recap=tuple(resume.format_recap(saved_chat, plain=style.plain)) if saved_chat else (),
    )
    view = LinearChatView(session, style, print_line, given["tokens"])
    return ChatLoop(launch_options, view).run(_print_ready if given["verbose"] else lambda _: None)


def _build_chat_settings(given: dict[str, Any], pair: launch.ResolvedPair) -> ChatSettings:
    preferences = config.load()
    return replace(
        _build_settings(given, pair),
        overflow=preferences.get("chats.overflow"),
        show_thinking=preferences.get("chats.show_thinking"),
    )


def _run_once(
    pair: launch.ResolvedPair,
    conversation: Conversation,
    events_file: TextIO | None,
    given: dict[str, Any],
) -> int:
    settings = _build_settings(given, pair)
    settings = replace(settings, max_tokens=settings.max_tokens or _DEFAULT_MAX_TOKENS)
    print_options = PrintOptions(
        given["tokens"],
        given["stats"],
        given["as_json"],
        given["quiet"],
        global_options.use_colour(no_color=given["no_color"]),
        global_options.is_plain(),
    )
    load_request = options.build_load_request(pair, given | {"exact": settings.exact})
    engine = launch.start_engine(load_request, notify=options.make_notice_printer(given["quiet"]))
    try:
        if given["verbose"]:
            _print_ready(engine.ready)
        loaded = LoadedModel.from_ready(
            engine.ready,
            pair.spec,
            pair.spec_reason,
            raw=given["raw"],
            template=given["template"],
        )
        request = build_request(
            settings,
            conversation,
            loaded,
            probabilities=given["probabilities"],
            seed=conversation.seed,
        )
        return _stream_answer(engine, request, loaded, print_options, events_file)
    finally:
        engine.close()


def _stream_answer(
    engine: launch.Engine,
    request: GenerateCommand,
    loaded: LoadedModel,
    print_options: PrintOptions,
    events_file: TextIO | None,
) -> int:
    printer = AnswerPrinter(print_options, engine.ready)
    with stop_on_interrupt(engine.stop) as is_stopped:
        try:
            for event in itertools.chain((engine.ready,), engine.generate(request)):
                if events_file is not None:
                    events_file.write(encode(event) + "\n")
                printer.on_event(event)
                check_answer(engine, event, is_stopped)
        except LocalspecError as error:
            error.said = printer.answer.text
            raise
        finally:
            printer.end_line()
    printer.print_result(request, loaded)
    return 130 if is_stopped() else 0


def _read_prompt(given: str | None) -> str:
    """The prompt of -p, then a blank line and what is piped."""
    if given is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("There is no prompt.", 'Give one: localspec run demo -p "import os"')
    piped = _read_pipe(sys.stdin.buffer) if given is None or _is_piped(sys.stdin) else ""
    text = "\n\n".join(filter(None, (given, piped)))
    if not text:
        raise UsageError("The prompt is empty.", 'Give one: localspec run demo -p "import os"')
    return text


def _is_piped(stdin: TextIO | None) -> bool:
    """Whether someone writes to standard input: a pipe, a file or a socket, not a device."""
    try:
        mode = os.fstat(stdin.fileno()).st_mode if stdin is not None else 0
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def _read_pipe(stdin: IO[bytes]) -> str:
    """Standard input as text; blank lines alone count as empty."""
    notice = threading.Timer(_PIPE_NOTICE_SECONDS, _print_pipe_notice)
    notice.daemon = True
    notice.start()
    data = stdin.read(_MAX_PROMPT_BYTES + 1)
    notice.cancel()
    if len(data) > _MAX_PROMPT_BYTES:
        raise UsageError(
            f"The prompt is longer than {_MAX_PROMPT_BYTES >> 20} MiB.", "No context is that large."
        )
    return data.decode("utf-8", "replace") if data.strip() else ""


def _print_pipe_notice() -> None:
    if sys.stderr.isatty():
        click.echo("localspec: Reading standard input. To use only -p: < /dev/null", err=True)


def _build_settings(given: dict[str, Any], pair: launch.ResolvedPair) -> ChatSettings:
    settings = options.build_settings(pair, given)
    if given["preset"]:
        settings = resume.merge_settings(presets.find(given["preset"]).apply(settings), settings)
    return settings


@contextmanager
def _open_events_file(path: str | None) -> Iterator[TextIO | None]:
    """Open FILE of --events before loading, so that a wrong path fails at once."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115  closed by `with` below
    except OSError as error:
        name = sanitize(path, multiline=False)
        raise StorageError(
            f"{name} cannot be written: {error.strerror}.", "Give --events a writable path."
        ) from error
    with file:
        yield file


def _print_ready(ready: EngineReady) -> None:
    for name, value in (("model", ready.model), ("draft", ready.draft), ("devices", ready.devices)):
        click.echo(f"{name}: {sanitize(str(value), multiline=False)}", err=True)
    for name, value in ready.settings.items():
        click.echo(f"{name}: {sanitize(str(value), multiline=False)}", err=True)
