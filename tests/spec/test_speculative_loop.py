"""Laws of the loop: the text is plain decoding's, and every yield is whole.

Each law is checked for every drafter.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.errors import EngineError
from localspec.protocol.events import Prefill
from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec.drafters import NoDrafter
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import Draft, InvalidDraftError, Logits
from localspec.spec.sampling import one_hot
from localspec.spec.speculative_loop import Drafting, RoundResult, speculative_decode
from localspec.spec.verifiers import make_verifier
from tests.spec import laws
from tests.spec.laws import DRAFTERS, MODES, PROMPT, SAMPLED, SEED, TWINS
from tests.support.fake_models import (
    GREEDY,
    PLAIN,
    BrokenDrafter,
    FakeModel,
    HistoryModel,
    OracleDrafter,
    Run,
    SnapshotModel,
    Stop,
    StubbornModel,
    job,
    model_drafter,
    plain,
    run,
)

LENGTHS = (1, 2, 3, 5, 8)
PENALISED = replace(SAMPLED, repeat_penalty=1.3, repeat_last_n=6)
DRY_AND_XTC = replace(
    SAMPLED,
    dry_multiplier=1.5,
    dry_allowed_length=1,
    xtc_probability=0.5,
    xtc_threshold=0.15,
)
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)


# --- law 1: greedy output is plain decoding's
# -------------------------------------------


@every_drafter
def test_greedy_equals_plain_for_any_drafter(make: laws.MakeDrafter) -> None:
    for draft_length in LENGTHS:
        what = job(PROMPT, 20, draft_length=draft_length)
        laws.same_as_plain(make, laws.history, what=what)
        laws.same_as_plain(make, laws.pairs, what=what)
    for mode in MODES:
        laws.same_as_plain(make, mode=mode, what=job(PROMPT, 20))
    penalised = replace(GREEDY, repeat_penalty=1.4, repeat_last_n=4)
    unrepeated = replace(
        GREEDY, dry_multiplier=2.0, dry_allowed_length=1, xtc_probability=0.5
    )
    for sampling in (penalised, unrepeated):
        laws.same_as_plain(make, laws.pairs, what=job(PROMPT, 40, sampling=sampling))


# --- law 2, the target's distribution, is in test_verifiers.py
# --------------------------


@pytest.mark.parametrize("n_snapshots", [1, 3, 6])
@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
def test_drafts_longer_than_what_can_be_rolled_back(
    n_snapshots: int, right: float
) -> None:
    """A checkpoint is before each; what was accepted is read again, and nothing else."""
    what = job(PROMPT, 150, draft_length=20)
    verifier = make_verifier("coupled", SEED)
    expected = plain(HistoryModel(1), verifier, what).tokens
    model = SnapshotModel(1, n_snapshots=n_snapshots)
    cache = PrefixCache(model, model.save_checkpoint, n_snapshots)
    rng = np.random.default_rng(3)
    wrong = [bool(rng.random() > right) for _ in range(len(PROMPT) + 150)]
    drafter = OracleDrafter([*PROMPT, *expected], model.n_vocab, wrong.__getitem__)

    got = run(cache, drafter, verifier, what)

    assert got.tokens == expected
    before = got.steps[0]
    for step in got.steps[1:]:
        n_rejected = len(before.draft.tokens) - before.accepted
        n_again = len(before.tokens) if n_rejected > n_snapshots else 0
        assert step.width == 1 + n_again + len(step.draft.tokens)
        if n_again:
            assert len(step.draft.tokens) <= n_snapshots
        before = step
    if right == 1.0:
        assert max(len(step.draft.tokens) for step in got.steps) == 20


def test_without_a_checkpoint_a_draft_is_no_longer_than_can_be_rolled_back() -> None:
    what = job(PROMPT, 40, draft_length=20)
    verifier = make_verifier("coupled", SEED)
    expected = plain(HistoryModel(1), verifier, what).tokens
    model = SnapshotModel(1, n_snapshots=3)
    cache = PrefixCache(model, None, 3)

    got = run(cache, OracleDrafter([*PROMPT, *expected], model.n_vocab), verifier, what)

    assert got.tokens == expected
    assert {len(step.draft.tokens) for step in got.steps[1:-1]} == {3}


# --- law 3: the same seed, the same text
# ------------------------------------------------


@every_drafter
def test_coupled_text_depends_on_the_seed_alone(make: laws.MakeDrafter) -> None:
    for draft_length in LENGTHS:
        for sampling in (
            SAMPLED,
            replace(PLAIN, repeat_penalty=1.2, seed=8),
            DRY_AND_XTC,
        ):
            what = job(PROMPT, 14, sampling=sampling, draft_length=draft_length)
            laws.same_as_plain(make, laws.history, what=what)
            laws.same_as_plain(make, laws.pairs, what=what)


# --- law 4: a draft is of this text
# -----------------------------------------------------


@pytest.mark.parametrize("name", TWINS)
def test_whoever_knows_the_target_is_always_right(name: str) -> None:
    laws.always_right(name, GREEDY)
    # A block head's rows assume its likeliest tokens.
    if name not in ("block head", "lattice"):
        laws.always_right(name, SAMPLED)


@pytest.mark.parametrize("mode", MODES)
def test_the_target_is_always_right_in_every_way_of_verifying(mode: VerifyMode) -> None:
    samplings: list[SamplingParams] = [GREEDY]
    if mode != "match":
        samplings += [SAMPLED, replace(PLAIN, temperature=0.5), PENALISED, DRY_AND_XTC]
    for sampling in samplings:
        laws.always_right("the target", sampling, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_drafter_never_keeps_what_did_not_happen(mode: VerifyMode) -> None:
    laws.drafter_remembers_what_happened(mode)


# --- law 5: limits and ends
# -------------------------------------------------------------


@every_drafter
def test_limits_are_exact_and_an_end_token_cuts_there(make: laws.MakeDrafter) -> None:
    laws.exact_limits(make)
    for sampling in (GREEDY, SAMPLED):
        laws.end_cuts(make, sampling)


# --- law 6: whole at every yield
# --------------------------------------------------------


@pytest.mark.parametrize("name", ["model", "lookup"])
@pytest.mark.parametrize("kind", [HistoryModel, StubbornModel])
def test_closing_anywhere_leaves_no_trace(kind: type[HistoryModel], name: str) -> None:
    """The next prompt is the same, a longer, another or a shorter one, or the chat's."""
    first = job([*PROMPT, *PROMPT, 0], 8, sampling=SAMPLED, draft_length=3)
    said = plain(laws.history(), make_verifier("coupled", SEED), first).tokens
    seconds = ([*first.prompt, 0, 1], [1, 2, 4, 4, 1, 2], [5, 4, 3, 5, 4], [1, 2])
    for second in (PROMPT, *seconds, [*first.prompt, *said, 4, 4]):
        laws.closing_leaves_no_trace(name, kind, first, second)


class FailingModel(HistoryModel):
    fails = ""

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        left = self.fails
        self.fails = ""
        if not left:
            return super().decode(tokens, outputs)
        if left == "a part of the batch":
            self.memory += tokens[: len(tokens) // 2]
        elif left == "nothing":
            self.memory.clear()
        raise EngineError("llama.cpp failed")


@pytest.mark.parametrize("left", ["what was there", "a part of the batch", "nothing"])
@pytest.mark.parametrize(
    "again", [False, True], ids=["the same prompt", "all it had read"]
)
def test_after_a_read_that_failed_the_next_answer_is_right(
    left: str, again: bool
) -> None:
    model = FailingModel(1)
    verifier = make_verifier("coupled", 0)
    reader = PrefixCache(model)
    text = [*PROMPT, *plain(laws.history(), verifier, job(PROMPT, 30)).tokens]
    with pytest.raises(EngineError):
        drafting = Drafting(OracleDrafter(text, 6), max_length=5)
        for event in speculative_decode(reader, job(PROMPT, 20), drafting):
            if isinstance(event, RoundResult) and event.draft.tokens:
                model.fails = left  # in the second round that drafts
    prompt = text[: reader.n_cached + 1] if again else PROMPT
    assert (
        run(reader, NoDrafter(), verifier, job(prompt, 8)).tokens
        == text[len(prompt) :][:8]
    )


# --- law 7: the context never overflows
# -------------------------------------------------


@every_drafter
def test_a_full_context_ends_the_answer(make: laws.MakeDrafter) -> None:
    for n_ctx, draft_length in product((6, 7, 8, 20), LENGTHS):
        what = job(PROMPT, 100, draft_length=draft_length)
        verifier = make_verifier("coupled", 0)
        text = [*PROMPT, *plain(laws.history(), verifier, what).tokens]
        got = run(
            HistoryModel(1, n_ctx=n_ctx), make(verifier, what, text), verifier, what
        )
        assert [*PROMPT, *got.tokens] == text[:n_ctx]
        assert got.end == "context"


# --- law 8: a drafter cannot break the loop
# -------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_draft_that_is_too_long_or_no_text_is_cut(mode: VerifyMode) -> None:
    laws.broken_drafts_change_no_text(mode)


def test_a_draft_that_is_too_long_is_cut_to_the_targets_batch() -> None:
    laws.broken_drafts_change_no_text(target=lambda: HistoryModel(1, n_batch=4))
    laws.broken_drafts_change_no_text(target=lambda: StubbornModel(1, n_batch=4))


@pytest.mark.parametrize("kind", laws.REPORTED_BREAKS)
@pytest.mark.parametrize("mode", MODES)
def test_a_draft_that_cannot_be_verified_is_an_error_that_names_the_drafter(
    mode: VerifyMode, kind: str
) -> None:
    drafter = BrokenDrafter(PROMPT, laws.REPORTED_BREAKS[kind])
    verifier = make_verifier(mode, SEED)
    with pytest.raises(InvalidDraftError, match="'broken'"):
        run(laws.history(), drafter, verifier, job(PROMPT, 20, sampling=SAMPLED))


@pytest.mark.parametrize("mode", ["rejection", "block"])
def test_a_token_that_its_distribution_lacks_is_an_error_that_names_the_drafter(
    mode: VerifyMode,
) -> None:
    def lie(right: list[int], limit: int) -> Draft:
        return Draft([1], [one_hot(2)], "broken")

    drafter = BrokenDrafter(PROMPT, lie)
    with pytest.raises(InvalidDraftError, match="'broken'"):
        run(laws.history(), drafter, make_verifier(mode, SEED), job(PROMPT, 20))


def test_a_read_that_may_leave_no_token_leaves_one() -> None:
    model = HistoryModel(1, n_batch=4)
    cache = PrefixCache(model)
    done = list(cache.prefill_until([1, 2, 3, 4, 5], 0, lambda: False))
    assert done == [4]
    assert cache.n_cached == 4


# --- prompts, batches and the stop flag
# -------------------------------------------------

LONG = [*PROMPT, *PROMPT, 0]


def answer(target: FakeModel | PrefixCache, prompt: Sequence[int], n: int) -> Run:
    return run(target, NoDrafter(), make_verifier("coupled", 0), job(prompt, n))


def test_a_long_prompt_is_read_in_batches_and_what_is_known_of_it_is_not_read_again() -> (
    None
):
    model = HistoryModel(1, n_batch=4)
    reader = PrefixCache(model)
    got = answer(reader, LONG, 3)
    assert got.prefills == [Prefill(0, 11, 0), Prefill(4, 11, 0), Prefill(8, 11, 0)]
    assert model.reads == [4, 4, 3, 1, 1]
    model.reads.clear()
    got = answer(reader, [*LONG, *got.tokens, 0, 1, 2], 1)
    assert got.prefills == [Prefill(13, 17, 13)]
    assert model.reads == [4]


def test_a_stop_between_batches_or_rounds_is_heeded_and_harmless() -> None:
    model = HistoryModel(1, n_batch=4)
    reader = PrefixCache(model)
    verifier = make_verifier("coupled", 0)
    got = run(reader, NoDrafter(), verifier, job(LONG, 3, cancelled=Stop(after=1)))
    assert (got.tokens, got.end, model.memory) == ([], "cancelled", LONG[:4])
    again = answer(reader, LONG, 3)
    assert again.prefills[0] == Prefill(4, 11, 4)
    assert again.tokens == answer(laws.history(), LONG, 3).tokens
    expected = answer(laws.history(), PROMPT, 20).tokens
    drafter = OracleDrafter([*PROMPT, *expected], 6)
    got = run(
        laws.history(), drafter, verifier, job(PROMPT, 20, cancelled=Stop(after=2))
    )
    assert (got.tokens, got.end) == (expected[:7], "cancelled")


@every_drafter
def test_a_target_whose_memory_cannot_be_cut_reads_again(
    make: laws.MakeDrafter,
) -> None:
    for sampling in (GREEDY, SAMPLED):
        what = job([*PROMPT, 0, 4, 4], 20, sampling=sampling, draft_length=3)
        laws.same_as_plain(make, lambda: StubbornModel(1, n_batch=4), what=what)


def test_times_are_of_the_two_models_and_the_rest() -> None:
    target = laws.history()
    draft = HistoryModel(2)
    verifier = make_verifier("coupled", 0)
    drafter = model_drafter(draft, verifier, GREEDY, len(PROMPT))
    got = run(target, drafter, verifier, job(PROMPT, 12))
    assert sum(step.ms.verify for step in got.steps) == pytest.approx(
        target.decode_seconds * 1e3
    )
    assert sum(step.ms.draft for step in got.steps) == pytest.approx(
        draft.decode_seconds * 1e3
    )
    assert all(step.ms.host > 0 for step in got.steps)
