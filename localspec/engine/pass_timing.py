"""Measures what passes cost on this machine, before the first answer, in about two seconds."""

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
"""Those that tell most come first: a large model is soon out of time.  At 5 kernels may change."""
_ANY_TOKEN = 1
"""What is read does not matter."""
_REPEATS = 5
_FASTER_RATIO = 0.9
"""What another number of threads must get the time down to."""
_N_SAMPLE_TOKENS = 8
"""Tokens over which widths are compared."""


@dataclass
class PassTimes:
    """Milliseconds: target passes by width (reading a row of each included), and a draft pass."""

    verify: dict[int, list[float]]
    draft: list[float]

    def verify_curve(self) -> dict[str, float]:
        """v by width, from medians."""
        one = self.t1()
        return {str(w): round(median(ms) / one, 4) for w, ms in sorted(self.verify.items())}

    def t1(self) -> float:
        return median(self.verify[1])

    def c(self) -> float | None:
        return median(self.draft) / self.t1() if self.draft else None


def measure_passes(
    target: LanguageModel, draft: LanguageModel | None, max_draft: int, seconds: float
) -> Iterator[PassTimes]:
    """Ever better times, as far as `seconds` go; the first holds at least every kind once warm.

    `most` is the longest draft that may be verified.  Both memories end empty.
    """
    times = PassTimes({}, [])
    widths = [w for w in WIDTHS if w <= max_draft + 1]
    try:
        for model in filter(None, (target, draft)):
            model.truncate(0)
            model.decode([_ANY_TOKEN] * 2, 0)  # the weights come from the disk, perhaps
        until = time.perf_counter() + seconds
        for turn in range(_REPEATS):
            for width in widths:
                took = _time_pass(target, width)
                times.verify.setdefault(width, []).append(took)
                if draft is not None and width in (1, 4):
                    times.draft.append(_time_pass(draft, 1))
                if time.perf_counter() > until and (turn or 1 in times.verify):
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
    took = (time.perf_counter() - began) * 1e3
    model.truncate(start)
    return took


class ThreadedModel(LanguageModel, Protocol):
    """A model whose number of threads can be chosen."""

    n_threads: int

    def set_n_threads(self, n: int) -> None: ...


def choose_n_threads(target: ThreadedModel, draft: ThreadedModel | None) -> int:
    """All physical cores, if target and draft together are faster so every time than as loaded.

    They are tried together: two pools of threads get into each other's way.  One slow try is
    enough to leave a core free: where something else runs, full pools stall a hundredfold.
    """
    models = [model for model in (target, draft) if model is not None]
    now = target.n_threads
    took: dict[int, list[float]] = {}
    for model in models:
        model.truncate(0)
    for _ in range(_REPEATS):
        for n in {now, psutil.cpu_count(logical=False) or now}:
            for model in models:
                model.set_n_threads(n)
            times = [_time_pass(model, 1) for model in (*models, *models)]
            took.setdefault(n, []).append(sum(times[len(models) :]))  # the first round warms up
    best = min(took, key=lambda n: median(took[n]))
    return best if max(took[best]) < _FASTER_RATIO * min(took[now]) else now


def measure_logit_difference(target: LanguageModel, max_draft: int) -> float:
    """The largest change of a likely logit between a token alone and in wider passes."""
    rng = np.random.default_rng(0)
    tokens = [int(t) for t in rng.integers(0, target.n_vocab, _N_SAMPLE_TOKENS)]
    target.truncate(0)
    alone = [target.decode([token], 1)[0].copy() for token in tokens]
    off = 0.0
    for width in (w for w in (2, 3, 5, 8) if w <= min(max_draft, DRAFT_MAX) + 1):
        target.truncate(0)
        for start in range(0, len(tokens), width):
            part = tokens[start : start + width]
            for row, other in zip(target.decode(part, len(part)), alone[start:], strict=False):
                ids = top_k_ids(other, min(64, len(other)))
                off = max(off, float(np.abs(row[ids] - other[ids]).max()))
    target.truncate(0)
    return off
