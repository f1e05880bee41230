"""The losslessness check passes correct engines and finds every planted error."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.bench.verify_picture import make_picture
from localspec.bench.verify_results import VerifyReport
from localspec.engine.session import Session
from localspec.launch import Engine
from localspec.llama.context import LlamaContext
from localspec.models.pictures import check_picture
from localspec.protocol.wire import (
    GenerateCommand,
    LoadCommand,
    ProjectorSettings,
    SamplingParams,
)
from localspec.report.lines import plain_text
from localspec.report.measurement import format_measurement
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.prefix_cache import PrefixCache, common_prefix_length
from localspec.spec.protocols import GrammarState
from localspec.spec.sampling import NoAllowedTokenError
from tests.bench.fake_engine import Draw, Scripted, honest
from tests.support import tinygguf
from tests.support.head_models import quantised
from tests.support.sessions import (
    SETTINGS,
    InProcess,
    loaded,
    require_same_logits_at_every_width,
)
from tests.support.vision_models import VisionModels
from tests.support.zoo import CHAT_TEMPLATE, Zoo

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
        if is_met and request.spec != "off":
            return wrong(request, position)
        return honest(request, position)

    return draw


def wrong_once(request: GenerateCommand, position: int) -> int:
    """Another token at position 17."""
    token = honest(request, position)
    if position == 17:
        return (token + 1) % 8
    return token


def biased(request: GenerateCommand, position: int) -> int:
    """Every fifth token is a 0."""
    rng = random.Random(f"{request.sampling.seed} {position} {request.text}")
    if rng.random() < 0.2:
        return 0
    return honest(request, position)


def impossible(request: GenerateCommand, position: int) -> int:
    """A token of probability 0 at position 3."""
    if position == 3:
        return 9
    return honest(request, position)


def is_of_second_sample(request: GenerateCommand) -> bool:
    """A second sample has its own seeds, from 5,000 on within those of its method."""
    return request.sampling.seed % 10_000 >= 5_000


def test_an_honest_engine_is_lossless() -> None:
    found = checked(Scripted(honest))
    assert found.verdict == "lossless"
    assert found.greedy.equal == found.greedy.prompts == 3
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
    assert (divergence.position, divergence.width) == (17, 2)
    assert divergence.speculative is not None
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
    answered: list[GenerateCommand] = []

    def wrong_the_first_time(request: GenerateCommand, position: int) -> int:
        if position == 17:
            is_first = request not in answered
            answered.append(request)
            if is_first:
                return wrong_once(request, position)
        return honest(request, position)

    found = checked(Scripted(only_speculative(wrong_the_first_time, temperature=0.0)))
    assert found.verdict == "lossless"
    assert found.greedy.different == found.greedy.answers


def test_an_answer_that_ends_early_is_a_divergence() -> None:
    class Short(Scripted):
        def generate(self, request: GenerateCommand) -> Any:
            events = list(super().generate(request))
            if request.spec == "auto":
                del events[-3:-1]  # The last two rounds.
            return iter(events)

    found = checked(Short(honest))
    assert found.verdict == "divergent"
    assert all(each.speculative is None for each in found.divergences)
    assert all(each.expected is not None for each in found.divergences)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_a_wrong_distribution_is_found(verify: str) -> None:
    found = checked(Scripted(only_speculative(biased, verify=verify)))
    assert found.verdict == "divergent" and not found.divergences
    confirmed = [sample.verify for sample in found.samples if sample.is_confirmation]
    assert confirmed == [verify]
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
        if is_of_second_sample(request):
            samples.add("second")
            return honest(request, position)
        samples.add("first")
        return biased(request, position)

    found = checked(Scripted(only_speculative(first_sample_biased, verify="rejection")))
    assert samples == {"first", "second"} and found.verdict == "lossless"
    assert found.by_mode["rejection"].is_confirmation


def test_the_report_says_twice_only_after_the_second_rejection() -> None:
    measurement = LosslessMeasurement(QUICK)
    engine = Scripted(only_speculative(biased, verify="block"))
    reports: list[str] = []
    for _ in measurement.run(engine):
        reports.append("\n".join(map(plain_text, format_measurement(measurement))))
    reports.append("\n".join(map(plain_text, format_measurement(measurement))))

    with_first = [report for report in reports if "a second sample decides" in report]
    with_second = [report for report in reports if "twice)" in report]
    assert with_first, "the first sample is shown while the second one is drawn"
    assert with_second == reports[-1:], "only the last report has the second one"


def test_an_incomplete_check_is_not_lossless_but_a_divergence_counts() -> None:
    for draw, verdict in ((honest, None), (only_speculative(wrong_once), "divergent")):
        measurement = LosslessMeasurement(QUICK)
        for progress in measurement.run(Scripted(draw)):
            if progress.text.startswith("same seed"):
                break
        assert measurement.report.verdict == verdict
        assert measurement.to_json()["whole"] is False


@pytest.mark.parametrize("draft", ["cousin", "stranger", None])
def test_models_without_rounding_differences_are_lossless(
    zoo: Zoo, draft: str | None
) -> None:
    require_same_logits_at_every_width(zoo["target"])
    draft_file = zoo[draft] if draft else None
    with loaded(zoo["target"], draft_file) as session:
        found = checked(InProcess(session), SHORT)
    assert found.verdict == "lossless"
    assert found.greedy.different == found.seeded.different == 0
    assert found.drafted > 0


@pytest.mark.parametrize("kind", ["smolvlm", "gemma3", "qwen2vl", "qwen35"])
def test_a_model_that_sees_is_checked_with_a_picture(
    vision_models: VisionModels, kind: str
) -> None:
    files = vision_models[kind]
    settings = replace(SETTINGS, n_ctx=1024, n_ubatch=128)
    load = LoadCommand(
        str(files.model),
        target_settings=settings,
        projector=ProjectorSettings(str(files.projector)),
    )
    with closing(Session(load)) as session:
        engine = InProcess(session)
        found = checked(engine, SHORT)
    measurement = LosslessMeasurement(SHORT)
    measurement.report = found
    measurement._ready = engine.ready

    assert found.verdict == "lossless"
    assert found.has_picture
    assert any(asked.messages for asked in engine.asked)
    lines = [plain_text(line) for line in format_measurement(measurement)]
    assert any(line.startswith("picture ") for line in lines)
    assert measurement.to_json()["picture"] is True


ROOMY = replace(SETTINGS, n_ctx=2048)
"""A byte is a token, so a tool's description takes some hundreds."""


@pytest.fixture
def talker(tmp_path: Path) -> Path:
    model = replace(quantised(tinygguf.llama(0)), template=CHAT_TEMPLATE)
    return model.write(tmp_path / "talker.gguf")


def test_a_model_with_a_chat_template_is_checked_with_a_call(
    talker: Path, zoo: Zoo
) -> None:
    with loaded(talker, zoo["cousin"], ROOMY) as session:
        engine = InProcess(session)
        found = checked(engine, SHORT)
    measurement = LosslessMeasurement(SHORT)
    measurement.report = found
    measurement._ready = engine.ready

    assert found.verdict == "lossless"
    assert found.has_call
    assert any(asked.must_call for asked in engine.asked)
    lines = [plain_text(line) for line in format_measurement(measurement)]
    assert any(line.startswith("tool call ") for line in lines)
    assert measurement.to_json()["call"] is True


def test_a_model_without_a_chat_template_is_checked_without_a_call(zoo: Zoo) -> None:
    with loaded(zoo["target"], zoo["cousin"]) as session:
        found = checked(InProcess(session), SHORT)

    assert found.verdict == "lossless"
    assert not found.has_call


def test_a_call_whose_grammar_is_a_token_late_is_found(
    talker: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OutputConstraint.state_after

    def late(
        constraint: OutputConstraint,
        text: Sequence[int],
        drafted: Sequence[int] = (),
        n_left_out: int = 0,
    ) -> GrammarState | None:
        return real(constraint, text, drafted[:-1], n_left_out)

    with loaded(talker, zoo["cousin"], ROOMY) as session:
        engine = InProcess(session)
        monkeypatch.setattr(OutputConstraint, "state_after", late)
        # The text may leave the grammar before its passes are compared.
        with suppress(NoAllowedTokenError):
            assert checked(engine, SHORT).verdict == "divergent"


def test_the_picture_of_the_check_can_be_read_by_every_engine() -> None:
    picture = check_picture(make_picture(), "picture.png")

    assert (picture.width, picture.height) == (96, 64)


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
        if outputs > 2:
            return rows[[0, 0, *range(2, outputs)]]
        return rows

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
    measurement = LosslessMeasurement(QUICK)
    steps = []
    shown = []
    for progress in measurement.run(Scripted(honest)):
        if progress.is_step:
            steps.append(progress.text)
        lines = [plain_text(line) for line in format_measurement(measurement)]
        assert all(len(line) <= 77 for line in lines)
        labelled = [line for line in lines if not line.startswith("  ")]
        shown.append([line.partition("  ")[0] for line in labelled])
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
