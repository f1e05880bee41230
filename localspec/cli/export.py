"""`localspec export`: a kept chat as a document."""

from __future__ import annotations

import os
from pathlib import Path

import click

from localspec.chat import export, transcript
from localspec.clean import clean
from localspec.cli.history import CHAT, opened
from localspec.cli.resuming import number
from localspec.errors import UsageError

_FORMS = {".md": "md", ".markdown": "md", ".html": "html", ".htm": "html", ".json": "json"}


@click.command("export")
@CHAT
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
    form = form or _FORMS.get(os.path.splitext(output or "")[1].lower(), "md")
    if rounds and form != "json":
        raise UsageError("Rounds are exported as JSON only.", "Add --json")
    with opened() as history:
        kept = history.read(number(history, chat), rounds=rounds)
    if form == "json":
        text = export.document(kept, rounds=rounds) + "\n"
    else:
        text = export.page(kept) if form == "html" else export.markdown(kept)
    if output is None:
        click.echo(text, nl=False)
        return 0
    path = Path(os.path.abspath(output))
    transcript.save(path, text, overwrite=force)
    click.echo(f"Saved: {clean(str(path), multiline=False)}", err=True)
    return 0
