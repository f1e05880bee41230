"""`localspec search`: search the Hugging Face hub for models."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from localspec.cli import global_options, pull
from localspec.cli.table import format_columns
from localspec.models.hub.client import HubClient, HubSearchResult
from localspec.units import short_count


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option(
    "--limit",
    type=click.IntRange(1, 100),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of results.",
)
@global_options.ENDPOINT
@global_options.JSON
def command(text: tuple[str, ...], limit: int, endpoint: str | None, as_json: bool) -> int:
    """Search the Hugging Face hub for repositories with GGUF files, most downloaded first."""
    hub = HubClient(endpoint)
    repositories = pull.run_cancellable(lambda stop: hub.search(" ".join(text), limit, stop))
    if as_json:
        repos = [asdict(r) | {"updated": r.updated and r.updated.isoformat()} for r in repositories]
        click.echo(json.dumps({"schema": 1, "repos": repos}))
        return 0
    if not repositories:
        click.echo("No results. Try fewer words.", err=True)
        return 0
    for line in format_columns(
        [("REPOSITORY", "DOWNLOADS", "LIKES", "UPDATED", ""), *map(_repository_row, repositories)]
    ):
        click.echo(line)
    click.echo(f"List the files of a repository: localspec show {repositories[0].repo}", err=True)
    return 0


def _repository_row(repository: HubSearchResult) -> tuple[str, ...]:
    changed = f"{repository.updated:%Y-%m-%d}" if repository.updated else "–"
    return (
        repository.repo,
        short_count(repository.downloads),
        short_count(repository.likes),
        changed,
        "gated" if repository.gated else "",
    )
