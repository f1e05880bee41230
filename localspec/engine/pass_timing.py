"""Measures the cost of target and draft passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from localspec.spec.protocols import LanguageModel

WIDTHS = (1, 4, 2, 8, 5)
"""The most informative width comes first: a slow model runs out of time. At width 5
llama.cpp may change kernels.
"""
_ANY_TOKEN = 1  # The content does not affect the time.
_REPEATS = 5
_THREAD_REPEATS = 4
_FASTER_RATIO = 0.95  # Another number of threads must reduce the time to this share.


class PassTimes(Struct):
    """Milliseconds of target passes by width, and of draft passes.

    Those of the target include the argmax of each row.
    """

    verify: dict[int, list[float]]
    draft: list[float]

    def verify_curve(self) -> dict[str, float]:
        """Medians by width, in units of a one-token pass."""
        t1 = self.t1()
        curve: dict[str, float] = {}
        for width, times in sorted(self.verify.items()):
            curve[str(width)] = round(float(np.median(times)) / t1, 4)
        return curve

    def t1(self) -> float:
        """A one-token pass of the target, in milliseconds."""
        return float(np.median(self.verify[1]))

    def c(self) -> float | None:
        """A draft pass in units of a one-token pass of the target."""
        if not self.draft:
            return None
        return float(np.median(self.draft)) / self.t1()


def measure_passes(
    target: LanguageModel,
    draft: LanguageModel | None,
    longest: int,
    seconds: float,
    warm: int = 0,
) -> Iterator[PassTimes]:
    """Yield the times so far after each measurement, until `seconds` are over.

    Width 1 is the first, so it is always measured. `longest` is the longest draft that may be verified,
    `warm` the passes of the same width before a timed one. All continue the texts in
    memory and are removed.
    """
    times = PassTimes({}, [])
    widths = [w for w in WIDTHS if w <= longest + 1]
    for model in filter(None, (target, draft)):
        time_pass(model, 1)  # warm-up: the weights may still be on disk
    until = time.perf_counter() + seconds
    for _ in range(_REPEATS):
        for width in widths:
            times.verify.setdefault(width, []).append(time_pass(target, width, warm))
            if draft is not None and width in (1, 4):
                times.draft.append(time_pass(draft, 1, warm))
            yield times
            if time.perf_counter() > until:
                return


def time_pass(model: LanguageModel, width: int, warm: int = 0) -> float:
    """Milliseconds of a pass after the text in memory, which stays as it was."""
    start = model.n_past
    for _ in range(warm):
        time_pass(model, width)
    began = time.perf_counter()
    try:
        rows = model.decode([_ANY_TOKEN] * width, width)
        for row in rows:
            int(row.argmax())
        return (time.perf_counter() - began) * 1e3
    finally:
        model.truncate(start)


class ThreadedModel(LanguageModel, Protocol):
    n_threads: int
    n_threads_batch: int

    def set_n_threads(self, n: int, n_batch: int) -> None: ...


class ThreadTimes(Struct):
    """Milliseconds of passes of all models by thread count: one token wide, and wider."""

    narrow: dict[int, list[float]]
    wide: dict[int, list[float]]

    def best(self) -> tuple[int, int]:
        """Thread counts for one-token and for wider passes.

        The minimum of each is compared: other programs only slow a pass down. The first
        count, the default, is kept unless another is clearly faster.
        """
        return _fastest(self.narrow), _fastest(self.wide)


def _fastest(times: dict[int, list[float]]) -> int:
    shortest = {n: min(milliseconds) for n, milliseconds in times.items()}
    default = next(iter(times))
    best = min(shortest, key=lambda n: shortest[n])
    if shortest[best] < _FASTER_RATIO * shortest[default]:
        return best
    return default


def measure_threads(
    target: ThreadedModel,
    draft: ThreadedModel | None,
    counts: Sequence[int],
    width: int,
) -> Iterator[ThreadTimes]:
    """Yield the times so far after each pass; `width` is that of the wider passes.

    The models have their own thread counts again afterwards.
    """
    models = [model for model in (target, draft) if model is not None]
    before = [(model.n_threads, model.n_threads_batch) for model in models]
    times = ThreadTimes({n: [] for n in counts}, {n: [] for n in counts})
    try:
        for _ in range(_THREAD_REPEATS):
            for n in counts:
                for model in models:
                    model.set_n_threads(n, n)
                time_pass(models[-1], 1)  # the threads start in the first pass
                times.narrow[n].append(sum(time_pass(model, 1) for model in models))
                yield times
                times.wide[n].append(time_pass(target, width))
                yield times
    finally:
        for model, (n, n_batch) in zip(models, before, strict=True):
            model.set_n_threads(n, n_batch)
