"""`localspec completion`: teaches a shell our verbs, options, and the names of models."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from localspec.errors import UsageError

_HOW = {
    "bash": 'eval "$(localspec completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(localspec completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "localspec completion fish | source     # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> int:
    """Print what completes localspec's verbs, options and models in SHELL."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"{shell} is not known.", f"Known: {', '.join(_HOW)}.")
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "localspec", "_LOCALSPEC_COMPLETE").source())
    return 0
