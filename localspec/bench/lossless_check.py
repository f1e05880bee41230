"""Checks that speculation is lossless here.

It repeats the passes of speculative answers without drafting, and tests sampled tokens
against the model's own probabilities.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.bench import verify_picture
from localspec.bench.measurement import (
    AnswerCancelled,
    MeasurementProgress,
    RecordedAnswer,
    record_answer,
)
from localspec.bench.sampling_check import VERIFY_MODES, TokenSample
from localspec.bench.verify_results import (
    ComparisonTotals,
    Divergence,
    VerifyReport,
    report_to_json,
)
from localspec.errors import GrammarError, PromptTooLongError
from localspec.launch import Engine, sight
from localspec.models.pictures import accept_picture
from localspec.protocol.events import EngineReady, Round
from localspec.protocol.wire import (
    ChatMessage,
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


def _repeat_prompts() -> str:
    text = ""
    for n in range(3):
        for prompt in VERIFY_PROMPTS:
            text += f"# {n}\n{prompt}\n"
    return text


LONG_PROMPT = _repeat_prompts()
"""More than 600 tokens. It is the second prompt to be compared.

It is skipped where the context is too small.
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
_TIMED_PARTS = 5  # Greedy answers, seeded answers, and the three `VERIFY_MODES`.

SpeculationVariant = tuple[str, int | None]
"""`--spec`, and a fixed draft length."""


class VerifyEffort(Struct, frozen=True):
    seconds_per_part: float = 20.0  # A slow machine does the minimum and takes longer.
    tokens_per_answer: int = 64
    prompts: Sequence[str] = VERIFY_PROMPTS
    min_sampled_tokens: int = 200  # For each verification method.

    def is_time_up(self, began: float) -> bool:
        """Whether a part that began then has used its time."""
        return time.monotonic() - began >= self.seconds_per_part


class LosslessMeasurement:
    heading = "Verify"
    begins_with_verdict = True

    def __init__(self, effort: VerifyEffort | None = None) -> None:
        self.effort = effort or VerifyEffort()
        self.report = VerifyReport()
        self.has_ended = False
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
        self._ready = engine.ready
        self.report = VerifyReport()
        self.has_ended = False
        recorder = AnswerRecorder(engine, should_stop)
        # Fixed draft lengths make passes of different widths; `auto` adapts them.
        spec = "lookup"
        greedy_variants: list[SpeculationVariant] = [
            ("lookup", 5),
            ("lookup", 2),
            ("auto", None),
        ]
        if engine.ready.draft is not None:
            spec = "model"
            greedy_variants = [
                ("model", 5),
                ("model", 2),
                ("auto", None),
                ("lookup", 5),
            ]
        seeded_variants: list[SpeculationVariant] = [(spec, 5), ("auto", None)]
        try:
            yield MeasurementProgress("measuring passes …", is_step=True)
            for _ in engine.probe(ProbeCommand(seconds=1.0)):
                pass
            yield from self._check_answers(
                recorder,
                self.report.greedy,
                temperature=0.0,
                variants=greedy_variants,
            )
            yield from self._check_answers(
                recorder,
                self.report.seeded,
                temperature=0.8,
                variants=seeded_variants,
            )
            for n, verify in enumerate(VERIFY_MODES, 1):
                first_seed = n * _SEEDS_PER_MODE
                yield from self._check_sampling(recorder, verify, spec, first_seed)
            self.report.is_complete = True
        except AnswerCancelled:
            pass
        finally:
            self.has_ended = True

    @property
    def has_begun(self) -> bool:
        return self._ready is not None

    @property
    def has_results(self) -> bool:
        return self.report.greedy.answers > 0

    @property
    def summary(self) -> str:
        return f"{self.report.drafted:,} draft tokens verified"

    @property
    def ready(self) -> EngineReady:
        assert self._ready is not None, "not begun"
        return self._ready

    def to_json(self) -> dict[str, Any]:
        return report_to_json(self.report, self.ready)

    def _check_answers(
        self,
        recorder: AnswerRecorder,
        totals: ComparisonTotals,
        *,
        temperature: float,
        variants: Sequence[SpeculationVariant],
    ) -> Iterator[MeasurementProgress]:
        """Add the comparison of one prompt after the other to the totals.

        It ends after the last prompt, or when the time is up, but not before
        `_MIN_PROMPTS`, nor before the chats: one with a call, and one with a picture.
        """
        began = time.monotonic()
        effort = self.effort
        kind = "same seed" if temperature else "temperature 0"
        prompts = [*effort.prompts[:1], LONG_PROMPT, *effort.prompts[1:]]
        requests = [GenerateCommand(text) for text in prompts]
        chats: list[GenerateCommand] = []
        if self._has_chat and _can_force_calls(recorder):
            chats.append(_CALL_REQUEST)
        if self._can_see:
            chats.append(_make_picture_request())
        requests[2:2] = chats
        min_prompts = max(_MIN_PROMPTS, 2 + len(chats))
        for n, prompt in enumerate(requests):
            if n >= min_prompts and effort.is_time_up(began):
                return
            message = f"{kind}: prompt {n + 1} of {len(requests)} …"
            yield MeasurementProgress(message, is_step=n == 0)
            plain = replace(
                prompt,
                sampling=SamplingParams(temperature, seed=n),
                max_tokens=effort.tokens_per_answer,
                spec="off",
            )
            with suppress(PromptTooLongError):
                totals.add(_check_prompt(recorder, n, plain, variants))
                if prompt.tools:
                    self.report.has_call = True
                elif prompt.messages:
                    self.report.has_picture = True

    @property
    def _has_chat(self) -> bool:
        chat = self.ready.settings.get("chat") or {}
        return bool(chat.get("template"))

    @property
    def _can_see(self) -> bool:
        """Whether the pair reads a chat with a picture."""
        return sight.has_sight(self.ready) and self._has_chat

    def _check_sampling(
        self, recorder: AnswerRecorder, verify: VerifyMode, spec: str, first_seed: int
    ) -> Iterator[MeasurementProgress]:
        """Draw one sample; if its test rejects, a second one with other seeds decides.

        The first sample is in the report while the second one is drawn, which then
        takes its place. A token of probability 0 needs no second sample.
        """
        sample = TokenSample(verify)
        yield from self._draw_sample(recorder, sample, spec, first_seed)
        self.report.by_mode[verify] = sample
        if sample.impossible or not sample.is_rejected:
            return
        confirmation = TokenSample(verify, is_confirmation=True)
        other_seed = first_seed + _CONFIRMATION_SEED_OFFSET
        yield from self._draw_sample(recorder, confirmation, spec, other_seed)
        self.report.by_mode[verify] = confirmation

    def _draw_sample(
        self,
        recorder: AnswerRecorder,
        sample: TokenSample,
        spec: str,
        first_seed: int,
    ) -> Iterator[MeasurementProgress]:
        """Add answers to the sample until it is large enough.

        Each answer has its own seed, from `first_seed` on. With the settings a and b,
        the first four answers are prompt 1 with a, prompt 1 with b, prompt 2 with a,
        and prompt 2 with b.
        """
        rng = random.Random(first_seed)
        began = time.monotonic()
        effort = self.effort
        for n in range(_MAX_SAMPLED_ANSWERS):
            prompt_turn, setting = divmod(n, len(_SAMPLED_SETTINGS))
            request = GenerateCommand(
                effort.prompts[prompt_turn % len(effort.prompts)],
                replace(_SAMPLED_SETTINGS[setting], seed=first_seed + n),
                effort.tokens_per_answer,
                verify=sample.verify,
                spec=spec,
                draft_length=_SAMPLED_DRAFT_LENGTH,
            )
            answer = recorder.record(request)
            sample.add(answer, recorder.replay(answer), rng)
            # All sampling is one step, which begins with the first method's first answer.
            is_first_method = sample.verify == VERIFY_MODES[0]
            is_step = n == 0 and is_first_method and not sample.is_confirmation
            message = f"sampling, {sample.verify}: {sample.tokens} tokens …"
            yield MeasurementProgress(message, is_step=is_step)
            has_enough = sample.tokens >= effort.min_sampled_tokens
            if has_enough and effort.is_time_up(began):
                return
            if sample.impossible or sample.tokens >= _MAX_SAMPLED_TOKENS:
                return


_WEATHER_SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "is_hourly": {"type": "boolean"},
    },
    "required": ["city", "days", "unit", "is_hourly"],
}
_WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather_forecast",
        "description": "The weather of the next days.",
        "parameters": _WEATHER_SCHEMA,
    },
}
_CALL_REQUEST = GenerateCommand(
    messages=(ChatMessage("user", "Will it rain in Rome in the next three days?"),),
    tools=json.dumps([_WEATHER_TOOL]),
    must_call=True,
)
"""A chat whose answer is a call: the schema forces most of its tokens, which are drafted."""


def _can_force_calls(recorder: AnswerRecorder) -> bool:
    """Whether the package for grammars is installed, and the prompt fits."""
    try:
        recorder.empty_cache(_CALL_REQUEST)
    except (GrammarError, PromptTooLongError):
        return False
    return True


def _make_picture_request() -> GenerateCommand:
    """A chat with a picture. Raises StorageError."""
    picture = accept_picture(verify_picture.make_picture(), "picture.png")
    question = ChatMessage(
        "user", "Describe this picture.", images=(sight.put_picture(picture),)
    )
    return GenerateCommand(messages=(question,))


def _check_prompt(
    recorder: AnswerRecorder,
    prompt: int,
    plain_request: GenerateCommand,
    variants: Sequence[SpeculationVariant],
) -> ComparisonTotals:
    """Answer the prompt plain and with each variant; repeat the passes of the latter.

    A divergence counts if a second answer to the same request has one too: another
    number of threads may have rounded differently.
    """
    plain = recorder.record(plain_request)
    totals = ComparisonTotals(prompts=1)
    for spec, draft_length in variants:
        request = replace(plain_request, spec=spec, draft_length=draft_length)
        answer = recorder.record(request)
        totals.add_answer(answer, plain)
        if recorder.find_divergence(prompt, answer, plain) is None:
            continue
        second_answer = recorder.record(request)
        divergence = recorder.find_divergence(prompt, second_answer, plain)
        if divergence is not None:
            totals.divergences.append(divergence)
    if not totals.different:
        totals.equal = 1
    return totals


# --- Recording an answer, and repeating its passes without speculation.


class AnswerRecorder:
    """Records and replays answers.

    Its methods raise AnswerCancelled once `should_stop` returns true.
    """

    def __init__(self, engine: Engine, should_stop: Callable[[], bool]) -> None:
        self._engine = engine
        self._should_stop = should_stop

    def record(self, request: GenerateCommand) -> RecordedAnswer:
        """Generate from an empty KV cache.

        Cells that are reused would come from passes of other widths. Replaying no
        tokens empties the cache.
        """
        self.empty_cache(request)
        return record_answer(self._engine, request, self._should_stop)

    def empty_cache(self, request: GenerateCommand) -> None:
        """Empty the KV cache. Raises what preparing an answer to the request raises."""
        empty_replay = ReplayCommand(
            request.text,
            tokens=(),
            widths=(),
            emitted=(),
            messages=request.messages,
            tools=request.tools,
            must_call=request.must_call,
        )
        self._replay(empty_replay)

    def replay(self, answer: RecordedAnswer) -> ReplayResult:
        """The target's choice for each token, in passes of the same widths.

        The first round is the prompt's own pass, which a replay starts with. An answer
        whose rounds drafted 0, 4 and 2 tokens and kept 1, 3 and 3 is replayed with
        passes over 5 and 3 tokens, of which 3 and 3 are kept.
        """
        later_rounds = _rounds_with_tokens(answer)[1:]
        widths = tuple(event.drafted + 1 for event in later_rounds)
        emitted = tuple(len(event.tokens) for event in later_rounds)
        command = ReplayCommand(
            answer.request.text,
            tokens=tuple(answer.ids),
            widths=widths,
            emitted=emitted,
            sampling=answer.request.sampling,
            messages=answer.request.messages,
            tools=answer.request.tools,
            must_call=answer.request.must_call,
        )
        return self._replay(command)

    def _replay(self, command: ReplayCommand) -> ReplayResult:
        if self._should_stop():
            raise AnswerCancelled
        return self._engine.replay(command)

    def find_divergence(
        self, prompt: int, answer: RecordedAnswer, plain: RecordedAnswer
    ) -> Divergence | None:
        """The first token that the same passes do not give without speculation.

        With the answer 7 8 9:

        - If its passes give 7 8 5, the divergence is at position 2: 9 instead of 5.
        - If its passes give 7 8 9 and the plain answer is 7 8 9 4, the answer ended too
          early: the divergence is at position 3, the end instead of 4.
        - If its passes give 7 8 9 and the plain answer is 7 6 2 4, there is none: a
          pass over several tokens rounds differently from a pass over one.
        """
        ids = answer.ids
        expected = list(self.replay(answer).best)
        if expected == ids:
            if not _is_cut_off(ids, plain.ids):
                return None
            expected = plain.ids

        position = _first_difference(ids, expected)
        speculative = None
        if position < len(ids):
            speculative = answer.tokens[position]
        expected_id = None
        if position < len(expected):
            expected_id = expected[position]
        return Divergence(
            prompt=prompt,
            spec=answer.request.spec,
            draft_length=answer.request.draft_length,
            position=position,
            width=_pass_width_at(answer, position),
            speculative=speculative,
            expected=expected_id,
        )


def _is_cut_off(ids: Sequence[int], plain_ids: Sequence[int]) -> bool:
    """One answer ends where the other, the same so far, goes on."""
    n_common = min(len(ids), len(plain_ids))
    return len(ids) != len(plain_ids) and ids[:n_common] == plain_ids[:n_common]


def _first_difference(ids: Sequence[int], others: Sequence[int]) -> int:
    """The position of the first difference; the shorter length if there is none."""
    for position, (id_, other) in enumerate(zip(ids, others, strict=False)):
        if id_ != other:
            return position
    return min(len(ids), len(others))


def _rounds_with_tokens(answer: RecordedAnswer) -> list[Round]:
    return [event for event in answer.rounds if event.tokens]


def _pass_width_at(answer: RecordedAnswer, position: int) -> int:
    """Tokens in the pass that produced this position; beyond the end, in the last pass."""
    width = 1
    end = 0
    for event in _rounds_with_tokens(answer):
        width = event.drafted + 1
        end += len(event.tokens)
        if position < end:
            break
    return width
