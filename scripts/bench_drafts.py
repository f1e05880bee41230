#!/usr/bin/env python3
"""What each draft reaches with a target, by `pair test`'s judgement and when it is run.

    scripts/bench_drafts.py --target MODEL.gguf --draft D.gguf … [--length 3] [--temperature 0 0.8]

The workloads of `localspec bench`, or prompts of a file, are answered plainly, then with each draft
(`--spec model`, or `lookup`), always with the same seeds. Acceptance is accepted / drafted tokens;
it does not depend on what else runs, the tokens per second after the first do. The last line says
whether the two orders of the drafts by speed are the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import eq
from pathlib import Path

from localspec.bench import draft_test, workloads
from localspec.bench.draft_test import DraftRates
from localspec.engine_process.client import EngineProcess
from localspec.protocol.events import EngineExit, GenerationFinished, Round
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
    ScoreDraftCommand,
)


@dataclass
class RunCounts:
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    tokens: int = 0
    seconds: float = 0.0
    answers: list[list[int]] = field(default_factory=list)
    """Their token ids."""

    def add(self, engine: EngineProcess, request: GenerateCommand) -> None:
        ids: list[int] = []
        for event in engine.generate(request):
            if isinstance(event, Round):
                ids += [token.id for token in event.tokens]
            if isinstance(event, EngineExit):
                raise SystemExit(f"the engine exited: {event.how}")
            if isinstance(event, GenerationFinished):
                totals, speculation = event.totals, event.totals["speculation"]
        self.answers.append(ids)
        self.drafted += speculation["drafted"]
        self.accepted += speculation["accepted"]
        self.rounds += speculation["rounds"]
        later = totals["tokens"] - 1
        self.tokens += later
        self.seconds += later / (totals["timings"]["tokens_per_second"] or 1e9)


@dataclass(frozen=True)
class Found:
    draft: str
    kind: str
    judged: DraftRates
    run: RunCounts
    plain: RunCounts

    def row(self, temperature: float) -> str:
        judged, run = self.judged, self.run
        plain = self.plain.tokens / self.plain.seconds
        cells = (
            f"{self.draft} ({self.kind})",
            f"{temperature:g}",
            f"{judged.totals.acceptance_rate or 0:.3f}",
            f"{run.accepted / max(1, run.drafted):.3f}",
            f"{judged.totals.mean_accepted_length or 0:.2f}",
            f"{1 + run.accepted / max(1, run.rounds):.2f}",
            f"{judged.tokens_per_second:.1f}",
            f"{run.tokens / run.seconds:.1f} ({run.tokens / run.seconds / plain:.2f} ×)",
            f"{sum(map(eq, run.answers, self.plain.answers))} of {len(run.answers)}",
        )
        return f"| {' | '.join(cells)} |"


def load(target: Path, draft: Path | None, threads: int | None) -> EngineProcess:
    settings = ContextSettings(n_ctx=2048, n_threads=threads)
    engine = EngineProcess()
    path = str(draft.resolve()) if draft else None
    engine.load(LoadCommand(str(target.resolve()), path, settings, settings))
    return engine


def make_requests(
    engine: EngineProcess, args: argparse.Namespace, t: float
) -> list[GenerateCommand]:
    prompts = [prompt for workload in workloads.load(args.workload) for prompt in workload.prompts]
    if args.file is not None:
        prompts = args.file.read_text("utf-8").splitlines()
    is_chat = engine.ready.settings["chat"]["template"] is not None
    return [
        GenerateCommand(
            text="" if is_chat else prompt,
            messages=(ChatMessage("user", prompt),) if is_chat else (),
            sampling=SamplingParams(temperature=t, seed=number),
            max_tokens=args.tokens,
            spec="off",
        )
        for number, prompt in enumerate(prompts)
    ]


def judge_and_run(
    args: argparse.Namespace, draft: str, answers: Sequence[ScoreDraftCommand], plain: RunCounts
) -> Found:
    is_lookup = draft == "lookup"
    engine = load(args.target, None if is_lookup else Path(draft), args.threads)
    try:
        kind = "lookup" if is_lookup else engine.ready.settings["draft_kind"]
        commands = [replace(one, drafter="lookup" if is_lookup else "model") for one in answers]
        scored = [(command, engine.score_draft(command)) for command in commands]
        for _ in engine.probe(ProbeCommand()):
            pass
        assert engine.measured is not None
        judged = draft_test.judge(draft, kind, scored, engine.measured).by_length[args.length]
        run = RunCounts()
        for answer in answers:
            spec = "lookup" if is_lookup else "model"
            run.add(engine, replace(answer.request, spec=spec, draft_length=args.length))
        return Found(Path(draft).stem, kind, judged, run, plain)
    finally:
        engine.close()


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", action="append", required=True, help="a GGUF file, or lookup")
    parser.add_argument("--length", type=int, default=3, help="draft tokens of a round")
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--workload", action="append", default=[])
    parser.add_argument("--file", type=Path, help="prompts to answer instead, one a line")
    parser.add_argument("--tokens", type=int, default=48, help="of an answer, at most")
    parser.add_argument("--threads", type=int, help="localspec's choice by default")
    return parser.parse_args()


def main() -> int:
    args = options()
    titles = (
        "draft | T | accepted, judged | run | a round, judged | run | tok/s, judged | run | same"
    )
    print(f"| {titles} |", "|---" * 9 + "|", sep="\n")
    for temperature in args.temperature:
        plain = RunCounts()
        engine = load(args.target, None, args.threads)
        requests = make_requests(engine, args, temperature)
        answers = list(draft_test.record_answers(engine, requests, sys.maxsize))
        for request in requests:
            plain.add(engine, request)
        engine.close()
        found = []
        for draft in args.draft:
            found.append(judge_and_run(args, draft, answers, plain))
            print(found[-1].row(temperature), flush=True)
        judged = [one.draft for one in sorted(found, key=lambda f: -f.judged.tokens_per_second)]
        run = [one.draft for one in sorted(found, key=lambda f: f.run.seconds / f.run.tokens)]
        print(f"\nThe same order by speed: {'yes' if judged == run else f'no: {judged}, {run}'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
