"""What `auto` wins or loses in one-shot answers, apart from the noise of the clock.

    bench.py regret --target T.gguf --draft D.gguf [--prompts FILE] [--rounds N]
    bench.py regret --target CHAT.gguf … --texts scripts/bench/edits.json
    bench.py regret --target T.gguf --draft D.gguf --clock

The decisions are those of real answers: one process each, which learns from those
before; every answer has a seed of its own. A target pass is then charged the median of
all passes of its width, in one-token passes of its answer, and a draft what it took.
0.97 is an answer that lost 3 %. Not in it: planning a round, which takes the host 0.1
ms that plain decoding does not need.

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

GOAL, EDIT_GOAL = 0.97, 0.95
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
        return print(table([["file", *columns], *rows]))
    if args.draft is None:
        raise BenchError("Give --draft or --texts.")
    texts = prompts_of(args.prompts) if args.prompts else workload_prompts([])
    answers = []
    with tempfile.TemporaryDirectory() as data_dir:
        settings = Settings(
            args.target[0], None, "", args.tokens, args.ctx, data_dir=data_dir
        )
        for seed in range(args.rounds * len(texts)):
            text = list(texts.values())[seed % len(texts)]
            case = Case("", text, args.temperature, seed)
            answers.append(rounds_of(settings, case, args.draft))
            print(f"answer {seed + 1}: {len(answers[-1])} rounds", file=sys.stderr)
    ratios = speedups(answers)
    turns = [ratios[i : i + len(texts)] for i in range(0, len(ratios), len(texts))]
    print(table(list(report(list(texts), turns))))


def compare_groups(
    target: str, groups: Mapping[str, Mapping[str, str]], args: argparse.Namespace
) -> list[str]:
    """A row: `auto` relative to plain, and to the better of plain and drafting in every
    round.
    """
    answers, forced = list[list[events.Round]](), "model" if args.draft else "lookup"
    names = [(group, name) for group, texts in groups.items() for name in texts]
    with loaded_engine(load_command(target, args)) as engine:
        measured_costs(engine)
        for turn, (group, name) in itertools.product(range(args.rounds), names):
            text, sampling = (
                groups[group][name],
                SamplingParams(args.temperature, seed=turn),
            )
            messages = () if args.clock else (ChatMessage("user", text),)
            request = GenerateCommand(text, sampling, args.tokens, messages=messages)
            for spec in ("off", forced, "auto"):
                answer = generate_answer(engine, replace(request, spec=spec))
                answers.append(list(answer.rounds)[1:])
    values, cells = (
        iter((speeds if args.clock else speedups)(answers)),
        [Path(target).stem],
    )
    triples = zip(values, values, values, strict=True)
    found = defaultdict[str, list[tuple[float, float]]](list)
    for (group, name), (plain, drafted, auto) in zip(
        names * args.rounds, triples, strict=True
    ):
        base = plain if args.clock else 1.0
        found[group].append((auto / base, auto / max(base, drafted)))
        shown = f"auto {auto / base:.3f}, {forced} {drafted / base:.3f}"
        print(f"{cells[0]} {name}: {shown}", file=sys.stderr)
    for pairs in found.values():
        for goal, ratios in zip(
            (GOAL, EDIT_GOAL), zip(*pairs, strict=True), strict=True
        ):
            cells.append(f"{geometric_mean(ratios):.3f} ({min(ratios):.3f})")
            cells.append(f"{sum(ratio < goal for ratio in ratios)} of {len(ratios)}")
    return cells


def load_command(target: str, args: argparse.Namespace) -> LoadCommand:
    settings = ContextSettings(n_ctx=args.ctx)
    files = [
        str(Path(name).resolve()) if name else None for name in (target, args.draft)
    ]
    return LoadCommand(str(files[0]), files[1], settings, settings)


def speeds(answers: Sequence[Sequence[events.Round]]) -> list[float]:
    """Of each answer: tokens per millisecond."""
    return [
        sum(len(r.tokens) for r in rs) / sum(r.ms.total for r in rs) for rs in answers
    ]


def rounds_of(settings: Settings, case: Case, draft: str) -> list[events.Round]:
    """The rounds of an answer without its first, which reads the prompt.

    Raises BenchError.
    """
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        command = localspec_command(
            settings, case, ("--draft", draft, "--events", file.name)
        )
        call(settings, command)
        found = map(
            events.decode, Path(file.name).read_text(encoding="utf-8").splitlines()
        )
        return [event for event in found if isinstance(event, events.Round)][1:]


def target_ms(done: events.Round) -> float:
    return done.ms.verify + done.ms.host


def speedups(answers: Sequence[Sequence[events.Round]]) -> list[float]:
    """Of each answer: tokens per one-token pass."""
    plain = [[target_ms(r) for r in rounds if not r.drafted] for rounds in answers]
    usual_ms = median(ms for times in plain for ms in times)
    units = [median(times) if times else usual_ms for times in plain]
    by_length = defaultdict[int, list[float]](list)
    for rounds, unit in zip(answers, units, strict=True):
        for r in rounds:
            by_length[r.drafted].append(target_ms(r) / unit)
    price = {length: median(costs) for length, costs in by_length.items()} | {0: 1.0}
    return [
        sum(len(r.tokens) for r in rounds)
        / sum(price[r.drafted] + r.ms.draft / unit for r in rounds)
        for rounds, unit in zip(answers, units, strict=True)
    ]


def report(
    names: Sequence[str], turns: Sequence[Sequence[float]]
) -> Iterator[list[str]]:
    """A row for each prompt, a column for each turn."""
    yield ["prompt", *(f"turn {n}" for n in range(1, len(turns) + 1))]
    for name, row in zip(names, zip(*turns, strict=True), strict=True):
        yield [name, *(f"{ratio:.3f}" for ratio in row)]
    yield ["mean", *(f"{fmean(turn):.3f}" for turn in turns)]
    yield ["worst", *(f"{min(turn):.3f}" for turn in turns)]
    yield [
        f"below {GOAL}",
        *(str(sum(ratio < GOAL for ratio in turn)) for turn in turns),
    ]
