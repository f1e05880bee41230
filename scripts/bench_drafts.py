#!/usr/bin/env python3
"""Compare drafts for one target: draft model, EAGLE-3, DSpark, …, each as `auto` would use it.

    scripts/bench_drafts.py --target T.gguf --draft D.gguf --draft E.gguf --threads 1 --rounds 2

Every prompt is answered plain and with each draft, alone (`model`: the controller chooses the draft
length) and together with prompt lookup (`auto`), alternating, at temperature 0, through the Python
API. Speed-ups are computed within a turn. Repetitive answers (under half of the 4-grams distinct)
are reported separately: there prompt lookup wins with any draft. Let nothing else run meanwhile.
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

MIN_DISTINCT = 0.5
"""Below this share of distinct 4-grams an answer is repetitive."""


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    llm: LLM
    spec: Literal["off", "model", "auto"]


@dataclass(frozen=True, slots=True)
class Run:
    prompt: str
    variant: str
    speed: float
    """Tokens per second after the first token."""
    text: str
    acceptance_rate: float | None
    distinct: float


def measure(
    variants: Sequence[Variant], prompts: dict[str, str], rounds: int, tokens: int
) -> Iterator[Run]:
    """Every variant with every prompt; the order is reversed in every second round."""
    for turn in range(rounds):
        for prompt, text in prompts.items():
            for variant in variants[:: -1 if turn % 2 else 1]:
                yield run(variant, prompt, text, tokens)


def run(variant: Variant, prompt: str, text: str, tokens: int) -> Run:
    answer = variant.llm.generate(
        text, raw=True, temperature=0, max_tokens=tokens, spec=variant.spec
    )
    speed = answer.timings["tokens_per_second"] or 0.0
    ids = [token.id for token in answer.tokens]
    rate = answer.speculation["acceptance_rate"]
    return Run(prompt, variant.name, speed, answer.text, rate, distinct_4grams(ids) or 1.0)


def report(runs: Sequence[Run], *, markdown: bool) -> str:
    """One row per variant: speed-ups over plain, for non-repetitive answers and for all."""
    every = sorted({r.prompt for r in runs})
    fresh = [p for p in every if all(r.distinct >= MIN_DISTINCT for r in runs if r.prompt == p)]
    rows = [["", "acceptance rate", f"speed-up ({len(fresh)} answers)", f"all {len(every)}"]]
    for variant in dict.fromkeys(r.variant for r in runs):
        own = [r for r in runs if r.variant == variant]
        rates = [r.acceptance_rate for r in own if r.acceptance_rate is not None]
        mean = f"{sum(rates) / len(rates):.2f}" if rates else ""
        rows.append([variant, mean, _gain(runs, variant, fresh), _gain(runs, variant, every)])
    same = all(len({r.text for r in runs if r.prompt == p}) == 1 for p in every)
    return table(rows, markdown=markdown) + f"\n\ntexts {'all the same' if same else 'DIFFER'}"


def _gain(runs: Sequence[Run], variant: str, prompts: Sequence[str]) -> str:
    """The geometric mean over prompts of the median of ratios within a turn."""
    gains = []
    for prompt in prompts:
        ours, plain = (
            [r.speed for r in runs if r.prompt == prompt and r.variant == w]
            for w in (variant, "plain")
        )
        gains.append(median(a / b for a, b in zip(ours, plain, strict=True)))
    return f"{geometric_mean(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})" if gains else ""


def variants_of(llms: dict[str, LLM]) -> list[Variant]:
    variants = [Variant("plain", next(iter(llms.values())), "off")]
    for name, llm in llms.items():
        variants += [Variant(name, llm, "model"), Variant(f"{name} + lookup", llm, "auto")]
    return variants


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
        for done in measure(variants_of(llms), prompts_of(args.prompts), args.rounds, args.tokens):
            runs.append(done)
            print(
                f"{done.prompt} {done.variant}: {done.speed:.2f} tok/s", file=sys.stderr, flush=True
            )
    print(report(runs, markdown=args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
