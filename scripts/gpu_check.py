#!/usr/bin/env python3
"""Check localspec on a GPU with one pair, through the command line, and print a report.

    scripts/gpu_check.py --target T.gguf --draft D.gguf [--into FILE] [--quick]
        [--speculative-simple PATH --llama-bench PATH]

The most important parts come first, in case the time runs out: equality with everything on the GPU;
costs and speeds (`localspec bench`); a comparison with llama.cpp's programs, if given
(bench_peers.py); equality with half of the layers on the GPU and the draft on the CPU; the memory
estimate of `fit` against nvidia-smi; and the messages when memory runs out, before the load (exit
4) and while the context is created (exit 11). Memory cannot run out during an answer: llama.cpp
allocates all of it before the first token.

Without a GPU, the parts that need one report that. --quick: a smoke test. Let nothing else run
meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.models.gguf import header
from localspec.units import gib

HERE = Path(__file__).resolve().parent
ALL = ("--gpu-layers", "999", "--draft-gpu-layers", "999")
PROMPT = "def fibonacci(n):"
LIMIT_S = 1800.0
REFUSED, OUT_OF_MEMORY = 4, 11


class UnavailableError(Exception):
    """A part cannot run; the others continue."""


class Pair:
    """Two files, used through the command line."""

    def __init__(self, target: str, draft: str) -> None:
        self.target, self.draft = target, draft

    def words(self, verb: str, *more: str) -> list[str]:
        pair = [self.target, "--draft", self.draft]
        return [sys.executable, "-m", "localspec", verb, *pair, "--json", *more]

    def call(self, verb: str, *more: str, wanted: Sequence[int] = (0,)) -> dict[str, Any]:
        """The JSON that a command prints. Raises UnavailableError for other exit codes."""
        words = self.words(verb, *more)
        done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode not in wanted:
            output = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-300:]
            raise UnavailableError(f"`{verb}` exited with {done.returncode}: {output}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


# --- equality -------------------------------------------------------------------------------


def equality(pair: Pair, where: Sequence[str], quick: bool) -> Iterator[str]:
    effort = ("--seconds", "0", "--tokens", "8") if quick else ("--seconds", "10")
    found = pair.call("verify", *where, *effort, "-q", wanted=(0, 1))
    yield f"- verdict: **{found['verdict']}**, {found['guesses']} draft tokens checked"
    for name in ("greedy", "seeded"):
        part = found[name]
        differ = len(part["divergences"])
        yield f"- {name}: {part['equal']} of {part['prompts']} prompts equal, {differ} differ"
    if found["difference"] is not None:
        yield f"- largest difference of a logit between widths: {found['difference']:.2g}"
    yield f"- sampled: p = {found['sampled']['p']}"


# --- speed ----------------------------------------------------------------------------------


def speed(pair: Pair, quick: bool) -> Iterator[str]:
    effort = ("--rounds", "1", "--max-tokens", "16", "--workload", "code") if quick else ()
    found = pair.call("bench", *ALL, *effort, "-q")
    cost = found["cost"]
    yield f"- a pass of one token {cost['t1_ms']:.2f} ms; a draft pass costs {cost['c']} of one"
    curve = ", ".join(f"v({width}) {v:.2f}" for width, v in cost["verify_curve"].items())
    yield f"- passes of several tokens: {curve}"
    yield f"- outside llama.cpp: {cost['host_ms']} ms per round"
    for row in found["workloads"]:
        gain = row["speedup"]["median"] if row["speedup"] else None
        shown = f"{gain:.2f} ×" if gain else "no trial counts"
        tps = f"{row['plain_tps']} → {row['spec_tps']} tok/s"
        yield f"- {row['name']}, T {row['temperature']}: {tps}, {shown}"


def beside(pair: Pair, args: argparse.Namespace) -> Iterator[str]:
    words = [sys.executable, str(HERE / "bench_peers.py"), "--gpu-layers", "999", "--markdown"]
    words += ["--target", pair.target, "--draft", pair.draft]
    for name in ("speculative_simple", "llama_bench"):
        if path := getattr(args, name):
            words += [f"--{name.replace('_', '-')}", path]
    if len(words) == 9:
        raise UnavailableError("llama.cpp's programs are not given")
    if args.quick:
        words += ["--rounds", "1", "--tokens", "16", "--gamma", "3"]
    done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise UnavailableError(done.stderr.decode("utf-8", "replace").strip()[-300:])
    yield done.stdout.decode()


# --- memory ---------------------------------------------------------------------------------


def used() -> list[int]:
    """Used bytes of each GPU, by nvidia-smi. Raises UnavailableError without it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise UnavailableError("nvidia-smi is not installed")
    words = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, timeout=30, check=False)
    if done.returncode:
        raise UnavailableError("nvidia-smi fails")
    return [int(line) << 20 for line in done.stdout.decode().split()]


def memory(pair: Pair, quick: bool) -> Iterator[str]:
    for ctx in ("1024",) if quick else ("1024", "4096", "16384"):
        estimate, before = pair.call("fit", "--ctx", ctx), used()
        if not estimate["devices"]:
            raise UnavailableError("no GPU")
        tokens = "64" if quick else "400"
        words = pair.words("run", *ALL, "--ctx", ctx, "-p", PROMPT, "--max-tokens", tokens)
        most = before
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None:
                most = [max(two) for two in zip(most, used(), strict=True)]
                time.sleep(0.05)
        for n, device in enumerate(estimate["devices"]):
            measured = most[n] - before[n]
            off = measured - device["total"]
            share = f"{100 * off / measured:+.1f} %" if measured else "nothing allocated"
            sizes = f"estimated {gib(device['total'])}, measured {gib(measured)}"
            yield f"- context {ctx}, {device['description']}: {sizes} ({share})"


def shortage(pair: Pair) -> Iterator[str]:
    """The error messages for a context twice as large as the GPU's memory."""
    found = pair.call("fit", "--ctx", "1024")
    if not found["devices"]:
        raise UnavailableError("no GPU")
    device = found["devices"][0]
    bytes_per_token = (device["target"]["kv"] + device["draft"]["kv"]) / 1024
    ctx = str(int(2 * device["total_memory"] / bytes_per_token))
    for how, more, code in (
        ("refused before the load", (), REFUSED),
        ("--anyway: runs out while the context is created", ("--anyway",), OUT_OF_MEMORY),
    ):
        options = (*ALL, "--ctx", ctx, "-p", PROMPT, "--max-tokens", "4", *more)
        error = pair.call("run", *options, wanted=(code,))["error"]
        yield f"- {how}: {error['message']} {error['hint']}"


# --- the report -----------------------------------------------------------------------------


def parts(pair: Pair, args: argparse.Namespace) -> Iterator[tuple[str, Iterator[str]]]:
    half = str(header.read(Path(args.target)).n_layer // 2)
    split = ("--gpu-layers", half, "--draft-gpu-layers", "0")
    yield "Equality, everything on the GPU", equality(pair, ALL, args.quick)
    yield "Costs and speed", speed(pair, args.quick)
    yield "Comparison with llama.cpp", beside(pair, args)
    name = f"Equality, {half} layers on the GPU, the draft on the CPU"
    yield name, equality(pair, split, args.quick)
    yield "Memory", memory(pair, args.quick)
    yield "Out of memory", shortage(pair)


def report(pair: Pair, args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Prints each part when it is done; returns the number of unavailable ones."""
    missing = 0
    say(f"# {Path(args.target).name} + {Path(args.draft).name}\n")
    for name, lines in parts(pair, args):
        say(f"## {name}\n")
        try:
            for line in lines:
                say(line)
        except (UnavailableError, subprocess.TimeoutExpired) as error:
            missing += 1
            say(f"- not available: {error}")
        say("")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="GGUF")
    parser.add_argument("--draft", required=True, metavar="GGUF")
    parser.add_argument("--speculative-simple", metavar="PATH")
    parser.add_argument("--llama-bench", metavar="PATH")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="also write the report to this file"
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    args = parser.parse_args()
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    said: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        said.append(line)
        if args.into:  # after each line, in case the run is interrupted
            args.into.write_text("\n".join(said) + "\n", encoding="utf-8")

    try:
        report(Pair(args.target, args.draft), args, say)
    except LocalspecError as error:
        print(f"gpu_check: {error.message} {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
