"""Properties of speculative decoding as checks, which raise AssertionError.

The engine's tests run them on the production code, `test_mutants.py` on code with
planted bugs.
"""

from collections import Counter
from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from itertools import count, islice
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from localspec.protocol.wire import MeasuredCosts, SamplingParams, VerifyMode
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_beliefs import PairBeliefs
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.prepared_answer import PreparedAnswer, TokenPart
from localspec.spec.protocols import (
    Draft,
    Drafter,
    DraftStopPolicy,
    GrammarState,
    Verifier,
)
from localspec.spec.sampling import (
    NoAllowedTokenError,
    compute_distribution,
    one_hot,
)
from localspec.spec.speculative_loop import RoundResult, speculative_decode
from localspec.spec.verifiers import (
    GumbelCoupledVerifier,
    SeededRandom,
    make_verifier,
)
from tests.extras import law_drafters
from tests.support.fake_heads import HEADS, MakeHeadDrafter
from tests.support.fake_models import (
    GREEDY,
    N_VOCAB,
    PLAIN,
    BrokenDrafter,
    CheckpointModel,
    ConstantDrafter,
    Explorer,
    FakeModel,
    HistoryModel,
    OracleDrafter,
    Outcome,
    RandomDrafter,
    TableModel,
    drafting_with,
    job,
    model_drafter,
    plain,
    run,
    table,
)

PROMPT = [1, 2, 3, 1, 2]
SEED = 20
SAMPLED = SamplingParams(temperature=0.9, top_k=5, top_p=0.95, min_p=0.02, seed=SEED)
MODES: tuple[VerifyMode, ...] = ("coupled", "rejection", "block", "match")

MakeModel = Callable[[], FakeModel]
MakeDrafter = Callable[[Verifier, PreparedAnswer, list[int]], Drafter]
"""Makes a drafter for a job, given the text of plain decoding."""


def history() -> FakeModel:
    return HistoryModel(1)


def pairs() -> FakeModel:
    """Its greedy text soon repeats, which suits prompt lookup."""
    return TableModel(table(1))


def _model(make: MakeModel) -> MakeDrafter:
    return lambda verifier, what, text: model_drafter(
        make(),
        verifier,
        what.sampling,
        len(what.prompt),
        is_eog=what.is_eog,
        constraint=what.constraint,
    )


def _oracle(wrong: Callable[[int], bool]) -> MakeDrafter:
    return lambda verifier, what, text: OracleDrafter(text, N_VOCAB, wrong)


def random_drafts(seed: int) -> MakeDrafter:
    return lambda verifier, what, text: RandomDrafter(seed)


def _heads(seed: int) -> dict[str, MakeDrafter]:
    """A head of each kind; with the seed of `history` it knows the target."""

    def of(make: MakeHeadDrafter) -> MakeDrafter:
        return lambda verifier, what, text: make(seed, verifier, what)

    return {kind: of(make) for kind, make in HEADS.items()}


def _recurrent(seed: int) -> MakeDrafter:
    def make(verifier: Verifier, what: PreparedAnswer, text: list[int]) -> Drafter:
        model = CheckpointModel(seed)
        cache = PrefixCache(model, model.save_checkpoint)
        return model_drafter(
            cache, verifier, what.sampling, len(what.prompt), is_eog=what.is_eog
        )

    return make


def _auto(verifier: Verifier, what: PreparedAnswer, text: list[int]) -> Drafter:
    """All sources together.

    Passes are cheap, so that they draft from the first round on.
    """
    model = _model(lambda: HistoryModel(2))(verifier, what, text)
    costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "8": 1.1}, 0.01))
    return SpeculationController(model, LookupDrafter(1), costs, PairBeliefs())


TWINS: dict[str, MakeDrafter] = {
    "the target": lambda verifier, what, text: Watched(history(), verifier, what),
    **_heads(1),
    **law_drafters("TWINS"),
}
"""They know what the target says. A block head's rows assume its likeliest tokens, so
that it is always right only greedily.
"""
GUESSERS: dict[str, MakeDrafter] = {
    "model": _model(lambda: HistoryModel(2)),
    "recurrent model": _recurrent(2),
    "recurrent model with the target's history": _recurrent(1),
    "model with the target's table": _model(pairs),
    "model with the target's history": _model(history),
    "lookup": lambda verifier, what, text: LookupDrafter(),
    "eager lookup": lambda verifier, what, text: LookupDrafter(1),
    **_heads(2),
    **{f"{kind} of the target's history": make for kind, make in _heads(1).items()},
    "auto": _auto,
    "constant": lambda verifier, what, text: ConstantDrafter([3, 1, 2, 2]),
    "random": random_drafts(0),
    **law_drafters("GUESSERS"),
}
ORACLES: dict[str, MakeDrafter] = {
    "oracle": _oracle(lambda place: False),
    "alternating": _oracle(lambda place: place % 2 == 1),
    "always wrong": _oracle(lambda place: True),
}
"""They draft plain decoding's text, for checks where speculation must reproduce it."""
DRAFTERS = GUESSERS | ORACLES


# --- the same text
# ----------------------------------------------------------------------


def same_as_plain(
    make: MakeDrafter,
    target: MakeModel = history,
    mode: VerifyMode = "coupled",
    what: PreparedAnswer | None = None,
) -> None:
    what = what or job(PROMPT, 24)
    seed = what.sampling.seed
    expected = plain(target(), make_verifier(mode, seed), what)
    verifier = make_verifier(mode, seed)
    got = run(
        target(), make(verifier, what, [*what.prompt, *expected.tokens]), verifier, what
    )
    assert got.tokens == expected.tokens
    assert got.end == expected.end


def every_drafter_same_as_plain() -> None:
    """A short form of laws 1 and 3, over both targets and all kinds of drafter."""
    for sampling in (GREEDY, SAMPLED):
        for make in DRAFTERS.values():
            same_as_plain(
                make, history, what=job(PROMPT, 16, sampling=sampling, draft_length=3)
            )
            same_as_plain(
                make, pairs, what=job(PROMPT, 16, sampling=sampling, draft_length=3)
            )


def every_draft_same_as_plain(
    sampling: SamplingParams,
    draft_length: int,
    n_vocab: int = 4,
    grammar: GrammarState | None = None,
) -> None:
    """Every possible draft gives plain decoding's tokens; the noise is fixed."""
    rows = table(3, n_vocab, scale=1.0)
    for seed in range(3):
        what = job(
            [0, 1, 0],
            7,
            sampling=replace(sampling, seed=seed),
            draft_length=draft_length,
        )
        judge = GumbelCoupledVerifier(seed)
        expected = plain(TableModel(rows), judge, constrained(what, grammar)).tokens
        for guess in np.ndindex((n_vocab,) * draft_length):
            drafter = ConstantDrafter(guess)
            try:
                got = run(TableModel(rows), drafter, judge, constrained(what, grammar))
            except NoAllowedTokenError as error:
                raise AssertionError("an answer left its grammar") from error
            assert got.tokens == expected, guess


# --- the same law
# -----------------------------------------------------------------------


class Case(Struct, frozen=True):
    """A pair small enough to enumerate all its answers."""

    what: PreparedAnswer
    target: MakeModel
    drafter: MakeDrafter
    grammar: GrammarState | None = None

    def draws(self, mode: VerifyMode) -> dict[Outcome, float]:
        """The probability of every answer of the production code."""

        def answer(draws: SeededRandom) -> list[int]:
            verifier = make_verifier(mode, 0, draws)
            what = constrained(self.what, self.grammar)
            drafter = self.drafter(verifier, what, [])
            try:
                return run(self.target(), drafter, verifier, what).tokens
            except NoAllowedTokenError as error:
                raise AssertionError("an answer left its grammar") from error

        return Explorer().outcomes(answer)

    def exact(self) -> dict[Outcome, float]:
        """The same for plain decoding: products of the target's probabilities."""
        return dict(self._continued((), 1.0, self.grammar))

    def _continued(
        self, said: Outcome, weight: float, state: GrammarState | None
    ) -> Iterator[tuple[Outcome, float]]:
        if len(said) == self.what.max_tokens or (said and self.what.is_eog(said[-1])):
            yield said, weight
            return
        text = [*self.what.prompt, *said]
        row = self.target().row(text)
        if state is not None:
            row = np.where(state.allows(np.arange(len(row))), row, -np.inf).astype(
                np.float32
            )
        own = compute_distribution(row, self.what.sampling, text)
        for token, prob in zip(own.ids.tolist(), own.probs.tolist(), strict=True):
            if prob > 0:
                after = state.advance(token) if state is not None else None
                yield from self._continued((*said, token), weight * prob, after)


def constrained(what: PreparedAnswer, grammar: GrammarState | None) -> PreparedAnswer:
    if grammar is None:
        return what
    return replace(what, constraint=OutputConstraint(grammar, len(what.prompt)))


def exactly_the_targets_law(case: Case, mode: VerifyMode) -> None:
    """Every answer has the same probability as from the target alone, up to rounding."""
    got = case.draws(mode)
    expected = case.exact()
    assert abs(sum(got.values()) - 1) <= 1e-12, f"the mass is {sum(got.values())}"
    for answer in got.keys() | expected.keys():
        error = got.get(answer, 0.0) - expected.get(answer, 0.0)
        assert abs(error) <= 1e-12, f"{answer} is off by {error}"


def tables_case(
    sampling: SamplingParams = PLAIN,
    *,
    n: int = 4,
    draft_length: int = 2,
    n_vocab: int = 3,
    draft_sampling: SamplingParams | None = None,
    grammar: GrammarState | None = None,
) -> Case:
    """A case with two different tables, after a prompt in which lookup finds repeats."""

    def drafter(verifier: Verifier, what: PreparedAnswer, text: list[int]) -> Drafter:
        draft = TableModel(table(12, n_vocab, scale=1.0))
        own = draft_sampling or what.sampling
        return model_drafter(
            draft, verifier, own, len(what.prompt), constraint=what.constraint
        )

    what = job([0, 1, 0, 1, 0], n, sampling=sampling, draft_length=draft_length)
    return Case(
        what, lambda: TableModel(table(11, n_vocab, scale=1.0)), drafter, grammar
    )


def certain_case(
    guess: Sequence[int],
    sampling: SamplingParams = PLAIN,
    grammar: GrammarState | None = None,
) -> Case:
    case = tables_case(sampling, draft_length=len(guess), grammar=grammar)
    return replace(case, drafter=lambda verifier, what, text: ConstantDrafter(guess))


def rarely_by_chance(mode: VerifyMode, answers: int = 1000) -> None:
    """Seeded answers of three tokens are as frequent as the target says."""
    case = tables_case(replace(PLAIN, temperature=0.8), n=3)
    counts: Counter[Outcome] = Counter()
    for seed in range(answers):
        verifier = make_verifier(mode, seed)
        got = run(
            case.target(), case.drafter(verifier, case.what, []), verifier, case.what
        )
        counts[tuple(got.tokens)] += 1
    drawn_from(counts, case.exact())


Cell = TypeVar("Cell", bound=Hashable)


def drawn_from(counts: Mapping[Cell, int], probs: Mapping[Cell, float]) -> None:
    """Pearson's chi-square at one in a million; cells that expect under 20 are pooled."""
    n = sum(counts.values())
    assert set(counts) <= {cell for cell, prob in probs.items() if prob > 0}, (
        "impossible"
    )
    cells = [(counts.get(cell, 0), prob * n) for cell, prob in probs.items()]
    large = [cell for cell in cells if cell[1] >= 20]
    rare = [cell for cell in cells if cell[1] < 20]
    if rare and (pooled := sum(expected for _, expected in rare)) >= 20:
        large.append((sum(seen for seen, _ in rare), pooled))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in large)
    bound = critical(len(large) - 1)
    assert statistic <= bound, f"a chi-square of {statistic:.1f}, over {bound:.1f}"


def critical(freedom: int, alpha: float = 1e-6) -> float:
    """Upper `alpha` quantile of chi-square, at most 6 % too high.

    The approximation is that of Wilson and Hilferty (1931).
    """
    spread = 2 / (9 * freedom)
    z = NormalDist().inv_cdf(1 - alpha)
    return float(freedom * (1 - spread + z * spread**0.5) ** 3)


# --- the drafter
# ------------------------------------------------------------------------


class Watched:
    """A model drafter that checks the draft model's memory after every draft."""

    def __init__(
        self, model: FakeModel, verifier: Verifier, what: PreparedAnswer
    ) -> None:
        self._model = model
        self._inner = model_drafter(model, verifier, what.sampling, len(what.prompt))

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        draft = self._inner.propose(tokens, limit)
        guessed = draft.tokens[:-1]  # the last draft token is not decoded
        assert self._model.memory == [*tokens, *guessed], (
            "its memory differs from the text"
        )
        return draft


def drafter_remembers_what_happened(mode: VerifyMode = "coupled") -> None:
    """Before it drafts, the draft model holds exactly the text."""
    for sampling in (GREEDY, SAMPLED):
        for draft_length in (1, 2, 3, 5):
            what = job(PROMPT, 24, sampling=sampling, draft_length=draft_length)
            for seed in (1, 2):
                verifier = make_verifier(mode, sampling.seed)
                drafter = Watched(HistoryModel(seed), verifier, what)
                got = run(history(), drafter, verifier, what)
                assert any(got.drafts)


def recurrent_draft_reads_its_draft_again_at_most() -> None:
    """Its state returns to where the draft began, not to the prompt."""
    for draft_length in (1, 2, 5):
        what = job(PROMPT, 24, sampling=SAMPLED, draft_length=draft_length)
        verifier = make_verifier("coupled", SEED)
        model = CheckpointModel(2)
        drafter = model_drafter(
            PrefixCache(model, model.save_checkpoint), verifier, SAMPLED, len(PROMPT)
        )
        run(history(), drafter, verifier, what)
        assert max(model.reads[1:]) <= draft_length + 1


def always_right(
    name: str, sampling: SamplingParams, mode: VerifyMode = "coupled"
) -> None:
    """One of TWINS is never corrected."""
    for draft_length in (1, 2, 3, 5, 8):
        what = job(PROMPT, 40, sampling=sampling, draft_length=draft_length)
        verifier = make_verifier(mode, sampling.seed)
        got = run(history(), TWINS[name](verifier, what, []), verifier, what)
        assert all(step.accepted == len(step.draft.tokens) for step in got.steps)
        assert len(got.steps) <= 2 + 40 // (draft_length + 1)


# --- ends and limits
# --------------------------------------------------------------------


def exact_limits(make: MakeDrafter) -> None:
    for n in (1, 2, 3, 7, 20):
        for draft_length in (1, 2, 3, 5, 8):
            what = job(PROMPT, n, draft_length=draft_length)
            text = [
                *PROMPT,
                *plain(history(), make_verifier("coupled", 0), what).tokens,
            ]
            verifier = make_verifier("coupled", 0)
            got = run(history(), make(verifier, what, text), verifier, what)
            assert len(got.tokens) == n
            assert got.end == "length"
            whole_rounds(got.steps, what)


def whole_rounds(steps: Sequence[RoundResult], what: PreparedAnswer) -> None:
    """Each round emits its accepted tokens and one more; no draft exceeds the limits."""
    left = what.max_tokens
    for step in steps:
        assert len(step.draft.tokens) <= min(what.drafting.max_length or 0, left - 1)
        assert len(step.tokens) == step.accepted + 1
        assert step.tokens[:-1] == step.draft.tokens[: step.accepted]
        left -= len(step.tokens)


def end_cuts(make: MakeDrafter, sampling: SamplingParams = GREEDY) -> None:
    """An answer ends with its first end token, also inside an accepted run."""
    free = plain(
        history(), make_verifier("coupled", SEED), job(PROMPT, 30, sampling=sampling)
    ).tokens
    for end in range(N_VOCAB):
        for draft_length in (2, 5, 8):
            what = job(
                PROMPT, 30, sampling=sampling, draft_length=draft_length, ends=[end]
            )
            verifier = make_verifier("coupled", SEED)
            target = history()
            got = run(target, make(verifier, what, [*PROMPT, *free]), verifier, what)
            if end in free:
                assert got.tokens == free[: free.index(end) + 1]
                assert got.end == "eog"
            else:
                assert got.tokens == free
                assert got.end == "length"
            assert all(step.accepted <= len(step.tokens) for step in got.steps)
            assert target.memory == [*PROMPT, *got.tokens][:-1]


# --- drafters that break their contract
# ---------------------------------------------------------------------------


def _certain(tokens: Sequence[int]) -> Draft:
    return Draft(list(tokens), source="broken")


def _sampled(tokens: Sequence[int]) -> Draft:
    """With distributions in which these tokens are certain."""
    return Draft(list(tokens), [one_hot(token) for token in tokens], "broken")


BreakDraft = Callable[[list[int], int], Draft]
HARMLESS_BREAKS: dict[str, BreakDraft] = {
    "an empty list": lambda right, limit: _certain([]),
    "too many tokens": lambda right, limit: _certain([*right, *[1] * limit]),
    "hundreds of tokens": lambda right, limit: _certain([*right, *[1] * 500]),
    "too many sampled tokens": lambda right, limit: _sampled([*right, *[1] * limit]),
    "a negative id": lambda right, limit: _certain([*right[:1], -1, 1]),
    "an id beyond the vocabulary": lambda right, limit: _certain([*right[:1], N_VOCAB]),
    "nothing but wrong ids": lambda right, limit: _certain([10**12, -7]),
}
"""These drafts are cut, and the text is plain decoding's."""
REPORTED_BREAKS: dict[str, BreakDraft] = {
    "a sampled negative id": lambda right, limit: _sampled([-1, *right]),
    "a sampled id beyond the vocabulary": lambda right, limit: _sampled([N_VOCAB]),
    "no distributions": lambda right, limit: Draft([1, 2], [], "broken"),
    "fewer distributions": lambda right, limit: Draft([1, 2], [one_hot(1)], "broken"),
    "more distributions": lambda right, limit: Draft([1], [one_hot(1)] * 2, "broken"),
}
"""With these no verifier can keep the target's distribution."""


def broken_drafts_change_no_text(
    mode: VerifyMode = "coupled", target: MakeModel = history
) -> None:
    """Whatever a drafter returns, the answer is plain decoding's."""
    for break_draft in HARMLESS_BREAKS.values():
        make: MakeDrafter = lambda verifier, what, text: BrokenDrafter(  # noqa: E731
            text,
            break_draft,  # noqa: B023  it is used in this round only
        )
        for draft_length in (1, 3, 8):
            what = job(PROMPT, 20, draft_length=draft_length)
            same_as_plain(make, target, mode, what)


# --- closing
# ----------------------------------------------------------------------------

Answerer = Callable[[PreparedAnswer], Generator[object, None, None]]


def _pair(name: str, kind: type[HistoryModel]) -> Answerer:
    """Starts answers of one pair; its two prefix caches and lookup index outlive them.

    Each answer is another client's, so that lookup copies nothing from those before.
    """
    clients = count()
    target = PrefixCache(kind(1, n_batch=4))
    draft = PrefixCache(kind(2, n_batch=4))
    lookup = LookupDrafter(1)

    def start(what: PreparedAnswer) -> Generator[object, None, None]:
        lookup.begin_answer(owner=str(next(clients)))
        verifier = make_verifier("coupled", SEED)
        model = model_drafter(draft, verifier, what.sampling, len(what.prompt))
        drafter = lookup if name == "lookup" else model
        answer = replace(what, verifier=verifier)
        loop = speculative_decode(target, answer, drafting_with(drafter, what))
        assert isinstance(loop, Generator)
        return loop

    return start


def closing_leaves_no_trace(
    name: str, kind: type[HistoryModel], first: PreparedAnswer, second: Sequence[int]
) -> None:
    """Closed at any yield, a pair with the drafter `name` answers like a fresh one."""
    later = replace(first, parts=(TokenPart(list(second)),))
    expected = _rounds(_pair(name, kind)(later))
    for closings in count():
        start = _pair(name, kind)
        loop = start(first)
        seen = len(list(islice(loop, closings)))
        loop.close()
        assert _rounds(start(later)) == expected, f"closed after {closings} yields"
        if seen < closings:
            return


def _rounds(events: Iterable[object]) -> list[tuple[list[int], int, list[int]]]:
    rounds = [event for event in events if isinstance(event, RoundResult)]
    return [(step.draft.tokens, step.accepted, step.tokens) for step in rounds]
