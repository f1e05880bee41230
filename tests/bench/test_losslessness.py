"""The check finds nothing wrong where nothing is, and every way of being wrong that is planted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.bench.answer_comparison import ReplayEngine
from localspec.bench.lossless_check import VERIFY_PROMPTS, VerifyEffort, check_lossless
from localspec.bench.verify_report import SampleResult, VerifyProgress, VerifyReport
from localspec.engine import verifiers
from localspec.engine.prefix_cache import PrefixCache, common_prefix_length
from localspec.engine.protocols import DistributionAt, Draft
from localspec.protocol.events import Event
from localspec.protocol.wire import GenerateCommand, SamplingParams
from tests.bench.pairs import DIFFERENCE, Draw, Scripted, honest, opened
from tests.sessions import require_same_logits_at_every_width
from tests.zoo import Zoo

QUICK = VerifyEffort(seconds_per_part=0, tokens_per_answer=40, min_sampled_tokens=800)
SHORT = VerifyEffort(
    seconds_per_part=0,
    tokens_per_answer=40,
    prompts=("the one ", "two of "),
    min_sampled_tokens=240,
)
"""For real models, however tiny."""


def report(
    engine: ReplayEngine, effort: VerifyEffort = QUICK, *, draft: bool = True
) -> VerifyReport:
    found = VerifyReport()
    for finding in check_lossless(engine, has_draft_model=draft, effort=effort):
        found.add(finding)
    found.is_complete = True
    return found


def bent(wrong: Draw, **only: Any) -> Draw:
    """Wrong in speculated answers that were asked for like that."""

    def says(request: GenerateCommand, place: int) -> int:
        asked = {"temperature": request.sampling.temperature, "verify": request.verify}
        hit = request.spec != "off" and all(asked[name] == value for name, value in only.items())
        return wrong(request, place) if hit else honest(request, place)

    return says


def late(request: GenerateCommand, place: int) -> int:
    """Another token at one place."""
    return (honest(request, place) + (place == 17)) % 8


def loaded_die(request: GenerateCommand, place: int) -> int:
    """Every fifth token is a 0."""
    rng = random.Random(f"{request.sampling.seed} {place} {request.text}")
    return 0 if rng.random() < 0.2 else honest(request, place)


def never_said(request: GenerateCommand, place: int) -> int:
    return 9 if place == 3 else honest(request, place)


# --- scripted engines ---------------------------------------------------------------------------


def test_an_honest_engine_is_lossless() -> None:
    found = report(Scripted(honest))
    assert found.verdict == "lossless"
    assert found.greedy.equal == found.greedy.prompts == 2
    assert found.seeded.equal == found.seeded.prompts == 2
    assert all(sample.tokens >= 800 for sample in found.samples.values())


def test_no_false_alarm_from_any_seed() -> None:
    """Fifteen engines that draw otherwise."""
    for salt in range(15):

        def says(request: GenerateCommand, place: int, salt: int = salt) -> int:
            seed = request.sampling.seed if request.sampling.temperature else 0
            return random.Random(f"{salt} {seed} {place}").randrange(8)

        assert report(Scripted(says), SHORT).verdict == "lossless", salt


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "seeded"])
def test_a_wrong_token_is_found(temperature: float) -> None:
    found = report(Scripted(bent(late, temperature=temperature)))
    assert found.verdict == "divergent"
    sums = found.seeded if temperature else found.greedy
    assert (sums.equal, len(sums.divergences)) == (0, sums.answers)
    each = sums.divergences[0]
    assert (each.position, each.width, each.replayed) == (17, 2, False)


def test_a_wrong_token_between_far_ones_is_found_though_it_comes_again() -> None:
    """As where a wide pass computes nonsense."""
    found = report(Scripted(bent(late, temperature=0.0), margin=0.5, rounds=True))
    assert found.verdict == "divergent"
    assert all(each.replayed for each in found.divergences)


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(4 * DIFFERENCE, "near-ties"), (4.01 * DIFFERENCE, "divergent"), (0.0, "near-ties")],
)
def test_rounding_is_told_from_a_bug_by_the_margin(margin: float, verdict: str) -> None:
    found = report(Scripted(bent(late, temperature=0.0), margin=margin, rounds=True))
    assert found.verdict == verdict
    json.dumps(found.to_json(), allow_nan=False)


def test_an_answer_that_ends_early_is_a_divergence() -> None:
    class Short(Scripted):
        def generate(self, request: GenerateCommand) -> Any:
            events = list(super().generate(request))
            return iter(events[:-3] if request.spec == "auto" else events)

    found = report(Short(honest))
    assert found.verdict == "divergent"
    assert all(each.margin is None for each in found.divergences)
    assert all(each.speculative is None for each in found.divergences)


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_a_bent_law_is_found(verify: str) -> None:
    found = report(Scripted(bent(loaded_die, verify=verify)))
    assert found.verdict == "divergent"
    assert not found.divergences
    assert {name for name, sample in found.samples.items() if sample.is_confirmation} == {verify}
    assert found.to_json()["sampled"]["p"] < 1e-3


def test_a_token_that_the_law_does_not_hold_is_found() -> None:
    found = report(Scripted(bent(never_said, verify="block")))
    assert found.verdict == "divergent"
    assert found.samples["block"].impossible


def test_the_shift_that_is_told_would_be_seen() -> None:
    """The die above is off by 0.175; 800 tokens show less."""
    sampled = report(Scripted(honest)).to_json()["sampled"]
    assert 0.05 < sampled["power"]["shift"] < 0.175


def test_a_first_alarm_is_not_a_verdict() -> None:
    """The check looks again with other seeds before it counts."""
    first: set[str] = set()

    def once(request: GenerateCommand, place: int) -> int:
        confirming = request.sampling.seed % 10_000 >= 5_000
        first.add("second" if confirming else "first")
        return (honest if confirming else loaded_die)(request, place)

    found = report(Scripted(bent(once, verify="rejection")))
    assert first == {"first", "second"}
    assert found.verdict == "lossless"
    assert found.samples["rejection"].is_confirmation


def test_what_was_cut_short_is_not_called_lossless() -> None:
    found = VerifyReport()
    for finding in check_lossless(Scripted(honest), has_draft_model=True, effort=QUICK):
        found.add(finding)
        if isinstance(finding, SampleResult):
            break
    assert found.verdict is None
    assert found.to_json()["whole"] is False


def test_a_divergence_counts_though_the_check_was_cut_short() -> None:
    found = VerifyReport()
    for finding in check_lossless(
        Scripted(bent(late, temperature=0.0)), has_draft_model=True, effort=QUICK
    ):
        found.add(finding)
        if found.greedy.prompts:
            break
    assert found.verdict == "divergent"


def test_the_openings_share_no_first_words() -> None:
    assert len({text[:3] for text in VERIFY_PROMPTS}) == len(VERIFY_PROMPTS) == 8


# --- real ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["cousin", "stranger", None])
def test_models_that_round_alike_at_every_width_are_lossless(zoo: Zoo, draft: str | None) -> None:
    require_same_logits_at_every_width(zoo["target"])
    with opened(zoo["target"], zoo[draft] if draft else None) as engine:
        found = report(engine, SHORT, draft=draft is not None)
    assert (found.verdict, found.difference) == ("lossless", 0)
    assert found.drafted > 0


def test_models_that_round_otherwise_are_not_called_divergent(zoo: Zoo) -> None:
    with opened(zoo["f32"], zoo["f32"]) as engine:
        found = report(engine, SHORT)
    assert found.verdict in ("lossless", "near-ties")
    assert found.difference


class Gullible(verifiers.GumbelCoupledVerifier):
    """Keeps every guess."""

    def verify(self, law_at: DistributionAt, draft: Draft, index: int) -> tuple[int, int]:
        n = len(draft.tokens)
        return n, self.sample_draft_token(law_at(n), index + n)


class Trusting(verifiers.RejectionVerifier):
    """Keeps every guess."""

    def verify(self, law_at: DistributionAt, draft: Draft, index: int) -> tuple[int, int]:
        law = law_at(len(draft.tokens))
        return len(draft.tokens), int(law.ids[self._random.choice(law.probs)])


def remembering_too_much(self: PrefixCache, tokens: Any) -> int:
    """Forgets one token too few."""
    kept = min(
        common_prefix_length(self._cached_tokens, tokens), self.model.n_past, len(tokens) - 1
    )
    self.model.truncate(kept + 1)
    del self._cached_tokens[kept:]
    return kept


def test_keeping_every_guess_is_found(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers.GumbelCoupledVerifier, "verify", Gullible.verify)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    assert found.verdict == "divergent"
    assert not any(each.is_near_tie(found.near_tie_limit) for each in found.divergences)


def test_trusting_the_drafts_law_is_found_by_sampling(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers.RejectionVerifier, "verify", Trusting.verify)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    sample = found.samples["rejection"]
    assert found.verdict == "divergent"
    assert sample.impossible or sample.is_confirmation


def test_a_memory_that_forgets_too_little_is_found(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixCache, "rewind_to", remembering_too_much)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    assert found.verdict == "divergent"


def test_seeds_of_samples_never_meet() -> None:
    """Coupled noise is keyed by them: the same seed twice would be the same noise twice."""
    seen: list[tuple[str, SamplingParams]] = []

    def says(request: GenerateCommand, place: int) -> int:
        if place == 0 and request.spec != "off":
            seen.append((request.verify, request.sampling))
        return honest(request, place)

    report(
        Scripted(says),
        VerifyEffort(seconds_per_part=0, tokens_per_answer=8, min_sampled_tokens=800),
    )
    drawn = [s.seed for _, s in seen if s.seed >= 1_000_000]
    assert len(drawn) == len(set(drawn)) >= 300


# --- stopping ---------------------------------------------------------------------------------


class Listening(Scripted):
    """Notices when nobody listens to an answer any more."""

    asked = 0
    left: int | None = None

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.asked += 1
        try:
            yield from super().generate(request)
        except GeneratorExit:
            self.left = self.asked
            raise


def test_stopped_within_an_answer_what_was_compared_is_kept() -> None:
    engine, found = Listening(honest), VerifyReport()

    def stopped() -> bool:
        return engine.asked == 8  # the second prompt's third answer

    for finding in check_lossless(engine, has_draft_model=True, effort=QUICK, should_stop=stopped):
        found.add(finding)
    assert engine.asked == engine.left == 8, "the engine is told to stop writing it"
    assert (found.greedy.prompts, found.seeded.prompts, found.verdict) == (1, 0, None)


def test_how_far_a_part_is_never_goes_back() -> None:
    shares: dict[str, list[float]] = {}
    for finding in check_lossless(Scripted(honest), has_draft_model=True, effort=QUICK):
        if isinstance(finding, VerifyProgress):
            shares.setdefault(finding.verify or finding.part, []).append(finding.share)
    assert list(shares) == ["widths", "greedy", "seeded", "coupled", "rejection", "block"]
    assert all(each == sorted(each) and 0 <= each[-1] <= 1 for each in shares.values())
    assert shares["greedy"] == [0, 0.5] and shares["coupled"][-1] == 1
