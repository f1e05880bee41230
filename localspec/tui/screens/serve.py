"""The live board of `localspec serve`: its requests, and what speculation gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.chat.speculation_stats import known_rate
from localspec.config.key_table import KeyContext
from localspec.protocol.events import EngineReady
from localspec.protocol.round_totals import RoundTotals
from localspec.serve.request_metrics import RequestActivity, ServerActivity
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.screen_frame import CenteredLayout, KeyLine, TitleLine
from localspec.units import duration, gib, percent, short_count, token_rate

if TYPE_CHECKING:
    from localspec.serve.http_server import ServerThread
    from localspec.serve.served_model import ServedModel

_DRAW_SECONDS = 0.25
_COLUMNS = (3, 6, 11, -13, -8, -12, -13, -9)
"""Widths in cells; figures end at the right of a negative one."""
_HEADINGS = (
    "#",
    "route",
    "state",
    "reused + new",
    "tokens",
    "speed",
    "accepted",
    "time",
)


class ServeScreen(CenteredLayout, Screen[None]):
    BINDINGS = bindings_for("serve")
    KEY_CONTEXTS: tuple[KeyContext, ...] = ("serve",)

    def __init__(self, server: ServerThread, options: AppOptions) -> None:
        super().__init__()
        self._server = server
        self._options = options

    def compose(self) -> ComposeResult:
        yield TitleLine("Server")
        yield Static("", id="totals", markup=False)
        with VerticalScroll(id="requests"):
            yield Static("", id="rows", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        self.query_one(KeyLine).show_keys(
            format_footer(self._options.keymap, *self.KEY_CONTEXTS, "app")
        )
        self.query_one(TitleLine).show_status(f"{self._server.url}/v1")
        self.set_interval(_DRAW_SECONDS, self._draw)
        self._draw()

    def _draw(self) -> None:
        if not self._server.is_running:
            self._server_ended()
            return
        totals = format_totals(self._server)
        self.query_one("#totals", Static).update(Content("\n".join(totals)))
        rows = format_requests(self._server.activity, self._server.url)
        self.query_one("#rows", Static).update(Content("\n".join(rows)))

    def _server_ended(self) -> None:
        self.app.exit()

    def action_end(self) -> None:
        self.app.exit()  # the server ends after the app


class SharedServeScreen(ServeScreen):
    """The board of a server that shares the engine of a chat, over that chat."""

    BINDINGS = bindings_for("serve", "shared_server")
    KEY_CONTEXTS = ("serve", "shared_server")

    def __init__(
        self, server: ServerThread, options: AppOptions, stop_server: Callable[[], None]
    ) -> None:
        super().__init__(server, options)
        self._stop_server = stop_server

    def action_back(self) -> None:
        self.dismiss()

    _server_ended = action_back

    def action_end(self) -> None:
        self._stop_server()
        self.dismiss()


def format_totals(server: ServerThread) -> list[str]:
    activity = server.activity
    if server.ready is None:
        return ["Loading the model. Until then, requests get status 503."]
    totals = activity.totals
    lines = [
        _format_model(server.served, server.ready),
        _format_request_counts(activity),
    ]
    if activity.prompt_tokens:
        lines.append(_format_tokens(activity))
    lines.append(_format_speculation(totals))
    if len(totals.by_source) > 1:
        sources = [
            f"{name} {source.accepted:,} of {source.drafted:,}"
            for name, source in totals.by_source.items()
        ]
        lines.append(f"accepted by draft source: {', '.join(sources)}")
    return lines


def _format_request_counts(activity: ServerActivity) -> str:
    finished = activity.finished_by_state
    counts = (
        f"{activity.n_processing} answering",
        f"{activity.n_waiting} waiting",
        f"{finished['done']} done",
        f"{finished['cancelled']} cancelled",
        f"{finished['failed']} failed",
    )
    return "   ".join(counts)


def _format_tokens(activity: ServerActivity) -> str:
    reused = None
    if activity.prompt_tokens:
        reused = activity.reused_tokens / activity.prompt_tokens
    parts = (
        f"prompt tokens {activity.prompt_tokens:,}, {percent(reused)} reused",
        f"tokens {activity.totals.tokens:,}",
        token_rate(activity.tokens_per_second),
    )
    return "   ".join(parts)


def _format_model(served: ServedModel, ready: EngineReady) -> str:
    name = one_line(served.name_loaded(ready))
    target = ready.settings.get("target") or {}
    parts = [name, f"context {target.get('n_ctx', 0):,}"]
    memory = ready.memory.get("used") or ready.memory.get("predicted")
    if memory:
        parts.append(gib(memory))
    return "   ".join(parts)


def _format_speculation(totals: RoundTotals) -> str:
    if not totals.drafted:
        return "speculation: nothing drafted yet"
    counts = f"{totals.accepted:,} of {totals.drafted:,}"
    accepted = f"{counts} draft tokens accepted"
    rate = known_rate(totals)
    if rate is not None:
        accepted = f"acceptance {percent(rate)} ({counts})"
    return f"{accepted}   {totals.tokens_per_pass or 0:.1f} tokens per target pass"


def format_requests(activity: ServerActivity, url: str) -> list[str]:
    """The running requests in the order of the queue, then the others, latest first."""
    requests = (*activity.running, *reversed(tuple(activity.finished)))
    if not requests:
        return [
            "No request yet. Set this as the base URL of a client:",
            "",
            f"    {url}/v1",
        ]
    return [
        _format_row(_HEADINGS),
        *(_format_row(_cells(request)) for request in requests),
    ]


def _cells(request: RequestActivity) -> tuple[str, ...]:
    """One for each of `_HEADINGS`."""
    totals = request.totals
    route = "text"
    if "chat" in request.route or "responses" in request.route:
        route = "chat"
    prompt = ""
    if request.prompt_tokens:
        n_read = request.prompt_tokens - request.reused_tokens
        prompt = f"{short_count(request.reused_tokens)} + {short_count(n_read)}"
    speed = ""
    if request.tokens_per_second is not None:
        speed = token_rate(request.tokens_per_second)
    accepted = ""
    rate = known_rate(totals)
    if rate is not None:
        accepted = f"{percent(rate)} of {short_count(totals.drafted)}"
    elif totals.drafted:
        accepted = f"{totals.accepted} of {totals.drafted}"
    time = f"{request.seconds:.1f} s"
    if request.seconds >= 10:
        time = duration(request.seconds)
    tokens = f"{totals.tokens:,}" if totals.tokens else ""
    return (
        f"{request.number}",
        route,
        request.state,
        prompt,
        tokens,
        speed,
        accepted,
        time,
    )


def _format_row(cells: tuple[str, ...]) -> str:
    row = ""
    for cell, width in zip(cells, _COLUMNS, strict=True):
        row += cell.ljust(width) if width > 0 else cell.rjust(-width)
    return row.rstrip()
