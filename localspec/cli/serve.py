"""`localspec serve`: the model for editors, agents and other programs, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from localspec import launch
from localspec.cli import global_options, options, terminal
from localspec.cli.global_options import flag, number_option, text_option
from localspec.cli.options import CommandArguments
from localspec.errors import LocalspecError, StorageError, UsageError
from localspec.launch import recent_pairs
from localspec.launch.engine_host import EngineHost
from localspec.models import model_lookup, short_names
from localspec.protocol.events import EngineReady
from localspec.sanitize import sanitize
from localspec.serve import import_http_server

if TYPE_CHECKING:
    from localspec.fit.advisor import SettingsRequest
    from localspec.launch import ResolvedPair
    from localspec.serve.access_rules import AccessRules
    from localspec.serve.http_server import HttpServer, ServerThread
    from localspec.serve.request_metrics import RequestActivity
    from localspec.serve.served_model import ServedModel

_KEY_VARIABLE = "LOCALSPEC_API_KEY"
_MAX_KEY_FILE = 64 * 1024


class ServeArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `serve`, but MODEL."""

    port: int
    host: str
    api_key_file: str | None
    allow_host: tuple[str, ...]
    allow_origin: tuple[str, ...]
    alias: str | None
    installed: bool
    keep: int
    idle: int | None  # Minutes.
    queue: int
    log_format: Literal["text", "json", "none"] | None
    template: str | None
    draft: str
    anyway: bool
    yes: bool
    quiet: bool


@click.command("serve")
@click.argument(
    "models", nargs=-1, metavar="[MODEL]...", callback=global_options.reject_empty
)
@options.OTHER_SPELLINGS
@number_option("--port", "Port; 0 chooses a free one.", 0, 65535, default=8080)
@text_option(
    "--host",
    "ADDRESS",
    "Address; other computers reach 0.0.0.0, which needs a key.",
    default="127.0.0.1",
    show_default=True,
)
@click.option(
    "--api-key-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help=f"Clients need one of the keys in FILE, one a line.  Also: {_KEY_VARIABLE}.",
)
@text_option(
    "--allow-host",
    "NAME",
    "Also answer requests to this host name; repeatable.",
    multiple=True,
)
@text_option(
    "--allow-origin",
    "ORIGIN",
    "Also answer pages of this origin, such as https://example.org; repeatable.",
    multiple=True,
)
@text_option("--alias", "NAME", "The model's name for clients.  [default: its file]")
@flag(
    "--installed",
    about="Also serve what is on this computer, under its name of `localspec list`.",
)
@number_option(
    "--keep", "Models that stay loaded, where several are served.", 1, 64, default=1
)
@number_option(
    "--idle", "Minutes after which an unused model is unloaded.  [default: never]", 1
)
@number_option(
    "--queue", "Requests that may wait; more are refused.", 0, 1000, default=16
)
@click.option(
    "--log",
    "log_format",
    type=click.Choice(["text", "json", "none"]),
    help="Log requests on standard error.  [default: on a terminal a live board, else text]",
)
@options.TEMPLATE
@options.SAMPLING
@options.SPECULATION
@options.MACHINE
@options.YES
@options.QUIET
def command(models: tuple[str, ...], **given: Any) -> int:
    """Serve MODEL over HTTP, with OpenAI's and Anthropic's API.

    Of several models, each is loaded when a request names it.
    The options of sampling and speculation apply where a request leaves them open.

    \b
    localspec serve qwen3-8b+qwen3-0.6b --port 8080
    curl http://127.0.0.1:8080/v1/chat/completions -H "Content-Type: application/json" \\
        -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
    """
    arguments = options.read_arguments(ServeArguments, given)
    http_server = import_http_server()
    rules = _make_rules(arguments)
    served, requests = _resolve_models(models, arguments)
    server_options = http_server.ServerOptions(
        tuple(served), rules, arguments.port, arguments.queue
    )
    first_request = next(iter(requests.values()))
    host = EngineHost(first_request, probe=True)
    idle_seconds = 60 * arguments.idle if arguments.idle else None
    host.add_pairs(requests, arguments.keep, idle_seconds)
    has_board = _has_board(arguments)
    log_format = arguments.log_format
    if log_format is None:
        log_format = "none" if has_board else "text"
    log = RequestLog(log_format)
    server = http_server.HttpServer(server_options, host, log.write)
    if has_board:
        return _run_board(http_server.ServerThread(server))
    if not arguments.quiet:
        terminal.notify(
            f"loading {served[0].pair.names().target}; its address will be {server.url}/v1"
        )
    return _run_plain(server, served[0], quiet=arguments.quiet)


def _resolve_models(
    models: tuple[str, ...], arguments: ServeArguments
) -> tuple[list[ServedModel], dict[str, SettingsRequest]]:
    """What is served, and how each model is loaded, by its name.

    The first is loaded at the start.
    """
    is_one = len(models) < 2 and not arguments.installed
    if not is_one and (arguments.alias or arguments.draft != "auto"):
        raise UsageError(
            "--alias and --draft are for one model.", "Name pairs as TARGET+DRAFT."
        )
    served: list[ServedModel] = []
    requests: dict[str, SettingsRequest] = {}
    for word in dict.fromkeys(models) or (None,):
        model, draft, _ = recent_pairs.resolve_default(word, arguments.draft)
        pair = options.resolve_or_pull(
            model, draft, yes=arguments.yes, quiet=arguments.quiet
        )
        if not served:
            recent_pairs.save_last(*launch.make_portable_refs(model, draft))
        stem = sanitize(pair.target.stem, multiline=False)
        if arguments.alias:
            name = arguments.alias
        elif is_one or word is None:
            name = stem
        else:
            name = word
        served.append(_to_served(name, pair, arguments, requests))
    if arguments.installed:
        for word, name in _name_installed():
            if name in requests:
                continue
            try:
                pair = launch.resolve_pair(word, "auto")
                served.append(_to_served(name, pair, arguments, requests))
            except LocalspecError as error:
                terminal.notify(f"{word} is not served: {error.message}")
    return served, requests


def _name_installed() -> Iterator[tuple[str, str]]:
    """Each reference of `localspec list`, and the name for clients, who get no paths.

    Files of one name are told apart by a folder.
    """
    words = [word for word, _ in model_lookup.list_installed()]
    paths = [Path(word) for word in words if os.path.isabs(word)]
    names = short_names.shorten(paths)
    for word in words:
        yield word, names.get(Path(word), word)


def _to_served(
    name: str,
    pair: ResolvedPair,
    arguments: ServeArguments,
    requests: dict[str, SettingsRequest],
) -> ServedModel:
    """The pair as it is served; how it is loaded is added to `requests`."""
    spec = options.resolve_drafter(pair, arguments.options["spec"])
    values = {**arguments.options, "spec": spec}
    requests[name] = options.build_load_request(
        pair, values, spec=spec, anyway=arguments.anyway
    )
    served: ServedModel = import_http_server().ServedModel(
        name,
        pair,
        options.build_settings(pair, values),
        seed=values["seed"],
        template=arguments.template,
    )
    return served


def _run_plain(server: HttpServer, first: ServedModel, *, quiet: bool) -> int:
    on_ready = partial(_report_ready, served=first, url=server.url, quiet=quiet)
    try:
        with closing(server), import_http_server().stop_on_signals(server):
            asyncio.run(server.serve(on_ready))
    except KeyboardInterrupt:
        return 130
    return 0


def _has_board(arguments: ServeArguments) -> bool:
    """Whether to show the requests as a board: on a terminal, if no log is chosen."""
    if arguments.log_format is not None or arguments.quiet:
        return False
    return terminal.can_open_app() and terminal.can_prompt_user()


def _run_board(server: ServerThread) -> int:
    from localspec.cli import full_screen  # noqa: PLC0415  late: it takes 200 ms

    try:
        flags = global_options.get_flags(click.get_current_context())
        return full_screen.open_server_board(server, flags)
    finally:
        server.close()


def _make_rules(arguments: ServeArguments) -> AccessRules:
    """Raises UsageError for a server that anybody could use."""
    from localspec.serve import access_rules  # noqa: PLC0415  an optional extra

    keys = _read_keys(arguments.api_key_file)
    host = arguments.host
    if not keys and not access_rules.is_local(host):
        raise UsageError(
            f"A server on {host} needs a key: other computers can reach it.",
            f"Use --api-key-file FILE, or set {_KEY_VARIABLE}.",
        )
    return access_rules.AccessRules(
        host, arguments.allow_host, arguments.allow_origin, keys
    )


def _report_ready(
    ready: EngineReady, *, served: ServedModel, url: str, quiet: bool
) -> None:
    if quiet:
        return
    n_ctx = (ready.settings.get("target") or {}).get("n_ctx")
    for notice in ready.notices:
        terminal.notify_of(notice)
    terminal.notify(
        f"serving {served.name_loaded(ready)} at {url}/v1, context {n_ctx:,} tokens"
    )
    terminal.notify(f"clients call it {served.name}")
    terminal.notify("ctrl+c ends the server")


def _read_keys(path: str | None) -> tuple[str, ...]:
    lines = [os.environ.get(_KEY_VARIABLE, "")]
    if path is not None:
        try:
            with open(path, encoding="utf-8-sig") as file:
                text = file.read(_MAX_KEY_FILE + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(
                f"{path} cannot be read.", "Give a text file of keys."
            ) from error
        if len(text) > _MAX_KEY_FILE:
            raise StorageError(
                f"{path} is too large.", "Give a text file of keys, one a line."
            )
        lines += text.splitlines()
    keys = tuple(line.strip() for line in lines if line.strip())
    if path is not None and not keys:
        raise UsageError(
            "The file of --api-key-file has no key.", "Write one key a line."
        )
    return keys


class RequestLog:
    """One line per request on standard error: no texts, paths or addresses."""

    def __init__(self, form: str) -> None:
        self._form = form

    def write(self, request: RequestActivity) -> None:
        if self._form == "none":
            return
        if self._form == "json":
            line = json.dumps(_describe(request))
        else:
            line = _format(request)
        try:
            print(line, file=sys.stderr, flush=True)
        except OSError:  # nobody reads the log any more
            self._form = "none"


def _describe(request: RequestActivity) -> dict[str, Any]:
    rate = request.tokens_per_second
    if rate is not None:
        rate = round(rate, 2)
    acceptance = request.totals.acceptance_rate
    if acceptance is not None:
        acceptance = round(acceptance, 4)
    return {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request": request.number,
        "route": request.route,
        "status": request.status,
        "state": request.state,
        "seconds": round(request.seconds, 3),
        "prompt_tokens": request.prompt_tokens,
        "reused_tokens": request.reused_tokens,
        "tokens": request.totals.tokens,
        "tokens_per_second": rate,
        "drafted": request.totals.drafted,
        "accepted": request.totals.accepted,
        "acceptance_rate": acceptance,
    }


def _format(request: RequestActivity) -> str:
    parts = [
        f"{datetime.now():%H:%M:%S} #{request.number} {request.route} {request.status}",
        f"{request.seconds:.1f} s",
        f"{request.prompt_tokens:,} prompt tokens ({request.reused_tokens:,} reused)",
        f"{request.totals.tokens:,} tokens",
    ]
    if request.tokens_per_second is not None:
        parts.append(f"{request.tokens_per_second:.1f} tok/s")
    if request.totals.drafted:
        parts.append(
            f"acceptance {request.totals.accepted} of {request.totals.drafted}"
        )
    return " · ".join(parts)
