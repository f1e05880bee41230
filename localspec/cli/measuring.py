"""Runs the measurement of `bench`, `verify` or `pair test`, and prints its report."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

import click

from localspec import launch
from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement
from localspec.bench.measurement import Measurement, MeasurementProgress
from localspec.cli import options
from localspec.cli.terminal import ProgressLine
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair

_PROGRESS_INTERVAL = 30.0  # Seconds between progress lines if stderr is not a terminal.
_ASCII_MAP = str.maketrans("×–·…┊█▉▊▋▌▍▎▏", "x-,~|#####   ")

Progress = Generator[MeasurementProgress, None, None]


def measure_pair(
    pair: ResolvedPair, measurement: Benchmark | LosslessMeasurement, given: dict[str, Any]
) -> Progress:
    """Loads the pair for the measurement."""
    yield MeasurementProgress("loading")
    load_request = options.build_load_request(pair, given | {"spec": "auto"})
    engine = launch.start_engine(load_request, notify=options.make_notice_printer(given["quiet"]))
    try:
        yield from measurement.run(engine)
    finally:
        engine.close()


def print_measurement(measurement: Measurement, progress: Progress, given: dict[str, Any]) -> bool:
    """Runs it and prints its report; returns False if Ctrl+C has ended it.

    Raises the error that has ended it after the results so far; with --json it is the document.
    """
    line = ProgressLine(quiet=given["quiet"], interval=_PROGRESS_INTERVAL)
    is_interrupted, error = False, None
    try:
        with closing(progress):
            for step in progress:
                line.show(step.text, is_step=step.is_step)
    except KeyboardInterrupt:
        if not measurement.has_begun:
            raise
        is_interrupted = True
    except LocalspecError as failure:
        error = failure
    finally:
        line.clear()
    if error is None and given["as_json"]:
        click.echo(json.dumps(measurement.to_json()))
    elif error is None or (measurement.has_results and not given["as_json"]):
        for text in measurement.format_report():
            click.echo(to_ascii(text))
    if error is not None:
        raise error
    return not is_interrupted


def to_ascii(text: str) -> str:
    """The text in ASCII if stdout cannot encode its symbols."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return text.translate(_ASCII_MAP)
    return text
