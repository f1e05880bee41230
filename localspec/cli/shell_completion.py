"""`localspec completion` and `version`; completes models, pairs and chats."""

from __future__ import annotations

import platform
from functools import partial
from importlib import metadata

import click
from click.shell_completion import CompletionItem, get_completion_class

from localspec import __version__
from localspec.cli import global_options, terminal
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize

_MAX_CHATS = 50
_INSTALL_LINES = {
    "bash": 'eval "$(localspec completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(localspec completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "localspec completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_INSTALL_LINES.values()))
@click.argument("shell", type=click.Choice(list(_INSTALL_LINES)))
def completion_command(shell: str) -> None:
    """Print a script that completes commands, options and models in SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None, "click has each of the choices"
    root = click.get_current_context().find_root().command
    terminal.echo_text(kind(root, {}, "localspec", "_LOCALSPEC_COMPLETE").source())


def complete_chat(
    _: click.Context, __: click.Parameter, prefix: str
) -> list[CompletionItem]:
    """Numbers of saved chats, most recently used first."""
    from localspec.chat.history import ChatHistory  # noqa: PLC0415  late: every command imports this module

    try:
        chats = ChatHistory.open(create=False).list_chats(_MAX_CHATS)
    except LocalspecError:
        return []
    return [
        CompletionItem(str(chat.id), help=sanitize(chat.title, multiline=False))
        for chat in chats
        if str(chat.id).startswith(prefix)
    ]


def complete_server(
    _: click.Context, __: click.Parameter, prefix: str
) -> list[CompletionItem]:
    """Names of the servers of tools."""
    from localspec.tools import server_settings  # noqa: PLC0415  late, as above

    names = [server.name for server in server_settings.read_servers().servers]
    return [CompletionItem(name) for name in names if name.startswith(prefix)]


def _complete_id(
    _: click.Context, __: click.Parameter, prefix: str, *, pairs: bool
) -> list[CompletionItem]:
    """Ids of the catalogue; the shell adds file names."""
    from localspec.models import catalog  # noqa: PLC0415  late, as above

    files = [CompletionItem(prefix, type="file")]
    try:
        loaded = catalog.load()
    except LocalspecError:  # of a damaged models.yaml: no error text in the typed line
        return files
    titles = [(id_, pair.title) for id_, pair in loaded.pairs.items() if pairs]
    titles += [(id_, model.title) for id_, model in loaded.models.items()]
    return files + [
        CompletionItem(id_, help=title)
        for id_, title in titles
        if id_.startswith(prefix)
    ]


complete_model_or_pair = partial(_complete_id, pairs=True)
complete_model = partial(_complete_id, pairs=False)


@click.command("version")
@global_options.JSON
def version_command(as_json: bool) -> None:
    """Show versions."""
    versions = {
        "localspec": __version__,
        "llama-cpp-python": metadata.version("llama-cpp-python"),
        "python": platform.python_version(),
    }
    if as_json:
        terminal.echo_json({"versions": versions})
    else:
        terminal.echo_text(
            "\n".join(f"{name} {version}" for name, version in versions.items())
        )
