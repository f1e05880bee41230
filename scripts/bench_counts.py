#!/usr/bin/env python3
"""Compare drafted and accepted tokens with llama.cpp's program: same files, prompts, length.

    scripts/bench_counts.py --target T.gguf --draft HEAD.gguf [--draft …] --gamma 1 3 5 \\
        --llama-cpp build/bin

Greedy, so the text is the target's and only the drafts can differ. Nothing is timed: other programs
may run. If the draft is the target's own file, its MTP layer drafts.

localspec's first token comes from the prompt's own pass, without a draft; llama.cpp drafts it. So
llama.cpp gets the prompt plus that token, and rounds begin at the same positions. They are compared
one by one, up to where llama.cpp shortens its drafts to the remaining tokens. Known differences:

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
from dataclasses import dataclass, replace
from pathlib import Path

import programs
from programs import BenchError, Case, Settings
from prompts import prompts_of
from turns import table

from localspec.machine.llama_params import has_amx

COLUMNS = (
    *("draft", "γ", "prompt", "llama.cpp accepted/drafted", "localspec", "different rounds"),
    "same text",
)
_ROUND = re.compile(r"accepted (\d+)/(\d+) draft tokens")


Rounds = list[tuple[int, int]]
"""Accepted and drafted tokens of each round."""


@dataclass(frozen=True)
class Counts:
    kind: str
    gamma: int
    prompt: str
    peer: Rounds
    ours: Rounds
    same_text: bool

    @property
    def differing(self) -> int:
        """Number of rounds with different counts."""
        return sum(a != b for a, b in zip(self.peer, self.ours, strict=True))


def count(settings: Settings, case: Case, gamma: int) -> Counts:
    """Raises BenchError."""
    text, first, mine = ours(settings, case, gamma)
    for _ in range(programs.TRIES):  # the log may be truncated
        said, theirs = peers(settings, replace(case, prompt=case.prompt + first), gamma)
        if text in said:
            break
    n = compared(theirs, settings.tokens - gamma - 2)
    kind, same = programs.drafting(settings), text in said
    return Counts(kind, gamma, case.name, theirs[:n], mine[:n], same)


def ours(settings: Settings, case: Case, gamma: int) -> tuple[str, str, Rounds]:
    """localspec's answer, its first token and the rounds after it."""
    options = ("--draft", settings.draft or "", "--spec", "model", "--draft-max", str(gamma))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        document = programs.localspec_answer(settings, case, (*options, "--events", str(path)))
        events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found = [(e["accepted"], e["drafted"]) for e in events if e["ev"] == "round"]
    return document["text"], document["tokens"][0]["text"], found[1:]


def peers(settings: Settings, case: Case, gamma: int) -> tuple[str, Rounds]:
    command = programs.speculative_simple_command(settings, case, gamma)
    said, log = programs.call(settings, [*command, "--verbosity", "5"])
    found = [(int(kept), int(made)) for kept, made in _ROUND.findall(log + said)]
    if not found:
        raise BenchError(f"{command[0]} printed no rounds.")
    return log + said, found


def compared(rounds: Rounds, tokens: int) -> int:
    """The number of rounds that produce the first `tokens` tokens."""
    produced = 0
    for n, (accepted, _) in enumerate(rounds):
        if produced > tokens:
            return n
        produced += accepted + 1
    return len(rounds)


def report(found: list[Counts]) -> str:
    rows = [
        [
            *(one.kind, str(one.gamma), one.prompt, _share(one.peer), _share(one.ours)),
            *(f"{one.differing} of {len(one.peer)}", _sign(one)),
        ]
        for one in found
    ]
    differing, every = sum(one.differing for one in found), sum(len(one.peer) for one in found)
    said = f"{every - differing:,} of {every:,} rounds are the same."
    return f"{table([COLUMNS, *rows])}\n\n{said}"


def _share(rounds: Rounds) -> str:
    return f"{sum(kept for kept, _ in rounds)}/{sum(made for _, made in rounds)}"


def _sign(one: Counts) -> str:
    return "yes" if one.same_text else "no"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, metavar="GGUF")
    parser.add_argument("--draft", required=True, action="append", metavar="GGUF")
    parser.add_argument("--llama-cpp", required=True, metavar="DIR", help="llama.cpp's programs")
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 3, 5], metavar="N")
    parser.add_argument("--tokens", type=int, default=96, metavar="N")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    return parser.parse_args()


def settings_of(args: argparse.Namespace, draft: str) -> Settings:
    """Both compute alike: drafts of full length, no sampler but the best token."""
    repack = [] if not has_amx() else ["--no-repack"]  # as localspec
    same = "-fit off -fa on -ctk f16 -ctv f16 -ctkd f16 -ctvd f16"
    drafts = "--spec-draft-n-min 0 --spec-draft-p-min 0 --samplers top_k --top-k 1"
    return Settings(
        target=args.target,
        draft=draft,
        folder=args.llama_cpp,
        localspec=(sys.executable, "-m", "localspec"),
        tokens=args.tokens,
        ctx=1024,
        threads=1,
        gpu_layers=0,
        llama_cpp_options=(*same.split(), *drafts.split(), *repack),
        localspec_options=("--flash-attn", "on", "--kv", "f16"),
    )


def main() -> int:
    args = parse()
    found: list[Counts] = []
    try:
        prompts = prompts_of(args.prompts)
        for draft, gamma, name in itertools.product(args.draft, args.gamma, prompts):
            one = count(settings_of(args, draft), Case(name, prompts[name]), gamma)
            found.append(one)
            print(one.kind, one.gamma, one.prompt, one.differing, file=sys.stderr)
    except BenchError as error:
        print(f"bench_counts: {error}", file=sys.stderr)
        return 1
    print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
