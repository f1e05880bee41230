"""Fits the constants of estimated speeds to published runs, and judges them by others.

A one-token pass on a GPU takes

    layers × layer_ms + bytes / (share × bandwidth)

where a layer with experts counts for more launches (`_LAUNCHES` of
localspec/fit/speed.py), so does a recurrent one, and the smaller the matrices of
experts are, the longer they take to read.  A generation of GPUs and a backend have `layer_ms` and `share` of their own
(localspec/machine/gpus.yaml), and so has a family of CPUs its `share`
(localspec/machine/ram_speed.py).  They are the least squares of
log(estimate / published).  Those with few rows stay near what the maker's others have:
near the same generation with other backends, and the same backend on other generations.

`leave_one_source_out` says what an estimate is worth for a computer that was not
fitted: the runs of each source are estimated with constants fitted to all others.

`fit_verify` does the same with the gains of MTP layers: the cost of a round is linear in
what a further token of a pass costs (`verify` of gpus.yaml), of which a generation and a
backend have a value of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 15  # Of Gauss and Newton, with the outliers weighed anew in each.
_MORE_ROUNDS = 4  # From constants of nearly the same runs.
_OUTLIER = 0.25  # A residual from which on a row counts less.
_TYPICAL_RESIDUAL = 0.12
_MAX_SHARE = 0.97


class Spreads(NamedTuple):
    """How much a constant differs, as the deviation of its logarithm."""

    generation: float  # From the others of the maker.
    backend: float  # The same of a backend.
    device: float  # From what its generation and its backend make likely.


_SPREADS = {
    "share": Spreads(generation=0.15, backend=0.1, device=0.07),
    "layer": Spreads(generation=0.35, backend=0.35, device=0.2),
    "verify": Spreads(generation=0.4, backend=0.3, device=0.15),
}
CPU = "cpu"
"""The maker of runs that no GPU computed: shares differ, the time of a layer does not."""
_CPU_SPREADS = {
    "share": Spreads(generation=0.25, backend=0.01, device=0.01),
    "layer": Spreads(generation=0.01, backend=0.01, device=0.01),
}
_TYPICAL = {"share": (0.75, 0.2), "layer": (0.05, 0.6), "verify": (0.15, 0.6)}
"""Of all makers: the value, and how much a maker differs from it."""
_OF_PASSES = ("share", "layer")
_OF_ROUNDS = ("verify",)
_GLOBAL = {
    "experts": (0.25, 0.12),  # Megabytes that reading an expert's matrix takes longer.
    "mixture CUDA": (0.3, 0.25),  # Launches of a layer with experts, beside its own.
    "mixture": (0.3, 0.6),  # The same of other backends.
    "mixture SYCL": (0.5, 0.6),
    "mixture CPU": (0.3, 0.3),
    "recurrent CPU": (0.5, 0.3),
    "recurrent CUDA": (0.2, 0.6),
    "recurrent": (0.5, 0.6),
    "ram": (1.0, 0.4),  # The time of what the CPU does.
    "experts CPU": (0.15, 0.8),  # By how much a CPU reads experts slower.
}


class MeasuredDevice(NamedTuple):
    """What computed a run: it has constants of its own."""

    maker: str
    generation: str
    backend: str

    @property
    def name(self) -> str:
        return f"{self.generation} {self.backend}"


class TimedRun(NamedTuple):
    """A published run in terms of the formula."""

    source: str
    device: MeasuredDevice
    weight: float  # By how much the row is to be trusted.
    published_ms: float  # Of a token.
    n_layers: float
    n_mixtures: float
    n_recurrent: float
    dense_ms: float  # At the whole bandwidth.
    experts_ms: float
    expert_mb: float  # Of one matrix of one expert.
    ram_ms: float  # As estimated, on the CPU beside a GPU.

    @property
    def mixture(self) -> str:
        """The name of what a layer with experts takes more.

        CUDA launches the kernels of a pass at once, as a graph, and SYCL waits between
        them.
        """
        if self.device.backend in ("CUDA", "SYCL", "CPU"):
            return f"mixture {self.device.backend}"
        return "mixture"

    @property
    def recurrent(self) -> str:
        if self.device.backend in ("CUDA", "CPU"):
            return f"recurrent {self.device.backend}"
        return "recurrent"


Constants = Mapping[str, float]
"""Such as `share Ada CUDA`, `layer Ada CUDA` and `experts`."""


def predict_ms(run: TimedRun, constants: Constants) -> float:
    return sum(_terms(run, constants).values())


def _terms(run: TimedRun, constants: Constants) -> dict[str, float]:
    """The parts of the time, in milliseconds."""
    layer_ms = constants[f"layer {run.device.name}"]
    share = constants[f"share {run.device.name}"]
    return {
        "layers": run.n_layers * layer_ms,
        "mixture": run.n_mixtures * constants[run.mixture] * layer_ms,
        "recurrent": run.n_recurrent * constants[run.recurrent] * layer_ms,
        "dense": (run.dense_ms + run.experts_ms) / share,
        "experts": run.experts_ms / share * _expert_slowdown(run, constants),
        "ram": run.ram_ms * constants["ram"],
    }


def _name_experts(run: TimedRun) -> str:
    return "experts CPU" if run.device.maker == CPU else "experts"


def _expert_slowdown(run: TimedRun, constants: Constants) -> float:
    """By how much experts take longer than other weights."""
    if run.device.maker == CPU:
        return constants["experts CPU"]
    return constants["experts"] / run.expert_mb


class ConstantNames(NamedTuple):
    """Names of a constant of a run's device, and of what it is likely to be near."""

    device: str
    generation: str
    backend: str
    maker: str

    @classmethod
    def of(cls, constant: str, device: MeasuredDevice) -> ConstantNames:
        return cls(
            device=f"{constant} {device.name}",
            generation=f"{constant} of {device.generation}",
            backend=f"{constant} of {device.maker} {device.backend}",
            maker=f"{constant} of {device.maker}",
        )


def _find_spreads(constant: str, device: MeasuredDevice) -> Spreads:
    if device.maker == CPU:
        return _CPU_SPREADS[constant]
    return _SPREADS[constant]


class _Equations:
    """Weighted linear equations for the logarithms of the constants."""

    def __init__(self, logs: Mapping[str, float]) -> None:
        self._logs = logs
        self._index = {name: i for i, name in enumerate(logs)}
        self._rows: list[NDArray[np.float64]] = []
        self._wanted: list[float] = []

    def add(
        self, row: Mapping[str, float], residual: float, *, deviation: float
    ) -> None:
        """Changes by `row` shall take the residual away."""
        line = np.zeros(len(self._index))
        for name, value in row.items():
            line[self._index[name]] += value
        self._rows.append(line / deviation)
        self._wanted.append(-residual / deviation)

    def add_typical(self, name: str, value: float, *, deviation: float) -> None:
        residual = self._logs[name] - float(np.log(value))
        self.add({name: 1.0}, residual, deviation=deviation)

    def add_devices(self, constant: str, devices: Collection[MeasuredDevice]) -> None:
        """Keeps the constants of devices near those of their maker's others."""
        value, deviation = _TYPICAL[constant]
        makers = set[str]()
        pairs: dict[tuple[str, str], float] = {}
        for device in devices:
            name = ConstantNames.of(constant, device)
            spreads = _find_spreads(constant, device)
            makers.add(name.maker)
            pairs[name.generation, name.maker] = spreads.generation
            pairs[name.backend, name.maker] = spreads.backend
            likely = self._logs[name.generation] + self._logs[name.backend]
            likely -= self._logs[name.maker]
            row = {
                name.device: 1.0,
                name.generation: -1.0,
                name.backend: -1.0,
                name.maker: 1.0,
            }
            residual = self._logs[name.device] - likely
            self.add(row, residual, deviation=spreads.device)
        for maker in makers:
            self.add_typical(maker, value, deviation=deviation)
        for (own, common), spread in pairs.items():
            residual = self._logs[own] - self._logs[common]
            self.add({own: 1.0, common: -1.0}, residual, deviation=spread)

    def solve(self) -> dict[str, float]:
        """The logarithms after a step, none of which is long."""
        step, *_ = np.linalg.lstsq(
            np.array(self._rows), np.array(self._wanted), rcond=None
        )
        changes = np.clip(step, -0.5, 0.5).tolist()
        return {
            name: log + change
            for (name, log), change in zip(self._logs.items(), changes, strict=True)
        }


def fit(
    runs: Sequence[TimedRun], start: Constants | None = None, n_rounds: int = _ROUNDS
) -> dict[str, float]:
    """The constants of all devices in `runs`, and of their makers.

    `start`: constants of most of these runs, from which fewer rounds suffice.
    """
    devices = {run.device for run in runs}
    logs = _start_logs(_OF_PASSES, devices, start)
    for name, (value, _) in _GLOBAL.items():
        logs[name] = float(np.log((start or {}).get(name, value)))
    for _ in range(n_rounds):
        equations = _Equations(logs)
        constants = _to_constants(logs)
        for run in runs:
            terms = _terms(run, constants)
            total = sum(terms.values())
            residual = float(np.log(total / run.published_ms))
            part = {name: ms / total for name, ms in terms.items()}
            name = run.device.name
            row = {
                f"layer {name}": part["layers"] + part["mixture"] + part["recurrent"],
                f"share {name}": -part["dense"] - part["experts"],
                run.mixture: part["mixture"],
                run.recurrent: part["recurrent"],
                _name_experts(run): part["experts"],
                "ram": part["ram"],
            }
            equations.add(row, residual, deviation=_deviation(run.weight, residual))
        for name, (value, deviation) in _GLOBAL.items():
            equations.add_typical(name, value, deviation=deviation)
        for constant in _OF_PASSES:
            equations.add_devices(constant, devices)
        logs = equations.solve()
    return _to_constants(logs)


def _start_logs(
    constants: Collection[str],
    devices: Collection[MeasuredDevice],
    start: Constants | None,
) -> dict[str, float]:
    logs: dict[str, float] = {}
    for constant in constants:
        value, _ = _TYPICAL[constant]
        for device in sorted(devices):
            for name in ConstantNames.of(constant, device):
                logs[name] = float(np.log((start or {}).get(name, value)))
    return logs


def _to_constants(logs: Mapping[str, float]) -> dict[str, float]:
    constants = {}
    for name, log in logs.items():
        constants[name] = float(np.exp(log))
        if name.startswith("share "):
            constants[name] = min(constants[name], _MAX_SHARE)
    return constants


def _deviation(weight: float, residual: float) -> float:
    """Of an equation: rows that are trusted little, and outliers, count less."""
    trust = min(1.0, _OUTLIER / max(abs(residual), 1e-9))
    return _TYPICAL_RESIDUAL / math.sqrt(max(weight * trust, 1e-9))


def leave_one_source_out(runs: Sequence[TimedRun]) -> list[float]:
    """The estimated milliseconds of each run, by constants fitted without its source.

    A device that only this source has measured gets what its generation and its backend
    make likely.
    """
    estimates = [0.0] * len(runs)
    of_all = fit(runs)
    for source in dict.fromkeys(run.source for run in runs):
        others = [run for run in runs if run.source != source]
        constants = fit(others, of_all, _MORE_ROUNDS)
        for i, run in enumerate(runs):
            if run.source == source:
                known = _with_device(constants, run.device, _OF_PASSES)
                estimates[i] = predict_ms(run, known)
    return estimates


def _with_device(
    constants: Constants, device: MeasuredDevice, names: Collection[str]
) -> Constants:
    known = dict(constants)
    for constant in names:
        value, _ = _TYPICAL[constant]
        name = ConstantNames.of(constant, device)
        common = constants.get(name.maker, value)
        generation = constants.get(name.generation, common)
        backend = constants.get(name.backend, common)
        known.setdefault(name.device, generation * backend / common)
    return known


# --- Rounds of an MTP layer


_BEFORE_ADA = ("Pascal", "Volta", "Turing", "Ampere", "Ampere server", "mining")


def classify_for_rounds(device: MeasuredDevice) -> MeasuredDevice:
    """The device among those whose further tokens cost alike.

    NVIDIA's GPUs before Ada compute few products of 8 bits for their bandwidth: an RTX
    3090 71 tera-operations a second for 936 GB/s, an RTX 4090 165 for 1,008.
    """
    if device.maker == "nvidia" and device.generation in _BEFORE_ADA:
        return device._replace(maker="nvidia before Ada")
    return device


class TimedRound(NamedTuple):
    """A published gain: in a round, one pass verifies what an MTP layer has drafted.

    Its costs are in passes of one token.
    """

    source: str
    device: MeasuredDevice
    weight: float
    published: float  # What a round costs, by the gain and the tokens of a round.
    fixed: float  # What it costs if further tokens of a pass cost nothing.
    further: float  # What is added if each costs as much as the first.


def predict_round(run: TimedRound, constants: Constants) -> float:
    return run.fixed + constants[f"verify {run.device.name}"] * run.further


def fit_verify(rounds: Sequence[TimedRound]) -> dict[str, float]:
    """What a further token of a pass costs on each device, in passes of one token."""
    devices = {run.device for run in rounds}
    logs = _start_logs(_OF_ROUNDS, devices, None)
    for _ in range(_ROUNDS):
        equations = _Equations(logs)
        constants = _to_constants(logs)
        for run in rounds:
            cost = predict_round(run, constants)
            residual = float(np.log(cost / run.published))
            row = {f"verify {run.device.name}": (cost - run.fixed) / cost}
            equations.add(row, residual, deviation=_deviation(run.weight, residual))
        for constant in _OF_ROUNDS:
            equations.add_devices(constant, devices)
        logs = equations.solve()
    return _to_constants(logs)


def verify_without_source(rounds: Sequence[TimedRound]) -> list[float]:
    """The estimated cost of each round, by constants fitted without its source."""
    estimates = [0.0] * len(rounds)
    for source in dict.fromkeys(run.source for run in rounds):
        others = [run for run in rounds if run.source != source]
        constants = fit_verify(others)
        for i, run in enumerate(rounds):
            if run.source == source:
                known = _with_device(constants, run.device, _OF_ROUNDS)
                estimates[i] = predict_round(run, known)
    return estimates
