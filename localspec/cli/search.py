"""`localspec search`: models on the hub."""

from __future__ import annotations

import json

import click

from localspec.cli import places, pulling
from localspec.cli.table import rows
from localspec.models.remote import Found, Hub
from localspec.units import count


@click.command("search")
@click.argument("text", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@places.ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(text: tuple[str, ...], limit: int, endpoint: str | None, as_json: bool) -> int:
    """Find repositories with GGUF files by TEXT, the most downloaded first."""
    hub = Hub(endpoint)
    found = pulling.stoppable(lambda stop: hub.search(" ".join(text), limit, stop))
    if as_json:
        click.echo(json.dumps({"schema": 1, "repos": [_entry(one) for one in found]}))
        return 0
    if not found:
        click.echo("Nothing was found: try fewer words.", err=True)
        return 0
    for line in rows([("REPOSITORY", "DOWNLOADS", "LIKES", "CHANGED", ""), *map(_row, found)]):
        click.echo(line)
    click.echo(f"Its files: localspec show {found[0].repo}", err=True)
    return 0


def _row(one: Found) -> tuple[str, ...]:
    changed = f"{one.updated:%Y-%m-%d}" if one.updated else "–"
    return one.repo, count(one.downloads), count(one.likes), changed, "gated" if one.gated else ""


def _entry(one: Found) -> dict[str, object]:
    return {
        "repo": one.repo,
        "downloads": one.downloads,
        "likes": one.likes,
        "updated": one.updated.isoformat() if one.updated else None,
        "gated": one.gated,
    }
