#!/usr/bin/env python3
"""Acceptance of each way of verifying, at several temperatures: figures that no clock touches.

    .venv/bin/python scripts/bench_verifiers.py [--target T.gguf --draft D.gguf] [--tokens 2000]

A fixed draft length, top-k 40, top-p 0.95, min-p off; heads of library modules as prompts.  Each
way gets the same prompts and as many tokens; the seeds differ, so its figures scatter by a
percent or so.  τ: tokens emitted per pass that verified a draft.
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
"""Tokens an answer."""


def measure(
    session: Session, mode: VerifyMode, args: argparse.Namespace, heat: float
) -> RoundTotals:
    """One way at one temperature over all prompts, again and again until enough was said."""
    totals = RoundTotals()
    seed = 0
    while totals.tokens < args.tokens:
        for prompt in prompts_of(None).values():
            seed += 1
            sampling = SamplingParams(temperature=heat, top_k=40, top_p=0.95, min_p=0.0, seed=seed)
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
    parser.add_argument("--tokens", type=int, default=4000, help="for each figure")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8, 1.0])
    parser.add_argument("--prompt-letters", type=int, default=600)
    args = parser.parse_args()
    settings = ContextSettings(n_ctx=1024, n_threads=1)
    session = Session(LoadCommand(str(args.target), str(args.draft), settings, settings))
    print(f"γ {args.gamma}, {args.tokens} tokens each, {args.target.name} + {args.draft.name}")
    print("| temperature | verify | kept | τ |\n|---|---|---|---|")
    for heat in args.temperature:
        for mode in MODES:
            totals = measure(session, mode, args, heat)
            kept, tau = totals.acceptance_rate or 0.0, totals.mean_accepted_length or 0.0
            print(f"| {heat} | {mode} | {kept:.3f} | {tau:.2f} |", flush=True)
    session.close()


if __name__ == "__main__":
    main()
