"""What the shell offers where a model is to be named: ids of the catalogue, and files."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from localspec.clean import clean
from localspec.errors import LocalspecError

_MOST = 50
"""Chats that are offered."""


def models(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """Pairs and models by id; the shell itself completes files."""
    return _offered(begun, pairs=True, models=True)


def only_models(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The same without pairs."""
    return _offered(begun, pairs=False, models=True)


def chats(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The chats that are kept, by their numbers; the last used first."""
    from localspec.chat.history import History  # noqa: PLC0415  late, as below

    try:
        known = History.open(create=False).list(_MOST)
    except LocalspecError:
        return []
    return [
        CompletionItem(str(one.id), help=clean(one.title, multiline=False))
        for one in known
        if str(one.id).startswith(begun)
    ]


def _offered(begun: str, *, pairs: bool, models: bool) -> list[CompletionItem]:
    from localspec.models import catalog  # noqa: PLC0415  late: every verb names this module

    files = [CompletionItem(begun, type="file")]
    try:
        known = catalog.load()
    except LocalspecError:  # a damaged file must not write into the line that is typed
        return files
    titles = [(id_, pair.title) for id_, pair in known.pairs.items() if pairs]
    titles += [(id_, model.title) for id_, model in known.models.items() if models]
    return files + [
        CompletionItem(id_, help=title) for id_, title in titles if id_.startswith(begun)
    ]
