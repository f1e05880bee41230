"""`localspec export`: write a saved chat to a file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from localspec.chat import export
from localspec.cli.history import CHAT_ARGUMENT, open_history
from localspec.cli.resume import find_chat_id
from localspec.errors import UsageError
from localspec.sanitize import sanitize

_FORMATS = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}


@click.command("export")
@CHAT_ARGUMENT
@click.option("--md", "file_format", flag_value="md", help="Markdown, without thinking.")
@click.option(
    "--html", "file_format", flag_value="html", help="One web page; thinking is collapsed."
)
@click.option(
    "--json", "file_format", flag_value="json", help="Everything, including other branches."
)
@click.option("--rounds", is_flag=True, help="With --json: every token and round.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Write to FILE.  [default: standard output]",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
def command(
    chat: str, file_format: str | None, rounds: bool, output: str | None, force: bool
) -> int:
    """Export CHAT (a number, or `last`) as Markdown, HTML or JSON.

    Without a format option, the extension of FILE decides; the default is Markdown.
    """
    file_format = file_format or _FORMATS.get(os.path.splitext(output or "")[1].lower(), "md")
    if rounds and file_format != "json":
        raise UsageError("--rounds needs the JSON format.", "Add --json")
    with open_history() as history:
        saved = history.load_chat(find_chat_id(history, chat), with_events=rounds)
    if file_format == "json":
        text = export.render_json(saved, with_events=rounds) + "\n"
    else:
        text = export.render_html(saved) if file_format == "html" else export.render_markdown(saved)
    if output is None:
        click.echo(text, nl=False)
        return 0
    path = Path(os.path.abspath(output))
    export.save_file(path, text, overwrite=force)
    click.echo(f"Saved: {sanitize(str(path), multiline=False)}", err=True)
    return 0
