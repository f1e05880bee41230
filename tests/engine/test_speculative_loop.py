"""The laws of the speculative loop, on fakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from localspec.engine.drafters import NoDrafter
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Logits
from localspec.engine.speculative_loop import RoundResult, speculative_decode
from localspec.engine.verifiers import make_verifier
from localspec.errors import EngineError
from localspec.protocol.events import Prefill
from localspec.protocol.wire import SamplingParams, VerifyMode
from tests.engine import laws
from tests.engine.laws import DRAFTERS, GUESSERS, MODES, PROMPT, RANDOM, SAMPLED, SEED, Pair
from tests.support.fake_models import (
    GREEDY,
    PLAIN,
    EmptyDrafter,
    HistoryModel,
    OracleDrafter,
    Stop,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)

LENGTHS = (1, 2, 3, 5, 8)
DRY_AND_XTC = replace(
    SAMPLED, dry_multiplier=1.5, dry_allowed_length=1, xtc_probability=0.5, xtc_threshold=0.15
)


def by_name(drafters: dict[str, laws.MakeDrafter]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("make", drafters.values(), ids=drafters.keys())


# --- law 1: greedy output is plain decoding's -------------------------------------------


@by_name(DRAFTERS)
def test_greedy_equals_plain_for_any_drafter(make: laws.MakeDrafter) -> None:
    penalised = replace(GREEDY, repeat_penalty=1.4, repeat_last_n=4)
    for draft_length in LENGTHS:
        what = job(PROMPT, 20, draft_length=draft_length)
        laws.same_as_plain(make, laws.history, what=what)
        laws.same_as_plain(make, laws.pairs, what=what)
    for mode in MODES:
        laws.same_as_plain(make, mode=mode, what=job(PROMPT, 20))
    laws.same_as_plain(make, laws.pairs, what=job(PROMPT, 40, sampling=penalised))
    unrepeated = replace(GREEDY, dry_multiplier=2.0, dry_allowed_length=1, xtc_probability=0.5)
    laws.same_as_plain(make, laws.pairs, what=job(PROMPT, 40, sampling=unrepeated))


def test_greedy_equals_plain_for_random_drafts() -> None:
    for seed in range(50):
        for draft_length in LENGTHS:
            what = job(PROMPT, 20, draft_length=draft_length)
            laws.same_as_plain(laws.random_drafts(seed), laws.history, what=what)
            laws.same_as_plain(laws.random_drafts(seed), laws.pairs, what=what)


def test_a_right_guess_is_kept() -> None:
    what = job(PROMPT, 41, draft_length=4)
    text = [*PROMPT, *plain(laws.history(), make_verifier("coupled", 0), what).tokens]
    got = run(laws.history(), OracleDrafter(text, 6), make_verifier("coupled", 0), what)
    assert got.accepted == [0, *[4] * 8]


# --- law 2 is in test_verifiers.py ------------------------------------------------------


@by_name(GUESSERS | RANDOM)
def test_a_round_emits_what_stands_and_one_more(make: laws.MakeDrafter) -> None:
    what = job(PROMPT, 25, sampling=SAMPLED, draft_length=3)
    for mode in MODES:
        verifier = make_verifier(mode, SEED)
        got = run(laws.history(), make(verifier, what, []), verifier, what)
        laws.whole_rounds(got.steps, what)


# --- law 3: the same seed, the same text ------------------------------------------------


@by_name(DRAFTERS | {f"random {seed}": laws.random_drafts(seed) for seed in range(10)})
def test_coupled_text_depends_on_the_seed_alone(make: laws.MakeDrafter) -> None:
    for draft_length in LENGTHS:
        for sampling in (SAMPLED, replace(PLAIN, repeat_penalty=1.2, seed=8), DRY_AND_XTC):
            what = job(PROMPT, 14, sampling=sampling, draft_length=draft_length)
            laws.same_as_plain(make, laws.history, what=what)
            laws.same_as_plain(make, laws.pairs, what=what)


@pytest.mark.parametrize("mode", MODES)
def test_another_seed_gives_another_text(mode: VerifyMode) -> None:
    texts = set()
    for seed in range(5):
        what = job(PROMPT, 20, sampling=replace(PLAIN, seed=seed))
        texts.add(tuple(plain(laws.history(), make_verifier(mode, seed), what).tokens))
    assert len(texts) == 5


# --- law 4: a draft is of this text -----------------------------------------------------


TWINS: list[tuple[VerifyMode, SamplingParams]] = [
    *[(mode, GREEDY) for mode in MODES],
    ("coupled", SAMPLED),
    ("coupled", replace(PLAIN, temperature=0.5)),
    ("rejection", SAMPLED),
    ("rejection", replace(PLAIN, temperature=0.5)),
    ("rejection", replace(SAMPLED, repeat_penalty=1.3, repeat_last_n=6)),
    ("block", SAMPLED),
    ("block", replace(SAMPLED, repeat_penalty=1.3, repeat_last_n=6)),
    ("coupled", replace(SAMPLED, repeat_penalty=1.3, repeat_last_n=6)),
    *[(mode, DRY_AND_XTC) for mode in ("coupled", "rejection", "block")],
]


def test_a_twin_is_always_right() -> None:
    for mode, sampling in TWINS:
        laws.twin_is_always_right(sampling, mode)


@pytest.mark.parametrize("name", ["eagle3", "mtp"])
def test_a_head_that_knows_the_target_is_always_right(name: str) -> None:
    for sampling in (GREEDY, SAMPLED):
        laws.head_of_the_target_is_always_right(f"{name} of the target's history", sampling)


def test_a_block_head_that_knows_the_target_is_always_right() -> None:
    """Greedily: its rows assume its likeliest tokens."""
    laws.head_of_the_target_is_always_right("a block head of the target's history", GREEDY)


@pytest.mark.parametrize("mode", MODES)
def test_a_drafter_never_keeps_what_did_not_happen(mode: VerifyMode) -> None:
    laws.drafter_remembers_what_happened(mode)


def test_a_drafter_whose_memory_cannot_be_cut_reads_again() -> None:
    what = job(PROMPT, 20, sampling=SAMPLED, draft_length=3)
    verifier = make_verifier("coupled", SEED)
    drafter = laws.Watched(StubbornModel(2, n_batch=4), verifier, what)
    got = run(laws.history(), drafter, verifier, what)
    assert got.tokens == plain(laws.history(), verifier, what).tokens


# --- law 5: limits and ends -------------------------------------------------------------


@by_name(DRAFTERS | RANDOM)
def test_limits_are_exact(make: laws.MakeDrafter) -> None:
    laws.exact_limits(make)


@by_name(DRAFTERS | RANDOM)
def test_an_end_token_cuts_there(make: laws.MakeDrafter) -> None:
    for sampling in (GREEDY, SAMPLED):
        laws.end_cuts(make, sampling)


def test_a_round_with_an_end_inside_keeps_no_more() -> None:
    free = plain(laws.history(), make_verifier("coupled", 0), job(PROMPT, 30)).tokens
    end = next(token for token in range(6) if 1 < free.index(token) < 6)
    at = free.index(end)
    what = job(PROMPT, 30, draft_length=8, ends=[end])
    got = run(laws.history(), OracleDrafter([*PROMPT, *free], 6), make_verifier("coupled", 0), what)
    assert got.steps[-1].tokens == free[1 : at + 1]
    assert got.steps[-1].accepted == at
    assert len(got.steps[-1].draft.tokens) == 8


def test_a_draft_model_stops_at_an_end() -> None:
    free = plain(laws.history(), make_verifier("coupled", 0), job(PROMPT, 30)).tokens
    end = next(token for token in range(6) if 1 < free.index(token) < 6)
    what = job(PROMPT, 30, draft_length=8, ends=[end])
    verifier = make_verifier("coupled", 0)
    drafter = model_drafter(
        HistoryModel(1), verifier, GREEDY, len(PROMPT), is_eog=lambda token: token == end
    )
    got = run(laws.history(), drafter, verifier, what)
    assert got.drafts[-1] == free[1 : free.index(end) + 1]
    assert got.accepted[-1] == len(got.drafts[-1])


# --- law 6: whole at every yield --------------------------------------------------------

SECOND = {
    "the same": PROMPT,
    "longer": [*PROMPT, 0, 1],
    "parts soon": [1, 2, 4, 4, 1, 2],
    "another": [5, 4, 3, 5, 4],
    "shorter": [1, 2],
}


@pytest.mark.parametrize("name", ["model", "lookup"])
@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_closing_anywhere_leaves_no_trace(kind: type[HistoryModel], name: str) -> None:
    def make() -> Pair:
        return Pair.of(kind(1, n_batch=4), kind(2, n_batch=4))

    first = job([*PROMPT, *PROMPT, 0], 8, sampling=SAMPLED, draft_length=3)
    for second in SECOND.values():
        laws.closing_leaves_no_trace(make, name, first, second)


def test_the_next_prompt_may_be_the_whole_chat() -> None:
    def make() -> Pair:
        return Pair.of(laws.history(), HistoryModel(2))

    first = job(PROMPT, 8, sampling=SAMPLED, draft_length=3)
    said = plain(laws.history(), make_verifier("coupled", SEED), first).tokens
    for name in ("model", "lookup"):
        laws.closing_leaves_no_trace(make, name, first, [*PROMPT, *said, 4, 4])


@by_name(DRAFTERS)
def test_at_every_round_the_target_has_read_all_but_the_last(make: laws.MakeDrafter) -> None:
    what = job(PROMPT, 20, sampling=SAMPLED, draft_length=3)
    text = [*PROMPT, *plain(laws.history(), make_verifier("coupled", SEED), what).tokens]
    verifier, target, seen = make_verifier("coupled", SEED), laws.history(), 0
    for event in speculative_decode(
        PrefixCache(target), make(verifier, what, text), verifier, what
    ):
        if isinstance(event, RoundResult):
            seen += len(event.tokens)
            assert target.memory == text[: len(PROMPT) + seen - 1]
    assert seen == 20


class FailingModel(HistoryModel):
    """Fails once, when told to, and leaves what it says of its memory."""

    def __init__(self) -> None:
        super().__init__(1)
        self.fails = ""

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        left, self.fails = self.fails, ""
        if not left:
            return super().decode(tokens, outputs)
        if left == "a part of the batch":
            self.memory += tokens[: len(tokens) // 2]
        elif left == "nothing":
            self.memory.clear()
        raise EngineError("llama.cpp failed")


@pytest.mark.parametrize("left", ["what was there", "a part of the batch", "nothing"])
@pytest.mark.parametrize("again", [False, True], ids=["the same prompt", "all it had read"])
def test_after_a_read_that_failed_the_next_answer_is_right(left: str, again: bool) -> None:
    model = FailingModel()
    reader, verifier = PrefixCache(model), make_verifier("coupled", 0)
    text = [*PROMPT, *plain(laws.history(), verifier, job(PROMPT, 30)).tokens]
    with pytest.raises(EngineError):
        for event in speculative_decode(reader, OracleDrafter(text, 6), verifier, job(PROMPT, 20)):
            if isinstance(event, RoundResult) and event.draft.tokens:
                model.fails = left  # in the second round that drafts
    prompt = text[: reader.n_cached + 1] if again else PROMPT
    assert run(reader, EmptyDrafter(), verifier, job(prompt, 8)).tokens == text[len(prompt) :][:8]


# --- law 7: the context never overflows -------------------------------------------------


@by_name(DRAFTERS | RANDOM)
def test_a_full_context_ends_the_answer(make: laws.MakeDrafter) -> None:
    for n_ctx, draft_length in product((6, 7, 8, 20), LENGTHS):
        what = job(PROMPT, 100, draft_length=draft_length)
        verifier = make_verifier("coupled", 0)
        text = [*PROMPT, *plain(laws.history(), verifier, what).tokens]
        got = run(HistoryModel(1, n_ctx=n_ctx), make(verifier, what, text), verifier, what)
        assert [*PROMPT, *got.tokens] == text[:n_ctx]
        assert got.end == "context"


@pytest.mark.parametrize("n_ctx", [4, 5, 6, 12])
def test_a_draft_model_with_less_room_falls_silent(n_ctx: int) -> None:
    what = job(PROMPT, 30, draft_length=3)
    verifier = make_verifier("coupled", 0)
    drafter = model_drafter(HistoryModel(1, n_ctx=n_ctx), verifier, GREEDY, len(PROMPT))
    got = run(laws.history(), drafter, verifier, what)
    assert got.tokens == plain(laws.history(), verifier, what).tokens
    assert any(got.drafts) == (n_ctx > 6)
    for step, seen in zip(got.steps, range(len(got.steps)), strict=True):
        before = len(PROMPT) + sum(len(s.tokens) for s in got.steps[:seen])
        assert before + len(step.draft.tokens) <= max(n_ctx, before)


# --- prompts, batches and the stop flag -------------------------------------------------


def test_a_long_prompt_is_read_in_batches() -> None:
    target = HistoryModel(1, n_batch=4)
    prompt = [*PROMPT, *PROMPT, 0]
    got = run(target, NoDrafter(), make_verifier("coupled", 0), job(prompt, 3))
    assert got.prefills == [Prefill(0, 11, 0), Prefill(4, 11, 0), Prefill(8, 11, 0)]
    assert target.reads == [4, 4, 3, 1, 1]


@pytest.mark.parametrize("n_batch", [6, 7, 10, 11, 12])
def test_the_size_of_a_batch_changes_nothing(n_batch: int) -> None:
    what = job([*PROMPT, *PROMPT, 0], 20, sampling=SAMPLED, draft_length=5)
    verifier = make_verifier("coupled", SEED)
    drafter = model_drafter(HistoryModel(2, n_batch=3), verifier, SAMPLED, 11)
    got = run(StubbornModel(1, n_batch=n_batch), drafter, verifier, what)
    assert got.tokens == plain(laws.history(), verifier, what).tokens


def test_what_is_known_of_a_prompt_is_not_read_again() -> None:
    model = HistoryModel(1, n_batch=4)
    reader = PrefixCache(model)
    said = run(reader, NoDrafter(), make_verifier("coupled", 0), job(PROMPT, 4)).tokens
    model.reads.clear()
    prompt = [*PROMPT, *said, 0, 1, 2, 3]
    got = run(reader, NoDrafter(), make_verifier("coupled", 0), job(prompt, 1))
    assert got.prefills == [Prefill(8, 13, 8), Prefill(12, 13, 8)]
    assert model.reads == [4, 1]


def test_a_stop_between_batches_is_heeded_and_harmless() -> None:
    model = HistoryModel(1, n_batch=4)
    reader = PrefixCache(model)
    prompt = [*PROMPT, *PROMPT, 0]
    what = job(prompt, 3, cancelled=Stop(after=1))
    got = run(reader, NoDrafter(), make_verifier("coupled", 0), what)
    assert (got.tokens, got.end) == ([], "cancelled")
    assert model.memory == prompt[:4]
    again = run(reader, NoDrafter(), make_verifier("coupled", 0), job(prompt, 3))
    fresh = run(laws.history(), NoDrafter(), make_verifier("coupled", 0), job(prompt, 3))
    assert again.prefills[0] == Prefill(4, 11, 4)
    assert again.tokens == fresh.tokens


def test_a_stop_between_rounds_is_heeded() -> None:
    what = job(PROMPT, 20)
    expected = plain(laws.history(), make_verifier("coupled", 0), what).tokens
    drafter = OracleDrafter([*PROMPT, *expected], 6)
    stopped = replace(what, cancelled=Stop(after=2))
    got = run(laws.history(), drafter, make_verifier("coupled", 0), stopped)
    assert (got.tokens, got.end) == (expected[:7], "cancelled")


# --- a memory that cannot be cut --------------------------------------------------------


@by_name(DRAFTERS)
def test_a_target_whose_memory_cannot_be_cut_reads_again(make: laws.MakeDrafter) -> None:
    for sampling in (GREEDY, SAMPLED):
        what = job([*PROMPT, 0, 4, 4], 20, sampling=sampling, draft_length=3)
        laws.same_as_plain(make, lambda: StubbornModel(1, n_batch=4), what=what)


# --- what a round tells -----------------------------------------------------------------


def test_times_are_of_the_two_models_and_the_rest() -> None:
    target, draft = laws.history(), HistoryModel(2)
    verifier = make_verifier("coupled", 0)
    got = run(
        target, model_drafter(draft, verifier, GREEDY, len(PROMPT)), verifier, job(PROMPT, 12)
    )
    assert sum(step.ms.verify for step in got.steps) == pytest.approx(target.decode_seconds * 1e3)
    assert sum(step.ms.draft for step in got.steps) == pytest.approx(draft.decode_seconds * 1e3)
    assert all(step.ms.host > 0 for step in got.steps)
