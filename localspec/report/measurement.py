"""The report of a measurement in progress or at its end, of whatever kind it is."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement
from localspec.report import bench
from localspec.report.lines import Line, plain_text
from localspec.report.verify import format_verify_report


def format_measurement(measurement: Benchmark | LosslessMeasurement) -> Iterator[Line]:
    """What the measurement has found so far; it must have begun."""
    is_final = measurement.has_ended
    if isinstance(measurement, Benchmark):
        return bench.format_table(measurement.report, is_final=is_final)
    return format_verify_report(
        measurement.report, measurement.ready, is_final=is_final
    )


def format_to_share(measurement: Benchmark | LosslessMeasurement) -> Iterator[str]:
    """As Markdown if the measurement is a benchmark."""
    if isinstance(measurement, Benchmark):
        return bench.format_markdown(measurement.report)
    return map(plain_text, format_measurement(measurement))
