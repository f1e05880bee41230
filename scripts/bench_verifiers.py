#!/usr/bin/env python3
"""Acceptance rate of each verification method at several temperatures; nothing is timed.

    .venv/bin/python scripts/bench_verifiers.py [--target T.gguf --draft D.gguf] [--tokens 2000]

A fixed draft length, top-k 40, top-p 0.95, min-p off; beginnings of library modules as prompts.
Each method gets the same prompts and number of tokens; the seeds differ, so results vary by about
one percent. τ: tokens per pass that verified a draft.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from prompts import prompts_of

from localspec import paths
from localspec.engine.session import Session
from localspec.protocol.events import Round
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
PART = 200
"""Tokens per answer."""


def measure(
    session: Session, mode: VerifyMode, args: argparse.Namespace, temperature: float
) -> RoundTotals:
    """One method at one temperature: repeats all prompts until there are enough tokens."""
    totals = RoundTotals()
    seed = 0
    while totals.tokens < args.tokens:
        for prompt in prompts_of(None).values():
            seed += 1
            sampling = SamplingParams(
                temperature=temperature, top_k=40, top_p=0.95, min_p=0.0, seed=seed
            )
            request = GenerateCommand(
                prompt[: args.prompt_letters],
                sampling,
                PART,
                verify=mode,
                spec="model",
                draft_length=args.gamma,
            )
            for event in session.generate(request):
                if isinstance(event, Round):
                    totals.add(event)
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, default=DEMO / "demo-target.gguf")
    parser.add_argument("--draft", type=Path, default=DEMO / "demo-draft.gguf")
    parser.add_argument("--tokens", type=int, default=4000, help="for each result")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8, 1.0])
    parser.add_argument("--prompt-letters", type=int, default=600)
    args = parser.parse_args()
    settings = ContextSettings(n_ctx=1024, n_threads=1)
    session = Session(LoadCommand(str(args.target), str(args.draft), settings, settings))
    print(f"γ {args.gamma}, {args.tokens} tokens each, {args.target.name} + {args.draft.name}")
    print("| temperature | verify | acceptance rate | τ |\n|---|---|---|---|")
    for temperature in args.temperature:
        for mode in MODES:
            totals = measure(session, mode, args, temperature)
            rate, tau = totals.acceptance_rate or 0.0, totals.mean_accepted_length or 0.0
            print(f"| {temperature} | {mode} | {rate:.3f} | {tau:.2f} |", flush=True)
    session.close()


if __name__ == "__main__":
    main()
