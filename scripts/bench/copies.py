"""What longer copies save where a text is edited: passes and time at 16, 32 and 62 tokens.

    bench.py copies --target T.gguf [--edits N] [--curve JSON] [--rollback N]

The texts are edits of this repository's own history: a file before a commit is the
prompt, and the same file after it is the answer, which is known. So no model has to
write it: each round copies, the true text says how much of the copy is right, and a pass
costs what its width was measured to cost with the target. The controller chooses the
lengths, as in an answer.

`--curve` gives the cost of a pass by width, in one-token passes, in place of a
measurement: of another computer, such as {"1": 1, "8": 1.2, "64": 1.8} of a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from msgspec import Struct
from programs import BenchError, conditions
from turns import table

from localspec.engine import pass_timing
from localspec.fit.speedup_model import interpolate_curve
from localspec.llama.context import LlamaContext
from localspec.machine.llama_params import ModelRole
from localspec.protocol.events import RoundTimes
from localspec.protocol.wire import DRAFT_MAX, ContextSettings, MeasuredCosts
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_beliefs import PairBeliefs
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.speculative_loop import RoundResult

ROOT = Path(__file__).parents[2]
LENGTHS = (16, 32, DRAFT_MAX)
TIMED_WIDTHS = (1, 2, 4, 8, 17, 33, DRAFT_MAX + 1)
REPEATS = 5
MIN_LINES = 20
MAX_LINES = 250  # Of a file, so that prompt and answer fit a usual context.


class Edit(Struct, frozen=True):
    name: str
    before: str
    after: str


class Copied(Struct, frozen=True):
    """An answer that was copied with copies of a certain length at most."""

    n_tokens: int
    n_passes: int
    cost: float  # In one-token passes.


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", required=True, metavar="GGUF")
    add("--edits", type=int, default=50, metavar="N")
    add("--curve", type=json.loads, metavar="JSON", help="costs of passes by width")
    add("--rollback", type=int, metavar="N", help="tokens that a hybrid rolls back")


def main(args: argparse.Namespace) -> None:
    edits = list(find_edits(args.edits))
    if not edits:
        raise BenchError("The repository's history is not here, or has no edits.")
    settings = ContextSettings(n_ctx=4096, n_gpu_layers=-1)
    model = LlamaContext(Path(args.target), ModelRole(settings, DRAFT_MAX + 1, 0))
    try:
        curve = args.curve or measure_curve(model)
        rows = [("longest copy", "passes", "tokens a pass", "× plain (worst)")]
        for length in LENGTHS:
            answers = [
                copy_answer(model, edit, length, curve, args.rollback) for edit in edits
            ]
            speedups = [each.n_tokens / each.cost for each in answers]
            n_passes = sum(each.n_passes for each in answers)
            n_tokens = sum(each.n_tokens for each in answers)
            row = (
                str(length),
                f"{n_passes:,}",
                f"{n_tokens / n_passes:.1f}",
                f"{geometric_mean(speedups):.2f} ({min(speedups):.2f})",
            )
            rows.append(row)
    finally:
        model.close()
    shown = ", ".join(f"{width}: {cost:.2f}" for width, cost in curve.items())
    print(f"{len(edits)} edits; cost of a pass by width: {shown}")
    print(f"{Path(args.target).name}; {conditions()}\n")
    print(table(rows))


def find_edits(n: int) -> Iterator[Edit]:
    """The newest edits of Python files of moderate length, one a commit."""
    commits = git("log", "--no-merges", "--format=%h", "--", "localspec/*.py")
    n_found = 0
    for commit in commits.split():
        changed = git("diff", "--name-only", "--diff-filter=M", f"{commit}~", commit)
        for name in changed.split():
            if not name.startswith("localspec/") or not name.endswith(".py"):
                continue
            before = git("show", f"{commit}~:{name}")
            after = git("show", f"{commit}:{name}")
            if MIN_LINES <= after.count("\n") <= MAX_LINES:
                yield Edit(f"{commit}:{name}", before, after)
                n_found += 1
                break
        if n_found == n:
            return


def git(*words: str) -> str:
    done = subprocess.run(
        ["git", "-C", ROOT, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return done.stdout


def measure_curve(model: LlamaContext) -> dict[str, float]:
    """Cost of a pass by width, in one-token passes."""
    model.decode([1] * 200, 0)
    times: dict[int, list[float]] = {width: [] for width in TIMED_WIDTHS}
    for _ in range(REPEATS):
        for width in TIMED_WIDTHS:
            times[width].append(pass_timing.time_pass(model, width))
    model.truncate(0)
    plain = median(times[1])
    return {str(width): median(found) / plain for width, found in times.items()}


def copy_answer(
    model: LlamaContext,
    edit: Edit,
    length: int,
    curve: dict[str, float],
    max_rollback: int | None,
) -> Copied:
    """Copy the text after the edit from the one before it, with `length` at most."""
    vocabulary = model.vocabulary
    prompt = vocabulary.tokenize(edit.before, add_special=True, parse_special=False)
    answer = vocabulary.tokenize(edit.after, add_special=False, parse_special=False)
    costs = PassCosts(MeasuredCosts(1.0, curve))
    if max_rollback is not None:
        costs = PassCosts(MeasuredCosts(1.0, curve), max_rollback=max_rollback)
    controller = SpeculationController(None, LookupDrafter(), costs, PairBeliefs())
    by_width = {int(width): cost for width, cost in curve.items()}
    text = list(prompt)
    n_passes = 0
    cost = 0.0
    n_again = 0  # Tokens that the next pass reads once more.
    while len(text) < len(prompt) + len(answer):
        left: Sequence[int] = answer[len(text) - len(prompt) :]
        limit = min(length, len(left) - 1)
        if n_again and max_rollback is not None:
            limit = min(limit, max_rollback)
        draft = controller.propose(text, limit)
        n_right = common_prefix_length(draft.tokens, left)
        new = list(left[: n_right + 1])
        width = 1 + n_again + len(draft.tokens)
        pass_cost = interpolate_curve(by_width, width)
        n_again = 0
        if max_rollback is not None and len(draft.tokens) - n_right > max_rollback:
            n_again = n_right + 1
        times = RoundTimes(0.0, pass_cost, 0.0)
        controller.record_round(RoundResult(draft, n_right, new, times, width=width))
        text += new
        n_passes += 1
        cost += pass_cost
    return Copied(len(answer), n_passes, cost)
