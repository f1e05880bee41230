"""`localspec version`: what is installed."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from localspec import __version__


@click.command("version")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(as_json: bool) -> None:
    """Show versions."""
    found = {
        "localspec": __version__,
        "llama-cpp-python": metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
    }
    if as_json:
        click.echo(json.dumps({"schema": 1, "versions": found}))
    else:
        click.echo("\n".join(f"{name} {version}" for name, version in found.items()))
