"""`localspec pull`: download models, whole and verified."""

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
from localspec.models.hub.download import DownloadJob, DownloadPhase, DownloadState, download_file
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
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--limit", type=click.FloatRange(0, min_open=True), metavar="MB/S", help="Go no faster."
)
@global_options.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No plan and no progress.")
def command(refs: tuple[str, ...], endpoint: str | None, **given: Any) -> int:
    """Download each REF: a pair or a model of the catalogue, or user/repo:QUANT.

    First comes the plan: files, sizes, licences, room on the disk, and whether a pair goes
    together.  Ctrl+C keeps what has come; the same command goes on from there.

    \b
    localspec pull qwen3-8b+qwen3-0.6b
    localspec pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --dry-run
    """
    done = pull_models(refs, HubClient(endpoint), PullOptions(**given))
    if not done.confirmed:
        click.echo("Nothing was downloaded.", err=True)
        return 1
    if given["as_json"]:
        said = plan_to_json(done.plan)
        for model in said["models"]:
            path = done.paths.get(model["name"])
            model["path"] = str(path) if path else None
        click.echo(json.dumps({"schema": 1, "dry_run": given["dry_run"]} | said))
    elif not given["dry_run"]:
        for ref in refs:
            _print_next_step(ref, {item.resolved: item for item in done.plan.models})
    return 0


def _print_next_step(ref: str, items: Mapping[ResolvedModel, PlannedModel]) -> None:
    """How to run what is here now, or what makes it faster."""
    asked = resolver.resolve(ref)
    item = items.get(asked.target)
    if (
        item is not None
        and item.header is not None
        and draft_heads.file_draft_kind(item.header) != "model"
    ):
        click.echo("It is used by itself where its target runs.", err=True)
        return
    if asked.pair is None or asked.pair.draft_kind in (
        "model",
        "lookup",
        *draft_heads.SUPPORTED_KINDS,
    ):
        click.echo(sanitize(f"Ready: localspec run {shlex.quote(ref)}", multiline=False))
    if asked.pair is not None:
        return
    pairs = (
        catalog.pairs_for(catalog.load(), asked.target.catalog_model)
        if asked.target.catalog_model
        else ()
    )
    if (
        with_draft := next((pair for pair in pairs if pair.draft_kind == "model"), None)
    ) is not None:
        click.echo(f"A draft makes it faster: localspec pull {with_draft.id}", err=True)
    for line in format_sidecar_heads(item) if item else ():
        click.echo(f"Beside it: {line}", err=True)


# --- A pull at a terminal or in a script: the plan, the question, the downloads.

_T = TypeVar("_T")
_OTHER_APPS = {"lmstudio": "LM Studio", "ollama": "Ollama", "llama.cpp": "llama.cpp"}


@dataclass(frozen=True, slots=True)
class PullOptions:
    """How to go about it."""

    yes: bool = False
    dry_run: bool = False
    quiet: bool = False
    as_json: bool = False
    limit: float | None = None
    """MB a second; None is as fast as it comes."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What came of it."""

    plan: PullPlan
    paths: dict[str, Path]
    """Of each model's first file, by the model's name."""
    confirmed: bool = True
    """Whether the person said yes."""


def pull_models(references: Sequence[str], hub: HubClient, options: PullOptions) -> PullResult:
    """Plan, ask, and fetch.  Raises KeyboardInterrupt, after saying how to go on.

    Refuses an incompatible pair and a disk that is too small before a byte of weights.
    """
    again = shlex.join(["localspec", "pull", *references])
    asked = [resolver.resolve(text) for text in references]
    found = run_cancellable(lambda stop: pull_plan.build(hub, asked, stop))
    asks = not (options.yes or options.dry_run)
    if not options.as_json and (asks or not options.quiet):
        for line in format_plan(found):
            click.echo(line, err=not options.dry_run)
    found.check()
    here = {item.resolved.name: item.path for item in found.models if item.path}
    if options.dry_run:
        return PullResult(found, here)
    if found.missing_bytes and not options.yes and not _confirm_download(options):
        return PullResult(found, here, confirmed=False)
    try:
        paths = run_cancellable(lambda stop: dict(_fetch_all(hub, found, options, stop)))
    except KeyboardInterrupt:
        words = _clean_line(again)
        click.echo(f"localspec: stopped; what came is kept. Go on: {words}", err=True)
        raise
    return PullResult(found, paths)


def run_cancellable(function: Callable[[CancelToken], _T]) -> _T:
    """What `call` gives; Ctrl+C calls it off, within moments even where the network stands still.

    Raises KeyboardInterrupt then.
    """
    stop = CancelToken()

    def pressed(*_: int | FrameType | None) -> None:
        stop.cancel()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second one ends at once

    with _on_interrupt(pressed):
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
    """Whether somebody reads the question and can answer it."""
    ends = (sys.stdin, sys.stderr)
    return all(end is not None and end.isatty() for end in ends)


def _confirm_download(options: PullOptions) -> bool:
    if options.as_json or not can_prompt_user():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y, or --dry-run.")
    return click.confirm("Download?", default=True, err=True)


def _fetch_all(
    hub: HubClient, download_plan: PullPlan, options: PullOptions, stop: CancelToken
) -> Iterator[tuple[str, Path]]:
    """Each model's name and first file; one that is here is looked at all the same."""
    jobs = sum(len(item.files) for item in download_plan.models)
    throttle = RateLimiter(options.limit * 1e6 if options.limit else None)
    number = 0
    for item in download_plan.models:
        paths = [item.path] if item.path else []
        for at, piece in enumerate(item.files):
            number += 1
            if piece.origin and piece.origin != "hub":
                continue
            name = piece.job.path.rpartition("/")[2]
            with DownloadProgressLine(name, (number, jobs), quiet=options.quiet) as meter:
                path = _fetch_file(hub, piece.job, meter.update, stop, throttle)
            paths = [path] if at == 0 else paths
        yield item.resolved.name, paths[0]


def _fetch_file(
    hub: HubClient,
    job: DownloadJob,
    on_progress: Callable[[DownloadState], None],
    stop: CancelToken,
    throttle: RateLimiter,
) -> Path:
    return download_file(hub, job, on_progress, cancel=stop, rate_limiter=throttle)


def format_plan(download_plan: PullPlan) -> Iterator[str]:
    """The plan, for a person."""
    rows = [_plan_row(item) for item in download_plan.models]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, file, size, rest in rows:
        yield f"{name:{widths[0]}}  {file:{widths[1]}}  {size:>{widths[2]}}  {rest}".rstrip()
    for item in download_plan.models:
        for note in _format_notes(item):
            yield f"  {_clean_line(item.resolved.name)}: {note}"
    for match in download_plan.pairs:
        yield from format_pair_verdict(match)
    if download_plan.missing_bytes:
        where = _clean_line(str(download_plan.cache_dir))
        yield (
            f"To download: {gb(download_plan.missing_bytes)}. "
            f"Free: {gb(download_plan.free_bytes)} in {where}"
        )
    else:
        yield "All of it is here."


def format_sidecar_heads(item: PlannedModel) -> Iterator[str]:
    """The heads that lie beside a model on the hub: how much, and how to get each."""
    for file in item.sidecar_heads:
        kind = draft_heads.kind_from_file_name(file.path)
        words = f"{draft_heads.KIND_TITLES[kind]} head, {gb(file.size)}"
        if kind in draft_heads.SUPPORTED_KINDS:
            yield f"{words}: localspec pull {_clean_line(shlex.quote(f'hf://{item.repo}/{file.path}'))}"
        else:
            yield f"{words}: {_clean_line(file.path)}, which cannot be run here yet"


def format_pair_verdict(match: pull_plan.PlannedPair) -> Iterator[str]:
    """Whether a pair goes together, and what to mind."""
    words = {
        "compatible": "They go together",
        "compatible-padding": "They go together",
        "incompatible": "They do not go together",
    }
    yield f"{words[match.compatibility.verdict]}: {_clean_line(match.compatibility.detail)}."
    for warning in match.warnings:
        yield f"  {warning}"


def plan_to_json(download_plan: PullPlan) -> dict[str, Any]:
    """The plan as `--json` has it."""
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
                        "file": piece.job.path,
                        "bytes": piece.size,
                        "missing": piece.size - piece.present_bytes,
                        "sha256": piece.job.sha256,
                    }
                    for piece in item.files
                ],
            }
            for item in download_plan.models
        ],
        "pairs": [match_to_json(match) for match in download_plan.pairs],
        "bytes": download_plan.size,
        "missing": download_plan.missing_bytes,
        "free": download_plan.free_bytes,
        "cache": str(cache_root()),
    }


def match_to_json(match: pull_plan.PlannedPair) -> dict[str, Any]:
    """A verdict as `--json` has it."""
    said = match.compatibility
    return {
        "target": match.target.resolved.name,
        "draft": match.draft.resolved.name,
        "verdict": said.verdict,
        "rule": said.rule,
        "detail": said.detail,
        "token": said.token,
        "warnings": list(match.warnings),
    }


def _plan_row(item: PlannedModel) -> tuple[str, str, str, str]:
    parts = len(item.files)
    file = f"{item.file} and {parts - 1} more" if parts > 1 else item.file
    where = next((_OTHER_APPS[p.origin] for p in item.files if p.origin in _OTHER_APPS), "")
    have = (item.size or 0) - item.missing_bytes
    state = f"here ({where})" if where else "here" if not item.missing_bytes else ""
    if item.missing_bytes and have:
        state = f"{gb(have)} of it here"
    licence = f"licence: {item.licence or 'see its page'}" if item.repo else ""
    rest = ", ".join(filter(None, (licence, "gated" if item.gated else "", state)))
    name = f"{item.repo}/{file}" if item.repo else file
    return _clean_line(item.resolved.name), _clean_line(name), gb(item.size or 0), rest


def _format_notes(item: PlannedModel) -> Iterator[str]:
    yield from item.notes
    if item.header is not None and item.header.unsupported_reason:
        yield f"it cannot be run here: {item.header.unsupported_reason}"
    if item.header is not None and (kind := draft_heads.file_draft_kind(item.header)) != "model":
        yet = "" if draft_heads.is_supported_head(item.header) else ", and not yet here"
        yield f"a head ({draft_heads.KIND_TITLES[kind]}): it drafts for its target only{yet}"


def _clean_line(text: str) -> str:
    return sanitize(text, multiline=False)


# --- The progress of one download: a line that changes, or a line now and then.

_PROGRESS_INTERVAL = 10.0
"""Seconds between two lines where there is no terminal."""
_PHASE_TEXT = {
    DownloadPhase.WAITING: "waiting for another program that downloads it",
    DownloadPhase.CHECKING: "looking at what is here",
    DownloadPhase.VERIFYING: "verifying",
}


class DownloadProgressLine:
    """Says on standard error how far one file is."""

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
        """At the first byte, then seldom."""
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
        """Within one line of the terminal: a longer one could not be taken back."""
        width = shutil.get_terminal_size().columns - 1
        if len(line) > width:
            line = f"…{line[-(width - 1) :]}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)
        self._last_line = line

    def _finish(self, state: DownloadState) -> None:
        self._clear()
        how = "verified" if self._downloaded else "here already, verified"
        click.echo(f"{self._position}{self._name}  {gb(state.done_bytes)}, {how}", err=True)

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
