"""`localspec export`: a kept chat as a document."""

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
@click.option("--md", "form", flag_value="md", help="Markdown, without thinking.")
@click.option("--html", "form", flag_value="html", help="A page by itself; thinking is folded.")
@click.option("--json", "form", flag_value="json", help="All of it, other branches too.")
@click.option("--rounds", is_flag=True, help="In JSON: with every token and round.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Default: standard output.")
@click.option("-f", "--force", is_flag=True, help="Overwrite FILE.")
def command(chat: str, form: str | None, rounds: bool, output: str | None, force: bool) -> int:
    """Write CHAT (a number, or `last`) as Markdown, HTML or JSON.

    Without a form: by the name of the file, else Markdown.
    """
    form = form or _FORMATS.get(os.path.splitext(output or "")[1].lower(), "md")
    if rounds and form != "json":
        raise UsageError("Rounds are exported as JSON only.", "Add --json")
    with open_history() as history:
        kept = history.load_chat(find_chat_id(history, chat), with_events=rounds)
    if form == "json":
        text = export.render_json(kept, with_events=rounds) + "\n"
    else:
        text = export.render_html(kept) if form == "html" else export.render_markdown(kept)
    if output is None:
        click.echo(text, nl=False)
        return 0
    path = Path(os.path.abspath(output))
    export.save_file(path, text, overwrite=force)
    click.echo(f"Saved: {sanitize(str(path), multiline=False)}", err=True)
    return 0
