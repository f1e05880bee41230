"""Compare drafted and accepted tokens with llama.cpp's program.

Files, prompts and lengths are the same.

    bench.py counts --target T.gguf --draft HEAD.gguf [--draft …] --llama-cpp build/bin

Greedy, so the text is the target's and only the drafts can differ. Nothing is timed:
other programs may run. If the draft is the target's own file, its MTP layer drafts.

localspec's first token comes from the prompt's own pass, without a draft; llama.cpp
drafts it. So llama.cpp gets the prompt plus that token, and rounds begin at the same
positions. They are compared one by one, up to where llama.cpp shortens its drafts to
the remaining tokens. Known differences:

- a draft token that ends the answer: localspec stops drafting there, llama.cpp continues;
- two tokens that are almost equally likely for a head: llama.cpp's head also reads rejected draft
  tokens, in passes of another width, so sums differ in their last bits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import tempfile
from pathlib import Path

import programs
from msgspec.structs import replace
from programs import BenchError, Case, Settings
from prompts import prompts_of
from turns import table

from localspec.machine.llama_params import has_amx

COLUMNS = (
    "draft",
    "γ",
    "prompt",
    "llama.cpp accepted/drafted",
    "localspec",
    "different rounds",
    "same text",
)
_ROUND = re.compile(r"accepted (\d+)/(\d+) draft tokens")
Rounds = list[tuple[int, int]]
"""Accepted and drafted tokens of each round."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    add("--draft", required=True, action="append", metavar="GGUF")
    add("--llama-cpp", required=True, metavar="DIR", help="llama.cpp's programs")
    add("--gamma", type=int, nargs="+", default=[1, 3, 5], metavar="N")
    add("--tokens", type=int, default=96, metavar="N")
    add("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")


def main(args: argparse.Namespace) -> None:
    rows = [COLUMNS]
    n_rounds = 0
    n_different = 0
    prompts = prompts_of(args.prompts)
    for draft, gamma, name in itertools.product(args.draft, args.gamma, prompts):
        settings = settings_of(args, draft)
        theirs, ours, same_text = count(settings, Case(name, prompts[name]), gamma)
        different = 0
        for their_round, our_round in itertools.zip_longest(theirs, ours):
            if their_round != our_round:
                different += 1
        n_rounds += len(theirs)
        n_different += different
        row = (
            programs.drafting(settings),
            str(gamma),
            name,
            share(theirs),
            share(ours),
            f"{different} of {len(theirs)}",
            "yes" if same_text else "no",
        )
        rows.append(row)
        print(*row, file=sys.stderr)
    print(table(rows))
    print(f"\n{n_rounds - n_different:,} of {n_rounds:,} rounds are the same.")


def count(settings: Settings, case: Case, gamma: int) -> tuple[Rounds, Rounds, bool]:
    """llama.cpp's rounds and ours, and whether its text has ours. Raises BenchError."""
    text, first, ours = our_rounds(settings, case, gamma)
    their_case = replace(case, prompt=case.prompt + first)
    for _ in range(programs.TRIES):  # the log may be truncated
        log, theirs = their_rounds(settings, their_case, gamma)
        if text in log:
            break
    n = n_compared(theirs, settings.tokens - gamma - 2)
    return theirs[:n], ours[:n], text in log


def our_rounds(settings: Settings, case: Case, gamma: int) -> tuple[str, str, Rounds]:
    """localspec's answer, its first token and the rounds after it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        options = (
            *("--draft", settings.draft or ""),
            *("--spec", "model", "--draft-max", str(gamma)),
            *("--events", str(path)),
        )
        document = programs.localspec_answer(settings, case, options)
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["ev"] == "round":
                found.append((event["accepted"], event["drafted"]))
    return document["text"], document["tokens"][0]["text"], found[1:]


def their_rounds(settings: Settings, case: Case, gamma: int) -> tuple[str, Rounds]:
    command = programs.speculative_simple_command(settings, case, gamma)
    out, log = programs.call(settings, [*command, "--verbosity", "5"])
    printed = _ROUND.findall(log + out)
    found = [(int(accepted), int(drafted)) for accepted, drafted in printed]
    if not found:
        raise BenchError(f"{command[0]} printed no rounds.")
    return log + out, found


def n_compared(rounds: Rounds, tokens: int) -> int:
    """The number of rounds that produce the first `tokens` tokens."""
    n_produced = 0
    for n_rounds, (accepted, _) in enumerate(rounds):
        if n_produced > tokens:
            return n_rounds
        n_produced += accepted + 1
    return len(rounds)


def share(rounds: Rounds) -> str:
    n_accepted = sum(accepted for accepted, _ in rounds)
    n_drafted = sum(drafted for _, drafted in rounds)
    return f"{n_accepted}/{n_drafted}"


def settings_of(args: argparse.Namespace, draft: str) -> Settings:
    """Both compute alike: drafts of full length, no sampler but the best token."""
    llama_cpp_options = [
        *("-fit", "off", "-fa", "on"),
        *("-ctk", "f16", "-ctv", "f16", "-ctkd", "f16", "-ctvd", "f16"),
        *("--spec-draft-n-min", "0", "--spec-draft-p-min", "0"),
        *("--samplers", "top_k", "--top-k", "1"),
    ]
    if has_amx():  # localspec does not repack weights there.
        llama_cpp_options.append("--no-repack")
    return Settings(
        target=args.target,
        draft=draft,
        folder=args.llama_cpp,
        tokens=args.tokens,
        ctx=1024,
        threads=1,
        gpu_layers=0,
        llama_cpp_options=tuple(llama_cpp_options),
        localspec_options=("--flash-attn", "on", "--kv", "f16"),
    )
