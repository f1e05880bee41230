"""The check finds nothing wrong where nothing is, and every way of being wrong that is planted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.bench.answers import Engine
from localspec.bench.losslessness import Effort, check
from localspec.bench.openings import OPENINGS
from localspec.bench.verdict import Doing, Report, Sampled
from localspec.engine import accept
from localspec.engine.protocols import Draft, LawAt
from localspec.engine.reader import Reader, common_prefix
from localspec.protocol.events import Event
from localspec.protocol.wire import Generate, Sampling
from tests.bench.pairs import DIFFERENCE, Draw, Scripted, honest, opened
from tests.sessions import require_same_logits_at_every_width
from tests.zoo import Zoo

QUICK = Effort(seconds=0, tokens=40, least=800)
SHORT = Effort(seconds=0, tokens=40, prompts=("the one ", "two of "), least=240)
"""For real models, however tiny."""


def report(engine: Engine, effort: Effort = QUICK, *, draft: bool = True) -> Report:
    found = Report()
    for finding in check(engine, draft=draft, effort=effort):
        found.take(finding)
    found.whole = True
    return found


def bent(wrong: Draw, **only: Any) -> Draw:
    """Wrong in speculated answers that were asked for like that."""

    def says(request: Generate, place: int) -> int:
        asked = {"temperature": request.sampling.temperature, "verify": request.verify}
        hit = request.spec != "off" and all(asked[name] == value for name, value in only.items())
        return wrong(request, place) if hit else honest(request, place)

    return says


def late(request: Generate, place: int) -> int:
    """Another token at one place."""
    return (honest(request, place) + (place == 17)) % 8


def loaded_die(request: Generate, place: int) -> int:
    """Every fifth token is a 0."""
    rng = random.Random(f"{request.sampling.seed} {place} {request.text}")
    return 0 if rng.random() < 0.2 else honest(request, place)


def never_said(request: Generate, place: int) -> int:
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

        def says(request: Generate, place: int, salt: int = salt) -> int:
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
    json.dumps(found.document(), allow_nan=False)


def test_an_answer_that_ends_early_is_a_divergence() -> None:
    class Short(Scripted):
        def generate(self, request: Generate) -> Any:
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
    assert {name for name, sample in found.samples.items() if sample.again} == {verify}
    assert found.document()["sampled"]["p"] < 1e-3


def test_a_token_that_the_law_does_not_hold_is_found() -> None:
    found = report(Scripted(bent(never_said, verify="block")))
    assert found.verdict == "divergent"
    assert found.samples["block"].impossible


def test_the_shift_that_is_told_would_be_seen() -> None:
    """The die above is off by 0.175; 800 tokens show less."""
    sampled = report(Scripted(honest)).document()["sampled"]
    assert 0.05 < sampled["power"]["shift"] < 0.175


def test_a_first_alarm_is_not_a_verdict() -> None:
    """The check looks again with other seeds before it counts."""
    first: set[str] = set()

    def once(request: Generate, place: int) -> int:
        confirming = request.sampling.seed % 10_000 >= 5_000
        first.add("second" if confirming else "first")
        return (honest if confirming else loaded_die)(request, place)

    found = report(Scripted(bent(once, verify="rejection")))
    assert first == {"first", "second"}
    assert found.verdict == "lossless"
    assert found.samples["rejection"].again


def test_what_was_cut_short_is_not_called_lossless() -> None:
    found = Report()
    for finding in check(Scripted(honest), draft=True, effort=QUICK):
        found.take(finding)
        if isinstance(finding, Sampled):
            break
    assert found.verdict is None
    assert found.document()["whole"] is False


def test_a_divergence_counts_though_the_check_was_cut_short() -> None:
    found = Report()
    for finding in check(Scripted(bent(late, temperature=0.0)), draft=True, effort=QUICK):
        found.take(finding)
        if found.greedy.prompts:
            break
    assert found.verdict == "divergent"


def test_the_openings_share_no_first_words() -> None:
    assert len({text[:3] for text in OPENINGS}) == len(OPENINGS) == 8


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


class Gullible(accept.Coupled):
    """Keeps every guess."""

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        n = len(draft.tokens)
        return n, self.guess(law_at(n), index + n)


class Trusting(accept.Rejection):
    """Keeps every guess."""

    def verify(self, law_at: LawAt, draft: Draft, index: int) -> tuple[int, int]:
        law = law_at(len(draft.tokens))
        return len(draft.tokens), int(law.ids[self._draws.choice(law.probs)])


def remembering_too_much(self: Reader, tokens: Any) -> int:
    """Forgets one token too few."""
    kept = min(common_prefix(self._read, tokens), self.model.n_past, len(tokens) - 1)
    self.model.forget(kept + 1)
    del self._read[kept:]
    return kept


def test_keeping_every_guess_is_found(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept.Coupled, "verify", Gullible.verify)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    assert found.verdict == "divergent"
    assert not any(each.near_tie(found.limit) for each in found.divergences)


def test_trusting_the_drafts_law_is_found_by_sampling(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept.Rejection, "verify", Trusting.verify)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    sample = found.samples["rejection"]
    assert found.verdict == "divergent"
    assert sample.impossible or sample.again


def test_a_memory_that_forgets_too_little_is_found(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "align", remembering_too_much)
    with opened(zoo["target"], zoo["stranger"]) as engine:
        found = report(engine, SHORT)
    assert found.verdict == "divergent"


def test_seeds_of_samples_never_meet() -> None:
    """Coupled noise is keyed by them: the same seed twice would be the same noise twice."""
    seen: list[tuple[str, Sampling]] = []

    def says(request: Generate, place: int) -> int:
        if place == 0 and request.spec != "off":
            seen.append((request.verify, request.sampling))
        return honest(request, place)

    report(Scripted(says), Effort(seconds=0, tokens=8, least=800))
    drawn = [s.seed for _, s in seen if s.seed >= 1_000_000]
    assert len(drawn) == len(set(drawn)) >= 300


# --- stopping ---------------------------------------------------------------------------------


class Listening(Scripted):
    """Notices when nobody listens to an answer any more."""

    asked = 0
    left: int | None = None

    def generate(self, request: Generate) -> Iterator[Event]:
        self.asked += 1
        try:
            yield from super().generate(request)
        except GeneratorExit:
            self.left = self.asked
            raise


def test_stopped_within_an_answer_what_was_compared_is_kept() -> None:
    engine, found = Listening(honest), Report()

    def stopped() -> bool:
        return engine.asked == 8  # the second prompt's third answer

    for finding in check(engine, draft=True, effort=QUICK, stopped=stopped):
        found.take(finding)
    assert engine.asked == engine.left == 8, "the engine is told to stop writing it"
    assert (found.greedy.prompts, found.seeded.prompts, found.verdict) == (1, 0, None)


def test_how_far_a_part_is_never_goes_back() -> None:
    shares: dict[str, list[float]] = {}
    for finding in check(Scripted(honest), draft=True, effort=QUICK):
        if isinstance(finding, Doing):
            shares.setdefault(finding.verify or finding.part, []).append(finding.share)
    assert list(shares) == ["widths", "greedy", "seeded", "coupled", "rejection", "block"]
    assert all(each == sorted(each) and 0 <= each[-1] <= 1 for each in shares.values())
    assert shares["greedy"] == [0, 0.5] and shares["coupled"][-1] == 1
