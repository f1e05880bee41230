"""Passes and speculation over a worker behind a slow line, against the formula of the documents.

    bench.py workers [TARGET.gguf DRAFT.gguf] [--tokens 200] [--passes 40] [--threads 1]

Starts `localspec worker` on this computer, and a proxy in front of it that delays and limits as a
line would. First table: milliseconds of passes over 1 and 6 tokens, each after a pass of the same
and of another width, measured, and predicted from those without a line. Second table: tokens per
second without and with speculation: drafts of 5 tokens, and automatic with the price of a change of
the width (held) and without it (free). Greedy text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from programs import LOCALSPEC
from turns import table

from localspec import child_process, paths
from localspec.engine_process.client import EngineProcess
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import reader
from localspec.protocol.events import Round
from localspec.protocol.wire import (
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
)
from tests.support.slow_line import Line, SlowLine

WIDE = 6
LINES = {
    "no line": Line(0.0, 1e12),
    "1 ms, 1 Gbit/s": Line(1.0, 125e6),
    "5 ms, 25 MB/s": Line(5.0, 25e6),
}
REQUEST_BYTES, GRAPH_BYTES_PER_LAYER = 5e3, 13e3
"""Of one pass; and of one whose graph is sent again."""
KINDS = ("1", f"{WIDE}", "1 after another", f"{WIDE} after another")
WITHOUT_PRICE = """
import runpy
from localspec.engine.control.pass_costs import PassCosts
init = PassCosts.__init__
PassCosts.__init__ = lambda self, *a, **k: init(self, *a, **(k | {"prices_changes": False}))
runpy.run_module("localspec.engine", run_name="__main__")
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    demo, add = paths.package_data_dir() / "demo", parser.add_argument
    add("target", nargs="?", type=Path, default=demo / "demo-target.gguf")
    add("draft", nargs="?", type=Path, default=demo / "demo-draft.gguf")
    add("--tokens", type=int, default=200)
    add("--passes", type=int, default=40)
    add("--threads", type=int, default=1)
    add("--measure", metavar="WORKER", help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> None:
    if args.measure:
        print(json.dumps(measure_passes(args)), flush=True)
        os._exit(0)  # llama.cpp's RPC client may abort at exit
    passes, speeds = {}, {}
    with running_worker(args.threads) as address:
        for name, line in LINES.items():
            proxy = SlowLine(address, line)
            passes[name] = passes_in_child(args, proxy.address)
            speeds[name] = measure_speculation(args, proxy.address)
            proxy.close()
    print("milliseconds a pass: measured / formula", table(list(pass_rows(passes, args))), sep="\n")
    print("\ntokens per second (gain over plain)", table(list(speed_rows(speeds))), sep="\n")


def settings_of(args: argparse.Namespace, worker: str = "") -> ContextSettings:
    return ContextSettings(n_ctx=1024, n_threads=args.threads, workers=(worker,) if worker else ())


@contextmanager
def running_worker(threads: int) -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [*LOCALSPEC, "worker", "--port", "0", "--until-eof", "--threads", str(threads)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    host, port = process.stdout.readline().strip().rsplit(":", 1)
    try:
        yield host, int(port)
    finally:
        process.communicate()


# --- passes -------------------------------------------------------------------------------------


def measure_passes(args: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds by KINDS; in a process of its own, which ends the connection."""
    from localspec.engine.llama.context import LlamaContext  # noqa: PLC0415  only in the child

    context = LlamaContext(args.target, ModelRole(settings_of(args, args.measure), WIDE, 64))
    tokens = list(range(100, 140))
    context.decode(tokens, 1)

    def time_pass(width: int) -> float:
        began = time.perf_counter()
        context.decode(tokens[:width], width)
        context.truncate(len(tokens))
        return (time.perf_counter() - began) * 1e3

    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for width in (1, WIDE):
        time_pass(width)
        times[str(width)] = [time_pass(width) for _ in range(args.passes)]
    for _ in range(args.passes):
        for width in (1, WIDE):
            times[f"{width} after another"].append(time_pass(width))
    return {kind: median(each) for kind, each in times.items()}


def passes_in_child(args: argparse.Namespace, worker: str) -> dict[str, float]:
    program = Path(__file__).with_name("bench.py")
    command = [sys.executable, str(program), "workers", str(args.target)]
    command += ["--passes", str(args.passes), "--threads", str(args.threads), "--measure", worker]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def pass_rows(
    times: dict[str, dict[str, float]], args: argparse.Namespace
) -> Iterator[tuple[str, ...]]:
    model = reader.read_model(args.target)
    n_embd = int(model.hparam("embedding_length") or 0)
    yield "tokens", *times
    for kind in KINDS:
        n_bytes = REQUEST_BYTES + 8 * n_embd * int(kind[0])  # with the output layer here
        n_bytes += GRAPH_BYTES_PER_LAYER * model.n_layer if "after" in kind else 0
        cells = []
        for name, measured in times.items():
            line = LINES[name]
            added_ms = line.round_trip_ms + 1e3 * n_bytes / line.bytes_per_second
            formula = times["no line"][kind] + added_ms
            off = measured[kind] / formula - 1
            cells.append(f"{measured[kind]:.2f} / {formula:.2f} ({off:+.0%})")
        yield kind, *cells


# --- speculation --------------------------------------------------------------------------------


def measure_speculation(args: argparse.Namespace, worker: str) -> dict[str, float]:
    files, settings = (str(args.target), str(args.draft)), settings_of(args)
    load = LoadCommand(*files, settings_of(args, worker), settings)
    speeds: dict[str, float] = {}
    without = [sys.executable, "-P", "-c", WITHOUT_PRICE, child_process.engine_command()[-1]]
    for name, command in (("held", child_process.engine_command()), ("free", without)):
        engine = EngineProcess(lambda command=command: command)  # type: ignore[misc]
        try:
            engine.load(load)
            for _ in engine.probe(ProbeCommand()):
                pass
            tokens_per_second(engine, "auto", args.tokens)  # learns what is accepted
            speeds[f"auto, {name}"] = tokens_per_second(engine, "auto", args.tokens)
            if name == "held":
                speeds["plain"] = tokens_per_second(engine, "off", args.tokens)
                speeds[f"drafts of {WIDE - 1}"] = tokens_per_second(engine, "model", args.tokens)
        finally:
            engine.close()
    return speeds


def tokens_per_second(engine: EngineProcess, spec: str, n_tokens: int) -> float:
    """After the first round, which reads the prompt."""
    greedy, length = SamplingParams(temperature=0), WIDE - 1 if spec == "model" else None
    request = GenerateCommand("def fibonacci(n):", greedy, n_tokens, spec=spec)
    count, began = 0, 0.0
    for event in engine.generate(replace(request, draft_length=length)):
        if isinstance(event, Round):
            count += len(event.tokens) if began else 0
            began = began or time.perf_counter()
    return count / (time.perf_counter() - began)


def speed_rows(speeds: dict[str, dict[str, float]]) -> Iterator[tuple[str, ...]]:
    yield "", *speeds
    for kind in ("plain", f"drafts of {WIDE - 1}", "auto, held", "auto, free"):
        yield kind, *(f"{s[kind]:.1f} ({s[kind] / s['plain']:.2f}x)" for s in speeds.values())
