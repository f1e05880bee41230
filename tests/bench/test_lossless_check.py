"""The losslessness check passes correct engines and finds every planted error."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.bench.verify_results import VerifyReport
from localspec.launch import Engine
from localspec.llama.context import LlamaContext
from localspec.protocol.wire import GenerateCommand, SamplingParams
from localspec.report.lines import plain_text
from localspec.report.measurement import format_measurement
from localspec.spec.prefix_cache import PrefixCache, common_prefix_length
from tests.bench.fake_engine import Draw, Scripted, honest
from tests.support.sessions import InProcess, loaded, require_same_logits_at_every_width
from tests.support.zoo import Zoo

QUICK = VerifyEffort(seconds_per_part=0, tokens_per_answer=40, min_sampled_tokens=800)
SHORT = VerifyEffort(
    seconds_per_part=0,
    tokens_per_answer=40,
    prompts=("the one ", "two of "),
    min_sampled_tokens=240,
)
"""For real models."""


def checked(
    engine: Engine,
    effort: VerifyEffort = QUICK,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> VerifyReport:
    measurement = LosslessMeasurement(effort)
    for _ in measurement.run(engine, stop):
        pass
    json.dumps(measurement.to_json(), allow_nan=False)
    return measurement.report


def only_speculative(wrong: Draw, **conditions: Any) -> Draw:
    """Draws wrong tokens in the speculative answers whose request meets the conditions."""

    def draw(request: GenerateCommand, position: int) -> int:
        values = {"temperature": request.sampling.temperature, "verify": request.verify}
        is_met = all(values[name] == value for name, value in conditions.items())
        use_wrong = request.spec != "off" and is_met
        return (wrong if use_wrong else honest)(request, position)

    return draw


def wrong_once(request: GenerateCommand, position: int) -> int:
    """Another token at position 17."""
    return (honest(request, position) + (position == 17)) % 8


def biased(request: GenerateCommand, position: int) -> int:
    """Every fifth token is a 0."""
    rng = random.Random(f"{request.sampling.seed} {position} {request.text}")
    return 0 if rng.random() < 0.2 else honest(request, position)


def impossible(request: GenerateCommand, position: int) -> int:
    """A token of probability 0 at position 3."""
    return 9 if position == 3 else honest(request, position)


def test_an_honest_engine_is_lossless() -> None:
    found = checked(Scripted(honest))
    assert (
        found.verdict == "lossless" and found.greedy.equal == found.greedy.prompts == 3
    )
    assert found.seeded.equal == found.seeded.prompts == 3
    assert all(sample.tokens >= 800 for sample in found.samples)


def test_no_false_alarm_from_any_seed() -> None:
    """Fifteen correct engines with different random numbers."""
    for salt in range(15):

        def draw(request: GenerateCommand, position: int, salt: int = salt) -> int:
            seed = request.sampling.seed if request.sampling.temperature else 0
            return random.Random(f"{salt} {seed} {position}").randrange(8)

        assert checked(Scripted(draw, repeats=True), SHORT).verdict == "lossless", salt


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "seeded"])
def test_a_wrong_token_is_found(temperature: float) -> None:
    found = checked(Scripted(only_speculative(wrong_once, temperature=temperature)))
    assert found.verdict == "divergent"
    totals = found.seeded if temperature else found.greedy
    assert (totals.equal, len(totals.divergences)) == (0, totals.answers)
    divergence = totals.divergences[0]
    assert divergence.speculative is not None and (
        divergence.position,
        divergence.width,
    ) == (17, 2)
    assert divergence.expected == (divergence.speculative.id - 1) % 8


def test_a_text_that_parts_by_the_widths_of_its_passes_is_reported_apart() -> None:
    found = checked(
        Scripted(only_speculative(wrong_once, temperature=0.0), repeats=True)
    )
    assert found.verdict == "lossless" and not found.divergences
    assert (found.greedy.equal, found.greedy.different) == (0, found.greedy.answers)
    assert (found.seeded.equal, found.seeded.different) == (found.seeded.prompts, 0)


def test_a_divergence_that_does_not_repeat_is_none() -> None:
    """As if another number of threads had rounded the first time."""
    answers: set[object] = set()

    def wrong_the_first_time(request: GenerateCommand, position: int) -> int:
        if position == 17:
            is_first = request not in answers
            answers.add(request)
            return (wrong_once if is_first else honest)(request, position)
        return honest(request, position)

    found = checked(Scripted(only_speculative(wrong_the_first_time, temperature=0.0)))
    assert (
        found.verdict == "lossless" and found.greedy.different == found.greedy.answers
    )


def test_an_answer_that_ends_early_is_a_divergence() -> None:
    class Short(Scripted):
        def generate(self, request: GenerateCommand) -> Any:
            events = list(super().generate(request))
            return iter(
                [*events[:-3], events[-1]] if request.spec == "auto" else events
            )

    found = checked(Short(honest))
    assert found.verdict == "divergent"
    assert all(each.speculative is None for each in found.divergences)
    assert all(each.expected is not None for each in found.divergences)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_a_wrong_distribution_is_found(verify: str) -> None:
    found = checked(Scripted(only_speculative(biased, verify=verify)))
    assert found.verdict == "divergent" and not found.divergences
    assert {
        name for name, sample in found.by_mode.items() if sample.is_confirmation
    } == {verify}
    assert found.to_json()["sampled"]["p"] < 1e-3


def test_a_token_of_probability_0_is_found() -> None:
    found = checked(Scripted(only_speculative(impossible, verify="block")))
    assert found.verdict == "divergent" and found.by_mode["block"].impossible


def test_the_reported_shift_is_below_that_of_the_biased_engine() -> None:
    """`biased` is off by 0.175; 800 tokens detect less."""
    sampled = checked(Scripted(honest)).to_json()["sampled"]
    assert 0.05 < sampled["power"]["shift"] < 0.175


def test_a_first_rejection_needs_confirmation() -> None:
    """A second sample with other seeds decides."""
    samples: set[str] = set()

    def first_sample_biased(request: GenerateCommand, position: int) -> int:
        is_confirmation = request.sampling.seed % 10_000 >= 5_000
        samples.add("second" if is_confirmation else "first")
        return (honest if is_confirmation else biased)(request, position)

    found = checked(Scripted(only_speculative(first_sample_biased, verify="rejection")))
    assert samples == {"first", "second"} and found.verdict == "lossless"
    assert found.by_mode["rejection"].is_confirmation


def test_an_incomplete_check_is_not_lossless_but_a_divergence_counts() -> None:
    for draw, verdict in ((honest, None), (only_speculative(wrong_once), "divergent")):
        measurement = LosslessMeasurement(QUICK)
        for progress in measurement.run(Scripted(draw)):
            if progress.text.startswith("same seed"):
                break
        assert (
            measurement.report.verdict == verdict
            and measurement.to_json()["whole"] is False
        )


@pytest.mark.parametrize("draft", ["cousin", "stranger", None])
def test_models_without_rounding_differences_are_lossless(
    zoo: Zoo, draft: str | None
) -> None:
    require_same_logits_at_every_width(zoo["target"])
    with loaded(zoo["target"], zoo[draft] if draft else None) as session:
        found = checked(InProcess(session), SHORT)
    assert (
        found.verdict == "lossless"
        and found.greedy.different == found.seeded.different == 0
    )
    assert found.drafted > 0


def rewind_one_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves one stale token in the KV cache."""

    def rewind_to(self: PrefixCache, tokens: Any, n_unchanged: Any = None) -> int:
        shared = common_prefix_length(self._cached_tokens, tokens)
        reused = min(shared, self.model.n_past, len(tokens) - 1)
        self.model.truncate(reused + 1)
        del self._cached_tokens[reused:]
        return reused

    monkeypatch.setattr(PrefixCache, "rewind_to", rewind_to)


def drop_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second row of a wide pass is that of the first."""
    real = LlamaContext._view_logits

    def view_logits(self: LlamaContext, address: int, outputs: int) -> Any:
        rows = real(self, address, outputs)
        return rows[[0, 0, *range(2, outputs)]] if outputs > 2 else rows

    monkeypatch.setattr(LlamaContext, "_view_logits", view_logits)


@pytest.mark.parametrize("model", ["target", "f32"])  # alike at all widths, and not
@pytest.mark.parametrize("plant", [rewind_one_too_few, drop_row])
def test_a_fault_of_the_cache_or_a_row_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    model: str,
    zoo: Zoo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with loaded(zoo[model], zoo["cousin"]) as session:
        plant(monkeypatch)
        measurement = LosslessMeasurement(SHORT)
        for _ in measurement.run(InProcess(session)):
            if measurement.report.divergences:
                break
    assert measurement.report.verdict == "divergent" and measurement.report.divergences


def test_samples_never_share_a_seed() -> None:
    """Coupled noise depends on the seed only: the same seed gives the same noise."""
    seen: list[tuple[str, SamplingParams]] = []

    def draw(request: GenerateCommand, position: int) -> int:
        if position == 0 and request.spec != "off":
            seen.append((request.verify, request.sampling))
        return honest(request, position)

    checked(
        Scripted(draw),
        VerifyEffort(seconds_per_part=0, tokens_per_answer=8, min_sampled_tokens=800),
    )
    drawn = [s.seed for _, s in seen if s.seed >= 1_000_000]
    assert len(drawn) == len(set(drawn)) >= 300


def test_the_report_grows_and_has_its_verdict_at_the_end() -> None:
    measurement, engine = LosslessMeasurement(QUICK), Scripted(honest)
    steps, shown = [], []
    for progress in measurement.run(engine):
        steps += [progress.text] * progress.is_step
        lines = [plain_text(line) for line in format_measurement(measurement)]
        assert all(len(line) <= 77 for line in lines)
        shown.append(
            [line.partition("  ")[0] for line in lines if not line.startswith("  ")]
        )
    assert [text.partition(":")[0] for text in steps] == [
        "measuring passes …",
        "temperature 0",
        "same seed",
        "sampling, coupled",
    ]
    assert shown[0] == ["big.gguf with small.gguf", ""]
    assert shown[-1][2:] == ["temperature 0", "same seed", "coupled", "rejection"]
    first, *_ = format_measurement(measurement)
    assert plain_text(first) == "big.gguf with small.gguf: Lossless"
