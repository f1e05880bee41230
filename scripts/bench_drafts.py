#!/usr/bin/env python3
"""Compare drafts of one target: draft model, EAGLE-3, DSpark, …, each as `auto` would use it.

    scripts/bench_drafts.py --target T.gguf --draft D.gguf --draft E.gguf --threads 1 --rounds 2

Every prompt is answered plain and with each draft, alone (`model`: the controller chooses how many
guesses) and with copying from the text beside it (`auto`), in turns, at temperature 0, through the
Python API.  A speed-up is taken within a turn.  Answers whose 4-grams repeat (under half of them
distinct) are named apart: there copying wins whatever the draft.  Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Literal

from bench_peers import table
from prompts import prompts_of

from localspec import LLM
from localspec.bench.metrics import distinct_4grams

REPEATS = 0.5
"""Of an answer's 4-grams, the share that is distinct, under which it repeats itself."""


@dataclass(frozen=True, slots=True)
class Way:
    """What answers, and what it may guess with."""

    name: str
    llm: LLM
    spec: Literal["off", "model", "auto"]


@dataclass(frozen=True, slots=True)
class Run:
    prompt: str
    way: str
    speed: float
    """Tokens a second after the first."""
    text: str
    kept: float | None
    """Of the guesses."""
    distinct: float


def measure(
    ways: Sequence[Way], prompts: dict[str, str], rounds: int, tokens: int
) -> Iterator[Run]:
    """Every way with every prompt, in turns, the order turning each time."""
    for turn in range(rounds):
        for prompt, text in prompts.items():
            for way in ways[:: -1 if turn % 2 else 1]:
                yield run(way, prompt, text, tokens)


def run(way: Way, prompt: str, text: str, tokens: int) -> Run:
    said = way.llm.generate(text, raw=True, temperature=0, max_tokens=tokens, spec=way.spec)
    speed = said.timings["tokens_per_second"] or 0.0
    ids = [token.id for token in said.tokens]
    kept = said.speculation["acceptance_rate"]
    return Run(prompt, way.name, speed, said.text, kept, distinct_4grams(ids) or 1.0)


def report(runs: Sequence[Run], *, markdown: bool) -> str:
    """One row a way: speed-ups over plain, by answers that do not repeat themselves and all."""
    every = sorted({r.prompt for r in runs})
    fresh = [p for p in every if all(r.distinct >= REPEATS for r in runs if r.prompt == p)]
    rows = [["", "guesses kept", f"speed-up ({len(fresh)} answers)", f"all {len(every)}"]]
    for way in dict.fromkeys(r.way for r in runs):
        rates = [r.kept for r in runs if r.way == way and r.kept is not None]
        kept = f"{sum(rates) / len(rates):.2f}" if rates else ""
        rows.append([way, kept, _gain(runs, way, fresh), _gain(runs, way, every)])
    same = all(len({r.text for r in runs if r.prompt == p}) == 1 for p in every)
    return table(rows, markdown=markdown) + f"\n\ntexts {'all the same' if same else 'DIFFER'}"


def _gain(runs: Sequence[Run], way: str, prompts: Sequence[str]) -> str:
    """The geometric mean over prompts of the median of ratios within a turn."""
    gains = []
    for prompt in prompts:
        ours, plain = (
            [r.speed for r in runs if r.prompt == prompt and r.way == w] for w in (way, "plain")
        )
        gains.append(median(a / b for a, b in zip(ours, plain, strict=True)))
    return f"{geometric_mean(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})" if gains else ""


def ways_of(llms: dict[str, LLM]) -> list[Way]:
    ways = [Way("plain", next(iter(llms.values())), "off")]
    for name, llm in llms.items():
        ways += [Way(name, llm, "model"), Way(f"{name} + copying", llm, "auto")]
    return ways


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, metavar="GGUF")
    parser.add_argument("--draft", required=True, action="append", metavar="GGUF")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    parser.add_argument("--tokens", type=int, default=64, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    runs = list[Run]()
    with ExitStack() as open_:
        llms = {
            Path(draft).stem: open_.enter_context(
                LLM(args.target, draft, ctx=1024, threads=args.threads, draft_threads=args.threads)
            )
            for draft in args.draft
        }
        for done in measure(ways_of(llms), prompts_of(args.prompts), args.rounds, args.tokens):
            runs.append(done)
            print(f"{done.prompt} {done.way}: {done.speed:.2f} tok/s", file=sys.stderr, flush=True)
    print(report(runs, markdown=args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
