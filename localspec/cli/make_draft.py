"""`localspec make-draft`: a draft model from some layers of a model."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import click

from localspec.cli import global_options, shell_completion
from localspec.cli.terminal import echo, echo_json
from localspec.errors import UsageError
from localspec.fit import shape
from localspec.models import draft_heads, model_lookup
from localspec.models.gguf import layer_subset, reader
from localspec.units import gb


@click.command("make-draft")
@click.argument("model", shell_complete=shell_completion.complete_model)
@global_options.text_option(
    "--keep",
    "LAYERS",
    "Layers to keep, such as 0-9,24-29.  [default: the exit layer of a LayerSkip model]",
)
@click.option(
    "--out",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.",
)
@global_options.JSON
def command(model: str, keep: str | None, out: Path, as_json: bool) -> None:
    """Copy some layers of MODEL to a file that drafts for it (early exit).

    Without training for early exit (LayerSkip), such a draft is rarely worth its time.
    """
    source = model_lookup.resolve(model).target.require_path()
    reader.check_loadable(source)
    facts = reader.read(source)
    if draft_heads.is_head(facts):
        raise UsageError(f"{source.name} is a draft head, not a model.", "Use the model itself.")
    exit_layer = layer_subset.find_exit_layer(facts)
    if keep is None and exit_layer is None:
        what = f"{source.name} names no layer to exit from."
        raise UsageError(what, "Say which layers to keep: --keep 0-9,24-29")
    layers = list(range(exit_layer or 0)) if keep is None else _parse_layers(keep)
    if os.path.exists(out):
        raise UsageError(f"{out.name} exists already.", "Choose another --out.")
    found = shape.from_header(facts)
    swa_layers = [layer.is_swa for layer in found.layers] if found.n_swa else None
    size = layer_subset.copy_layers(source, out, layers, swa_layers)
    if as_json:
        echo_json({"file": str(out), "bytes": size, "layers": layers, "of": found.n_layer})
        return
    share = f"{len(layers)} of {found.n_layer} layers, {gb(size)} of {gb(facts.size)}"
    echo(f"{out}: {share}")
    used = shlex.join(["localspec", "run", model, "--draft", str(out)])
    echo(f"Use it: {used}", err=True)


def _parse_layers(text: str) -> list[int]:
    """Layer numbers of a list of numbers and ranges, ascending. Raises UsageError."""
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            what = f"{part!r} is no layer and no range of layers."
            raise UsageError(what, "Type numbers and ranges: --keep 0-9,24-29")
        layers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(layers)
