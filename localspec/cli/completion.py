"""`localspec completion`: teaches a shell our verbs, options, and the names of models."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from localspec.errors import LocalspecError, UsageError
from localspec.sanitize import sanitize

_INSTALL_LINES = {
    "bash": 'eval "$(localspec completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(localspec completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "localspec completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_INSTALL_LINES.values()))
@click.argument("shell", type=click.Choice(list(_INSTALL_LINES)))
def command(shell: str) -> int:
    """Print what completes localspec's verbs, options and models in SHELL."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"{shell} is not known.", f"Known: {', '.join(_INSTALL_LINES)}.")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "localspec", "_LOCALSPEC_COMPLETE").source())
    return 0


# --- What the shell offers where a model is to be named: ids of the catalogue, and files.

_MAX_CHATS = 50
"""Chats that are offered."""


def complete_model_or_pair(
    _: click.Context, __: click.Parameter, prefix: str
) -> list[CompletionItem]:
    """Pairs and models by id; the shell itself completes files."""
    return _completion_items(prefix, pairs=True, models=True)


def complete_model(_: click.Context, __: click.Parameter, prefix: str) -> list[CompletionItem]:
    """The same without pairs."""
    return _completion_items(prefix, pairs=False, models=True)


def complete_chat(_: click.Context, __: click.Parameter, prefix: str) -> list[CompletionItem]:
    """The chats that are kept, by their numbers; the last used first."""
    from localspec.chat.history import ChatHistory  # noqa: PLC0415  late, as below

    try:
        known = ChatHistory.open(create=False).list_chats(_MAX_CHATS)
    except LocalspecError:
        return []
    return [
        CompletionItem(str(one.id), help=sanitize(one.title, multiline=False))
        for one in known
        if str(one.id).startswith(prefix)
    ]


def _completion_items(prefix: str, *, pairs: bool, models: bool) -> list[CompletionItem]:
    from localspec.models import catalog  # noqa: PLC0415  late: every verb names this module

    files = [CompletionItem(prefix, type="file")]
    try:
        known = catalog.load()
    except LocalspecError:  # a damaged file must not write into the line that is typed
        return files
    titles = [(id_, pair.title) for id_, pair in known.pairs.items() if pairs]
    titles += [(id_, model.title) for id_, model in known.models.items() if models]
    return files + [
        CompletionItem(id_, help=title) for id_, title in titles if id_.startswith(prefix)
    ]
