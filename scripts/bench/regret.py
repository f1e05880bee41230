"""What `auto` wins or loses in one-shot answers, apart from the noise of the clock.

    bench.py regret --target T.gguf --draft D.gguf [--prompts FILE] [--rounds N]
    bench.py regret --target CHAT.gguf … --texts scripts/bench/edits.json
    bench.py regret --target T.gguf --draft D.gguf --clock

The decisions are those of real answers: one process each, which learns from those
before; every answer has a seed of its own. A target pass is then charged the median of
all passes of its width, in one-token passes of its answer, and a draft what it took.
0.97 is an answer that lost 3 %. The planning of a round is not in it: that takes the
host 0.1 ms, which plain decoding does not need.

The second form asks a chat model the requests of each group, plainly, with prompt
lookup in every round and by `auto`, of which passes were timed before, as when it is
idle. The third completes the prompts of `localspec bench` in this way, with the draft
in place of prompt lookup, and by the clock: where nothing disturbs it, as on a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean, median

from msgspec.structs import replace
from programs import (
    BenchError,
    Case,
    Settings,
    call,
    generate_answer,
    loaded_engine,
    localspec_command,
    measured_costs,
)
from prompts import prompts_of, workload_prompts
from turns import table

from localspec.protocol import events
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)

GOAL = 0.97  # Of `auto` over plain decoding.
BETTER_GOAL = 0.95  # Of `auto` over the better of plain decoding and drafting.
SUMMARY = ("auto / plain (worst)", "missed", "/ the better (worst)", "missed")


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, nargs="+", metavar="GGUF")
    add("--draft", metavar="GGUF")
    add(
        "--texts",
        type=Path,
        metavar="FILE",
        help="JSON: {group: {name: request, …}, …}",
    )
    add("--clock", action="store_true", help="compare real times")
    add("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    add("--rounds", type=int, default=3, metavar="N", help="turns")
    add("--tokens", type=int, default=96, metavar="N")
    add("--ctx", type=int, default=1024, metavar="N")
    add("--temperature", type=float, default=0.8, metavar="T")


def main(args: argparse.Namespace) -> None:
    if args.texts or args.clock:
        groups = {"workloads": workload_prompts([])}
        if args.texts:
            groups = json.loads(args.texts.read_text(encoding="utf-8"))
        columns = [f"{group}, {what}" for group in groups for what in SUMMARY]
        rows = [compare_groups(target, groups, args) for target in args.target]
        print(table([["file", *columns], *rows]))
        return
    if args.draft is None:
        raise BenchError("Give --draft or --texts.")
    texts = workload_prompts([])
    if args.prompts:
        texts = prompts_of(args.prompts)
    answers = []
    with tempfile.TemporaryDirectory() as data_dir:
        settings = Settings(
            target=args.target[0],
            draft=None,
            folder="",
            tokens=args.tokens,
            ctx=args.ctx,
            data_dir=data_dir,
        )
        for turn in range(args.rounds):
            for number, text in enumerate(texts.values()):
                seed = turn * len(texts) + number
                case = Case("", text, args.temperature, seed)
                rounds = rounds_of(settings, case, args.draft)
                answers.append(rounds)
                print(f"answer {seed + 1}: {len(rounds)} rounds", file=sys.stderr)
    turns = split_evenly(speedups(answers), len(texts))
    print(table(list(report(list(texts), turns))))


def split_evenly(values: Sequence[float], size: int) -> list[Sequence[float]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def compare_groups(
    target: str, groups: Mapping[str, Mapping[str, str]], args: argparse.Namespace
) -> list[str]:
    """A row of the table.

    By group: `auto` relative to plain, and to the better of plain and drafting in every
    round.
    """
    forced = "model" if args.draft else "lookup"
    asked: list[tuple[str, str]] = []  # Group and name, three answers each.
    answers: list[Sequence[events.Round]] = []
    with loaded_engine(load_command(target, args)) as engine:
        measured_costs(engine)
        for turn in range(args.rounds):
            sampling = SamplingParams(args.temperature, seed=turn)
            for group, texts in groups.items():
                for name, text in texts.items():
                    asked.append((group, name))
                    request = GenerateCommand(text, sampling, args.tokens)
                    if not args.clock:
                        messages = (ChatMessage("user", text),)
                        request = replace(request, messages=messages)
                    for spec in ("off", forced, "auto"):
                        answer = generate_answer(engine, replace(request, spec=spec))
                        answers.append(list(answer.rounds)[1:])

    values = speeds(answers) if args.clock else speedups(answers)
    to_plain = defaultdict[str, list[float]](list)
    to_better = defaultdict[str, list[float]](list)
    triples = split_evenly(values, 3)
    for (group, name), (plain, drafted, auto) in zip(asked, triples, strict=True):
        # A speed-up is relative to plain decoding already.
        base = plain if args.clock else 1.0
        to_plain[group].append(auto / base)
        to_better[group].append(auto / max(base, drafted))
        shown = f"auto {auto / base:.3f}, {forced} {drafted / base:.3f}"
        print(f"{Path(target).stem} {name}: {shown}", file=sys.stderr)
    row = [Path(target).stem]
    for group in to_plain:
        row += goal_cells(to_plain[group], GOAL)
        row += goal_cells(to_better[group], BETTER_GOAL)
    return row


def goal_cells(ratios: Sequence[float], goal: float) -> list[str]:
    """The mean and the worst ratio, and how many miss the goal."""
    missed = [ratio for ratio in ratios if ratio < goal]
    return [
        f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})",
        f"{len(missed)} of {len(ratios)}",
    ]


def load_command(target: str, args: argparse.Namespace) -> LoadCommand:
    settings = ContextSettings(n_ctx=args.ctx)
    draft = None
    if args.draft:
        draft = str(Path(args.draft).resolve())
    return LoadCommand(
        target=str(Path(target).resolve()),
        draft=draft,
        target_settings=settings,
        draft_settings=settings,
    )


def speeds(answers: Sequence[Sequence[events.Round]]) -> list[float]:
    """Of each answer: tokens per millisecond."""
    found = []
    for rounds in answers:
        n_tokens = sum(len(each.tokens) for each in rounds)
        found.append(n_tokens / sum(each.ms.total for each in rounds))
    return found


def rounds_of(settings: Settings, case: Case, draft: str) -> list[events.Round]:
    """The rounds of an answer without its first, which reads the prompt.

    Raises BenchError.
    """
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        options = ("--draft", draft, "--events", file.name)
        call(settings, localspec_command(settings, case, options))
        lines = Path(file.name).read_text(encoding="utf-8").splitlines()
    found = [events.decode(line) for line in lines]
    rounds = [event for event in found if isinstance(event, events.Round)]
    return rounds[1:]


def target_ms(done: events.Round) -> float:
    return done.ms.verify + done.ms.host


def speedups(answers: Sequence[Sequence[events.Round]]) -> list[float]:
    """Of each answer: tokens per one-token pass.

    For example rounds of draft length 3 cost 1.5 one-token passes in the median of all
    answers, and their drafts 0.5. An answer of ten such rounds with 30 tokens has the
    speed-up 30 / 20 = 1.5.
    """
    plain = [[target_ms(r) for r in rounds if not r.drafted] for rounds in answers]
    usual_ms = median(itertools.chain.from_iterable(plain))
    # What a one-token pass takes, by answer: the computer's speed may change.
    units = [median(times) if times else usual_ms for times in plain]

    by_length = defaultdict[int, list[float]](list)
    for rounds, unit in zip(answers, units, strict=True):
        for each in rounds:
            by_length[each.drafted].append(target_ms(each) / unit)
    price = {length: median(costs) for length, costs in by_length.items()}
    price[0] = 1.0

    found = []
    for rounds, unit in zip(answers, units, strict=True):
        n_tokens = sum(len(each.tokens) for each in rounds)
        cost = sum(price[each.drafted] + each.ms.draft / unit for each in rounds)
        found.append(n_tokens / cost)
    return found


def report(
    names: Sequence[str], turns: Sequence[Sequence[float]]
) -> Iterator[list[str]]:
    """A row for each prompt, a column for each turn."""
    yield ["prompt", *(f"turn {n}" for n in range(1, len(turns) + 1))]
    for name, row in zip(names, zip(*turns, strict=True), strict=True):
        yield [name, *(f"{ratio:.3f}" for ratio in row)]
    yield ["mean", *(f"{fmean(turn):.3f}" for turn in turns)]
    yield ["worst", *(f"{min(turn):.3f}" for turn in turns)]
    n_missed = [len([ratio for ratio in turn if ratio < GOAL]) for turn in turns]
    yield [f"below {GOAL}", *map(str, n_missed)]
