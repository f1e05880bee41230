"""Checks that speculation is lossless here: repeats the passes of answers, tests
sampled tokens.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.bench.measurement import (
    AnswerCancelled,
    MeasurementProgress,
    RecordedAnswer,
    record_answer,
)
from localspec.bench.sampling_check import VERIFY_MODES, TokenSample
from localspec.bench.verify_report import (
    ComparisonTotals,
    Divergence,
    VerifyReport,
    format_report,
    report_to_json,
)
from localspec.errors import PromptTooLongError
from localspec.launch import Engine
from localspec.protocol.events import EngineReady, Round
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
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
"""More than 600 tokens; the second to be compared.

Skipped where the context is too small.
"""

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

SpeculationVariant = tuple[str, int | None]
"""`--spec`, and a fixed draft length."""


class VerifyEffort(Struct, frozen=True):
    seconds_per_part: float = 20.0  # A slow machine does the minimum and takes longer.
    tokens_per_answer: int = 64
    prompts: Sequence[str] = VERIFY_PROMPTS
    min_sampled_tokens: int = 200  # For each verification method.

    def elapsed_share(self, began: float) -> float:
        """Share of a part's time budget; above 1 once it is used up."""
        elapsed = time.monotonic() - began
        return elapsed / self.seconds_per_part if self.seconds_per_part else 2.0


class LosslessMeasurement:
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
        """Ends early, within an answer, once `should_stop` returns true.

        Raises LocalspecError.
        """
        self._ready, self.report, self._has_ended = engine.ready, VerifyReport(), False
        recorder = AnswerRecorder(engine, should_stop)
        spec = "model" if engine.ready.draft is not None else "lookup"
        # Fixed draft lengths, for passes of different widths, and the adaptive
        # controller.
        variants: list[SpeculationVariant] = [(spec, 5), (spec, 2), ("auto", None)]
        variants += [("lookup", 5)] if spec == "model" else []
        try:
            yield MeasurementProgress("measuring passes …", is_step=True)
            for _ in engine.probe(ProbeCommand(seconds=1.0)):
                pass
            yield from self._check_answers(recorder, self.report.greedy, 0.0, variants)
            yield from self._check_answers(
                recorder, self.report.seeded, 0.8, variants[::2]
            )
            for n, verify in enumerate(VERIFY_MODES, 1):
                yield from self._check_sampling(
                    recorder, verify, spec, n * _SEEDS_PER_MODE
                )
            self.report.is_complete = True
        except AnswerCancelled:
            pass
        finally:
            self._has_ended = True

    @property
    def has_begun(self) -> bool:
        return self._ready is not None

    @property
    def has_results(self) -> bool:
        return self.report.greedy.answers > 0

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

    def _check_answers(
        self,
        recorder: AnswerRecorder,
        totals: ComparisonTotals,
        temperature: float,
        variants: Sequence[SpeculationVariant],
    ) -> Iterator[MeasurementProgress]:
        began, effort = time.monotonic(), self.effort
        kind = "same seed" if temperature else "temperature 0"
        prompts = [*effort.prompts[:1], LONG_PROMPT, *effort.prompts[1:]]
        for n, text in enumerate(prompts):
            if n >= _MIN_PROMPTS and effort.elapsed_share(began) > 1:
                return
            message = f"{kind}: prompt {n + 1} of {len(prompts)} …"
            yield MeasurementProgress(message, is_step=n == 0)
            sampling = SamplingParams(temperature, seed=n)
            plain = GenerateCommand(
                text, sampling, effort.tokens_per_answer, spec="off"
            )
            with suppress(PromptTooLongError):
                totals.add(_check_prompt(recorder, n, plain, variants))

    def _check_sampling(
        self, recorder: AnswerRecorder, verify: VerifyMode, spec: str, seed: int
    ) -> Iterator[MeasurementProgress]:
        """Draws one sample; if its test rejects, a second one with other seeds decides."""
        for is_confirmation in (False, True):
            sample = TokenSample(verify, is_confirmation=is_confirmation)
            first_seed = seed + is_confirmation * _CONFIRMATION_SEED_OFFSET
            yield from self._draw_sample(recorder, sample, spec, first_seed)
            self.report.by_mode[verify] = sample
            if sample.impossible or not sample.is_rejected:
                return

    def _draw_sample(
        self, recorder: AnswerRecorder, sample: TokenSample, spec: str, seed: int
    ) -> Iterator[MeasurementProgress]:
        """Adds answers to the sample until it is large enough; seeds count up from
        `seed`.
        """
        rng, began, effort = random.Random(seed), time.monotonic(), self.effort
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
            enough = min(
                sample.tokens / effort.min_sampled_tokens, effort.elapsed_share(began)
            )
            is_first = (
                n == 0
                and sample.verify == VERIFY_MODES[0]
                and not sample.is_confirmation
            )
            message = f"sampling, {sample.verify}: {sample.tokens} tokens …"
            yield MeasurementProgress(message, is_step=is_first)
            if (
                sample.impossible
                or max(sample.tokens / _MAX_SAMPLED_TOKENS, enough) >= 1
            ):
                return


def _check_prompt(
    recorder: AnswerRecorder,
    prompt: int,
    plain_request: GenerateCommand,
    variants: Sequence[SpeculationVariant],
) -> ComparisonTotals:
    """Answers the prompt plain and with each variant, and repeats the passes of the
    latter.

    A divergence counts if it repeats: another number of threads may have rounded
    differently.
    """
    plain = recorder.record(plain_request)
    totals = ComparisonTotals(prompts=1)
    for spec, draft_length in variants:
        request = replace(plain_request, spec=spec, draft_length=draft_length)
        answer = recorder.record(request)
        totals.add_answer(answer, plain)
        if recorder.find_divergence(prompt, answer, plain) is not None:
            divergence = recorder.find_divergence(
                prompt, recorder.record(request), plain
            )
            totals.divergences += [divergence] if divergence is not None else []
    totals.equal = int(not totals.different)
    return totals


# --- Recording an answer, and repeating its passes without speculation.


class AnswerRecorder:
    """Records and replays answers; raises AnswerCancelled once `should_stop` returns
    true.
    """

    def __init__(self, engine: Engine, should_stop: Callable[[], bool]) -> None:
        self._engine, self._should_stop = engine, should_stop

    def record(self, request: GenerateCommand) -> RecordedAnswer:
        """Generates from an empty KV cache: reused cells come from passes of other
        widths.
        """
        self._replay(ReplayCommand(request.text, (), (), ()))
        return record_answer(self._engine, request, self._should_stop)

    def replay(self, answer: RecordedAnswer) -> ReplayResult:
        """The target's logits for each token, in passes of the same widths, without
        speculation.

        The first round is the prompt's own pass, which a replay starts with.
        """
        later = _rounds_with_tokens(answer)[1:]
        return self._replay(
            ReplayCommand(
                answer.request.text,
                tuple(answer.ids),
                tuple(event.drafted + 1 for event in later),
                tuple(len(event.tokens) for event in later),
                answer.request.sampling,
            )
        )

    def _replay(self, command: ReplayCommand) -> ReplayResult:
        if self._should_stop():
            raise AnswerCancelled
        return self._engine.replay(command)

    def find_divergence(
        self, prompt: int, answer: RecordedAnswer, plain: RecordedAnswer
    ) -> Divergence | None:
        """The first token that the same passes do not give without speculation.

        Or the end, if one answer ends where the plain one, the same so far, goes on.
        """
        ids, chosen = answer.ids, list(self.replay(answer).best)
        expected = chosen
        if chosen == ids:
            n = min(len(ids), len(plain.ids))
            if len(ids) == len(plain.ids) or ids[:n] != plain.ids[:n]:
                return None
            expected = plain.ids
        same = [a == b for a, b in zip(ids, expected, strict=False)]
        position = same.index(False) if False in same else len(same)
        return Divergence(
            prompt=prompt,
            spec=answer.request.spec,
            draft_length=answer.request.draft_length,
            position=position,
            width=_pass_width_at(answer, position),
            speculative=next(iter(answer.tokens[position:]), None),
            expected=next(iter(expected[position:]), None),
        )


def _rounds_with_tokens(answer: RecordedAnswer) -> list[Round]:
    return [event for event in answer.rounds if event.tokens]


def _pass_width_at(answer: RecordedAnswer, position: int) -> int:
    """Tokens in the pass that produced this position; beyond the end, in the last pass."""
    end = 0
    for event in _rounds_with_tokens(answer):
        end += len(event.tokens)
        if position < end:
            break
    return event.drafted + 1
