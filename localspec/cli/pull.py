"""`localspec pull` and `localspec search`: download and verify models of the hub."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import click
from msgspec import Struct, to_builtins

from localspec import draft_kinds, launch
from localspec.cli import global_options, report_printer, shell_completion, terminal
from localspec.cli.global_options import FiniteRange, flag, number_option
from localspec.cli.terminal import echo, stop_on_interrupt
from localspec.fit import machine_profile, suggestions
from localspec.models import catalog, draft_heads, pull_plan
from localspec.models.catalog import CatalogPair
from localspec.models.hub.cancellation import CancelToken, OperationCancelledError
from localspec.models.hub.client import HubClient, HubSearchResult
from localspec.models.hub.download import (
    DownloadPhase,
    DownloadState,
    RateLimiter,
    download_file,
)
from localspec.models.local_files.local_model import ORIGIN_TITLES
from localspec.models.model_lookup import ModelRequest
from localspec.models.pull_plan import (
    PlannedFile,
    PlannedModel,
    PlannedProjector,
    PullPlan,
)
from localspec.models.reference import HubReference
from localspec.report import advice, pair_text
from localspec.report.compatibility import format_pair_verdict, match_to_json
from localspec.report.lines import Line, format_columns, make_line
from localspec.report.model_details import (
    describe_senses,
    format_sidecar_heads,
    model_to_json,
    projector_to_json,
)
from localspec.units import bytes_per_second, duration, gb, percent, short_count


@click.command("pull")
@click.argument(
    "refs",
    nargs=-1,
    required=True,
    metavar="REF…",
    shell_complete=shell_completion.complete_model_or_pair,
)
@flag("--dry-run", about="Only print the plan.")
@flag("--no-images", about="Leave out the file with which a model sees or hears.")
@global_options.YES
@number_option(
    "--limit", "Limit the speed.", type=FiniteRange(0, min_open=True), metavar="MB/S"
)
@global_options.JSON
@flag("-q", "--quiet", about="Print no plan and no progress.")
def pull_command(refs: tuple[str, ...], **given: Any) -> int:
    """Download each REF: a pair or a model of the catalogue, or user/repo:QUANT.

    First prints the plan: files, sizes, licences, free disk space, and whether a pair
    is compatible. A model that sees images comes with its projector. Ctrl+C keeps the
    part that is downloaded; the same command resumes it.

    \b
    localspec pull qwen3-8b+qwen3-0.6b
    localspec pull bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M --dry-run
    """
    criteria = launch.saved_criteria()
    requests = [
        suggestions.resolve_best_file(text, machine_profile.detect, criteria)
        for text in refs
    ]
    hub = HubClient(on_wait=terminal.notify)
    plan = pull_models(requests, hub, PullOptions(**given))
    if plan is None:
        echo("Nothing was downloaded.", err=True)
        return 1
    if given["as_json"]:
        terminal.echo_json({"dry_run": given["dry_run"]} | _plan_to_json(plan))
    elif not given["dry_run"]:
        items = {item.resolved: item for item in plan.models}
        for request in requests:
            _print_next_step(request, items[request.target])
    return 0


def _print_next_step(request: ModelRequest, item: PlannedModel) -> None:
    """How to run the model, and which draft would make it faster."""
    if item.header is not None and draft_heads.file_draft_kind(item.header) != "model":
        echo(
            "This draft head is used automatically where it makes its target faster.",
            err=True,
        )
        return
    name = request.pair.name if request.pair else request.name
    source = request.target.source
    # The repository may have been renamed.
    if isinstance(source, HubReference) and item.repo is not None:
        name = name.replace(source.repo, item.repo)
    echo(f"Ready: localspec run {shlex.quote(name)}")
    if request.pair is not None:
        return

    pair = _find_best_pair(request)
    if pair is not None and pair.draft is not None:
        echo(f"Faster with its draft: localspec pull {pair.name}", err=True)
    for line in format_sidecar_heads(item):
        echo(f"In the same repository: {line}", err=True)


def _find_best_pair(request: ModelRequest) -> CatalogPair | None:
    """The pair that `pair suggest` puts first; of a model of unknown size, any."""
    model = request.target.catalog_model
    if model is None:
        return None
    criteria = launch.saved_criteria()
    machine = machine_profile.detect()
    best = suggestions.best_pair(model, machine, criteria, searches=True)
    if best is not None:
        return best.pair
    pairs = catalog.pairs_for(catalog.load(), model)
    return next((pair for pair in pairs if pair.draft is not None), None)


_T = TypeVar("_T")
_PROGRESS_INTERVAL = 10.0  # Seconds between progress lines if stderr is not a terminal.
_PHASE_TEXT = {
    DownloadPhase.WAITING: "waiting: another program downloads this file",
    DownloadPhase.CHECKING: "checking the downloaded part",
    DownloadPhase.VERIFYING: "verifying",
}


class PullOptions(Struct, frozen=True):
    yes: bool = False
    dry_run: bool = False
    quiet: bool = False
    as_json: bool = False
    limit: float | None = None  # MB per second; None is unlimited.
    no_images: bool = False  # Download no projectors.


def pull_models(
    requests: Sequence[ModelRequest], hub: HubClient, options: PullOptions
) -> PullPlan | None:
    """Plan, ask and download; None if the user declined.

    Raises before the first byte of weights if a pair is incompatible or the disk is too
    small. On Ctrl+C prints how to resume and raises KeyboardInterrupt.
    """

    def build(stop: CancelToken) -> PullPlan:
        return pull_plan.build(
            hub, requests, stop, with_projectors=not options.no_images
        )

    plan = run_cancellable(build)
    will_ask = not options.yes and not options.dry_run
    if not options.as_json and (will_ask or not options.quiet):
        for line in _format_plan(plan):
            report_printer.echo_line(line, err=not options.dry_run)
    plan.check()
    if options.dry_run:
        return plan
    if plan.missing_bytes and not options.yes:
        hint = "Use -y to download, or --dry-run."
        if not terminal.confirm(
            "Download?", (), hint, as_json=options.as_json, default=True
        ):
            return None
    try:
        run_cancellable(lambda stop: _fetch_all(hub, plan, options, stop))
    except KeyboardInterrupt:
        names = [request.name for request in requests]
        resume = shlex.join(["localspec", "pull", *names])
        terminal.notify(f"stopped. To resume: {resume}")
        raise
    return plan


def run_cancellable(function: Callable[[CancelToken], _T]) -> _T:
    """Call `function` with a token that Ctrl+C cancels; then raises KeyboardInterrupt.

    Cancelling also interrupts a stalled connection.
    """
    token = CancelToken()
    try:
        with stop_on_interrupt(token.cancel):
            return function(token)
    except OperationCancelledError:
        raise KeyboardInterrupt from None


def _fetch_all(
    hub: HubClient, plan: PullPlan, options: PullOptions, stop: CancelToken
) -> None:
    """Download the files; those that are already downloaded are verified again."""
    files: list[PlannedFile] = []
    for item in plan.models:
        files += item.all_files
    bytes_per_s = options.limit * 1e6 if options.limit else None
    limiter = RateLimiter(bytes_per_s)
    for number, file in enumerate(files, 1):
        if file.origin not in ("", "hub"):  # a file of another program
            continue
        name = file.job.file.path.rpartition("/")[2]
        if len(files) > 1:
            name = f"{number}/{len(files)} {name}"
        line = DownloadProgressLine(name, quiet=options.quiet)
        with closing(line):
            download_file(hub, file.job, line.update, cancel=stop, rate_limiter=limiter)


def _format_plan(plan: PullPlan) -> Iterator[Line]:
    rows = []
    for item in plan.models:
        rows.append(_plan_row(item))
        if item.projector is not None:
            rows.append(_projector_row(item.projector))
    yield from map(make_line, format_columns(rows))
    for item in plan.models:
        for note in _format_notes(item):
            yield make_line(f"  {item.resolved.name}: {note}")
    for match in plan.pairs:
        yield from format_pair_verdict(match)
    if plan.missing_bytes:
        free = f"Free: {gb(plan.free_bytes)} in {plan.cache_dir}"
        yield make_line(f"To download: {gb(plan.missing_bytes)}. {free}")
        projectors = [item.projector for item in plan.models if item.projector]
        for_images = sum(projector.missing_bytes for projector in projectors)
        if for_images:
            yield make_line(f"Without images {gb(for_images)} less: --no-images")
    else:
        yield make_line("Everything is already downloaded.")


def _plan_to_json(plan: PullPlan) -> dict[str, Any]:
    return {
        "models": [_planned_model_to_json(item) for item in plan.models],
        "pairs": [match_to_json(match) for match in plan.pairs],
        "bytes": plan.size,
        "missing": plan.missing_bytes,
        "free": plan.free_bytes,
        "cache": str(plan.cache_dir),
    }


def _planned_model_to_json(item: PlannedModel) -> dict[str, Any]:
    files: list[dict[str, Any]] = []
    for planned in item.files:
        file = planned.job.file
        files.append(
            {
                "file": file.path,
                "bytes": file.size,
                "missing": file.size - planned.present_bytes,
                "sha256": file.sha256,
            }
        )
    model = model_to_json(item, item.resolved.find_path())
    return model | {
        "missing": item.missing_bytes,
        "files": files,
        "projector": projector_to_json(item.projector),
    }


def _plan_row(item: PlannedModel) -> tuple[str, str, str, str]:
    """Name, file, size and details of a model."""
    file = item.file
    n_others = len(item.files) - 1
    if n_others > 0:
        file = f"{file} and {n_others} more"
    details: list[str] = []
    if item.repo:
        file = f"{item.repo}/{file}"
        if item.licence:
            details.append(f"licence: {item.licence}")
        else:
            details.append(pair_text.UNKNOWN_LICENCE)
    if item.gated:
        details.append("gated")
    state = _describe_state(item)
    if state:
        details.append(state)
    return item.resolved.name, file, gb(item.size or 0), ", ".join(details)


def _projector_row(projector: PlannedProjector) -> tuple[str, str, str, str]:
    """Below its model: the file, its size, and what it is for."""
    file = projector.name
    if projector.repo:
        file = f"{projector.repo}/{file}"
    details = f"projector: {describe_senses(projector.senses)}"
    if projector.path is not None:
        details += ", downloaded"
    return "", file, gb(projector.size), details


def _describe_state(item: PlannedModel) -> str:
    """How much of a model is here, and from where; empty if nothing is."""
    if item.own_missing_bytes:
        size = item.size or 0
        downloaded = size - item.own_missing_bytes
        return f"{gb(downloaded)} downloaded" if downloaded else ""
    for file in item.files:
        if file.origin not in ("", "hub", "folder"):
            return f"from {ORIGIN_TITLES[file.origin]}"
    return "downloaded"


def _format_notes(item: PlannedModel) -> Iterator[str]:
    yield from item.notes
    header = item.header
    if header is None:
        return
    if header.unsupported_reason:
        yield f"not supported: {header.unsupported_reason}"
    kind = draft_heads.file_draft_kind(header)
    if kind != "model":
        note = f"draft head ({draft_kinds.head_title(kind)}), only for its own target"
        if draft_heads.unsupported_kind(header):
            note += "; not supported yet"
        yield note


class DownloadProgressLine:
    """The progress of one file on standard error; at the end, its size and state."""

    def __init__(self, name: str, *, quiet: bool = False) -> None:
        self._name = name
        self._quiet = quiet
        self._has_loaded = False  # Whether a byte was downloaded, not only checked.
        self._line = terminal.ProgressLine(
            quiet=quiet, interval=_PROGRESS_INTERVAL, prefix=""
        )

    def update(self, state: DownloadState) -> None:
        is_first = state.phase is DownloadPhase.LOADING and not self._has_loaded
        if is_first:
            self._has_loaded = True
        if state.phase is not DownloadPhase.DONE:
            self._line.show(self._format(state), is_step=is_first)
            return
        self.close()
        if not self._quiet:
            status = "verified" if self._has_loaded else "already downloaded, verified"
            echo(f"{self._name}  {gb(state.done_bytes)}, {status}", err=True)

    def _format(self, state: DownloadState) -> str:
        size = state.job.file.size
        done_share = state.done_bytes / size if size else None
        share = percent(done_share)
        if state.note:
            return f"{self._name}  {share}  {state.note}"
        if state.phase is not DownloadPhase.LOADING:
            done = f" {share}" if state.done_bytes else ""
            return f"{self._name}  {_PHASE_TEXT.get(state.phase, state.phase)}{done} …"
        parts = [self._name, share, f"{gb(state.done_bytes)} of {gb(size)}"]
        if state.rate:
            parts.append(bytes_per_second(state.rate))
        if state.eta is not None:
            parts.append(f"{duration(state.eta)} left")
        return "  ".join(parts)

    def close(self) -> None:
        self._line.clear()


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@number_option("--limit", "Number of results.", 1, 100, default=20)
@global_options.JSON
def search_command(text: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Search the Hugging Face hub for repositories with GGUF files.

    The most downloaded come first. For those that the catalogue knows, HERE says how
    fast the model would be on this computer.
    """
    hub = HubClient(on_wait=terminal.notify)
    repositories = run_cancellable(lambda stop: hub.search(" ".join(text), limit, stop))
    if as_json:
        repos = [_repository_to_json(found) for found in repositories]
        terminal.echo_json({"repos": repos})
        return
    if not repositories:
        echo("No results. Try fewer words.", err=True)
        return
    verdicts = _judge_repositories(repositories)
    seeing = {model.repo for model in catalog.load().models.values() if model.sees}
    rows = [("REPOSITORY", "DOWNLOADS", "LIKES", "UPDATED", "HERE", "")]
    for found in repositories:
        downloads = short_count(found.downloads)
        likes = short_count(found.likes)
        updated = f"{found.updated:%Y-%m-%d}" if found.updated else "–"
        notes = ["gated"] if found.gated else []
        if found.repo in seeing:
            notes.append("sees")
        note = ", ".join(notes)
        verdict = verdicts.get(found.repo, "")
        rows.append((found.repo, downloads, likes, updated, verdict, note))
    report_printer.echo_columns(rows)
    example = repositories[0].repo
    echo(f"List the files of a repository: localspec show {example}", err=True)


def _judge_repositories(found: Sequence[HubSearchResult]) -> dict[str, str]:
    """How fast the models of repositories that the catalogue knows would be here."""
    names = {each.repo for each in found}
    models = [each for each in catalog.load().models.values() if each.repo in names]
    targets = [model for model in models if model.kind == "model" and model.repo]
    if not targets:
        return {}
    criteria = launch.saved_criteria()
    machine = machine_profile.detect()
    verdicts: dict[str, str] = {}
    for model in targets:
        best = suggestions.best_pair(model, machine, criteria, searches=True)
        if best is not None and model.repo is not None:
            verdicts.setdefault(model.repo, advice.describe_briefly(best))
    return verdicts


def _repository_to_json(found: HubSearchResult) -> dict[str, Any]:
    updated = found.updated.isoformat() if found.updated else None
    document: dict[str, Any] = to_builtins(found)
    return document | {"updated": updated}
