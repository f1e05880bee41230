"""What each draft reaches with a target, by `pair test`'s judgement and when it is run.

    bench.py drafts --target MODEL.gguf --draft D.gguf … [--length 3] [--temperature 0 0.8]

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
from typing import Literal

from programs import generate_answer
from turns import table

from localspec.bench import draft_test, workloads
from localspec.bench.draft_test import DraftRates
from localspec.engine_process.client import EngineProcess
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
    ScoreDraftCommand,
)

COLUMNS = (
    *("draft", "T", "accepted, judged", "run", "a round, judged", "run", "tok/s, judged", "run"),
    "same",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", type=Path, required=True)
    add("--draft", action="append", required=True, help="a GGUF file, or lookup")
    add("--length", type=int, default=3, help="draft tokens of a round")
    add("--temperature", type=float, nargs="*", default=[0.0, 0.8])
    add("--workload", action="append", default=[])
    add("--file", type=Path, help="prompts to answer instead, one a line")
    add("--tokens", type=int, default=48, help="of an answer, at most")
    add("--threads", type=int, help="localspec's choice by default")


def main(args: argparse.Namespace) -> None:
    for temperature in args.temperature:
        engine = load(args, None)
        requests = make_requests(engine, args, temperature)
        answers = list(draft_test.record_answers(engine, requests, sys.maxsize))
        plain = RunCounts()
        for request in requests:
            plain.add(engine, request)
        engine.close()
        found = [judge_and_run(args, draft, answers) for draft in args.draft]
        rows = [draft.cells(temperature, plain) for draft in found]
        judged = [one.name for one in sorted(found, key=lambda f: -f.judged.tokens_per_second)]
        run = [one.name for one in sorted(found, key=lambda f: -f.run.speed)]
        print(table([COLUMNS, *rows]))
        print(f"\nThe same order by speed: {'yes' if judged == run else f'no: {judged}, {run}'}\n")


@dataclass
class RunCounts:
    totals: RoundTotals = field(default_factory=RoundTotals)
    tokens: int = 0  # Without the first of each answer.
    seconds: float = 0.0
    answers: list[Sequence[int]] = field(default_factory=list)  # Their token ids.

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds

    def add(self, engine: EngineProcess, request: GenerateCommand) -> None:
        answer = generate_answer(engine, request)
        for done in answer.rounds:
            self.totals.add(done)
        self.answers.append(answer.turn.tokens)
        n_later = answer.totals.tokens - 1
        self.tokens += n_later
        self.seconds += n_later / (answer.tokens_per_second or 1e9)


@dataclass(frozen=True)
class JudgedDraft:
    name: str
    judged: DraftRates
    run: RunCounts

    def cells(self, temperature: float, plain: RunCounts) -> tuple[str, ...]:
        judged, run, totals = self.judged, self.run, self.run.totals
        return (
            self.name,
            f"{temperature:g}",
            f"{judged.totals.acceptance_rate or 0:.3f}",
            f"{totals.acceptance_rate or 0:.3f}",
            f"{judged.totals.mean_accepted_length or 0:.2f}",
            f"{1 + totals.accepted / max(1, totals.rounds):.2f}",
            f"{judged.tokens_per_second:.1f}",
            f"{run.speed:.1f} ({run.speed / plain.speed:.2f} ×)",
            f"{sum(map(eq, run.answers, plain.answers))} of {len(run.answers)}",
        )


def load(args: argparse.Namespace, draft: Path | None) -> EngineProcess:
    settings = ContextSettings(n_ctx=2048, n_threads=args.threads)
    engine = EngineProcess()
    path = str(draft.resolve()) if draft else None
    engine.load(LoadCommand(str(args.target.resolve()), path, settings, settings))
    return engine


def make_requests(
    engine: EngineProcess, args: argparse.Namespace, temperature: float
) -> list[GenerateCommand]:
    prompts = [prompt for workload in workloads.load(args.workload) for prompt in workload.prompts]
    if args.file is not None:
        prompts = args.file.read_text("utf-8").splitlines()
    is_chat = engine.ready.settings["chat"]["template"] is not None
    return [
        GenerateCommand(
            text="" if is_chat else prompt,
            messages=(ChatMessage("user", prompt),) if is_chat else (),
            sampling=SamplingParams(temperature=temperature, seed=number),
            max_tokens=args.tokens,
            spec="off",
        )
        for number, prompt in enumerate(prompts)
    ]


def judge_and_run(
    args: argparse.Namespace, draft: str, answers: Sequence[ScoreDraftCommand]
) -> JudgedDraft:
    is_lookup = draft == "lookup"
    spec: Literal["model", "lookup"] = "lookup" if is_lookup else "model"
    engine = load(args, None if is_lookup else Path(draft))
    try:
        kind = "lookup" if is_lookup else engine.ready.settings["draft_kind"]
        commands = [replace(answer, drafter=spec) for answer in answers]
        scored = [(command, engine.score_draft(command)) for command in commands]
        for _ in engine.probe(ProbeCommand()):
            pass
        assert engine.measured is not None
        judged = draft_test.judge(draft, kind, scored, engine.measured).by_length[args.length]
        run = RunCounts()
        for answer in answers:
            run.add(engine, replace(answer.request, spec=spec, draft_length=args.length))
        return JudgedDraft(f"{Path(draft).stem} ({kind})", judged, run)
    finally:
        engine.close()
