"""`localspec run`: answer a prompt, or start a chat."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any, TextIO

import click

from localspec import config, launch
from localspec.chat.conversation import Conversation
from localspec.chat.history import SavedChat
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import ChatSettings, LoadedModel, build_request
from localspec.cli import global_options, options, resume
from localspec.cli.answer_printer import AnswerPrinter, PrintOptions
from localspec.errors import LocalspecError, StorageError, UsageError
from localspec.launch import recent_pairs
from localspec.protocol.events import EngineExit, EngineReady, Event, Notice, encode
from localspec.protocol.wire import GenerateCommand, SamplingParams
from localspec.sanitize import sanitize
from localspec.worker import crashes

_MAX_PROMPT_BYTES = 64 * 1024 * 1024
_DEFAULT_MAX_TOKENS = 512


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
    Without MODEL: the pair set in config.toml, else the pair of the last run, else the demo.
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
    model, draft = resume.resolve_pair(model, given["draft"], saved_chat)
    if not given["quiet"] and sys.stderr.isatty():
        _warn_unused_gpu()
    choice = options.resolve_or_pull(model, draft, yes=given["yes"], quiet=given["quiet"])
    pair_refs = launch.make_portable_refs(model, draft)
    recent_pairs.save_last(*pair_refs)
    given["spec"] = options.resolve_drafter(choice, given["spec"])
    conversation = saved_chat.conversation if saved_chat else _new_conversation(given)
    with _open_events_file(given["events"]) as events_file:
        if is_chat:
            recorder = resume.create_recorder(pair_refs, conversation, saved_chat, given)
            return _run_chat(choice, recorder, saved_chat, events_file, given)
        conversation.ask(text)
        return _run_once(choice, conversation, events_file, given)


def _new_conversation(given: dict[str, Any]) -> Conversation:
    seed = secrets.randbits(31) if given["seed"] is None else given["seed"]
    return Conversation(seed, given["system"])


def _warn_unused_gpu() -> None:
    from localspec import doctor  # noqa: PLC0415  late: only for a terminal

    if (finding := doctor.find_unused_gpu()) is not None:
        click.echo(f"localspec: {finding.what}.\n  {finding.fix}", err=True)
        click.echo(f"  Hide this notice: localspec doctor --dismiss {finding.id}", err=True)


def _is_chat(given: dict[str, Any]) -> bool:
    if given["prompt"] is not None or given["as_json"] or sys.stdin is None:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def _run_chat(
    choice: launch.ResolvedPair,
    recorder: ChatRecorder,
    saved_chat: SavedChat | None,
    events_file: TextIO | None,
    given: dict[str, Any],
) -> int:
    from localspec.cli.answer_printer import ChatOutputStyle  # noqa: PLC0415
    from localspec.cli.chat_loop import ChatLoop  # noqa: PLC0415  late: only a chat needs it
    from localspec.cli.chat_state import ChatLaunchOptions, ChatState  # noqa: PLC0415

    launch_options = ChatLaunchOptions(
        options.build_load_request(choice, given),
        choice,
        raw=given["raw"],
        template=given["template"],
        show_stats=given["stats"],
        probabilities=given["probabilities"],
        on_event=_make_notice_printer(given["quiet"]),
        events_file=events_file,
    )
    style = ChatOutputStyle(global_options.is_plain(), _use_colour(given), given["quiet"])
    initial = _build_chat_settings(given, choice)
    state = ChatState(
        recorder.conversation,
        initial,
        style,
        recorder,
        given["system"],
        given["tokens"],
        initial_settings=initial,
    )
    if saved_chat:
        state.settings = resume.merge_settings(saved_chat.settings, initial)
        state.engine_died = resume.is_interrupted(saved_chat)
        state.recap = tuple(resume.format_recap(saved_chat, plain=style.plain))
    return ChatLoop(launch_options, state).run(_print_ready if given["verbose"] else lambda _: None)


def _build_chat_settings(given: dict[str, Any], choice: launch.ResolvedPair) -> ChatSettings:
    preferences = config.load()
    return replace(
        _build_settings(given, choice),
        overflow=preferences.overflow,
        show_thinking=preferences.show_thinking,
    )


def _run_once(
    choice: launch.ResolvedPair,
    conversation: Conversation,
    events_file: TextIO | None,
    given: dict[str, Any],
) -> int:
    settings = _build_settings(given, choice)
    settings = replace(settings, max_tokens=settings.max_tokens or _DEFAULT_MAX_TOKENS)
    print_options = PrintOptions(
        given["tokens"],
        given["stats"],
        given["as_json"],
        given["quiet"],
        _use_colour(given),
        global_options.is_plain(),
    )
    probe = settings.spec == choice.spec == "auto"
    load_request = options.build_load_request(choice, given)
    print_notice = _make_notice_printer(given["quiet"])
    engine = launch.start_engine(load_request, probe=probe, notify=print_notice)
    try:
        if given["verbose"]:
            _print_ready(engine.ready)
        loaded = LoadedModel.from_ready(
            engine.ready,
            choice.spec,
            choice.spec_reason,
            raw=given["raw"],
            template=given["template"],
        )
        request = build_request(
            settings, conversation, loaded, probabilities=given["probabilities"]
        )
        # build_request derives a seed per turn; one answer uses the seed of --seed itself.
        sampling = replace(request.sampling, seed=conversation.seed)
        request = replace(request, sampling=sampling)
        return _stream_answer(engine, request, print_options, events_file)
    finally:
        engine.close()


def _stream_answer(
    engine: launch.Engine,
    request: GenerateCommand,
    print_options: PrintOptions,
    events_file: TextIO | None,
) -> int:
    printer = AnswerPrinter(print_options)
    interrupted = False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        engine.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl+C quits

    before = signal.signal(signal.SIGINT, stop)
    try:
        for event in _events_with_ready(engine, request):
            if events_file is not None:
                events_file.write(encode(event) + "\n")
            printer.on_event(event)
            if interrupted:  # again: the first may have come before the engine started
                engine.stop()
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
    except LocalspecError as error:
        error.said = printer.text
        raise
    finally:
        printer.end_line()
        signal.signal(signal.SIGINT, before)
    printer.print_result(request.sampling.seed, request.verify)
    return 130 if interrupted else 0


def _events_with_ready(engine: launch.Engine, request: GenerateCommand) -> Iterator[Event]:
    yield engine.ready
    yield from engine.generate(request)


def _read_prompt(given: str | None) -> str:
    if given is not None:
        text = given
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("There is no prompt.", 'Give one: localspec run demo -p "import os"')
    else:
        text = _read_pipe(sys.stdin.buffer)
    if not text:
        raise UsageError("The prompt is empty.", 'Give one: localspec run demo -p "import os"')
    return text


def _read_pipe(stdin: IO[bytes]) -> str:
    """Standard input as text; blank lines alone count as empty."""
    data = stdin.read(_MAX_PROMPT_BYTES + 1)
    if len(data) > _MAX_PROMPT_BYTES:
        raise UsageError(
            f"The prompt is longer than {_MAX_PROMPT_BYTES >> 20} MiB.", "No context is that large."
        )
    return data.decode("utf-8", "replace") if data.strip() else ""


def _build_settings(given: dict[str, Any], choice: launch.ResolvedPair) -> ChatSettings:
    suggested = ChatSettings.from_catalog(choice.suggested_settings)
    temperature, draft_max = given["temperature"], given["draft_max"]
    return ChatSettings(
        SamplingParams(
            temperature=suggested.sampling.temperature if temperature is None else temperature,
            top_k=given["top_k"],
            top_p=given["top_p"],
            min_p=given["min_p"],
            repeat_penalty=given["repeat_penalty"],
        ),
        max_tokens=given["max_tokens"],
        stop=given["stop"],
        spec=given["spec"],
        draft_length=suggested.draft_length if draft_max is None else draft_max,
        verify=given["verify"],
        exact=given["exact"],
        think=None if given["think"] is None else given["think"] == "on",
        think_budget=given["think_budget"],
    )


def _use_colour(given: dict[str, Any]) -> bool:
    if given["no_color"] or global_options.is_plain() or os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


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


def _make_notice_printer(quiet: bool) -> Callable[[Event], None]:
    """Prints notices; prints one line when the first measurement of a pair begins."""
    measuring_shown = False

    def print_event(event: Event) -> None:
        nonlocal measuring_shown
        if isinstance(event, Notice):
            if not quiet:
                click.echo(f"localspec: {event.message} {event.hint}", err=True)
            return
        if not quiet and not measuring_shown and sys.stderr.isatty():
            click.echo("localspec: measuring this pair on this computer (first run) …", err=True)
        measuring_shown = True

    return print_event


def _print_ready(ready: EngineReady) -> None:
    for name, value in (("model", ready.model), ("draft", ready.draft), ("devices", ready.devices)):
        click.echo(f"{name}: {sanitize(str(value), multiline=False)}", err=True)
    for name, value in ready.settings.items():
        click.echo(f"{name}: {sanitize(str(value), multiline=False)}", err=True)
