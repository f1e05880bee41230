"""Checks that speculating changes nothing here: equal answers, and samples of the right law."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from localspec.bench.answer_comparison import (
    CancellableEngine,
    ReplayEngine,
    SpeculationVariant,
    VerifyCancelled,
    compare_prompt,
)
from localspec.bench.sampling_check import SampleSize, TokenSample, draw_tokens
from localspec.bench.verify_report import (
    VERIFY_MODES,
    ComparisonResult,
    SampleResult,
    VerifyEvent,
    VerifyPart,
    VerifyProgress,
    WidthDifference,
)
from localspec.protocol.wire import ProbeCommand, SamplingParams, VerifyMode

# --- The texts that `verify` continues: short, different from their first words on.

VERIFY_PROMPTS = (
    'def fibonacci(n):\n    """Return the first n Fibonacci numbers."""\n',
    "import json\nimport sys\n\n\ndef main():\n    with open(sys.argv[1]) as file:\n",
    "class Queue:\n    def __init__(self):\n        self.held = []\n\n    def push(self, item):\n",
    "for name in sorted(names):\n    if name in seen:\n        continue\n",
    "The lighthouse keeper counted the ships every evening, and on the third day of the storm",
    "once = [1, 2, 3]\ntwice = [1, 2, 3, 1, 2, 3]\nthrice = [1, 2, 3, 1, 2, 3,",
    "To make bread you need flour, water, salt and time. To make soup you need",
    "try:\n    value = int(text)\nexcept ValueError:\n    value = None\nelse:\n",
)


# --- Checks that speculating changes nothing here: equal answers, and samples of the right law.

_MIN_PROMPTS = 2
_SEEDS_PER_MODE = 1_000_000
_CONFIRMATION_SEED_OFFSET = 5_000
"""Added to the seeds of a sample that looks again."""


@dataclass(frozen=True, slots=True)
class VerifyEffort:
    """How much to look at."""

    seconds_per_part: float = 20.0
    """For each part; a slow machine does the least of it and takes longer."""
    tokens_per_answer: int = 64
    """Of an answer."""
    prompts: Sequence[str] = VERIFY_PROMPTS
    min_sampled_tokens: int = 200
    """Tokens to sample of each way of verifying."""


def check_lossless(
    engine: ReplayEngine,
    *,
    has_draft_model: bool,
    effort: VerifyEffort | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[VerifyEvent]:
    """Everything, part by part; whoever stops listening keeps what was found.

    `draft`: whether there is a draft model.  Ends early, within an answer, once `stopped`.  Raises
    what the engine raised, or died of.
    """
    with suppress(VerifyCancelled):
        yield from _run_parts(
            CancellableEngine(engine, should_stop), has_draft_model, effort or VerifyEffort()
        )


def _run_parts(
    engine: ReplayEngine, has_draft_model: bool, effort: VerifyEffort
) -> Iterator[VerifyEvent]:
    yield VerifyProgress("widths", "measuring how far passes of different widths disagree")
    for _ in engine.probe(ProbeCommand(seconds=1.0, difference=True)):
        pass
    measured = engine.measured
    yield WidthDifference((measured.difference if measured else None) or 0.0)
    yield from _check_equality(
        engine,
        "greedy",
        SamplingParams(temperature=0),
        _speculation_variants(has_draft_model),
        effort,
    )
    yield from _check_equality(
        engine,
        "seeded",
        SamplingParams(temperature=0.8),
        _speculation_variants(has_draft_model)[::2],
        effort,
    )
    for n, verify in enumerate(VERIFY_MODES):
        yield from _check_sampling(
            engine, verify, has_draft_model, effort, (n + 1) * _SEEDS_PER_MODE
        )


def _speculation_variants(has_draft_model: bool) -> list[SpeculationVariant]:
    """Fixed lengths, in passes of different widths, and as the controller likes."""
    if not has_draft_model:
        return [
            SpeculationVariant("lookup", 5),
            SpeculationVariant("lookup", 2),
            SpeculationVariant("auto"),
        ]
    return [
        SpeculationVariant("model", 5),
        SpeculationVariant("model", 2),
        SpeculationVariant("auto"),
        SpeculationVariant("lookup", 5),
    ]


def _check_equality(
    engine: ReplayEngine,
    part: VerifyPart,
    sampling: SamplingParams,
    variants: Sequence[SpeculationVariant],
    effort: VerifyEffort,
) -> Iterator[VerifyEvent]:
    began = time.monotonic()
    kind = "temperature 0" if part == "greedy" else "the same seed"
    for n, text in enumerate(effort.prompts):
        over = _elapsed_share(time.monotonic() - began, effort.seconds_per_part)
        if n >= _MIN_PROMPTS and over > 1:
            return
        share = max(n / len(effort.prompts), min(n / _MIN_PROMPTS, over))
        yield VerifyProgress(
            part, f"{kind}: prompt {n + 1} of {len(effort.prompts)}", min(share, 1.0)
        )
        seeded = SamplingParams(sampling.temperature, seed=n)
        yield ComparisonResult(
            part, compare_prompt(engine, variants, n, text, seeded, tokens=effort.tokens_per_answer)
        )


def _check_sampling(
    engine: ReplayEngine, verify: VerifyMode, has_draft_model: bool, effort: VerifyEffort, seed: int
) -> Iterator[VerifyEvent]:
    """One sample; a second with other seeds where a test alarms, which then decides."""
    amount = SampleSize(
        effort.min_sampled_tokens,
        tokens_per_answer=effort.tokens_per_answer,
        seconds=effort.seconds_per_part,
    )
    spec = "model" if has_draft_model else "lookup"
    for again in (False, True):
        sample = TokenSample(verify, is_confirmation=again)
        began = time.monotonic()
        for _ in draw_tokens(
            engine, sample, spec, effort.prompts, amount, seed + again * _CONFIRMATION_SEED_OFFSET
        ):
            over = _elapsed_share(time.monotonic() - began, effort.seconds_per_part)
            share = max(
                sample.tokens / amount.max_tokens,
                min(sample.tokens / effort.min_sampled_tokens, over),
            )
            what = f"sampling, {verify}: {sample.tokens} tokens"
            yield VerifyProgress("sampled", what, min(share, 1.0), verify)
            if sample.impossible:
                yield SampleResult(sample)
                return
        yield SampleResult(sample)
        if not sample.is_rejected(len(VERIFY_MODES)):
            return


def _elapsed_share(elapsed: float, seconds: float) -> float:
    """How much of the time for a part is over; more than 1 where it is all."""
    return elapsed / seconds if seconds else 2.0
