"""`localspec pull`: download models and verify them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, TypeVar

import click

from localspec.cli import completion, global_options
from localspec.errors import UsageError
from localspec.models import catalog, draft_heads, pull_plan, resolver
from localspec.models.hub.cancellation import CancelToken, OperationCancelledError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import DownloadPhase, DownloadState, download_file
from localspec.models.hub.hub_cache import cache_root
from localspec.models.hub.resumable_transfer import RateLimiter
from localspec.models.pull_plan import PlannedModel, PullPlan
from localspec.models.resolver import ResolvedModel
from localspec.sanitize import sanitize
from localspec.units import bytes_per_second, duration, gb, percent


@click.command("pull")
@click.argument(
    "refs",
    nargs=-1,
    required=True,
    metavar="REF…",
    shell_complete=completion.complete_model_or_pair,
)
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--limit", type=click.FloatRange(0, min_open=True), metavar="MB/S", help="Limit the speed."
)
@global_options.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print no plan and no progress.")
def command(refs: tuple[str, ...], endpoint: str | None, **given: Any) -> int:
    """Download each REF: a pair or a model of the catalogue, or user/repo:QUANT.

    First prints the plan: files, sizes, licences, free disk space, and whether a pair is
    compatible. Ctrl+C keeps the part that is downloaded; the same command resumes it.

    \b
    localspec pull qwen3-8b+qwen3-0.6b
    localspec pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --dry-run
    """
    result = pull_models(refs, HubClient(endpoint), PullOptions(**given))
    if not result.confirmed:
        click.echo("Nothing was downloaded.", err=True)
        return 1
    if given["as_json"]:
        document = plan_to_json(result.plan)
        for model in document["models"]:
            path = result.paths.get(model["name"])
            model["path"] = str(path) if path else None
        click.echo(json.dumps({"schema": 1, "dry_run": given["dry_run"]} | document))
    elif not given["dry_run"]:
        for ref in refs:
            _print_next_step(ref, {item.resolved: item for item in result.plan.models})
    return 0


def _print_next_step(ref: str, items: Mapping[ResolvedModel, PlannedModel]) -> None:
    """How to run the model, and which draft would make it faster."""
    request = resolver.resolve(ref)
    item = items.get(request.target)
    header = item.header if item else None
    if header is not None and draft_heads.file_draft_kind(header) != "model":
        click.echo("This draft head is used automatically when its target runs.", err=True)
        return
    supported = ("model", "lookup", *draft_heads.SUPPORTED_KINDS)
    if request.pair is None or request.pair.draft_kind in supported:
        click.echo(sanitize(f"Ready: localspec run {shlex.quote(ref)}", multiline=False))
    if request.pair is not None:
        return
    model = request.target.catalog_model
    pairs = catalog.pairs_for(catalog.load(), model) if model else ()
    if (pair := next((pair for pair in pairs if pair.draft_kind == "model"), None)) is not None:
        click.echo(f"Faster with a draft model: localspec pull {pair.id}", err=True)
    for line in format_sidecar_heads(item) if item else ():
        click.echo(f"In the same repository: {line}", err=True)


_T = TypeVar("_T")
_PROGRESS_INTERVAL = 10.0
"""Seconds between progress lines if stderr is not a terminal."""
_PHASE_TEXT = {
    DownloadPhase.WAITING: "waiting: another program downloads this file",
    DownloadPhase.CHECKING: "checking the downloaded part",
    DownloadPhase.VERIFYING: "verifying",
}
_OTHER_APPS = {"lmstudio": "LM Studio", "ollama": "Ollama", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class PullOptions:
    yes: bool = False
    dry_run: bool = False
    quiet: bool = False
    as_json: bool = False
    limit: float | None = None
    """MB per second; None is unlimited."""


@dataclass(frozen=True, slots=True)
class PullResult:
    plan: PullPlan
    paths: dict[str, Path]
    """The first file of each model, by the name of the model."""
    confirmed: bool = True
    """False if the user declined the download."""


def pull_models(references: Sequence[str], hub: HubClient, options: PullOptions) -> PullResult:
    """Plan, ask and download.

    Raises before the first byte of weights if a pair is incompatible or the disk is too small.
    On Ctrl+C prints how to resume and raises KeyboardInterrupt.
    """
    requests = [resolver.resolve(text) for text in references]
    plan = run_cancellable(lambda stop: pull_plan.build(hub, requests, stop))
    will_ask = not (options.yes or options.dry_run)
    if not options.as_json and (will_ask or not options.quiet):
        for line in format_plan(plan):
            click.echo(line, err=not options.dry_run)
    plan.check()
    installed = {item.resolved.name: item.path for item in plan.models if item.path}
    if options.dry_run:
        return PullResult(plan, installed)
    if plan.missing_bytes and not options.yes and not _confirm_download(options):
        return PullResult(plan, installed, confirmed=False)
    try:
        paths = run_cancellable(lambda stop: dict(_fetch_all(hub, plan, options, stop)))
    except KeyboardInterrupt:
        resume = _clean_line(shlex.join(["localspec", "pull", *references]))
        click.echo(f"localspec: stopped. To resume: {resume}", err=True)
        raise
    return PullResult(plan, paths)


def run_cancellable(function: Callable[[CancelToken], _T]) -> _T:
    """Call `function` with a token that Ctrl+C cancels; then raises KeyboardInterrupt.

    Cancelling also interrupts a stalled connection.
    """
    stop = CancelToken()

    def cancel(*_: int | FrameType | None) -> None:
        stop.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl+C quits at once

    with _on_interrupt(cancel):
        try:
            return function(stop)
        except OperationCancelledError:
            raise KeyboardInterrupt from None


@contextmanager
def _on_interrupt(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def can_prompt_user() -> bool:
    """Whether stdin and stderr are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _confirm_download(options: PullOptions) -> bool:
    if options.as_json or not can_prompt_user():
        raise UsageError("Cannot ask: not a terminal.", "Use -y to download, or --dry-run.")
    return click.confirm("Download?", default=True, err=True)


def _fetch_all(
    hub: HubClient, plan: PullPlan, options: PullOptions, stop: CancelToken
) -> Iterator[tuple[str, Path]]:
    """Download the files; yields the name and first file of each model.

    Files that are already downloaded are verified again.
    """
    n_files = sum(len(item.files) for item in plan.models)
    limiter = RateLimiter(options.limit * 1e6 if options.limit else None)
    number = 0
    for item in plan.models:
        paths = [item.path] if item.path else []
        for index, file in enumerate(item.files):
            number += 1
            if file.origin and file.origin != "hub":
                continue
            name = file.job.path.rpartition("/")[2]
            with DownloadProgressLine(name, (number, n_files), quiet=options.quiet) as progress:
                path = download_file(
                    hub, file.job, progress.update, cancel=stop, rate_limiter=limiter
                )
            paths = [path] if index == 0 else paths
        yield item.resolved.name, paths[0]


def format_plan(plan: PullPlan) -> Iterator[str]:
    rows = [_plan_row(item) for item in plan.models]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, file, size, details in rows:
        yield f"{name:{widths[0]}}  {file:{widths[1]}}  {size:>{widths[2]}}  {details}".rstrip()
    for item in plan.models:
        for note in _format_notes(item):
            yield f"  {_clean_line(item.resolved.name)}: {note}"
    for match in plan.pairs:
        yield from format_pair_verdict(match)
    if plan.missing_bytes:
        folder = _clean_line(str(plan.cache_dir))
        yield f"To download: {gb(plan.missing_bytes)}. Free: {gb(plan.free_bytes)} in {folder}"
    else:
        yield "Everything is already downloaded."


def format_sidecar_heads(item: PlannedModel) -> Iterator[str]:
    """The draft heads in the repository of a model: size, and how to download each."""
    for file in item.sidecar_heads:
        kind = draft_heads.kind_from_file_name(file.path)
        head = f"{draft_heads.KIND_TITLES[kind]} head, {gb(file.size)}"
        if kind in draft_heads.SUPPORTED_KINDS:
            ref = shlex.quote(f"hf://{item.repo}/{file.path}")
            yield f"{head}: localspec pull {_clean_line(ref)}"
        else:
            yield f"{head}: {_clean_line(file.path)} (not supported yet)"


def format_pair_verdict(match: pull_plan.PlannedPair) -> Iterator[str]:
    """Whether a pair is compatible, why, and warnings."""
    result = match.compatibility
    verdict = "Compatible" if result.is_compatible else "Incompatible"
    yield f"{verdict}: {_clean_line(result.detail)}."
    for warning in match.warnings:
        yield f"  {warning}"


def plan_to_json(plan: PullPlan) -> dict[str, Any]:
    return {
        "models": [
            {
                "name": item.resolved.name,
                "repo": item.repo,
                "revision": item.revision,
                "file": item.file,
                "bytes": item.size,
                "missing": item.missing_bytes,
                "licence": item.licence,
                "gated": item.gated,
                "path": str(item.path) if item.path else None,
                "files": [
                    {
                        "file": file.job.path,
                        "bytes": file.size,
                        "missing": file.size - file.present_bytes,
                        "sha256": file.job.sha256,
                    }
                    for file in item.files
                ],
            }
            for item in plan.models
        ],
        "pairs": [match_to_json(match) for match in plan.pairs],
        "bytes": plan.size,
        "missing": plan.missing_bytes,
        "free": plan.free_bytes,
        "cache": str(cache_root()),
    }


def match_to_json(match: pull_plan.PlannedPair) -> dict[str, Any]:
    result = match.compatibility
    return {
        "target": match.target.resolved.name,
        "draft": match.draft.resolved.name,
        "verdict": result.verdict,
        "rule": result.rule,
        "detail": result.detail,
        "token": result.token,
        "warnings": list(match.warnings),
    }


def _plan_row(item: PlannedModel) -> tuple[str, str, str, str]:
    parts = len(item.files)
    file = f"{item.file} and {parts - 1} more" if parts > 1 else item.file
    app = next((_OTHER_APPS[f.origin] for f in item.files if f.origin in _OTHER_APPS), "")
    downloaded = (item.size or 0) - item.missing_bytes
    state = f"from {app}" if app else "downloaded" if not item.missing_bytes else ""
    if item.missing_bytes and downloaded:
        state = f"{gb(downloaded)} downloaded"
    licence = f"licence: {item.licence or 'see its page'}" if item.repo else ""
    details = ", ".join(filter(None, (licence, "gated" if item.gated else "", state)))
    name = f"{item.repo}/{file}" if item.repo else file
    return _clean_line(item.resolved.name), _clean_line(name), gb(item.size or 0), details


def _format_notes(item: PlannedModel) -> Iterator[str]:
    yield from item.notes
    if item.header is not None and item.header.unsupported_reason:
        yield f"not supported: {item.header.unsupported_reason}"
    if item.header is not None and (kind := draft_heads.file_draft_kind(item.header)) != "model":
        unsupported = "" if draft_heads.is_supported_head(item.header) else "; not supported yet"
        yield f"draft head ({draft_heads.KIND_TITLES[kind]}), only for its own target{unsupported}"


def _clean_line(text: str) -> str:
    return sanitize(text, multiline=False)


class DownloadProgressLine:
    """Progress of one file on stderr: a redrawn line on a terminal, else a line now and then."""

    def __init__(self, name: str, position: tuple[int, int], *, quiet: bool = False) -> None:
        number, of = position
        self._name = sanitize(name, multiline=False)
        self._position = f"{number}/{of} " if of > 1 else ""
        self._quiet = quiet
        self._redraws = global_options.can_redraw()
        self._last_line = ""
        self._last_write = time.monotonic()
        self._downloaded = False

    def update(self, state: DownloadState) -> None:
        if self._quiet:
            return
        self._downloaded = self._downloaded or state.phase is DownloadPhase.LOADING
        if state.phase is DownloadPhase.DONE:
            self._finish(state)
        elif self._redraws:
            self._draw(self._format_line(state))
        elif self._is_due(state):
            click.echo(self._format_line(state), err=True)

    def _is_due(self, state: DownloadState) -> bool:
        now = time.monotonic()
        first = state.phase is DownloadPhase.LOADING and not self._last_line
        if not first and now - self._last_write < _PROGRESS_INTERVAL:
            return False
        self._last_line, self._last_write = state.phase, now
        return True

    def _format_line(self, state: DownloadState) -> str:
        name = f"{self._position}{self._name}"
        if state.phase is not DownloadPhase.LOADING:
            share = (
                f" {percent(state.done_bytes / state.total_bytes)}"
                if state.total_bytes and state.done_bytes
                else ""
            )
            return f"{name}  {_PHASE_TEXT.get(state.phase, state.phase)}{share} …"
        if state.total_bytes is None:
            return f"{name}  {gb(state.done_bytes)}"
        share = percent(state.done_bytes / state.total_bytes if state.total_bytes else None)
        speed = f"  {bytes_per_second(state.rate)}" if state.rate else ""
        left = f"  {duration(state.eta)} left" if state.eta is not None else ""
        return f"{name}  {share}  {gb(state.done_bytes)} of {gb(state.total_bytes)}{speed}{left}"

    def _draw(self, line: str) -> None:
        """Redraw the line, cut to the width of the terminal: a wrapped line cannot be redrawn."""
        width = shutil.get_terminal_size().columns - 1
        if len(line) > width:
            line = f"…{line[-(width - 1) :]}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)
        self._last_line = line

    def _finish(self, state: DownloadState) -> None:
        self._clear()
        status = "verified" if self._downloaded else "already downloaded, verified"
        click.echo(f"{self._position}{self._name}  {gb(state.done_bytes)}, {status}", err=True)

    def _clear(self) -> None:
        if self._redraws and self._last_line:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._last_line = ""

    def __enter__(self) -> DownloadProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()
