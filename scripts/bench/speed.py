"""Accuracy of the speed estimate: calibrated on two pairs, the third predicted.

    bench.py speed OUT_DIR [--type Q8_0] [--threads 1] [--quick]

Three bench pairs (bench.py pair) are created in OUT_DIR unless they exist. Each is
probed as at its first use, then answers prompts plain and with fixed draft lengths, alternating, at
temperature 0. Then each pair is predicted from the other two: its tokens per second, and its
speed-up with the acceptance rates of the others' answers. Rounds that read the prompt do not count.
The default draft lengths are those whose passes the probe measures: between them, a CPU's verify
curve has steps (Q8_0: from 4 rows to 5) that interpolation misses.
Exit code 1: a prediction is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from gguf import GGMLQuantizationType as Kind
from growth import Shape
from pair import DEMO, SIZES, TOLERANCE, PairShapes, make_pair
from programs import BenchError, generate_answer
from prompts import prompts_of
from turns import table

from localspec.bench import results
from localspec.engine_process.client import EngineProcess
from localspec.fit import calibration, speedup_model
from localspec.fit.shape import ModelShape, from_headers
from localspec.fit.speed import UseCase, estimate_speed, from_devices
from localspec.machine.measurements import PairMeasurement
from localspec.models.gguf import reader
from localspec.protocol.events import Round
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
    "small": PairShapes(Shape(768, 12, 12, 4, 3072), Shape(512, 3, 8, 4, 1536)),
    "middle": PairShapes(Shape(1024, 22, 16, 4, 4096), Shape(768, 3, 12, 4, 3072)),
    "large": SIZES["1b"],
}
MAX_ERROR = 0.15
CONTEXT = 1024


@dataclass
class Trial:
    """One pair and its measurements."""

    name: str
    load: LoadCommand
    shapes: tuple[ModelShape, ModelShape | None]
    measured: MeasuredCosts
    rounds: dict[int, list[Round]]  # By draft length; 0: plain.
    context: int

    @property
    def shown(self) -> PairMeasurement:
        here = from_devices([])
        about = calibration.summarize_reads(self.load, *self.shapes, here)
        return PairMeasurement(self.name, self.measured, about, None)

    def ms(self, gamma: int) -> float:
        """Per token."""
        took = sum(one.ms.total for one in self.rounds[gamma])
        return took / sum(len(one.tokens) for one in self.rounds[gamma])


# --- measuring --------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT_DIR")
    add("--type", choices=list(TOLERANCE), default="Q8_0")
    add("--threads", type=int, default=1)
    add("--gamma", type=int, nargs="+", default=[1, 3])
    add("--tokens", type=int, default=96, help="per answer")
    add("--prompts", type=int, default=3)
    add("--letters", type=int, default=600, help="of a prompt")
    add("--quick", action="store_true", help="one prompt, 48 tokens, γ 3")


def main(args: argparse.Namespace) -> int:
    if args.quick:
        args.prompts, args.tokens, args.gamma = 1, 48, [3]
    args.out.mkdir(parents=True, exist_ok=True)
    found = list(rows([trial(name, args) for name in SHAPES]))
    columns = ("pair, read per token", "predicted from", "value", "predicted", "measured", "error")
    print(f"{args.type}, {args.threads} threads, γ {args.gamma}, {args.tokens} tokens per answer")
    print(table([columns, *(row for row, _ in found)]))
    is_good = all(is_good for _, is_good in found)
    print("within 15 %" if is_good else "NOT within 15 %")
    return int(not is_good)


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
        rounds: dict[int, list[Round]] = {gamma: [] for gamma in (0, *args.gamma)}
        lengths = []
        for prompt in list(prompts_of(None).values())[: args.prompts]:
            text = prompt[: args.letters]
            lengths.append(worker.count(CountCommand(text)))
            for gamma in rounds:
                # In the first round the target reads the prompt, in the second the draft.
                request = GenerateCommand(text, SamplingParams(temperature=0.0), args.tokens)
                spec = "model" if gamma else "off"
                request = replace(request, spec=spec, draft_length=gamma or None)
                rounds[gamma] += generate_answer(worker, request).rounds[2:]
    finally:
        worker.close()
    context = round(fmean(lengths)) + args.tokens // 2
    shapes = from_headers(reader.read(target), reader.read(draft))
    return Trial(name, load, shapes, measured, rounds, context)


# --- predicting -------------------------------------------------------------------------


def predict(one: Trial, others: Sequence[Trial]) -> Iterator[tuple[str, float, float]]:
    """What is predicted of a pair from the measurements of the others, and what was measured."""
    shown = [other.shown for other in others]
    learnt = calibration.calibrate(from_devices([]), shown)
    use = UseCase("code", temperature=0.0, context=one.context)
    predicted = estimate_speed(one.load, *one.shapes, learnt, use)
    if predicted.t1_ms is None:
        raise BenchError(predicted.explanation)
    empty = estimate_speed(one.load, *one.shapes, learnt, replace(use, context=0))
    assert empty.t1_ms is not None
    assert one.measured.c is not None
    assert predicted.costs is not None
    yield "a pass with an empty context, ms", empty.t1_ms, one.measured.t1_ms
    yield "plain, tok/s", 1e3 / predicted.t1_ms, 1e3 / one.ms(0)
    yield "a draft pass, c", predicted.costs.c, one.measured.c
    for gamma in filter(None, one.rounds):
        rounds = [event for other in others for event in other.rounds[gamma]]
        acceptance = results.cumulative_acceptance(RoundTotals.of(rounds).by_position)
        speedup = speedup_model.expected_speedup(predicted.costs, acceptance, gamma)
        yield f"speed-up, γ {gamma}", speedup, one.ms(0) / one.ms(gamma)


def rows(trials: Sequence[Trial]) -> Iterator[tuple[Sequence[str], bool]]:
    """A row of the table, and whether its error is within the limit."""
    for one in trials:
        others = [other for other in trials if other is not one]
        reads = one.shown.reads
        assert reads is not None
        assert reads.draft is not None
        pair = f"{one.name}: {reads.target.read / 1e6:.0f} + {reads.draft.read / 1e6:.0f} MB"
        names = ", ".join(other.name for other in others)
        for what, predicted, measured in predict(one, others):
            error = predicted / measured - 1
            is_good = abs(error) <= MAX_ERROR or not what.startswith(("plain", "speed-up"))
            figures = (f"{predicted:.3g}", f"{measured:.3g}", f"{error:+.1%}")
            yield (pair, names, what, *figures), is_good
