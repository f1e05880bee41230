#!/usr/bin/env python3
"""Check localspec on a GPU with one pair, through the command line, and print a report.

    scripts/gpu_check.py --target T.gguf --draft D.gguf [--quick] [--minutes N]

In ten minutes: the memory estimate of `fit` against what llama.cpp allocates, and
nvidia-smi where it is installed; the messages when memory runs out, before the load
(exit 4) and while the context is created (exit 11); equality with everything on the
GPU; costs and speeds (`localspec bench`); equality with half of the layers on the GPU
and the draft on the CPU. Memory cannot run out during an answer: llama.cpp allocates
all of it before the first token. A part that takes more than its share of the time is
given up.

Without a GPU, the parts that need one report that. --quick: a smoke test. Let nothing
else run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.models.gguf import reader
from localspec.units import gib

ALL = ("--gpu-layers", "999", "--draft-gpu-layers", "999")
PROMPT = "def fibonacci(n):"
MIN_PART_S = 20.0
"""What a part gets even when the time is over."""
# Exit codes of localspec.
REFUSED = 4
OUT_OF_MEMORY = 11
MAX_CTX_FACTOR = 8
"""localspec refuses contexts of more trained contexts."""
SMALL_LIMIT = {"GGML_VK_FORCE_MAX_BUFFER_SIZE": "65536"}
"""Makes any model too large for a Vulkan device."""


class UnavailableError(Exception):
    """A part cannot run; the others continue."""


class Pair:
    """Two files, used through the command line."""

    def __init__(self, target: str, draft: str) -> None:
        self.target = target
        self.draft = draft
        self.deadline = 0.0
        """Of the current part, by time.monotonic()."""

    def run(
        self, words: Sequence[str], **environ: str
    ) -> subprocess.CompletedProcess[bytes]:
        left = max(1.0, self.deadline - time.monotonic())
        env = {**os.environ, **environ}
        return subprocess.run(
            words, capture_output=True, timeout=left, check=False, env=env
        )

    def words(self, verb: str, *more: str) -> list[str]:
        pair = [self.target, "--draft", self.draft]
        return [sys.executable, "-m", "localspec", verb, *pair, "--json", *more]

    def call(
        self, verb: str, *more: str, wanted: Sequence[int] = (0,), **environ: str
    ) -> dict[str, Any]:
        """The JSON that a command prints.

        Raises UnavailableError for other exit codes.
        """
        done = self.run(self.words(verb, *more), **environ)
        if done.returncode not in wanted:
            output = (
                (done.stdout + done.stderr).decode("utf-8", "replace").strip()[-300:]
            )
            raise UnavailableError(f"`{verb}` exited with {done.returncode}: {output}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found


# --- equality
# -------------------------------------------------------------------------------


def equality(
    pair: Pair, where: Sequence[str], args: argparse.Namespace
) -> Iterator[str]:
    effort = ["--seconds", f"{min(args.minutes, 10):g}"]
    if args.quick:
        effort = ["--seconds", "0", "--tokens", "8"]
    found = pair.call("verify", *where, *effort, "-q", wanted=(0, 1))
    yield f"- verdict: **{found['verdict']}**, {found['guesses']} draft tokens checked"
    for name in ("greedy", "seeded"):
        part = found[name]
        equal = f"{part['equal']} of {part['prompts']} prompts equal plain decoding's"
        yield f"- {name}: {equal}, {len(part['divergences'])} divergences"
    yield f"- sampled: p = {found['sampled']['p']}"


# --- speed
# ----------------------------------------------------------------------------------


def speed(pair: Pair, args: argparse.Namespace) -> Iterator[str]:
    effort = ["--rounds", "1"] if args.minutes < 10 or args.quick else []
    if args.quick:
        effort += ["--max-tokens", "16", "--workload", "code"]
    found = pair.call("bench", *ALL, *effort, "-q")
    cost = found["cost"]
    yield f"- a pass of one token {cost['t1_ms']:.2f} ms; a draft pass costs {cost['c']} of one"
    curve = ", ".join(
        f"v({width}) {v:.2f}" for width, v in cost["verify_curve"].items()
    )
    yield f"- passes of several tokens: {curve}"
    yield f"- outside llama.cpp: {cost['host_ms']} ms per round"
    for row in found["workloads"]:
        gain = row["speedup"]["median"] if row["speedup"] else None
        shown = f"{gain:.2f} ×" if gain else "no trial counts"
        tps = f"{row['plain_tps']} → {row['spec_tps']} tok/s"
        yield f"- {row['name']}, T {row['temperature']}: {tps}, {shown}"


# --- memory


def memory(pair: Pair, quick: bool) -> Iterator[str]:
    sizes = ["1024"]
    if not quick:
        sizes += ["4096", "16384"]
    for ctx in sizes:
        estimate = pair.call("fit", "--ctx", ctx)
        if not estimate["devices"]:
            raise UnavailableError("no GPU")
        with tempfile.TemporaryDirectory() as folder:
            events = Path(folder) / "events.jsonl"
            before = used_by_driver()
            options = (*ALL, "--ctx", ctx, "-p", PROMPT, "--max-tokens", "1")
            words = pair.words("run", *options)
            done = pair.run([*words, "--events", str(events)])
            if done.returncode:
                printed = done.stderr.decode("utf-8", "replace").strip()
                raise UnavailableError(printed[-300:])
            lines = map(json.loads, events.read_text(encoding="utf-8").splitlines())
            ready = next(line for line in lines if line.get("ev") == "ready")
        for device in estimate["devices"]:
            allocated = ready["memory"].get(device["name"], 0)
            foretold = sum(device["target"].values()) + sum(device["draft"].values())
            yield f"- context {ctx}, {device['description']}: {compare(foretold, allocated)}"
        if before is not None:
            used = peak(pair, words, before)
            own = gib(
                used
                - sum(ready["memory"].get(d["name"], 0) for d in estimate["devices"])
            )
            yield f"  - nvidia-smi: {gib(used)} in use, {own} of it the driver's own"


def compare(estimated: int, measured: int) -> str:
    if not measured:
        return f"estimated {gib(estimated)}, nothing allocated"
    share = 100 * (measured - estimated) / measured
    return f"estimated {gib(estimated)}, allocated {gib(measured)} ({share:+.1f} %)"


def used_by_driver() -> int | None:
    """Used bytes of all GPUs by nvidia-smi; None without it."""
    program = shutil.which("nvidia-smi")
    words = [program or "", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(words, capture_output=True, timeout=30, check=True)
        return sum(int(line) << 20 for line in done.stdout.decode().split())
    return None


def peak(pair: Pair, words: Sequence[str], before: int) -> int:
    """The largest increase of used memory while a command runs."""
    most = before
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        while running.poll() is None:
            if time.monotonic() > pair.deadline:
                running.kill()
            most = max(most, used_by_driver() or 0)
            time.sleep(0.05)
    return most - before


def shortage(pair: Pair) -> Iterator[str]:
    """The error messages for a context twice as large as the GPU's memory.

    If localspec allows no such context for this model: a small limit on allocations.
    """
    found = pair.call("fit", "--ctx", "1024")
    if not found["devices"]:
        raise UnavailableError("no GPU")
    device = found["devices"][0]
    bytes_per_token = (device["target"]["kv"] + device["draft"]["kv"]) / 1024
    ctx = int(2 * device["total_memory"] / max(1, bytes_per_token))
    small = ("-p", PROMPT, "--max-tokens", "4")
    if ctx > MAX_CTX_FACTOR * reader.read(Path(pair.target)).n_ctx_train:
        yield "- this model is too small to fill the GPU"
        if not device["name"].startswith("Vulkan"):
            raise UnavailableError("only Vulkan can limit allocations")
        options = (*ALL, "--ctx", "1024", *small)
        error = pair.call("run", *options, wanted=(OUT_OF_MEMORY,), **SMALL_LIMIT)[
            "error"
        ]
        yield f"- no allocation of more than 64 KiB: {error['message']} {error['hint']}"
        return
    for how, more, code in (
        ("refused before the load", (), REFUSED),
        (
            "--anyway: runs out while the context is created",
            ("--anyway",),
            OUT_OF_MEMORY,
        ),
    ):
        options = (*ALL, "--ctx", str(ctx), *small, *more)
        error = pair.call("run", *options, wanted=(code,))["error"]
        yield f"- {how}: {error['message']} {error['hint']}"


# --- the report
# -----------------------------------------------------------------------------


def parts(pair: Pair, args: argparse.Namespace) -> Iterator[tuple[str, Iterator[str]]]:
    half = str(reader.read(Path(args.target)).n_layer // 2)
    split = ("--gpu-layers", half, "--draft-gpu-layers", "0")
    yield "Memory", memory(pair, args.quick)
    yield "Out of memory", shortage(pair)
    yield "Equality, everything on the GPU", equality(pair, ALL, args)
    yield "Costs and speed", speed(pair, args)
    name = f"Equality, {half} layers on the GPU, the draft on the CPU"
    yield name, equality(pair, split, args)


def report(pair: Pair, args: argparse.Namespace) -> None:
    """Prints each part when it is done."""
    end = time.monotonic() + 60 * args.minutes
    listed = list(parts(pair, args))
    say = partial(print, flush=True)
    say(f"# {Path(args.target).name} + {Path(args.draft).name}\n")
    for left, (name, lines) in zip(range(len(listed), 0, -1), listed, strict=True):
        now = time.monotonic()
        pair.deadline = now + max(MIN_PART_S, (end - now) / left)
        say(f"## {name}\n")
        try:
            for line in lines:
                say(line)
        except UnavailableError as error:
            say(f"- not available: {error}")
        except subprocess.TimeoutExpired:
            say(
                f"- given up after {time.monotonic() - now:.0f} s; --minutes gives more time"
            )
        say("")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="GGUF")
    parser.add_argument("--draft", required=True, metavar="GGUF")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="for all parts (default: 10)"
    )
    args = parser.parse_args()
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    try:
        report(Pair(args.target, args.draft), args)
    except LocalspecError as error:
        print(f"gpu_check: {error.message} {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
