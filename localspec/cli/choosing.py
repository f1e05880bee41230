"""The files that a command runs, downloaded first where somebody is there to say yes."""

from __future__ import annotations

import click
from click.core import ParameterSource

from localspec import config, launch
from localspec.chat import recent
from localspec.models.wanted import NotHere

_MOST = 2
"""Downloads: a target, and a draft that was named beside it."""


def choose(
    model: str | None, draft: str, *, yes: bool = False, quiet: bool = False
) -> launch.Choice:
    """As `launch.choose`; what is missing is pulled, after a question or with `yes`.

    Raises NotHere where nobody can be asked, or says no.
    """
    for _ in range(_MOST):
        try:
            return launch.choose(model, draft)
        except NotHere as missing:
            _pull(missing, yes, quiet)
    return launch.choose(model, draft)


def again(model: str | None, draft: str) -> tuple[str, str]:
    """What to open where no model was named: that of config.toml, of the last run, or the demo.

    What was set on purpose goes before what happened to be last: otherwise it would count once.
    """
    if model is not None:
        return model, draft
    if (usual := config.read().pair) is not None:
        return usual, draft
    last_model, last_draft = recent.last() or ("demo", "auto")
    return last_model, last_draft if draft == "auto" else draft


def _pull(missing: NotHere, yes: bool, quiet: bool) -> None:
    from localspec.cli import pulling  # noqa: PLC0415  late: most runs need no download
    from localspec.models.remote import Hub  # noqa: PLC0415

    if not yes and not pulling.can_ask():
        raise missing
    if not quiet:
        click.echo(f"localspec: {missing.message}", err=True)
    done = pulling.pull([missing.asked], Hub(), pulling.Way(yes=yes, quiet=quiet and yes))
    if not done.agreed:
        raise missing


def drafter(choice: launch.Choice, spec: str) -> str:
    """What drafts.  Raises UsageError where this pair lacks what was typed."""
    source = click.get_current_context().get_parameter_source("spec")
    if source is ParameterSource.DEFAULT_MAP:  # config.toml speaks of all pairs
        return launch.preferred_drafter(choice, spec)
    launch.check_drafter(choice, spec)
    return spec
