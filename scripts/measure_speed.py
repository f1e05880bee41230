#!/usr/bin/env python3
"""Accuracy of the speed estimate: calibrated on two pairs, the third predicted.

    .venv/bin/python scripts/measure_speed.py OUT_DIR [--type Q8_0] [--threads 1] [--quick]

Three bench pairs (scripts/make_bench_pair.py) are created in OUT_DIR unless they exist. Each is
probed as at its first use, then answers prompts plain and with fixed draft lengths, alternating, at
temperature 0. Then each pair is predicted from the other two: its tokens per second, and its
speed-up with the acceptance rates of the others' answers. Rounds that read the prompt do not count.
The default draft lengths are those whose passes the probe measures: between them, a CPU's verify
curve has steps (Q8_0: from 4 rows to 5) that interpolation misses. Let nothing else run meanwhile.
Exit code 1: a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

os.environ["GGML_NO_BACKTRACE"] = "1"

from gguf import GGMLQuantizationType as Kind
from growth import Shape
from make_bench_pair import DEMO, SIZES, TOLERANCE, Pair, make_pair
from prompts import prompts_of

from localspec.bench import results
from localspec.engine_process.client import EngineProcess
from localspec.fit import calibration, speedup_model
from localspec.fit.shape import ModelShape, from_headers
from localspec.fit.speed import SpeedEstimate, UseCase, estimate_speed, from_devices
from localspec.machine.measurements import PairMeasurement
from localspec.models.gguf import reader
from localspec.protocol.events import EngineExit, Round
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    ContextSettings,
    CountCommand,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    SamplingParams,
)

SHAPES = {
    "small": Pair(Shape(768, 12, 12, 4, 3072), Shape(512, 3, 8, 4, 1536)),
    "middle": Pair(Shape(1024, 22, 16, 4, 4096), Shape(768, 3, 12, 4, 3072)),
    "large": SIZES["1b"],
}
MAX_ERROR = 0.15
CONTEXT = 1024


@dataclass
class Answers:
    """All answers with one draft length; 0: plain."""

    rounds: list[Round] = field(default_factory=list)

    def add(self, rounds: list[Round]) -> None:
        """Skips two rounds: the target reads the prompt in the first, the draft in the second."""
        self.rounds += rounds[2:]

    @property
    def ms(self) -> float:
        """Per token."""
        took = sum(one.ms.total for one in self.rounds)
        return took / sum(len(one.tokens) for one in self.rounds)


@dataclass
class Trial:
    """One pair and its measurements."""

    name: str
    load: LoadCommand
    shapes: tuple[ModelShape, ModelShape | None]
    measured: MeasuredCosts
    answers: dict[int, Answers]
    context: int

    @property
    def shown(self) -> PairMeasurement:
        here = from_devices([])
        about = calibration.summarize_reads(self.load, *self.shapes, here)
        return PairMeasurement(self.name, self.measured, about, None)

    def speedup(self, gamma: int) -> float:
        return self.answers[0].ms / self.answers[gamma].ms


@dataclass(frozen=True)
class Prediction:
    """A predicted value and the measured one."""

    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


# --- measuring --------------------------------------------------------------------------


def files(out: Path, name: str, kind: str) -> tuple[Path, Path]:
    """The pair's files; creates them if needed."""
    stem = f"{out}/speed-{name}-{kind}"
    target, draft = Path(f"{stem}-target.gguf"), Path(f"{stem}-draft.gguf")
    if not (target.exists() and draft.exists()):
        for made in make_pair(stem, SHAPES[name], Kind[kind], DEMO, hopeless=False):
            print(made.report(TOLERANCE[kind]), file=sys.stderr)
    return target, draft


def trial(name: str, args: argparse.Namespace) -> Trial:
    target, draft = files(args.out, name, args.type)
    settings = ContextSettings(n_ctx=CONTEXT, n_threads=args.threads)
    load = LoadCommand(str(target), str(draft), settings, settings)
    worker = EngineProcess()
    try:
        worker.load(load)
        for _ in worker.probe(ProbeCommand(seconds=2.0 if args.quick else 6.0)):
            pass
        assert worker.measured is not None
        measured = replace(worker.measured, other_load=0.0)
        answers = {gamma: Answers() for gamma in (0, *args.gamma)}
        lengths = []
        for prompt in list(prompts_of(None).values())[: args.prompts]:
            text = prompt[: args.letters]
            lengths.append(worker.count(CountCommand(text)))
            for gamma, kept in answers.items():
                kept.add(list(answer(worker, text, gamma, args.tokens)))
    finally:
        worker.close()
    context = round(fmean(lengths)) + args.tokens // 2
    shapes = from_headers(reader.read(target), reader.read(draft))
    return Trial(name, load, shapes, measured, answers, context)


def answer(worker: EngineProcess, text: str, gamma: int, tokens: int) -> Iterator[Round]:
    spec = "model" if gamma else "off"
    sampling = SamplingParams(temperature=0.0)
    asked = GenerateCommand(text, sampling, tokens, spec=spec, draft_length=gamma or None)
    for event in worker.generate(asked):
        if isinstance(event, EngineExit):
            raise SystemExit(f"the engine exited: {event.how}")
        if isinstance(event, Round):
            yield event


# --- predicting -------------------------------------------------------------------------


def predict(one: Trial, others: Sequence[Trial], threads: int) -> list[Prediction]:
    """Predicts one pair from the measurements of the others."""
    learnt = calibration.calibrate(from_devices([]), [other.shown for other in others], threads)
    use = UseCase("code", temperature=0.0, context=one.context)
    predicted = estimate_speed(one.load, *one.shapes, learnt, use)
    if predicted.t1_ms is None:
        raise SystemExit(predicted.explanation)
    plain = one.answers[0].ms
    empty = estimate_speed(one.load, *one.shapes, learnt, replace(use, context=0))
    assert empty.t1_ms is not None
    found = [
        Prediction("a pass with an empty context, ms", empty.t1_ms, one.measured.t1_ms),
        Prediction("plain, tok/s", 1e3 / predicted.t1_ms, 1e3 / plain),
    ]
    assert one.measured.c is not None
    assert predicted.costs is not None
    found.append(Prediction("a draft pass, c", predicted.costs.c, one.measured.c))
    for gamma in one.answers:
        if gamma:
            found.append(
                Prediction(f"speed-up, γ {gamma}", *_gained(predicted, one, others, gamma))
            )
    return found


def _gained(
    predicted: SpeedEstimate, one: Trial, others: Sequence[Trial], gamma: int
) -> tuple[float, float]:
    rounds = [event for other in others for event in other.answers[gamma].rounds]
    acceptance = results.cumulative_acceptance(RoundTotals.of(rounds).by_position)
    assert predicted.costs is not None
    return speedup_model.expected_speedup(predicted.costs, acceptance, gamma), one.speedup(gamma)


def report(trials: Sequence[Trial], threads: int) -> bool:
    """Prints a table; returns True if all errors are within the limit."""
    good = True
    print("| pair, read per token | predicted from | value | predicted | measured | error |")
    print("|---|---|---|---|---|---|")
    for one in trials:
        others = [other for other in trials if other is not one]
        about = one.shown.reads
        assert about is not None
        assert about.draft is not None
        pair = f"{about.target.read / 1e6:.0f} + {about.draft.read / 1e6:.0f} MB"
        names = ", ".join(other.name for other in others)
        for prediction in predict(one, others, threads):
            counts = prediction.what.startswith(("plain", "speed-up"))
            good &= abs(prediction.error) <= MAX_ERROR or not counts
            row = (f"{one.name}: {pair}", names, prediction.what)
            figures = (
                f"{prediction.predicted:.3g} | {prediction.measured:.3g} | {prediction.error:+.1%}"
            )
            print(f"| {' | '.join(row)} | {figures} |", flush=True)
    return good


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--type", choices=list(TOLERANCE), default="Q8_0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--tokens", type=int, default=96, help="per answer")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--letters", type=int, default=600, help="of a prompt")
    parser.add_argument("--quick", action="store_true", help="one prompt, 48 tokens, γ 3")
    args = parser.parse_args()
    if args.quick:
        args.prompts, args.tokens, args.gamma = 1, 48, [3]
    return args


def main() -> int:
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    trials = [trial(name, args) for name in SHAPES]
    print(
        f"{args.type}, {args.threads} thread(s), γ {args.gamma}, {args.tokens} tokens per answer\n"
    )
    good = report(trials, args.threads)
    print("\nwithin 15 %" if good else "\nNOT within 15 %")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
