#!/usr/bin/env python3
"""Compare thread counts and waiting policies: time of one-token and of wider passes of a pair.

    scripts/bench_threads.py --target T.gguf [--draft D.gguf] [--counts 1 2] [--spins 0 1000]

Each row is a process of its own, in turns, `--rounds` times. Minima and medians of milliseconds are
printed: one token (target and draft, one after the other), and 8 tokens of the target. `spins` is
GOMP_SPINCOUNT, how long OpenMP's threads spin before they sleep; libgomp's own is 300000.
Let nothing else run meanwhile, or on purpose a busy program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from localspec.engine import pass_timing
from localspec.engine.loaded_pair import LoadedPair
from localspec.machine.cpu_and_ram import read_cpu_cores
from localspec.protocol.wire import ContextSettings, LoadCommand

WIDTH = 8


def measure(target: str, draft: str | None, n: int) -> tuple[list[float], list[float]]:
    """Milliseconds of one-token and of wider passes with n threads, in this process."""
    settings = ContextSettings(n_ctx=1024, n_threads=n)
    pair = LoadedPair(LoadCommand(target, draft, settings, settings), lambda: False)
    for _ in range(2):  # the second time is warm
        *_, times = pass_timing.measure_threads(pair.target, pair.draft, (n,), WIDTH)
    pair.close()
    return times.narrow[n], times.wide[n]


def run_in_child(
    arguments: argparse.Namespace, n: int, spins: str
) -> tuple[list[float], list[float]]:
    command = [sys.executable, __file__, "--target", arguments.target, "--one", str(n)]
    command += ["--draft", arguments.draft] if arguments.draft else []
    variables = os.environ | {"GOMP_SPINCOUNT": spins}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    narrow, wide = json.loads(done.stdout.splitlines()[-1])
    return narrow, wide


def rows(arguments: argparse.Namespace) -> Iterator[str]:
    cases = [(n, spins) for n in arguments.counts for spins in arguments.spins]
    narrow: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    wide: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for case in cases:
            times = run_in_child(arguments, *case)
            narrow[case] += times[0]
            wide[case] += times[1]
    for case in cases:
        figures = [f(times[case]) for times in (narrow, wide) for f in (min, median)]
        yield f"| {case[0]} | {case[1]} | " + " | ".join(f"{ms:.2f}" for ms in figures) + " |"


def main() -> None:
    cores = read_cpu_cores()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft")
    parser.add_argument("--counts", type=int, nargs="+", default=sorted(cores.thread_counts()))
    parser.add_argument("--spins", nargs="+", default=["0", "1000", "10000", "300000"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.target, arguments.draft, arguments.one)))
        return
    print(f"{Path(arguments.target).name}; {cores}; load {os.getloadavg()[0]:.1f}\n")
    print("| threads | spins | one token, min ms | median | 8 tokens, min ms | median |")
    print("|---|---|---|---|---|---|")
    for row in rows(arguments):
        print(row, flush=True)


if __name__ == "__main__":
    main()
