"""`localspec convert`: a copy of a model in the type that this CPU computes fastest."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from localspec.bench import workloads
from localspec.cli import global_options, options, shell_completion, terminal
from localspec.cli.options import QUIET, CommandArguments
from localspec.cli.terminal import ProgressLine, echo
from localspec.errors import LocalspecError, UsageError
from localspec.extras.convert import conversion
from localspec.extras.convert.child_requests import Comparison
from localspec.extras.convert.conversion import (
    ComparisonTrial,
    ConvertedModel,
    Source,
)
from localspec.machine import type_speeds
from localspec.machine.type_speeds import TypeSpeed
from localspec.models import model_lookup
from localspec.models.local_files import inventory
from localspec.units import gb, percent


class ConvertArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of `convert`, but MODEL."""

    type: str | None
    out: Path | None
    compare: int
    quiet: bool
    as_json: bool

    @property
    def is_automatic(self) -> bool:
        """Whether the type is chosen by a comparison."""
        return self.type in (None, "auto")


@click.command("convert")
@click.argument("model", shell_complete=shell_completion.complete_model)
@global_options.text_option(
    "--type",
    "TYPE",
    "Weight type, such as Q4_K_M or IQ4_NL.  [default: auto, the fastest on this CPU that has at "
    f"least the source's bits and differs by at most {conversion.MAX_DIVERGENCE} nats]",
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write.  [default: one that MODEL:TYPE names]",
)
@global_options.number_option(
    "--compare",
    "Tokens to compare the copy with its source on; 0 leaves that out.",
    type=click.IntRange(0, 100_000),
    default=2000,
    show_default=True,
    metavar="N",
)
@QUIET
@global_options.JSON
def command(model: str, **given: Any) -> int:
    """Copy MODEL to a file of another weight type.

    CPUs compute some types several times as fast as others (localspec doctor --cpu).
    The copy is compared with MODEL on what MODEL itself writes. The original is not
    changed.
    """
    arguments = options.read_arguments(ConvertArguments, given)
    if arguments.is_automatic and not arguments.compare:
        raise UsageError(
            "The type is chosen by the comparison.", "Without one: --type TYPE"
        )
    resolved = model_lookup.resolve(model).target
    source = conversion.open_source(resolved.require_path())
    progress = ProgressLine(quiet=arguments.quiet, interval=10.0)
    if arguments.is_automatic:
        kinds = _rank_faster_types(source, progress)
        max_divergence = conversion.MAX_DIVERGENCE
    else:
        kinds = [conversion.check_type(source, str(arguments.type))]
        max_divergence = inf
    trial = None
    if arguments.compare:
        trial = _comparison_trial(arguments.compare, max_divergence)

    name = source.stem if resolved.catalog_model is None else resolved.catalog_model.id
    for kind in kinds:
        file = arguments.out or inventory.converted_folder() / f"{name}-{kind}.gguf"
        converted = _convert(source, kind, file, trial, progress=progress)
        if converted.comparison and not converted.is_kept:
            differs = f"it differs by {converted.comparison.divergence:.3f} nats"
            terminal.notify(f"{kind} was not kept: {differs}.")
            continue
        reference = _find_reference(f"{name}:{kind}", file)
        _report(reference, source, converted, as_json=arguments.as_json)
        return 0
    raise UsageError(
        f"No faster type differs by at most {conversion.MAX_DIVERGENCE} nats.",
        "Choose one yourself: --type TYPE",
    )


def _find_reference(short: str, file: Path) -> str:
    """What opens a file: a short reference, unless it means another file, else its path."""
    with suppress(LocalspecError):
        if model_lookup.resolve(short).target.find_path() == file:
            return short
    return str(file)


def _rank_faster_types(source: Source, progress: ProgressLine) -> Sequence[str]:
    """The types that are as precise as the source's, the fastest first.

    Raises UsageError if none is faster than the source's own.
    """
    kinds = conversion.rank_types(source.header, _read_or_time_types(progress))
    if not kinds:
        quantization = source.header.quantization
        raise UsageError(
            f"No type that is as precise is faster on this CPU than {quantization}.",
            "Speeds by type: localspec doctor --cpu",
        )
    return kinds


def _comparison_trial(n_tokens: int, max_divergence: float) -> ComparisonTrial:
    """A trial on the prompts of the workloads of `localspec bench`."""
    texts: list[str] = []
    for workload in workloads.load():
        texts += workload.prompts
    return ComparisonTrial(texts, n_tokens, max_divergence)


def _convert(
    source: Source,
    kind: str,
    file: Path,
    trial: ComparisonTrial | None,
    progress: ProgressLine,
) -> ConvertedModel:
    """Convert and show the progress. Raises as `conversion.convert` does."""
    with closing(conversion.convert(source, kind, file, trial)) as steps:
        try:
            while True:
                what, share = next(steps)
                progress.show(f"{what}: {percent(share)}")
        except StopIteration as end:
            result: ConvertedModel = end.value
            return result
        finally:
            progress.clear()


def _read_or_time_types(progress: ProgressLine) -> Sequence[TypeSpeed]:
    speeds = list(type_speeds.read_types().values())
    for speed in type_speeds.time_types(type_speeds.missing_types()):
        if not speed.is_disturbed:
            speeds.append(speed)
        progress.show(f"timing the types on this CPU: {speed.name}")
    progress.clear()
    return speeds


def _report(
    reference: str, source: Source, converted: ConvertedModel, *, as_json: bool
) -> None:
    if as_json:
        facts: dict[str, Any] = {
            "file": str(converted.path),
            "type": converted.type,
            "bytes": converted.size,
            "source": {"type": source.header.quantization, "bytes": source.header.size},
            "comparison": converted.comparison and to_builtins(converted.comparison),
        }
        terminal.echo_json(facts)
        return
    echo(f"{converted.path}: {gb(converted.size)}, {converted.type}")
    if converted.comparison is not None:
        source_type = source.header.quantization
        for line in _format_comparison(source_type, converted.comparison):
            echo(line)
    echo(f"Use it: {shlex.join(['localspec', 'run', reference])}", err=True)


def _format_comparison(source_type: str, compared: Comparison) -> Iterator[str]:
    yield (
        f"Same choice as {source_type} at {percent(compared.same)} of {compared.tokens:,} tokens; "
        f"mean divergence {compared.divergence:.3f} nats."
    )
    for what, source_ms, copy_ms in (
        ("Writes", compared.source_ms, compared.copy_ms),
        ("Reads", compared.source_read_ms, compared.copy_read_ms),
    ):
        speeds = f"{1e3 / copy_ms:.0f} tok/s, {source_type} {1e3 / source_ms:.0f}"
        yield f"{what} {source_ms / copy_ms:.2f} × as fast: {speeds}."
