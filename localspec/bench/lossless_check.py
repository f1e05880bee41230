"""Checks that speculation is lossless here: it compares answers and tests sampled tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from localspec.bench.answer_comparison import (
    AnswerRecorder,
    ComparedPart,
    SpeculationVariant,
    compare_prompt,
)
from localspec.bench.measurement import AnswerCancelled, MeasurementProgress
from localspec.bench.sampling_check import VERIFY_MODES, TokenSample
from localspec.bench.verify_report import (
    LONG_PROMPT_INDEX,
    VerifyFinding,
    VerifyReport,
    WidthDifference,
    format_report,
    report_to_json,
)
from localspec.errors import PromptTooLongError
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    ProbeCommand,
    SamplingParams,
    VerifyMode,
)
from localspec.units import duration

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
LONG_PROMPT = "".join(f"# {n}\n{text}\n" for n in range(3) for text in VERIFY_PROMPTS)
"""More than 600 tokens; skipped where the context is too small for it."""

_MIN_PROMPTS = 3  # With the long one.
_SEEDS_PER_MODE = 1_000_000
_CONFIRMATION_SEED_OFFSET = 5_000  # Added to the seeds of a second sample.
_MAX_SAMPLED_TOKENS = 2000
_MAX_SAMPLED_ANSWERS = 200  # A limit for answers that end immediately.
_SAMPLED_SETTINGS = (
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
)
"""The settings of `run`, and without truncation, alternating."""
_SAMPLED_DRAFT_LENGTH = 4
_TIMED_PARTS = 5  # Those that take `VerifyEffort.seconds_per_part` each.


@dataclass(frozen=True, slots=True)
class VerifyEffort:
    seconds_per_part: float = 20.0  # A slow machine does the minimum and takes longer.
    tokens_per_answer: int = 64
    prompts: Sequence[str] = VERIFY_PROMPTS
    min_sampled_tokens: int = 200  # For each verification method.

    def elapsed_share(self, began: float) -> float:
        """Share of a part's time budget; above 1 once it is used up."""
        elapsed = time.monotonic() - began
        return elapsed / self.seconds_per_part if self.seconds_per_part else 2.0


VerifyEvent = MeasurementProgress | VerifyFinding


class LosslessMeasurement:
    """The measurement of `verify`."""

    heading = "Verify"
    begins_with_verdict = True

    def __init__(self, effort: VerifyEffort | None = None) -> None:
        self.effort = effort or VerifyEffort()
        self.report = VerifyReport()
        self._has_ended = False
        self._ready: EngineReady | None = None

    def format_estimate(self, _: MeasuredCosts | None) -> str:
        time = duration(_TIMED_PARTS * self.effort.seconds_per_part + 1)
        return f"About {time}; longer on a slow computer."

    def run(
        self, engine: Engine, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[MeasurementProgress]:
        """Ends early, within an answer, once `should_stop` returns true. Raises LocalspecError."""
        self._ready, self.report, self._has_ended = engine.ready, VerifyReport(), False
        has_draft_model = engine.ready.draft is not None
        try:
            for event in check_lossless(
                engine, has_draft_model=has_draft_model, effort=self.effort, should_stop=should_stop
            ):
                if isinstance(event, MeasurementProgress):
                    yield event
                else:
                    self.report.add(event)
            self.report.is_complete = not should_stop()
        finally:
            self._has_ended = True

    @property
    def has_begun(self) -> bool:
        return self._ready is not None

    @property
    def has_results(self) -> bool:
        return self.report.difference is not None

    @property
    def summary(self) -> str:
        return f"{self.report.drafted:,} draft tokens verified"

    def format_report(self) -> list[str]:
        assert self._ready is not None, "not begun"
        return list(format_report(self.report, self._ready, is_final=self._has_ended))

    format_shared_report = format_report

    def to_json(self) -> dict[str, Any]:
        assert self._ready is not None, "not begun"
        return report_to_json(self.report, self._ready)


def check_lossless(
    engine: Engine,
    *,
    has_draft_model: bool,
    effort: VerifyEffort,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[VerifyEvent]:
    """Runs all parts and yields each result when it is available.

    Ends early, within an answer, once `should_stop` returns true. Raises LocalspecError if the
    engine fails or exits.
    """
    with suppress(AnswerCancelled):
        message = "measuring rounding differences between passes …"
        yield MeasurementProgress(message, is_step=True)
        for _ in engine.probe(ProbeCommand(seconds=1.0, difference=True)):
            pass
        measured = engine.measured
        yield WidthDifference(
            (measured.difference if measured else None) or 0.0,
            measured.long_difference if measured else None,
        )
        recorder = AnswerRecorder(engine, should_stop)
        spec = "model" if has_draft_model else "lookup"
        # Fixed draft lengths, for passes of different widths, and the adaptive controller.
        variants = [SpeculationVariant(spec, 5), SpeculationVariant(spec, 2)]
        variants.append(SpeculationVariant("auto"))
        variants += [SpeculationVariant("lookup", 5)] if has_draft_model else []
        yield from _check_equality(recorder, "greedy", 0.0, variants, effort)
        yield from _check_equality(recorder, "seeded", 0.8, variants[::2], effort)
        for n, verify in enumerate(VERIFY_MODES):
            yield from _check_sampling(recorder, verify, spec, effort, (n + 1) * _SEEDS_PER_MODE)


def _check_equality(
    recorder: AnswerRecorder,
    part: ComparedPart,
    temperature: float,
    variants: Sequence[SpeculationVariant],
    effort: VerifyEffort,
) -> Iterator[VerifyEvent]:
    began = time.monotonic()
    kind = "temperature 0" if part == "greedy" else "same seed"
    prompts = list(effort.prompts)
    prompts.insert(LONG_PROMPT_INDEX, LONG_PROMPT)
    for n, text in enumerate(prompts):
        if n >= _MIN_PROMPTS and effort.elapsed_share(began) > 1:
            return
        message = f"{kind}: prompt {n + 1} of {len(prompts)} …"
        yield MeasurementProgress(message, is_step=n == 0)
        sampling = SamplingParams(temperature, seed=n)
        plain = GenerateCommand(text, sampling, effort.tokens_per_answer, spec="off")
        with suppress(PromptTooLongError):
            yield compare_prompt(recorder, part, n, plain, variants)


def _check_sampling(
    recorder: AnswerRecorder, verify: VerifyMode, spec: str, effort: VerifyEffort, seed: int
) -> Iterator[VerifyEvent]:
    """Draws one sample; if its test rejects, a second one with other seeds decides."""
    for is_confirmation in (False, True):
        sample = TokenSample(verify, is_confirmation=is_confirmation)
        first_seed = seed + is_confirmation * _CONFIRMATION_SEED_OFFSET
        yield from _draw_sample(recorder, sample, spec, effort, first_seed)
        yield sample
        if sample.impossible or not sample.is_rejected:
            return


def _draw_sample(
    recorder: AnswerRecorder, sample: TokenSample, spec: str, effort: VerifyEffort, seed: int
) -> Iterator[MeasurementProgress]:
    """Adds answers to the sample until it is large enough; seeds count up from `seed`."""
    rng, began = random.Random(seed), time.monotonic()
    for n in range(_MAX_SAMPLED_ANSWERS):
        turn, setting = divmod(n, len(_SAMPLED_SETTINGS))
        request = GenerateCommand(
            effort.prompts[turn % len(effort.prompts)],
            replace(_SAMPLED_SETTINGS[setting], seed=seed + n),
            effort.tokens_per_answer,
            verify=sample.verify,
            spec=spec,
            draft_length=_SAMPLED_DRAFT_LENGTH,
        )
        answer = recorder.record(request)
        sample.add(answer, recorder.replay(answer), rng)
        elapsed = effort.elapsed_share(began)
        enough = min(sample.tokens / effort.min_sampled_tokens, elapsed)
        share = max(sample.tokens / _MAX_SAMPLED_TOKENS, enough)
        is_first = n == 0 and sample.verify == VERIFY_MODES[0] and not sample.is_confirmation
        message = f"sampling, {sample.verify}: {sample.tokens} tokens …"
        yield MeasurementProgress(message, is_step=is_first)
        if sample.impossible or share >= 1:
            return
