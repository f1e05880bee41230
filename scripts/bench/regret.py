"""What `auto` wins or loses in one-shot answers, apart from the noise of the clock.

    bench.py regret --target T.gguf --draft D.gguf [--prompts FILE] [--rounds N]

The decisions are those of real answers: one process each, which learns from those before; every
answer has a seed of its own. A target pass is then charged the median of all passes of its width,
in one-token passes of its answer, and a draft what it took. 0.97 is an answer that lost 3 %.
Not in it: planning a round, which takes the host 0.1 ms that plain decoding does not need.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from programs import Case, Settings, call, localspec_command
from prompts import prompts_of, workload_prompts
from turns import table

from localspec.protocol import events

GOAL = 0.97


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    add("--draft", required=True, metavar="GGUF")
    add("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    add("--rounds", type=int, default=3, metavar="N", help="turns")
    add("--tokens", type=int, default=96, metavar="N")
    add("--ctx", type=int, default=1024, metavar="N")
    add("--temperature", type=float, default=0.8, metavar="T")


def main(args: argparse.Namespace) -> None:
    texts = prompts_of(args.prompts) if args.prompts else workload_prompts([])
    answers = []
    with tempfile.TemporaryDirectory() as data_dir:
        settings = Settings(args.target, None, "", args.tokens, args.ctx, data_dir=data_dir)
        for seed in range(args.rounds * len(texts)):
            text = list(texts.values())[seed % len(texts)]
            case = Case("", text, args.temperature, seed)
            answers.append(rounds_of(settings, case, args.draft))
            print(f"answer {seed + 1}: {len(answers[-1])} rounds", file=sys.stderr)
    ratios = speedups(answers)
    turns = [ratios[i : i + len(texts)] for i in range(0, len(ratios), len(texts))]
    print(table(list(report(list(texts), turns))))


def rounds_of(settings: Settings, case: Case, draft: str) -> list[events.Round]:
    """The rounds of an answer without its first, which reads the prompt. Raises BenchError."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = localspec_command(settings, case, ("--draft", draft, "--events", file.name))
        call(settings, command)
        found = map(events.decode, Path(file.name).read_text(encoding="utf-8").splitlines())
        return [event for event in found if isinstance(event, events.Round)][1:]


def target_ms(done: events.Round) -> float:
    return done.ms.verify + done.ms.host


def speedups(answers: Sequence[Sequence[events.Round]]) -> list[float]:
    """Of each answer: tokens per one-token pass."""
    plain = [[target_ms(r) for r in rounds if not r.drafted] for rounds in answers]
    usual_ms = median(ms for times in plain for ms in times)
    units = [median(times) if times else usual_ms for times in plain]
    by_length = defaultdict[int, list[float]](list)
    for rounds, unit in zip(answers, units, strict=True):
        for r in rounds:
            by_length[r.drafted].append(target_ms(r) / unit)
    price = {length: median(costs) for length, costs in by_length.items()} | {0: 1.0}
    return [
        sum(len(r.tokens) for r in rounds)
        / sum(price[r.drafted] + r.ms.draft / unit for r in rounds)
        for rounds, unit in zip(answers, units, strict=True)
    ]


def report(names: Sequence[str], turns: Sequence[Sequence[float]]) -> Iterator[list[str]]:
    """A row for each prompt, a column for each turn."""
    yield ["prompt", *(f"turn {n}" for n in range(1, len(turns) + 1))]
    for name, row in zip(names, zip(*turns, strict=True), strict=True):
        yield [name, *(f"{ratio:.3f}" for ratio in row)]
    yield ["mean", *(f"{fmean(turn):.3f}" for turn in turns)]
    yield ["worst", *(f"{min(turn):.3f}" for turn in turns)]
    yield [f"below {GOAL}", *(str(sum(ratio < GOAL for ratio in turn)) for turn in turns)]
