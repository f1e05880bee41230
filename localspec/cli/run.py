"""`localspec run`: complete a prompt and stream the answer."""

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
from localspec.chat import recent
from localspec.chat.conversation import Conversation
from localspec.chat.history import Kept
from localspec.chat.keeping import Keeper
from localspec.chat.settings import Loaded, Settings, request
from localspec.clean import clean
from localspec.cli import choosing, options, places, resuming
from localspec.cli.printer import Printer, Show
from localspec.errors import AccessError, LocalspecError, UsageError
from localspec.protocol.events import Dead, Event, Notice, Ready, encode
from localspec.protocol.wire import Generate, Sampling
from localspec.worker import ending

_LONGEST_PROMPT = 64 * 1024 * 1024
_LENGTH = 512
"""Tokens of an answer where nobody said how many."""


@click.command("run")
@options.PROMPT
@options.SAMPLING
@options.SPECULATION
@options.MACHINE
@options.OUTPUT
@options.KEEPING
@options.YES
def command(model: str | None, **given: Any) -> int:
    """Answer a prompt with MODEL; a chat where there is none.

    MODEL is a pair or a model of the catalogue, user/repo:QUANT, or the path of a .gguf file.
    Without one: the pair of config.toml, of the last run, or the demo.  Chats are kept: see
    localspec history.

    \b
    localspec run demo -p "def fibonacci(n):" --tokens --stats
    localspec run qwen3-8b+qwen3-0.6b
    localspec run big.gguf --draft small.gguf -p "Once upon a time"
    localspec run big.gguf
    localspec run --continue
    """
    chatting = _wants_chat(given)
    kept = resuming.gone_on_with(chatting, given["chat"])
    text = "" if chatting else _prompt(given["prompt"])
    if given["raw"] and given["template"]:
        raise UsageError("--raw uses no template.", "Leave out --raw or --template.")
    model, draft = resuming.asked(model, given["draft"], kept)
    if not given["quiet"] and sys.stderr.isatty():
        _say_what_is_missed()
    choice = choosing.choose(model, draft, yes=given["yes"], quiet=given["quiet"])
    lasting = launch.lasting(model, draft)
    recent.used(*lasting)
    given["spec"] = choosing.drafter(choice, given["spec"])
    conversation = kept.conversation if kept else _conversation(given)
    with _events_file(given["events"]) as log:
        if chatting:
            return _chat(
                choice, resuming.keeper(lasting, conversation, kept, given), kept, log, given
            )
        conversation.ask(text)
        return _one_shot(choice, conversation, log, given)


def _conversation(given: dict[str, Any]) -> Conversation:
    seed = secrets.randbits(31) if given["seed"] is None else given["seed"]
    return Conversation(seed, given["system"])


def _say_what_is_missed() -> None:
    """A GPU that this build cannot use."""
    from localspec import doctor  # noqa: PLC0415  late: a pipe has nobody to read it

    if (found := doctor.cpu_only_beside_gpu()) is not None:
        click.echo(f"localspec: {found.what}.\n  {found.fix}", err=True)
        click.echo(f"  Not again: localspec doctor --dismiss {found.id}", err=True)


def _wants_chat(given: dict[str, Any]) -> bool:
    """Somebody types, and somebody reads."""
    if given["prompt"] is not None or given["as_json"] or sys.stdin is None:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty()


def _chat(
    choice: launch.Choice,
    keeper: Keeper,
    kept: Kept | None,
    log: TextIO | None,
    given: dict[str, Any],
) -> int:
    from localspec.cli.chat import Chat  # noqa: PLC0415  late: one answer needs none
    from localspec.cli.state import Opening, State  # noqa: PLC0415
    from localspec.cli.teller import Look  # noqa: PLC0415

    opening = Opening(
        options.wish(choice, given),
        choice,
        raw=given["raw"],
        template=given["template"],
        stats=given["stats"],
        probabilities=given["probabilities"],
        say=_measuring(given["quiet"]),
        log=log,
    )
    look = Look(places.plain(), _colour(given), given["quiet"])
    usual = config.read()
    chosen = replace(
        _settings(given, choice), overflow=usual.overflow, show_thinking=usual.show_thinking
    )
    initial = chosen
    if kept:
        chosen = resuming.merged(kept.settings, chosen)
    conversation = keeper.conversation
    state = State(
        conversation, chosen, look, keeper, given["system"], given["tokens"], initial=initial
    )
    if kept:
        state.died = resuming.interrupted(kept)
        state.shown = tuple(resuming.beginning(kept, plain=look.plain))
    return Chat(opening, state).run(_describe if given["verbose"] else lambda _: None)


def _one_shot(
    choice: launch.Choice, conversation: Conversation, log: TextIO | None, given: dict[str, Any]
) -> int:
    chosen = _settings(given, choice)
    chosen = replace(chosen, max_tokens=chosen.max_tokens or _LENGTH)
    show = Show(
        given["tokens"],
        given["stats"],
        given["as_json"],
        given["quiet"],
        _colour(given),
        places.plain(),
    )
    probe = chosen.spec == choice.spec == "auto"
    say = _measuring(given["quiet"])
    engine = launch.start(options.wish(choice, given), probe=probe, say=say)
    try:
        if given["verbose"]:
            _describe(engine.ready)
        loaded = Loaded.of(
            engine.ready, choice.spec, choice.why, raw=given["raw"], template=given["template"]
        )
        asked = request(chosen, conversation, loaded, probabilities=given["probabilities"])
        sampling = replace(asked.sampling, seed=conversation.seed)  # one answer: the seed itself
        return _answer(engine, replace(asked, sampling=sampling), show, log)
    finally:
        engine.close()


def _answer(engine: launch.Engine, request: Generate, show: Show, log: TextIO | None) -> int:
    printer = Printer(show)
    interrupted = False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        engine.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one quits

    before = signal.signal(signal.SIGINT, stop)
    try:
        for event in _with_ready(engine, request):
            if log is not None:
                log.write(encode(event) + "\n")
            printer.take(event)
            if interrupted:  # perhaps before the engine had anything to stop
                engine.stop()
            if isinstance(event, Dead):
                raise ending.error(event)
    except LocalspecError as error:
        error.said = printer.text
        raise
    finally:
        printer.end_line()  # what was said stays, and what follows begins on its own line
        signal.signal(signal.SIGINT, before)
    printer.close(request.sampling.seed, request.verify)
    return 130 if interrupted else 0


def _with_ready(engine: launch.Engine, request: Generate) -> Iterator[Event]:
    yield engine.ready
    yield from engine.generate(request)


def _prompt(given: str | None) -> str:
    if given is not None:
        text = given
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("There is no prompt.", 'Give one: localspec run demo -p "import os"')
    else:
        text = _piped(sys.stdin.buffer)
    if not text:
        raise UsageError("The prompt is empty.", 'Give one: localspec run demo -p "import os"')
    return text


def _piped(stdin: IO[bytes]) -> str:
    """What came through a pipe; blank lines alone are the nothing of an empty variable."""
    read = stdin.read(_LONGEST_PROMPT + 1)
    if len(read) > _LONGEST_PROMPT:
        raise UsageError(
            f"The prompt is longer than {_LONGEST_PROMPT >> 20} MiB.", "No context holds that."
        )
    return read.decode("utf-8", "replace") if read.strip() else ""


def _settings(given: dict[str, Any], choice: launch.Choice) -> Settings:
    suggested = Settings.of(choice.suggested)
    temperature, most = given["temperature"], given["draft_max"]
    return Settings(
        Sampling(
            temperature=suggested.sampling.temperature if temperature is None else temperature,
            top_k=given["top_k"],
            top_p=given["top_p"],
            min_p=given["min_p"],
            repeat_penalty=given["repeat_penalty"],
        ),
        max_tokens=given["max_tokens"],
        stop=given["stop"],
        spec=given["spec"],
        draft_length=suggested.draft_length if most is None else most,
        verify=given["verify"],
        exact=given["exact"],
        think=None if given["think"] is None else given["think"] == "on",
        think_budget=given["think_budget"],
    )


def _colour(given: dict[str, Any]) -> bool:
    if given["no_color"] or places.plain() or os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


@contextmanager
def _events_file(path: str | None) -> Iterator[TextIO | None]:
    """Opened before anything is loaded, so that a wrong path costs nothing."""
    if path is None:
        yield None
        return
    try:
        file = Path(path).open("w", buffering=1, encoding="utf-8")  # noqa: SIM115  closed by `with` below
    except OSError as error:
        name = clean(path, multiline=False)
        raise AccessError(
            f"{name} cannot be written: {error.strerror}.", "Give --events a path you may write."
        ) from error
    with file:
        yield file


def _measuring(quiet: bool) -> Callable[[Event], None]:
    """Warns of a pair that keeps crashing, and says once that a new one is being measured."""
    said: list[Event] = []

    def say(event: Event) -> None:
        if isinstance(event, Notice):
            if not quiet:
                click.echo(f"localspec: {event.message} {event.hint}", err=True)
            return
        if not quiet and not said and sys.stderr.isatty():
            click.echo("localspec: measuring this pair on this machine, once …", err=True)
        said.append(event)

    return say


def _describe(ready: Ready) -> None:
    for name, value in (("model", ready.model), ("draft", ready.draft), ("on", ready.devices)):
        click.echo(f"{name}: {clean(str(value), multiline=False)}", err=True)
    for name, value in ready.settings.items():
        click.echo(f"{name}: {clean(str(value), multiline=False)}", err=True)
