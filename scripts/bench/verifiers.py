"""Acceptance rate of each verification method at several temperatures; nothing is timed.

    bench.py verifiers [--target T.gguf --draft D.gguf] [--tokens 2000]

A fixed draft length, top-k 40, top-p 0.95, min-p off; beginnings of library modules as prompts.
Each method gets the same prompts and number of tokens; the seeds differ, so results vary by about
one percent. τ: tokens per pass that verified a draft.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from programs import generate_answer
from prompts import prompts_of
from turns import table

from localspec import paths
from localspec.engine.session import Session
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
    VerifyMode,
)

MODES: tuple[VerifyMode, ...] = ("match", "coupled", "rejection", "block")
DEMO = paths.package_data_dir() / "demo"
ANSWER_TOKENS = 200


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=Path, default=DEMO / "demo-target.gguf")
    add("--draft", type=Path, default=DEMO / "demo-draft.gguf")
    add("--tokens", type=int, default=4000, help="for each result")
    add("--gamma", type=int, default=4)
    add("--temperature", type=float, nargs="+", default=[0.8, 1.0])
    add("--prompt-letters", type=int, default=600)


def main(args: argparse.Namespace) -> None:
    settings = ContextSettings(n_ctx=1024, n_threads=1)
    session = Session(LoadCommand(str(args.target), str(args.draft), settings, settings))
    rows = [("temperature", "verify", "acceptance rate", "τ")]
    for temperature, mode in itertools.product(args.temperature, MODES):
        totals = measure(session, mode, args, temperature)
        rate, tau = totals.acceptance_rate or 0.0, totals.mean_accepted_length or 0.0
        rows.append((str(temperature), mode, f"{rate:.3f}", f"{tau:.2f}"))
    session.close()
    print(f"γ {args.gamma}, {args.tokens} tokens each, {args.target.name} + {args.draft.name}")
    print(table(rows))


def measure(
    session: Session, mode: VerifyMode, args: argparse.Namespace, temperature: float
) -> RoundTotals:
    """Repeats all prompts until there are enough tokens."""
    totals = RoundTotals()
    for seed, prompt in enumerate(itertools.cycle(prompts_of(None).values()), 1):
        sampling = SamplingParams(
            temperature=temperature, top_k=40, top_p=0.95, min_p=0.0, seed=seed
        )
        request = GenerateCommand(
            prompt[: args.prompt_letters],
            sampling,
            ANSWER_TOKENS,
            verify=mode,
            spec="model",
            draft_length=args.gamma,
        )
        for done in generate_answer(session, request).rounds:
            totals.add(done)
        if totals.tokens >= args.tokens:
            break
    return totals
