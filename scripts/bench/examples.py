"""Whether the app's examples are answered rightly by the model that opens first, and faster.

    bench.py examples [--file CANDIDATES.json] [--seeds 40] [--model smollm2-135m+eagle3]

Each example is answered greedily and with each seed at the pair's own temperature, as
the app does: once as the example says (`--spec` of the example, else `auto`) and once
plainly, one after the other. Right means that the whole answer matches the example's
expression. The speed-up is the ratio of tokens per second of two answers with the same
seed, whose texts are equal up to rounding. The file has a list of objects with `title`,
`message`, `right` and `spec`, the fields of `chat/examples.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct
from programs import conditions
from turns import table

from localspec import LLM, launch
from localspec.chat.examples import EXAMPLES, Example
from localspec.chat.settings import ChatSettings
from localspec.protocol.json_values import from_json


class ExampleAnswer(Struct, frozen=True):
    """An answer to an example, and how much faster it was than plain decoding."""

    is_right: bool
    n_tokens: int
    drafted: int
    accepted: int
    passes: int
    speedup: float | None
    text: str


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="smollm2-135m+eagle3")
    add("--file", type=Path, help="measure these instead of the app's examples")
    add("--seeds", type=int, default=40)
    add("--tokens", type=int, default=160, help="of an answer, at most")
    add("--plain", type=int, help="seeds that are answered plainly too; all by default")
    add("--wrong", action="store_true", help="print each wrong answer")


def main(args: argparse.Namespace) -> None:
    examples: Sequence[Example] = EXAMPLES
    if args.file is not None:
        listed = json.loads(args.file.read_text(encoding="utf-8"))
        examples = [from_json(Example, each) for each in listed]
    rows: list[Sequence[str]] = [
        ("example", "right", "tokens", "guessed right", "tokens a step", "speed-up")
    ]
    pair = launch.resolve_pair(args.model, "auto")
    temperature = ChatSettings.from_catalog(
        pair.suggested_settings
    ).sampling.temperature
    with LLM(args.model) as llm:
        llm.chat("Hello", max_tokens=8)  # warm caches
        for example in examples:
            rows.append(measure(llm, example, temperature, args))
            print(*rows[-1], file=sys.stderr, flush=True)
        file = llm.ready.model
    print(f"{file}, temperature {temperature:g} and greedy; {conditions()}\n")
    print(table(rows))


def measure(
    llm: LLM, example: Example, temperature: float, args: argparse.Namespace
) -> Sequence[str]:
    n_plain = args.seeds if args.plain is None else args.plain
    answers = [answer(llm, example, 0.0, 0, args.tokens, is_compared=n_plain > 0)]
    for seed in range(args.seeds):
        found = answer(
            llm, example, temperature, seed, args.tokens, is_compared=seed < n_plain
        )
        answers.append(found)
    if args.wrong:
        for each in answers:
            if not each.is_right:
                print(f"{example.title}: {each.text!r}", file=sys.stderr)
    n_right = sum(each.is_right for each in answers)
    drafted = sum(each.drafted for each in answers)
    accepted = sum(each.accepted for each in answers)
    n_tokens = sum(each.n_tokens for each in answers)
    passes = sum(each.passes for each in answers)
    speedups = sorted(each.speedup for each in answers if each.speedup is not None)
    speed = "–"
    if speedups:
        speed = f"{median(speedups):.2f} ({speedups[0]:.2f} to {speedups[-1]:.2f})"
    return (
        example.title,
        f"{n_right} of {len(answers)}",
        f"{n_tokens / len(answers):.0f}",
        f"{accepted / drafted:.0%}" if drafted else "–",
        f"{n_tokens / max(passes, 1):.2f}",
        speed,
    )


def answer(
    llm: LLM,
    example: Example,
    temperature: float,
    seed: int,
    max_tokens: int,
    *,
    is_compared: bool,
) -> ExampleAnswer:
    def ask(spec: str) -> tuple[str, float | None, dict[str, int]]:
        found = llm.chat(
            example.message,
            temperature=temperature,
            seed=seed,
            max_tokens=max_tokens,
            spec=spec,
        )
        speculation = found.speculation
        counts = {
            "tokens": len(found.tokens),
            "drafted": speculation["drafted"],
            "accepted": speculation["accepted"],
            "passes": speculation["rounds"] + speculation["paused_rounds"],
        }
        return found.said, found.timings["tokens_per_second"], counts

    text, rate, counts = ask(example.spec)
    speedup = None
    if is_compared:
        _, plain_rate, _ = ask("off")
        if rate and plain_rate:
            speedup = rate / plain_rate
    return ExampleAnswer(
        is_right=example.is_right(text),
        n_tokens=counts["tokens"],
        drafted=counts["drafted"],
        accepted=counts["accepted"],
        passes=counts["passes"],
        speedup=speedup,
        text=text,
    )
