#!/usr/bin/env python3
"""Passes and speculation over a worker behind a slow line, against the formula of the documents.

    scripts/bench_workers.py [TARGET.gguf DRAFT.gguf] [--tokens 200] [--passes 40] [--threads 1]

Starts `localspec worker` on this computer, and a proxy in front of it that delays and limits as a
line would. First table: milliseconds of passes over 1 and 6 tokens, each after a pass of the same
and of another width, measured, and predicted from those without a line. Second table: tokens per
second without and with speculation: drafts of 5 tokens, and automatic with the price of a change of
the width (held) and without it (free).  Greedy text.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from localspec import child_process, paths  # noqa: E402
from localspec.engine_process.client import EngineProcess  # noqa: E402
from localspec.machine.llama_params import ModelRole  # noqa: E402
from localspec.models.gguf import reader  # noqa: E402
from localspec.protocol.events import Round  # noqa: E402
from localspec.protocol.wire import (  # noqa: E402
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    ProbeCommand,
    SamplingParams,
)
from tests.slow_line import Line, SlowLine  # noqa: E402

WIDE = 6
LINES = {
    "no line": Line(0.0, 1e12),
    "1 ms, 1 Gbit/s": Line(1.0, 125e6),
    "5 ms, 25 MB/s": Line(5.0, 25e6),
}
PROMPT = "def fibonacci(n):"
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


@dataclass(frozen=True, slots=True)
class Setup:
    target: Path
    draft: Path
    n_tokens: int
    n_passes: int
    threads: int

    def settings(self, worker: str = "") -> ContextSettings:
        workers = (worker,) if worker else ()
        return ContextSettings(n_ctx=1024, n_threads=self.threads, workers=workers)


@contextmanager
def running_worker(threads: int) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "localspec", "worker", "--port", "0", "--until-eof"]
    process = subprocess.Popen(
        [*command, "--threads", str(threads)],
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


# --- Passes ---------------------------------------------------------------------------------------


def measure_passes(model: Path, settings: ContextSettings, n_passes: int) -> dict[str, float]:
    """Median milliseconds by KINDS; in a process of its own, which ends the connection."""
    from localspec.engine.llama.context import LlamaContext  # noqa: PLC0415

    context = LlamaContext(model, ModelRole(settings, WIDE, 64))
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
        times[str(width)] = [time_pass(width) for _ in range(n_passes)]
    for _ in range(n_passes):
        for width in (1, WIDE):
            times[f"{width} after another"].append(time_pass(width))
    return {kind: median(each) for kind, each in times.items()}


def passes_in_child(setup: Setup, worker: str) -> dict[str, float]:
    command = [sys.executable, __file__, str(setup.target), "--passes", str(setup.n_passes)]
    command += ["--threads", str(setup.threads), "--measure", worker]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def added_ms(kind: str, line: Line, n_embd: int, n_layer: int) -> float:
    """What a line adds to a pass with one worker and the output layer here."""
    n_bytes = REQUEST_BYTES + 8 * n_embd * int(kind[0])
    if "after" in kind:
        n_bytes += GRAPH_BYTES_PER_LAYER * n_layer
    return line.round_trip_ms + 1e3 * n_bytes / line.bytes_per_second


def print_passes(times: dict[str, dict[str, float]], setup: Setup) -> None:
    model = reader.read_model(setup.target)
    n_embd, n_layer = int(model.hparam("embedding_length") or 0), model.n_layer
    print(f"\nmilliseconds a pass: measured / formula ({model.architecture}, {n_layer} layers)")
    print(f"{'tokens':18}" + "".join(f"{name:>26}" for name in times))
    for kind in KINDS:
        cells = []
        for name, measured in times.items():
            formula = times["no line"][kind] + added_ms(kind, LINES[name], n_embd, n_layer)
            off = measured[kind] / formula - 1
            cells.append(f"{measured[kind]:.2f} / {formula:.2f} ({off:+.0%})")
        print(f"{kind:18}" + "".join(f"{cell:>26}" for cell in cells))


# --- Speculation ----------------------------------------------------------------------------------


def tokens_per_second(engine: EngineProcess, spec: str, setup: Setup) -> float:
    """After the first round, which reads the prompt."""
    length = WIDE - 1 if spec == "model" else None
    request = GenerateCommand(
        PROMPT,
        SamplingParams(temperature=0),
        max_tokens=setup.n_tokens,
        spec=spec,
        draft_length=length,
    )
    n_tokens, began = 0, 0.0
    for event in engine.generate(request):
        if isinstance(event, Round):
            if began:
                n_tokens += len(event.tokens)
            began = began or time.perf_counter()
    return n_tokens / (time.perf_counter() - began)


def measure_speculation(setup: Setup, worker: str) -> dict[str, float]:
    load = LoadCommand(
        str(setup.target), str(setup.draft), setup.settings(worker), setup.settings()
    )
    speeds: dict[str, float] = {}
    without = [sys.executable, "-P", "-c", WITHOUT_PRICE, child_process.engine_command()[-1]]
    for name, command in (("held", child_process.engine_command()), ("free", without)):
        engine = EngineProcess(lambda command=command: command)  # type: ignore[misc]
        try:
            engine.load(load)
            for _ in engine.probe(ProbeCommand()):
                pass
            tokens_per_second(engine, "auto", setup)  # learns what is accepted
            speeds[f"auto, {name}"] = tokens_per_second(engine, "auto", setup)
            if name == "held":
                speeds["plain"] = tokens_per_second(engine, "off", setup)
                speeds[f"drafts of {WIDE - 1}"] = tokens_per_second(engine, "model", setup)
        finally:
            engine.close()
    return speeds


def print_speeds(speeds: dict[str, dict[str, float]]) -> None:
    print("\ntokens per second (gain over plain)")
    print(f"{'':18}" + "".join(f"{name:>26}" for name in speeds))
    for kind in ("plain", f"drafts of {WIDE - 1}", "auto, held", "auto, free"):
        cells = [
            f"{each[kind]:.1f} ({each[kind] / each['plain']:.2f}x)" for each in speeds.values()
        ]
        print(f"{kind:18}" + "".join(f"{cell:>26}" for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    demo = paths.package_data_dir() / "demo"
    parser.add_argument("target", nargs="?", type=Path, default=demo / "demo-target.gguf")
    parser.add_argument("draft", nargs="?", type=Path, default=demo / "demo-draft.gguf")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--measure", metavar="WORKER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    setup = Setup(given.target, given.draft, given.tokens, given.passes, given.threads)
    if given.measure:
        times = measure_passes(setup.target, setup.settings(given.measure), setup.n_passes)
        print(json.dumps(times))
        os._exit(0)  # llama.cpp's RPC client may abort at exit
    passes, speeds = {}, {}
    with running_worker(setup.threads) as target:
        for name, line in LINES.items():
            proxy = SlowLine(target, line)
            passes[name] = passes_in_child(setup, proxy.address)
            speeds[name] = measure_speculation(setup, proxy.address)
            proxy.close()
    print_passes(passes, setup)
    print_speeds(speeds)


if __name__ == "__main__":
    main()
