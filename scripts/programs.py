"""Runs the compared programs, llama.cpp's and localspec, and parses their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from localspec.models import draft_heads
from localspec.models.gguf import header

LIMIT_S = 1800
TRIES = 5
"""llama.cpp logs in a thread of its own; about one exit in thirty truncates the log."""

_ENCODED = re.compile(r"encoded +\d+ tokens in +([\d.]+) seconds")
_DECODED = re.compile(r"decoded +(\d+) tokens in +[\d.]+ seconds, speed: +([\d.]+) t/s")
_DRAFTED = re.compile(r"n_drafted += (\d+)")
_ACCEPTED = re.compile(r"n_accept += (\d+)")


class BenchError(Exception):
    pass


@dataclass(frozen=True)
class Settings:
    """Settings for both sides."""

    target: str
    draft: str
    speculative_simple: str | None
    llama_bench: str | None
    localspec: tuple[str, ...]
    gammas: tuple[int, ...]
    tokens: int
    ctx: int
    threads: int
    gpu_layers: int
    flash_attn: str
    repack: bool
    """Whether weights may be repacked for the CPU; follows localspec."""
    peer_defaults: bool
    rounds: int
    load_before: float | None
    """The system's load average before the run."""


@dataclass(frozen=True)
class Case:
    """A prompt and a draft length; γ 0 is plain decoding."""

    name: str
    prompt: str
    gamma: int


@dataclass(frozen=True)
class Run:
    """One answer of one program."""

    speed: float
    """Tokens per second while decoding."""
    tokens: int
    answer_s: float | None = None
    """Reading the prompt and decoding `Settings.tokens` tokens."""
    drafted: int = 0
    accepted: int = 0
    text: str = ""


def call(command: Sequence[str]) -> tuple[str, str]:
    """Runs a program; returns stdout and stderr. Raises BenchError."""
    # llama.cpp's programs also take flags from these variables.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_ARG_")}
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{command[0]}: {error}") from error
    out, err = (raw.decode("utf-8", "replace") for raw in (done.stdout, done.stderr))
    if done.returncode != 0:
        last_lines = "\n".join((err or out).strip().splitlines()[-5:])
        raise BenchError(f"{command[0]} exited with {done.returncode}:\n{last_lines}")
    return out, err


def speculative_simple(
    settings: Settings, case: Case, sampling: Sequence[str] = ("--temp", "0")
) -> Run:
    command = [*speculative_simple_command(settings, case), *sampling]
    for _ in range(TRIES):
        out, log = call(command)
        patterns = (_ENCODED, _DECODED, _DRAFTED, _ACCEPTED)
        encoded, decoded, drafted, accepted = (pattern.search(log) for pattern in patterns)
        if encoded and decoded and drafted and accepted:
            speed = float(decoded[2])
            answer_s = float(encoded[1]) + settings.tokens / speed
            return Run(
                speed, int(decoded[1]), answer_s, int(drafted[1]), int(accepted[1]), text=out
            )
    raise BenchError(f"{command[0]} printed no speed, {TRIES} times.")


@cache
def drafting(settings: Settings) -> str:
    """llama.cpp's name of the draft kind; a target that is its own draft is MTP."""
    kind = draft_heads.file_draft_kind(header.read(Path(settings.draft)))
    if settings.draft == settings.target:
        return "mtp"
    return "simple" if kind == "model" else kind


def speculative_simple_command(settings: Settings, case: Case) -> list[str]:
    n, layers = str(settings.threads), str(settings.gpu_layers)
    command = [
        *(settings.speculative_simple or "", "-m", settings.target),
        *([] if settings.draft == settings.target else ["-md", settings.draft]),
        *("--spec-type", f"draft-{drafting(settings)}", "--spec-draft-n-max", str(case.gamma)),
        *("-p", case.prompt, "--no-escape", "-n", str(settings.tokens - 1)),
        *("-c", str(settings.ctx), "-fit", "off", "-ngl", layers, "-ngld", layers),
        *("-t", n, "-tb", n, "-td", n, "-tbd", n),
    ]
    if not settings.repack:
        command.append("--no-repack")
    if settings.peer_defaults:
        return command
    return [
        *(*command, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
        *("-fa", settings.flash_attn),
        *("-ctk", "f16", "-ctv", "f16", "-ctkd", "f16", "-ctvd", "f16"),
        *("--samplers", "top_k", "--top-k", "1"),  # its shortest greedy chain
    ]


def llama_bench(settings: Settings, _: Case) -> Run:
    command = [
        *(settings.llama_bench or "", "-m", settings.target, "-p", "0", "-r", "1", "-o", "json"),
        *("-n", str(settings.tokens), "-t", str(settings.threads)),
        *("-ngl", str(settings.gpu_layers), "--repack", str(int(settings.repack))),
    ]
    if not settings.peer_defaults:
        command += ["-fa", settings.flash_attn, "-ctk", "f16", "-ctv", "f16"]
    (result,) = json.loads(call(command)[0])
    return Run(float(result["avg_ts"]), int(result["n_gen"]))


def localspec(settings: Settings, case: Case) -> Run:
    document = json.loads(call(localspec_command(settings, case))[0])
    timings, speculation = document["timings"], document["speculation"]
    if timings["tokens_per_second"] is None:
        raise BenchError(f"{case.name}: the answer is empty; use another prompt.")
    decode_ms = timings["decode_ms"]
    reading_ms = draft_reading_ms(settings, case.prompt) if case.gamma else 0.0
    return Run(
        speed=timings["tokens_per_second"] * decode_ms / (decode_ms - reading_ms),
        tokens=len(document["tokens"]),
        answer_s=(timings["prefill_ms"] + decode_ms) / 1e3,
        drafted=speculation["drafted"],
        accepted=speculation["accepted"],
        text=document["text"],
    )


def localspec_command(settings: Settings, case: Case, tokens: int | None = None) -> list[str]:
    n, layers = str(settings.threads), str(settings.gpu_layers)
    draft_options = ["--draft", "none", "--spec", "off"]
    if case.gamma:
        draft_options = [
            "--draft",
            settings.draft,
            "--spec",
            "model",
            "--draft-max",
            str(case.gamma),
        ]
    return [
        *(*settings.localspec, "run", settings.target, *draft_options, "--raw", "-p", case.prompt),
        *("--temperature", "0", "--max-tokens", str(tokens or settings.tokens)),
        *("--ctx", str(settings.ctx), "--threads", n, "--draft-threads", n),
        *("--gpu-layers", layers, "--draft-gpu-layers", layers),
        *("--flash-attn", settings.flash_attn, "--kv", "f16", "--json"),
    ]


@cache
def draft_reading_ms(settings: Settings, prompt: str) -> float:
    """The time in which localspec's draft model reads the prompt, within its first draft."""
    command = localspec_command(settings, Case("", prompt, settings.gammas[0]), tokens=24)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        found = []
        for _ in range(3):
            call([*command, "--events", str(path)])
            events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            found.append(_excess_ms([e for e in events if e["ev"] == "round" and e["drafted"]]))
    return max(0.0, median(found))


def _excess_ms(rounds: list[dict[str, Any]]) -> float:
    """The first draft's time above the median of later drafts of the same length."""
    later = [r["ms"]["draft"] for r in rounds[1:] if r["drafted"] == rounds[0]["drafted"]]
    return float(rounds[0]["ms"]["draft"] - median(later)) if later else 0.0
