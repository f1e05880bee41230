"""Measures the cost of target and draft passes, and how far logits differ between widths."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
import psutil

from localspec.engine.protocols import LanguageModel
from localspec.engine.sampling import top_k_ids
from localspec.protocol.wire import DRAFT_MAX

WIDTHS = (1, 4, 2, 8, 5)
"""The most informative first: a slow model runs out of time. llama.cpp may change kernels at 5."""
_ANY_TOKEN = 1
"""The content does not affect the time."""
_REPEATS = 5
_FASTER_RATIO = 0.9
"""Another number of threads must reduce the time to this share."""
_N_SAMPLE_TOKENS = 8
"""Tokens over which widths are compared."""


@dataclass
class PassTimes:
    """Milliseconds of target passes by width, argmax of each row included, and of draft passes."""

    verify: dict[int, list[float]]
    draft: list[float]

    def verify_curve(self) -> dict[str, float]:
        """Medians by width, in units of a one-token pass."""
        t1 = self.t1()
        return {str(w): round(median(ms) / t1, 4) for w, ms in sorted(self.verify.items())}

    def t1(self) -> float:
        return median(self.verify[1])

    def c(self) -> float | None:
        return median(self.draft) / self.t1() if self.draft else None


def measure_passes(
    target: LanguageModel, draft: LanguageModel | None, max_draft: int, seconds: float
) -> Iterator[PassTimes]:
    """Yield the times so far after each measurement, until `seconds` are over.

    Width 1 is always measured. `max_draft` is the longest draft that may be verified. Both
    memories are empty afterwards.
    """
    times = PassTimes({}, [])
    widths = [w for w in WIDTHS if w <= max_draft + 1]
    try:
        for model in filter(None, (target, draft)):
            model.truncate(0)
            model.decode([_ANY_TOKEN] * 2, 0)  # warm-up: the weights may still be on disk
        until = time.perf_counter() + seconds
        for repeat in range(_REPEATS):
            for width in widths:
                times.verify.setdefault(width, []).append(_time_pass(target, width))
                if draft is not None and width in (1, 4):
                    times.draft.append(_time_pass(draft, 1))
                if time.perf_counter() > until and (repeat or 1 in times.verify):
                    yield times
                    return
                yield times
    finally:
        for model in filter(None, (target, draft)):
            model.truncate(0)


def _time_pass(model: LanguageModel, width: int) -> float:
    start = model.n_past
    began = time.perf_counter()
    rows = model.decode([_ANY_TOKEN] * width, width)
    for row in rows:
        int(row.argmax())
    ms = (time.perf_counter() - began) * 1e3
    model.truncate(start)
    return ms


class ThreadedModel(LanguageModel, Protocol):
    n_threads: int

    def set_n_threads(self, n: int) -> None: ...


def choose_n_threads(target: ThreadedModel, draft: ThreadedModel | None) -> int:
    """All physical cores, if target and draft together are always faster with them; else as loaded.

    Both are measured together, because their thread pools compete. One slow run rules the larger
    number out: if another program uses a core, a full pool can be a hundred times slower.
    """
    models = [model for model in (target, draft) if model is not None]
    current = target.n_threads
    ms_by_threads: dict[int, list[float]] = {}
    for model in models:
        model.truncate(0)
    for _ in range(_REPEATS):
        for n in {current, psutil.cpu_count(logical=False) or current}:
            for model in models:
                model.set_n_threads(n)
            times = [_time_pass(model, 1) for model in (*models, *models)]
            # The first pass of each model is a warm-up.
            ms_by_threads.setdefault(n, []).append(sum(times[len(models) :]))
    best = min(ms_by_threads, key=lambda n: median(ms_by_threads[n]))
    is_faster = max(ms_by_threads[best]) < _FASTER_RATIO * min(ms_by_threads[current])
    return best if is_faster else current


def measure_logit_difference(target: LanguageModel, max_draft: int) -> float:
    """The largest difference of a top-64 logit between one-token and wider passes."""
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, _N_SAMPLE_TOKENS)]
    target.truncate(0)
    alone = [target.decode([token], 1)[0].copy() for token in tokens]
    difference = 0.0
    for width in (w for w in (2, 3, 5, 8) if w <= min(max_draft, DRAFT_MAX) + 1):
        target.truncate(0)
        for start in range(0, len(tokens), width):
            part = tokens[start : start + width]
            rows = target.decode(part, len(part))
            for row, expected in zip(rows, alone[start:], strict=False):
                ids = top_k_ids(expected, min(64, len(expected)))
                difference = max(difference, float(np.abs(row[ids] - expected[ids]).max()))
    target.truncate(0)
    return difference
