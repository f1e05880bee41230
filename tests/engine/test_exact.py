"""--exact: what a wide pass's last bits might have decided is computed again, alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.engine.near_ties import NearTieCheck
from localspec.engine.protocols import Logits
from localspec.engine.verifiers import make_verifier
from localspec.errors import UsageError
from localspec.protocol.events import Notice
from localspec.protocol.wire import GenerateCommand, KvType, SamplingParams
from tests.engine.laws import PROMPT
from tests.fakes import (
    GREEDY,
    FakeModel,
    HistoryModel,
    RandomDrafter,
    Run,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)
from tests.sessions import SETTINGS, loaded, say
from tests.zoo import Zoo

OFF = 0.3
SAMPLED = SamplingParams(temperature=0.9, top_k=6, top_p=0.9, min_p=0.03, seed=3)
WHOLE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)


class Wobbly(HistoryModel):
    """Passes over several tokens move every logit by up to OFF; a token alone is right."""

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        rows = super().decode(tokens, outputs)
        if len(tokens) > 1:
            rng = np.random.default_rng([len(tokens), len(self.memory)])
            rows += rng.uniform(-OFF, OFF, rows.shape).astype(np.float32)
        return rows


class WobblyStubborn(Wobbly, StubbornModel):
    """The same, of a memory that can only be emptied."""


def answers(sampling: SamplingParams, model: FakeModel, *, exact: bool) -> tuple[Run, Run]:
    """Plain decoding's answer, and one with good guesses."""
    # One token of prompt: the prompt's own pass is not what is tried here.
    what = job(PROMPT[:1], 60, sampling=sampling, draft_length=4)
    expected = plain(HistoryModel(1), make_verifier("coupled", sampling.seed), what)
    guard = NearTieCheck(sampling, OFF) if exact else None
    verifier = make_verifier("coupled", sampling.seed)
    drafter = model_drafter(HistoryModel(1), verifier, sampling, len(what.prompt))
    return expected, run(model, drafter, verifier, replace(what, is_near_tie=guard))


def test_text_is_plain_decodings_where_wide_passes_wobble() -> None:
    for sampling in (GREEDY, SAMPLED, WHOLE):
        for seed in range(6):
            expected, got = answers(replace(sampling, seed=seed), Wobbly(1), exact=True)
            assert got.tokens == expected.tokens
            assert sum(step.guarded for step in got.steps) > 0
            assert sum(got.accepted) > 0


def test_without_it_some_text_differs() -> None:
    """Or the test above would prove nothing."""
    differ = 0
    for seed in range(6):
        for sampling in (GREEDY, SAMPLED, WHOLE):
            expected, got = answers(replace(sampling, seed=seed), Wobbly(1), exact=False)
            differ += got.tokens != expected.tokens
    assert differ > 4


def test_a_memory_that_can_only_be_emptied() -> None:
    _, got = answers(GREEDY, WobblyStubborn(1), exact=True)
    assert len(got.tokens) == 60


def test_a_guess_that_stands_when_computed_alone_is_kept() -> None:
    """And is no correction: nothing follows it in its round."""
    _, got = answers(GREEDY, Wobbly(1), exact=True)
    kept = [step for step in got.steps if step.guarded and len(step.tokens) == step.accepted]
    assert kept
    assert all(step.tokens == step.draft.tokens[: step.accepted] for step in kept)


def test_nothing_is_doubted_where_widths_agree() -> None:
    what = job(PROMPT, 40, draft_length=4, sampling=SAMPLED)
    verifier = make_verifier("coupled", SAMPLED.seed)
    got = run(
        HistoryModel(1),
        RandomDrafter(1),
        verifier,
        replace(what, is_near_tie=NearTieCheck(SAMPLED, 0.0)),
    )
    assert not any(step.guarded for step in got.steps)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WHOLE], ids=["greedy", "cut", "whole"])
def test_a_row_that_may_choose_otherwise_is_doubted(sampling: SamplingParams) -> None:
    """Every row whose choice some change within the limit turns over, over many random rows."""
    rng = np.random.default_rng(5)
    missed = changed = trusted = 0
    for index in range(150):
        row = rng.normal(scale=2.0, size=300).astype(np.float32)
        verifier = make_verifier("coupled", sampling.seed)
        mine = chosen(verifier, row, sampling, index)
        doubted = NearTieCheck(sampling, 0.05)(row, [], index)
        trusted += not doubted
        for _ in range(25):
            other = row + rng.choice([-0.05, 0.05], row.shape).astype(np.float32)
            if chosen(verifier, other, sampling, index) != mine:
                changed += 1
                missed += not doubted
                break
    assert changed > 0
    assert missed == 0
    assert trusted > 20


def chosen(verifier: object, row: Logits, sampling: SamplingParams, index: int) -> int:
    from localspec.engine.sampling import compute_distribution  # noqa: PLC0415

    token: int = verifier.sample_draft_token(compute_distribution(row, sampling), index)  # type: ignore[attr-defined]
    return token


def test_a_session_guards_on_a_real_model_whose_widths_differ(zoo: Zoo) -> None:
    with loaded(zoo["f32"], zoo["f32"]) as session:
        plain_ = say(session, "Hello", spec="off", max_tokens=60)
        got = say(session, "Hello", spec="model", exact=True, max_tokens=60)
        assert got.ids == plain_.ids
        assert "guarded" in got.speculation


def test_exact_needs_decisions_that_can_be_told(zoo: Zoo) -> None:
    with loaded(zoo["target"]) as session, pytest.raises(UsageError, match="Exact mode"):
        say(session, "Hello", verify="rejection", sampling=SAMPLED, exact=True)


@pytest.mark.parametrize(
    ("kv_type", "n_threads", "is_warned"),
    [("f16", 2, True), ("f32", 2, True), ("bf16", 2, False), ("f16", 1, False)],
)
def test_a_cache_that_exact_mode_cannot_make_exact_is_said_once(
    zoo: Zoo, kv_type: KvType, n_threads: int, is_warned: bool
) -> None:
    settings = replace(SETTINGS, kv_type=kv_type, n_threads=n_threads)
    with loaded(zoo["target"], settings=settings) as session:
        codes = []
        for exact in (False, True, True):
            request = GenerateCommand("Hello", GREEDY, 4, exact=exact)
            events = list(session.generate(request))
            codes.append([event.code for event in events if isinstance(event, Notice)])
    assert codes == [[], ["exact-keys"] * is_warned, []]
