"""Fits the constants of estimated speeds to published runs, and judges them by others.

A one-token pass on a GPU takes

    layers × layer_ms + bytes / (share × bandwidth)

where a layer with experts counts for more launches (`_LAUNCHES` of
localspec/fit/speed.py), so does a recurrent one, and the smaller the matrices of
experts are, the longer they take to read.  A generation of GPUs and a backend have `layer_ms` and `share` of their own
(localspec/machine/gpus.yaml).  They are the least squares of log(estimate / published);
those with few rows stay near what the maker's others have.

`leave_one_source_out` says what an estimate is worth for a computer that was not
fitted: the runs of each source are estimated with constants fitted to all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 15  # Of Gauss and Newton, with the outliers weighed anew in each.
_MORE_ROUNDS = 4  # From constants of nearly the same runs.
_OUTLIER = 0.25  # A residual from which on a row counts less.
_SPREADS = {"share": 0.15, "layer": 0.45}
"""How much a generation differs from the others of its maker: the logarithm's."""
_TYPICAL = {"share": (0.75, 0.2), "layer": (0.05, 0.6)}
"""Of all makers: the value, and how much a maker differs from it."""
_GLOBAL = {
    "experts": (0.25, 0.5),  # Megabytes that reading an expert's matrix takes longer.
    "mixture CUDA": (0.3, 0.6),  # Launches of a layer with experts, beside its own.
    "mixture": (0.4, 0.6),  # The same of other backends.
    "recurrent CUDA": (0.2, 0.6),
    "recurrent": (0.5, 0.6),
    "ram": (1.0, 0.4),  # The time of what the CPU does.
}


class TimedRun(NamedTuple):
    """A published run in terms of the formula."""

    source: str
    device: str  # Generation and backend, which have constants of their own.
    maker: str
    weight: float  # By how much the row is to be trusted.
    published_ms: float  # Of a token.
    n_layers: float
    n_mixtures: float
    n_recurrent: float
    dense_ms: float  # At the whole bandwidth.
    experts_ms: float
    expert_mb: float  # Of one matrix of one expert.
    ram_ms: float  # As estimated, on the CPU.

    @property
    def launch_class(self) -> str:
        """CUDA launches the kernels of a pass at once, as a graph."""
        return " CUDA" if self.device.endswith(" CUDA") else ""


Constants = Mapping[str, float]
"""Such as `share Ada CUDA`, `layer Ada CUDA` and `experts`."""


def predict_ms(run: TimedRun, constants: Constants) -> float:
    return sum(_terms(run, constants).values())


def _terms(run: TimedRun, constants: Constants) -> dict[str, float]:
    """The parts of the time, in milliseconds."""
    layer_ms = constants.get(f"layer {run.device}", 0.05)
    share = constants.get(f"share {run.device}", 0.75)
    return {
        "layers": run.n_layers * layer_ms,
        "mixture": run.n_mixtures * constants[f"mixture{run.launch_class}"] * layer_ms,
        "recurrent": run.n_recurrent
        * constants[f"recurrent{run.launch_class}"]
        * layer_ms,
        "dense": (run.dense_ms + run.experts_ms) / share,
        "experts": run.experts_ms / share * constants["experts"] / run.expert_mb,
        "ram": run.ram_ms * constants["ram"],
    }


def fit(
    runs: Sequence[TimedRun], start: Constants | None = None, n_rounds: int = _ROUNDS
) -> dict[str, float]:
    """The constants of all devices in `runs`, and of their makers.

    `start`: constants of most of these runs, from which fewer rounds suffice.
    """
    names = _name_constants(runs)
    index = {name: i for i, name in enumerate(names)}
    known = start or {}
    logs = np.log([known.get(name, _typical_value(name)) for name in names])
    for _ in range(n_rounds):
        rows, wanted, weights = _linearise(runs, names, index, logs)
        scaled = rows * weights[:, None]
        step, *_ = np.linalg.lstsq(scaled, wanted * weights, rcond=None)
        logs = logs + np.clip(step, -0.5, 0.5)
    values = np.exp(logs)
    for name, i in index.items():
        if name.startswith("share "):
            values[i] = min(values[i], 0.97)
    return dict(zip(names, values.tolist(), strict=True))


def _name_constants(runs: Sequence[TimedRun]) -> list[str]:
    names = list(_GLOBAL)
    for kind in _TYPICAL:
        names += [f"{kind} of {maker}" for maker in sorted({r.maker for r in runs})]
        names += [f"{kind} {device}" for device in sorted({r.device for r in runs})]
    return names


def _typical_value(name: str) -> float:
    if name in _GLOBAL:
        value, _ = _GLOBAL[name]
        return value
    kind, _, _ = name.partition(" ")
    value, _ = _TYPICAL[kind]
    return value


def _linearise(
    runs: Sequence[TimedRun],
    names: Sequence[str],
    index: Mapping[str, int],
    logs: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows of derivatives by the logarithms, what they should sum to, and weights."""
    constants = dict(zip(names, np.exp(logs).tolist(), strict=True))
    rows: list[NDArray[np.float64]] = []
    wanted: list[float] = []
    weights: list[float] = []

    def add(row: Mapping[str, float], residual: float, weight: float) -> None:
        line = np.zeros(len(names))
        for name, value in row.items():
            line[index[name]] = value
        rows.append(line)
        wanted.append(-residual)
        weights.append(weight)

    makers = {}
    for run in runs:
        makers[run.device] = run.maker
        terms = _terms(run, constants)
        total = sum(terms.values())
        residual = float(np.log(total / run.published_ms))
        part = {name: ms / total for name, ms in terms.items()}
        row = {
            f"layer {run.device}": part["layers"] + part["mixture"] + part["recurrent"],
            f"share {run.device}": -part["dense"] - part["experts"],
            f"mixture{run.launch_class}": part["mixture"],
            f"recurrent{run.launch_class}": part["recurrent"],
            "experts": part["experts"],
            "ram": part["ram"],
        }
        trust = min(1.0, _OUTLIER / max(abs(residual), 1e-9))
        add(row, residual, weight=(run.weight * trust) ** 0.5 / 0.12)

    for name, (value, spread) in _GLOBAL.items():
        add({name: 1.0}, float(logs[index[name]] - np.log(value)), 1 / spread)
    for kind, (value, spread) in _TYPICAL.items():
        for maker in set(makers.values()):
            name = f"{kind} of {maker}"
            add({name: 1.0}, float(logs[index[name]] - np.log(value)), 1 / spread)
        for device, maker in makers.items():
            own = f"{kind} {device}"
            common = f"{kind} of {maker}"
            distance = float(logs[index[own]] - logs[index[common]])
            add({own: 1.0, common: -1.0}, distance, 1 / _SPREADS[kind])
    return np.array(rows), np.array(wanted), np.array(weights)


def leave_one_source_out(runs: Sequence[TimedRun]) -> list[float]:
    """The estimated milliseconds of each run, by constants fitted without its source.

    A device that only this source has measured gets what its maker's others have.
    """
    estimates = [0.0] * len(runs)
    of_all = fit(runs)
    for source in dict.fromkeys(run.source for run in runs):
        others = [run for run in runs if run.source != source]
        constants = fit(others, of_all, _MORE_ROUNDS)
        for i, run in enumerate(runs):
            if run.source == source:
                estimates[i] = predict_ms(run, _with_device(constants, run))
    return estimates


def _with_device(constants: Constants, run: TimedRun) -> Constants:
    known = dict(constants)
    for kind, (value, _) in _TYPICAL.items():
        of_maker = constants.get(f"{kind} of {run.maker}", value)
        known.setdefault(f"{kind} {run.device}", of_maker)
    return known
