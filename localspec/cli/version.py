"""`localspec version`: the versions of localspec, llama-cpp-python and Python."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from localspec import __version__
from localspec.cli import global_options


@click.command("version")
@global_options.JSON
def command(as_json: bool) -> None:
    """Show versions."""
    versions = {
        "localspec": __version__,
        "llama-cpp-python": metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
    }
    if as_json:
        click.echo(json.dumps({"schema": 1, "versions": versions}))
    else:
        click.echo("\n".join(f"{name} {version}" for name, version in versions.items()))
