#!/usr/bin/env python3
"""Compare how much is guessed and kept with llama.cpp's own program: same files, prompts, length.

    scripts/bench_counts.py --target T.gguf --draft HEAD.gguf [--draft …] --gamma 1 3 5 \\
        --speculative-simple build/bin/llama-speculative-simple --markdown

Greedy, so that the text is the target's and only the drafts could differ; nothing is timed, and
whatever else runs does no harm.  A draft that is the target's own file is its MTP layer.

localspec's first token comes from the prompt's own pass, without a draft; llama.cpp drafts it.  So
llama.cpp gets the prompt with that token, and rounds begin at the same places.  They are compared
one by one, up to where llama.cpp cuts its drafts to what is still wanted.  What may differ:

- a draft in which a guess ends the answer: localspec ends it there, llama.cpp guesses on;
- two tokens that are nearly equally likely to a head: llama.cpp has it read the rows of rejected
  guesses too, in passes of another width, and sums differ in their last bits.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import programs
from bench_peers import table
from programs import BenchError, Case, Settings
from prompts import prompts_of

from localspec.machine.llama_params import has_amx

COLUMNS = (
    *("drafts by", "γ", "prompt", "llama.cpp kept/guessed", "localspec", "rounds that differ"),
    "same text",
)
_ROUND = re.compile(r"accepted (\d+)/(\d+) draft tokens")


Rounds = list[tuple[int, int]]
"""Guesses kept and made, a round each."""


@dataclass(frozen=True)
class Counts:
    """One answer, by both."""

    kind: str
    gamma: int
    prompt: str
    peer: Rounds
    ours: Rounds
    same_text: bool

    @property
    def differing(self) -> int:
        """Rounds that are not the same."""
        return sum(a != b for a, b in zip(self.peer, self.ours, strict=True))


def count(settings: Settings, case: Case) -> Counts:
    """Raises BenchError."""
    text, first, mine = ours(settings, case)
    for _ in range(programs.TRIES):  # its log may be cut short
        said, theirs = peers(settings, replace(case, prompt=case.prompt + first))
        if text in said:
            break
    n = compared(theirs, settings.tokens - case.gamma - 2)
    kind, same = programs.drafting(settings), text in said
    return Counts(kind, case.gamma, case.name, theirs[:n], mine[:n], same)


def ours(settings: Settings, case: Case) -> tuple[str, str, Rounds]:
    """An answer, its first token and the rounds after that."""
    command = programs.localspec_command(settings, case)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events"
        document = json.loads(programs.call([*command, "--events", str(path)])[0])
        events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        found = [(e["accepted"], e["drafted"]) for e in events if e["ev"] == "round"]
    return document["text"], document["tokens"][0]["text"], found[1:]


def peers(settings: Settings, case: Case) -> tuple[str, Rounds]:
    command = programs.speculative_simple_command(settings, case)
    said, log = programs.call([*command, "--temp", "0", "--verbosity", "5"])
    found = [(int(kept), int(made)) for kept, made in _ROUND.findall(log + said)]
    if not found:
        raise BenchError(f"{command[0]} told of no rounds.")
    return log + said, found


def compared(rounds: Rounds, tokens: int) -> int:
    """How many rounds there are before so many tokens were said."""
    said = 0
    for n, (kept, _) in enumerate(rounds):
        if said > tokens:
            return n
        said += kept + 1
    return len(rounds)


def counts(every: list[Settings], prompts: dict[str, str]) -> Iterator[Counts]:
    for settings in every:
        for gamma in settings.gammas:
            for name, prompt in prompts.items():
                yield count(settings, Case(name, prompt, gamma))


def report(found: list[Counts], *, markdown: bool) -> str:
    rows = [
        [
            *(one.kind, str(one.gamma), one.prompt, _share(one.peer), _share(one.ours)),
            *(f"{one.differing} of {len(one.peer)}", _sign(one)),
        ]
        for one in found
    ]
    differing, every = sum(one.differing for one in found), sum(len(one.peer) for one in found)
    said = f"{every - differing:,} of {every:,} rounds are the same."
    return f"{table([COLUMNS, *rows], markdown=markdown)}\n\n{said}"


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
    parser.add_argument("--speculative-simple", required=True, metavar="PATH")
    parser.add_argument("--gamma", type=int, nargs="+", default=[1, 3, 5], metavar="N")
    parser.add_argument("--tokens", type=int, default=96, metavar="N")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def settings_of(args: argparse.Namespace, draft: str) -> Settings:
    return Settings(
        target=args.target,
        draft=draft,
        speculative_simple=args.speculative_simple,
        llama_bench=None,
        localspec=(sys.executable, "-m", "localspec"),
        gammas=tuple(args.gamma),
        tokens=args.tokens,
        ctx=1024,
        threads=1,
        gpu_layers=0,
        flash_attn="on",
        repack=not has_amx(),
        peer_defaults=False,
        rounds=1,
        load_before=None,
    )


def main() -> int:
    args = parse()
    found: list[Counts] = []
    try:
        prompts = prompts_of(args.prompts)
        for one in counts([settings_of(args, draft) for draft in args.draft], prompts):
            found.append(one)
            print(one.kind, one.gamma, one.prompt, one.differing, file=sys.stderr)
    except BenchError as error:
        print(f"bench_counts: {error}", file=sys.stderr)
        return 1
    print(report(found, markdown=args.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main())
