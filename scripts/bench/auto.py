"""How near `auto` comes to the best fixed policy, in first answers and in later ones.

    bench.py auto --target T.gguf … [--draft D.gguf] [--prompts FILE | --texts FILE]
                  [--temperature 0 0.8] [--seeds N] [--tokens N] [--clock]

Policies: plain decoding, prompt lookup, fixed draft lengths, `auto` cold (a new engine
with an empty folder for each answer) and `auto` warm (an engine that has learnt from four
answers before). Each policy has an engine of its own and goes through all prompts, so no
draft finds a prompt that another policy has read.

A target pass is charged the median of all passes of its width, in one-token passes, and a
draft what it took: that leaves out the noise of the clock. `--clock` compares real times,
where nothing disturbs them, as on a GPU.

`--texts` has groups of requests to a chat model: {group: {name: request, …}, …}.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from msgspec import Struct
from msgspec.structs import replace
from programs import BenchError, generate_answer, loaded_engine, measured_costs
from prompts import prompts_of, workload_prompts
from turns import table

from localspec.protocol.events import Round
from localspec.protocol.wire import (
    ChatMessage,
    ContextSettings,
    GenerateCommand,
    LoadCommand,
    SamplingParams,
)

LENGTHS = (1, 2, 3, 5, 8)
"""Fixed draft lengths."""
N_LEARNING = 4  # Answers before those of `auto`, warm.
WARM_SHARE = 0.95
COLD_SHARE = 0.90
"""The goals: of the best fixed policy, in the mean."""
KNOWN_BOUND = 0.97
FIRST_BOUND = 0.90
"""The goals: of plain decoding, in 95 of 100 later answers and in every first one."""


class Prompt(Struct, frozen=True):
    group: str
    name: str
    text: str


class Policy(Struct, frozen=True):
    """What drafts in all answers of an engine."""

    name: str
    spec: str
    draft_length: int | None = None
    is_new_engine_each: bool = False
    n_learning: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, nargs="+", metavar="GGUF")
    add("--draft", metavar="GGUF")
    add("--texts", type=Path, metavar="FILE", help="JSON of groups of requests")
    add("--prompts", type=Path, metavar="FILE", help="JSON: {name: text, …}")
    add("--clock", action="store_true", help="compare real times")
    add("--seeds", type=int, default=1, metavar="N")
    add("--tokens", type=int, default=128, metavar="N")
    add("--ctx", type=int, default=2048, metavar="N")
    add("--temperature", type=float, nargs="+", default=[0.0, 0.8], metavar="T")


def main(args: argparse.Namespace) -> None:
    prompts = list_prompts(args)
    rows: list[list[str]] = []
    for target in args.target:
        for temperature in args.temperature:
            label = f"{Path(target).stem}, T {temperature:g}"
            rows += compare(label, target, temperature, prompts, args)
    columns = [
        "pair",
        "policy",
        "/ plain (worst)",
        "/ the best fixed (worst)",
        "bound missed",
    ]
    print(table([columns, *rows]))


def list_prompts(args: argparse.Namespace) -> list[Prompt]:
    if args.texts:
        groups = json.loads(args.texts.read_text(encoding="utf-8"))
    elif args.prompts:
        groups = {"": prompts_of(args.prompts)}
    else:
        groups = {"": workload_prompts([])}
    prompts: list[Prompt] = []
    for group, texts in groups.items():
        prompts += [Prompt(group, name, text) for name, text in texts.items()]
    return prompts


def list_policies(has_draft: bool) -> list[Policy]:
    policies = [Policy("plain", "off"), Policy("lookup", "lookup")]
    if has_draft:
        policies += [Policy(f"{n} drafted", "model", n) for n in LENGTHS]
    policies.append(Policy("auto, cold", "auto", is_new_engine_each=True))
    policies.append(Policy("auto, warm", "auto", n_learning=N_LEARNING))
    return policies


def compare(
    label: str,
    target: str,
    temperature: float,
    prompts: Sequence[Prompt],
    args: argparse.Namespace,
) -> Iterator[list[str]]:
    """The rows of a pair at a temperature, one for each policy."""
    load = load_command(target, args)
    policies = list_policies(has_draft=args.draft is not None)
    requests = []
    for seed in range(args.seeds):
        sampling = SamplingParams(temperature, seed=seed)
        for prompt in prompts:
            requests.append(make_request(prompt, sampling, args))
    answers: list[Sequence[Round]] = []
    for policy in policies:
        print(f"{label}: {policy.name}", file=sys.stderr)
        answers += answers_of(policy, load, requests)
    values = speeds(answers) if args.clock else speedups(answers)
    by_policy: dict[str, Sequence[float]] = {}
    for number, policy in enumerate(policies):
        first = number * len(requests)
        by_policy[policy.name] = values[first : first + len(requests)]
    yield from report(label, by_policy)


def make_request(
    prompt: Prompt, sampling: SamplingParams, args: argparse.Namespace
) -> GenerateCommand:
    request = GenerateCommand(prompt.text, sampling, args.tokens)
    if prompt.group:
        messages = (ChatMessage("user", prompt.text),)
        request = replace(request, messages=messages)
    return request


def answers_of(
    policy: Policy, load: LoadCommand, requests: Sequence[GenerateCommand]
) -> Iterator[Sequence[Round]]:
    """The rounds of each answer without its first, which reads the prompt."""
    asked = [
        replace(request, spec=policy.spec, draft_length=policy.draft_length)
        for request in requests
    ]
    if policy.is_new_engine_each:
        for request in asked:
            with loaded_engine(load) as engine:
                yield generate_answer(engine, request).rounds[1:]
        return
    with loaded_engine(load) as engine:
        if policy.spec == "auto":
            measured_costs(engine)
        for request in itertools.islice(itertools.cycle(asked), policy.n_learning):
            # Another text than the one that is measured; and a greedy one, which is the
            # same, must not be copied from.
            sampling = replace(request.sampling, seed=request.sampling.seed + 1000)
            learning = replace(request, sampling=sampling, client="learning")
            generate_answer(engine, learning)
        for request in asked:
            yield generate_answer(engine, request).rounds[1:]


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


def report(label: str, by_policy: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    """A row for each policy, beside the fixed one that is the best for all prompts.

    With plain 1.0, lookup 1.3 and 3 drafted 1.5 in the mean, an `auto` of 1.4 has .93 of
    the best.
    """
    fixed = [name for name in by_policy if not name.startswith("auto")]
    best = by_policy[max(fixed, key=lambda name: geometric_mean(by_policy[name]))]
    plain = by_policy["plain"]
    for name, values in by_policy.items():
        to_plain = [value / base for value, base in zip(values, plain, strict=True)]
        to_best = [value / base for value, base in zip(values, best, strict=True)]
        bound = FIRST_BOUND if name == "auto, cold" else KNOWN_BOUND
        n_missed = len([ratio for ratio in to_plain if ratio < bound])
        yield [
            label,
            name,
            f"{geometric_mean(to_plain):.3f} ({min(to_plain):.3f})",
            f"{geometric_mean(to_best):.3f} ({min(to_best):.3f})",
            f"{n_missed} of {len(to_plain)} below {bound}",
        ]


def speeds(answers: Sequence[Sequence[Round]]) -> list[float]:
    """Of each answer: tokens per millisecond."""
    found = []
    for rounds in answers:
        n_tokens = sum(len(each.tokens) for each in rounds)
        found.append(n_tokens / sum(each.ms.total for each in rounds))
    return found


def target_ms(done: Round) -> float:
    return done.ms.verify + done.ms.host


def speedups(answers: Sequence[Sequence[Round]]) -> list[float]:
    """Of each answer: tokens per one-token pass.

    For example ten rounds that cost 20 one-token passes and have 30 tokens have the
    speed-up 1.5.
    """
    found = []
    for rounds, price in zip(answers, prices(answers), strict=True):
        n_tokens = sum(len(each.tokens) for each in rounds)
        found.append(n_tokens / price if price else 1.0)
    return found


def prices(answers: Sequence[Sequence[Round]]) -> list[float]:
    """Of each answer: what it costs, in one-token passes.

    For example rounds of draft length 3 cost 1.5 one-token passes in the median of all
    answers, and their drafts 0.5. An answer of ten such rounds costs 20.
    """
    plain = [[target_ms(r) for r in rounds if not r.drafted] for rounds in answers]
    all_plain = list(itertools.chain.from_iterable(plain))
    if not all_plain:
        raise BenchError("No round was plain: ask for longer answers.")
    usual_ms = median(all_plain)
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
        cost = sum(price[each.drafted] + each.ms.draft / unit for each in rounds)
        found.append(cost)
    return found
