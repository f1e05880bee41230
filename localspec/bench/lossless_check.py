"""Checks that speculation is lossless here: it compares answers and tests sampled tokens."""

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
"""Short, and different from the first words on."""

_MIN_PROMPTS = 2
_SEEDS_PER_MODE = 1_000_000
_CONFIRMATION_SEED_OFFSET = 5_000
"""Added to the seeds of a second sample."""


@dataclass(frozen=True, slots=True)
class VerifyEffort:
    seconds_per_part: float = 20.0
    """A slow machine does the minimum and takes longer."""
    tokens_per_answer: int = 64
    prompts: Sequence[str] = VERIFY_PROMPTS
    min_sampled_tokens: int = 200
    """For each verification method."""


def check_lossless(
    engine: ReplayEngine,
    *,
    has_draft_model: bool,
    effort: VerifyEffort | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[VerifyEvent]:
    """Runs all parts and yields each result when it is available.

    Ends early, within an answer, once `should_stop` returns true. Raises LocalspecError if the
    engine fails or exits.
    """
    with suppress(VerifyCancelled):
        yield from _run_parts(
            CancellableEngine(engine, should_stop), has_draft_model, effort or VerifyEffort()
        )


def _run_parts(
    engine: ReplayEngine, has_draft_model: bool, effort: VerifyEffort
) -> Iterator[VerifyEvent]:
    yield VerifyProgress("widths", "measuring rounding differences between passes")
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
    """Fixed draft lengths, for passes of different widths, and the adaptive controller."""
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
    kind = "temperature 0" if part == "greedy" else "same seed"
    for n, text in enumerate(effort.prompts):
        elapsed = _elapsed_share(time.monotonic() - began, effort.seconds_per_part)
        if n >= _MIN_PROMPTS and elapsed > 1:
            return
        share = max(n / len(effort.prompts), min(n / _MIN_PROMPTS, elapsed))
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
    """Draws one sample; if its test rejects, a second one with other seeds decides."""
    size = SampleSize(
        effort.min_sampled_tokens,
        tokens_per_answer=effort.tokens_per_answer,
        seconds=effort.seconds_per_part,
    )
    spec = "model" if has_draft_model else "lookup"
    for is_confirmation in (False, True):
        sample = TokenSample(verify, is_confirmation=is_confirmation)
        first_seed = seed + is_confirmation * _CONFIRMATION_SEED_OFFSET
        began = time.monotonic()
        for _ in draw_tokens(engine, sample, spec, effort.prompts, size, first_seed):
            elapsed = _elapsed_share(time.monotonic() - began, effort.seconds_per_part)
            share = max(
                sample.tokens / size.max_tokens,
                min(sample.tokens / effort.min_sampled_tokens, elapsed),
            )
            message = f"sampling, {verify}: {sample.tokens} tokens"
            yield VerifyProgress("sampled", message, min(share, 1.0), verify)
            if sample.impossible:
                yield SampleResult(sample)
                return
        yield SampleResult(sample)
        if not sample.is_rejected(len(VERIFY_MODES)):
            return


def _elapsed_share(elapsed: float, seconds: float) -> float:
    """Share of a part's time budget; above 1 once it is used up."""
    return elapsed / seconds if seconds else 2.0
