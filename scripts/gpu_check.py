#!/usr/bin/env python3
"""Whether a card does what localspec promises, in one report: a pair, through the command line.

    scripts/gpu_check.py --target T.gguf --draft D.gguf [--into FILE] [--quick]
        [--speculative-simple PATH --llama-bench PATH]

In this order, so that minutes that run out cost the least: equality with everything on the card;
costs and speeds (`localspec bench`); beside llama.cpp's own programs, where they are given
(bench_peers.py); equality with half of the layers on the card and the draft on the CPU; memory as
`fit` foretold it beside what nvidia-smi counts; and what is said where the memory runs out, before
the load (exit 4) and while it makes its context (exit 11).  Memory that runs out while an answer
is written cannot be brought about from outside: llama.cpp takes all of it before the first token.

Without a card the parts that need one say so.  --quick: the least of everything, to see whether it
works.  Let nothing else run meanwhile.
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


class NotHadError(Exception):
    """A part could not be had; the others go on."""


class Pair:
    """Two files, asked about through `localspec`."""

    def __init__(self, target: str, draft: str) -> None:
        self.target, self.draft = target, draft

    def words(self, verb: str, *more: str) -> list[str]:
        pair = [self.target, "--draft", self.draft]
        return [sys.executable, "-m", "localspec", verb, *pair, "--json", *more]

    def call(self, verb: str, *more: str, wanted: Sequence[int] = (0,)) -> dict[str, Any]:
        """The document that a command prints.  Raises NotHadError where it ends otherwise."""
        words = self.words(verb, *more)
        done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=False)
        if done.returncode not in wanted:
            said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-300:]
            raise NotHadError(f"`{verb}` ended with {done.returncode}: {said}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


# --- equality -------------------------------------------------------------------------------


def equality(pair: Pair, where: Sequence[str], quick: bool) -> Iterator[str]:
    effort = ("--seconds", "0", "--tokens", "8") if quick else ("--seconds", "10")
    found = pair.call("verify", *where, *effort, "-q", wanted=(0, 1))
    yield f"- verdict: **{found['verdict']}**, {found['guesses']} guesses looked at"
    for name in ("greedy", "seeded"):
        part = found[name]
        differ = len(part["divergences"])
        yield f"- {name}: {part['equal']} of {part['prompts']} prompts equal, {differ} differ"
    if found["difference"] is not None:
        yield f"- largest change of a logit between widths: {found['difference']:.2g}"
    yield f"- sampled: p = {found['sampled']['p']}"


# --- speed ----------------------------------------------------------------------------------


def speed(pair: Pair, quick: bool) -> Iterator[str]:
    effort = ("--rounds", "1", "--max-tokens", "16", "--workload", "code") if quick else ()
    found = pair.call("bench", *ALL, *effort, "-q")
    cost = found["cost"]
    yield f"- a pass of one token {cost['t1_ms']:.2f} ms; a draft pass costs {cost['c']} of one"
    curve = ", ".join(f"v({width}) {v:.2f}" for width, v in cost["verify_curve"].items())
    yield f"- passes of several tokens: {curve}"
    yield f"- outside llama.cpp: {cost['host_ms']} ms a round"
    for row in found["workloads"]:
        gain = row["speedup"]["median"] if row["speedup"] else None
        shown = f"{gain:.2f} ×" if gain else "nothing that counts"
        tps = f"{row['plain_tps']} → {row['spec_tps']} tok/s"
        yield f"- {row['name']}, T {row['temperature']}: {tps}, {shown}"


def beside(pair: Pair, args: argparse.Namespace) -> Iterator[str]:
    words = [sys.executable, str(HERE / "bench_peers.py"), "--gpu-layers", "999", "--markdown"]
    words += ["--target", pair.target, "--draft", pair.draft]
    for name in ("speculative_simple", "llama_bench"):
        if path := getattr(args, name):
            words += [f"--{name.replace('_', '-')}", path]
    if len(words) == 9:
        raise NotHadError("llama.cpp's programs were not given")
    if args.quick:
        words += ["--rounds", "1", "--tokens", "16", "--gamma", "3"]
    done = subprocess.run(words, capture_output=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise NotHadError(done.stderr.decode("utf-8", "replace").strip()[-300:])
    yield done.stdout.decode()


# --- memory ---------------------------------------------------------------------------------


def used() -> list[int]:
    """Bytes of each card that are taken, by nvidia-smi.  Raises NotHadError where it cannot say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotHadError("no nvidia-smi here")
    words = [program, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(words, capture_output=True, timeout=30, check=False)
    if done.returncode:
        raise NotHadError("nvidia-smi does not answer")
    return [int(line) << 20 for line in done.stdout.decode().split()]


def memory(pair: Pair, quick: bool) -> Iterator[str]:
    for ctx in ("1024",) if quick else ("1024", "4096", "16384"):
        foretold, before = pair.call("fit", "--ctx", ctx), used()
        if not foretold["devices"]:
            raise NotHadError("no card here")
        tokens = "64" if quick else "400"
        words = pair.words("run", *ALL, "--ctx", ctx, "-p", PROMPT, "--max-tokens", tokens)
        most = before
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None:
                most = [max(two) for two in zip(most, used(), strict=True)]
                time.sleep(0.05)
        for n, device in enumerate(foretold["devices"]):
            taken = most[n] - before[n]
            off = taken - device["total"]
            share = f"{100 * off / taken:+.1f} %" if taken else "nothing was taken"
            said = f"foretold {gib(device['total'])}, taken {gib(taken)}"
            yield f"- context {ctx}, {device['description']}: {said} ({share})"


def shortage(pair: Pair) -> Iterator[str]:
    """A context twice as large as the whole card; what is said of it."""
    found = pair.call("fit", "--ctx", "1024")
    if not found["devices"]:
        raise NotHadError("no card here")
    card = found["devices"][0]
    each = (card["target"]["kv"] + card["draft"]["kv"]) / 1024
    ctx = str(int(2 * card["total_memory"] / each))
    for how, more, code in (
        ("refused before the load", (), REFUSED),
        ("--anyway: runs out while the context is made", ("--anyway",), OUT_OF_MEMORY),
    ):
        asked = (*ALL, "--ctx", ctx, "-p", PROMPT, "--max-tokens", "4", *more)
        said = pair.call("run", *asked, wanted=(code,))["error"]
        yield f"- {how}: {said['message']} {said['hint']}"


# --- the report -----------------------------------------------------------------------------


def parts(pair: Pair, args: argparse.Namespace) -> Iterator[tuple[str, Iterator[str]]]:
    half = str(header.read(Path(args.target)).n_layer // 2)
    split = ("--gpu-layers", half, "--draft-gpu-layers", "0")
    yield "Equality, everything on the card", equality(pair, ALL, args.quick)
    yield "Costs and speed", speed(pair, args.quick)
    yield "Beside llama.cpp", beside(pair, args)
    name = f"Equality, {half} layers on the card, the draft on the CPU"
    yield name, equality(pair, split, args.quick)
    yield "Memory", memory(pair, args.quick)
    yield "Where memory runs out", shortage(pair)


def report(pair: Pair, args: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Each part as soon as it is there; the number of those that could not be had."""
    missing = 0
    say(f"# {Path(args.target).name} + {Path(args.draft).name}\n")
    for name, lines in parts(pair, args):
        say(f"## {name}\n")
        try:
            for line in lines:
                say(line)
        except (NotHadError, subprocess.TimeoutExpired) as error:
            missing += 1
            say(f"- not had: {error}")
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
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--quick", action="store_true", help="the least of everything")
    args = parser.parse_args()
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    said: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        said.append(line)
        if args.into:  # after each line: the time may run out
            args.into.write_text("\n".join(said) + "\n", encoding="utf-8")

    try:
        report(Pair(args.target, args.draft), args, say)
    except LocalspecError as error:
        print(f"gpu_check: {error.message} {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
