#!/usr/bin/env python3
"""Compare the controller with fixed draft lengths, plain decoding and llama.cpp's program.

    .venv/bin/python scripts/bench_sweep.py --target T.gguf --draft D.gguf --hopeless H.gguf \\
        --speculative-simple build/bin/llama-speculative-simple --out sweep.jsonl

Every answer is a line of the file; existing lines are not run again, so an interrupted sweep can
be resumed. `--report` only prints the tables. The workloads are those of `localspec bench`. Let
nothing else run meanwhile.

Variants: `plain`; `auto`, the controller with draft model and prompt lookup; `model 3`, a fixed
draft length; `hopeless`, the controller with a draft that is almost always wrong; `copying`, the
controller with prompt lookup only; `llama.cpp` with its defaults and `llama.cpp 5` with another
draft length. Speeds are tokens per second of decoding, as in bench_peers.py: the time in which the
draft model reads the prompt is subtracted, because llama-speculative-simple does not count it;
`raw` includes it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from programs import BenchError, Case, Settings, speculative_simple
from sweep_tables import Answer, Found, report

from localspec.bench import metrics
from localspec.bench.workloads import load
from localspec.machine.llama_params import has_amx
from localspec.protocol.events import GenerationFinished, Round
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
)
from localspec.worker.engine_process import EngineProcess


@dataclass(frozen=True)
class Task:
    """A prompt for all variants."""

    workload: str
    prompt: int
    text: str
    temperature: float


class Sweep:
    """Runs the missing answers and appends them to the file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.answers: dict[tuple[str, int, float, str], Answer] = {}
        self.costs: list[dict[str, Any]] = []
        if args.out.exists():
            for line in args.out.read_text(encoding="utf-8").splitlines():
                self._take(json.loads(line))
        self._workers: dict[str, EngineProcess] = {}

    def _take(self, body: dict[str, Any]) -> None:
        if "costs" in body:
            self.costs.append(body["costs"])
            return
        body["ids"], body["survival"] = tuple(body["ids"]), tuple(map(tuple, body["survival"]))
        answer = Answer(**body)
        self.answers[answer.key] = answer

    def _keep(self, body: dict[str, Any]) -> None:
        with self.args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(body) + "\n")
        self._take(json.loads(json.dumps(body)))

    # --- running ------------------------------------------------------------------------

    def run(self) -> None:
        """Runs task after task, all variants of a task back to back."""
        for task in self._tasks():
            for way in self._ways(task):
                if (task.workload, task.prompt, task.temperature, way) in self.answers:
                    continue
                try:
                    answer = self._answer(task, way)
                except BenchError as error:
                    print(f"bench_sweep: {error}", file=sys.stderr)
                    continue
                self._keep(asdict(answer))
                name = f"{task.workload} {task.prompt}, T {task.temperature}, {way}"
                print(f"{name}: {answer.speed:.2f} tok/s", file=sys.stderr, flush=True)
        for worker in self._workers.values():
            worker.close()

    def _tasks(self) -> Iterator[Task]:
        for prompt in range(self.args.prompts):
            for temperature in self.args.temperature:
                for workload in load(self.args.workload):
                    text = workload.prompts[prompt]
                    yield Task(workload.name, prompt, text, temperature)

    def _ways(self, task: Task) -> list[str]:
        args = self.args
        ways = ["plain", "auto"]
        if args.speculative_simple:
            ways += ["llama.cpp", *(f"llama.cpp {n}" for n in args.peer_gamma)]
        ways += [f"model {n}" for n in args.gamma]
        if args.hopeless:
            ways.append("hopeless")
        if task.workload in ("prose", "copy-edit"):
            ways.append("copying")
        return ways if task.prompt % 2 == 0 else ways[::-1]

    def _answer(self, task: Task, way: str) -> Answer:
        if way.startswith("llama.cpp"):
            return self._theirs(task, way)
        name = way if way in ("hopeless", "copying") else "draft"
        worker = self._worker(name)
        word, _, length = way.partition(" ")
        spec = {"plain": "off", "model": "model"}.get(word, "auto")
        request = GenerateCommand(
            task.text,
            SamplingParams(temperature=task.temperature, seed=1000 + task.prompt),
            self.args.tokens,
            spec=spec,
            draft_length=int(length) if length else None,
        )
        # Another prompt first, so that nothing of this one is in the KV cache.
        list(worker.generate(GenerateCommand("x", SamplingParams(temperature=0), 2, spec="off")))
        rounds: list[Round] = []
        timings: dict[str, Any] = {}
        for event in worker.generate(request):
            if isinstance(event, Round):
                rounds.append(event)
            elif isinstance(event, GenerationFinished):
                timings = event.totals["timings"]
        return _ours(task, way, rounds, timings)

    def _worker(self, name: str) -> EngineProcess:
        if name not in self._workers:
            args = self.args
            draft = {"draft": args.draft, "hopeless": args.hopeless}.get(name)
            settings = ContextSettings(
                n_gpu_layers=args.gpu_layers, n_ctx=args.ctx, n_threads=args.threads
            )
            worker = EngineProcess()
            files = [os.path.abspath(path) if path else None for path in (args.target, draft)]
            worker.load(LoadCommand(files[0] or "", files[1], settings, settings))
            list(worker.probe(ProbeCommand()))
            assert worker.measured is not None
            self._keep({"costs": asdict(worker.measured) | {"draft": name}})
            self._workers[name] = worker
        return self._workers[name]

    def _theirs(self, task: Task, way: str) -> Answer:
        length = way.removeprefix("llama.cpp").strip()
        settings = self._peer_settings(defaults=not length or task.temperature > 0)
        case = Case(way, task.text, int(length or 3))
        sampling = ["--temp", str(task.temperature), "--seed", str(1000 + task.prompt)]
        if task.temperature > 0:
            sampling += ["--top-k", "40", "--top-p", "0.95", "--min-p", "0.05"]
        run = speculative_simple(settings, case, sampling)
        return Answer(
            workload=task.workload,
            prompt=task.prompt,
            temperature=task.temperature,
            way=way,
            tokens=run.tokens,
            speed=run.speed,
            raw=run.speed,
            drafted=run.drafted,
            accepted=run.accepted,
        )

    def _peer_settings(self, *, defaults: bool) -> Settings:
        args = self.args
        return Settings(
            target=args.target,
            draft=args.draft,
            speculative_simple=args.speculative_simple,
            llama_bench=None,
            localspec=(),
            gammas=(),
            tokens=args.tokens,
            ctx=args.ctx,
            threads=args.threads,
            gpu_layers=args.gpu_layers,
            flash_attn="on",
            repack=not has_amx(),
            peer_defaults=defaults,
            rounds=1,
            load_before=None,
        )


def _ours(task: Task, way: str, rounds: Sequence[Round], timings: dict[str, Any]) -> Answer:
    ids = tuple(token.id for event in rounds for token in event.tokens)
    raw = timings["tokens_per_second"] or 0.0
    decode = timings["decode_ms"]
    drafting = [r for r in rounds if r.ms.draft and r.drafted]
    later = [r.ms.draft / r.drafted for r in drafting[1:]]
    reading = drafting[0].ms.draft - median(later) * drafting[0].drafted if later else 0.0
    return Answer(
        workload=task.workload,
        prompt=task.prompt,
        temperature=task.temperature,
        way=way,
        tokens=len(ids),
        speed=raw * decode / (decode - max(0.0, reading)) if raw else 0.0,
        raw=raw,
        drafted=sum(r.drafted for r in rounds),
        accepted=sum(r.accepted for r in rounds),
        distinct=metrics.distinct_4grams(ids),
        survival=tuple((p.reached, p.accepted) for p in metrics.count_by_position(rounds)),
        ids=ids,
    )


# --- the command line -----------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", metavar="GGUF")
    parser.add_argument("--draft", metavar="GGUF")
    parser.add_argument("--hopeless", metavar="GGUF")
    parser.add_argument("--speculative-simple", metavar="PATH")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--gamma", type=int, nargs="*", default=[2, 3, 5, 8])
    parser.add_argument("--peer-gamma", type=int, nargs="*", default=[2, 5, 8])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--workload", nargs="*", default=[])
    parser.add_argument("--prompts", type=int, default=3, help="of each workload")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--gpu-layers", type=int, default=0)
    parser.add_argument("--report", action="store_true", help="only print the tables")
    args = parser.parse_args()
    if not args.report and not (args.target and args.draft):
        parser.error("give --target and --draft, or --report")
    return args


def main() -> int:
    args = parse()
    sweep = Sweep(args)
    code = 0
    if not args.report:
        try:
            sweep.run()
        except KeyboardInterrupt:
            code = 130
    for costs in sweep.costs:
        curve = ", ".join(f"v({w}) {v:.2f}" for w, v in costs["curve"].items())
        print(f"- {costs['draft']}: t1 {costs['t1_ms']:.1f} ms, c {costs['c']}, {curve}")
    print("\n" + report(Found(list(sweep.answers.values()), sweep.costs)))
    return code


if __name__ == "__main__":
    sys.exit(main())
