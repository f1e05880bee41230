"""The checks can fail: one of them catches each bug planted here in the production's code.

A mutant is one expression of one function, replaced. Where the function was rewritten,
plant the same bug in its new words.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.protocol.wire import VerifyMode
from localspec.spec import sampling, speculative_loop, token_probabilities, verifiers
from localspec.spec.constraints import tool_call_text
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.constraints.tool_call_text import TextBetweenCalls
from localspec.spec.drafters import block_head
from localspec.spec.drafters.autoregressive_head import HeadRunner
from localspec.spec.drafters.block_head import BlockHeadRunner
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.drafters.model import ModelDrafter
from localspec.spec.prefix_cache import PrefixCache
from tests.spec import laws, test_speculative_loop, test_token_probabilities
from tests.spec.constraints import test_output_constraint, test_tool_call_text
from tests.spec.drafters import test_lookup
from tests.spec.laws import (
    DRAFTERS,
    PROMPT,
    Case,
    MakeDrafter,
    exactly_the_targets_law,
    tables_case,
)
from tests.support.fake_models import GREEDY, PLAIN, ConstantDrafter, HistoryModel, job


def plant(monkeypatch: pytest.MonkeyPatch, where: Any, old: str, new: str) -> None:
    """Give the function the code it would have with `new` for `old`.

    Its code object is replaced, so the bug is in whatever refers to the function.
    """
    source = textwrap.dedent(inspect.getsource(where))
    assert source.count(old) == 1, f"{where.__qualname__} no longer says {old!r} once"
    made: dict[str, Any] = {}
    exec(
        compile(source.replace(old, new), "<mutant>", "exec"),
        {**where.__globals__},
        made,
    )
    monkeypatch.setattr(where, "__code__", made[where.__name__].__code__)


COLD = "__import__('msgspec').structs.replace(self._inputs.sampling, temperature=1.0)"
TOSSED = "__import__('msgspec').structs.replace(self._sampling, xtc_probability=i % 2)"
GENERATOR = "np.random.Generator(np.random.PCG64(key))"
RESEEDED = f"__import__('types').SimpleNamespace(random=lambda: {GENERATOR}.random())"
TEMPERED = replace(PLAIN, temperature=0.5)


def closing(name: str, kind: type[HistoryModel] = HistoryModel) -> None:
    first = job([*PROMPT, 0, 4], 8, sampling=laws.SAMPLED, draft_length=3)
    for second in ([*PROMPT, 0, 4], [1, 2, 4, 4, 1, 2]):
        laws.closing_leaves_no_trace(name, kind, first, second)


def no_context_overflows() -> None:
    what = job(PROMPT, 100, draft_length=5)
    make: MakeDrafter = lambda verifier, what, text: ConstantDrafter([1] * 9)  # noqa: E731
    laws.same_as_plain(make, lambda: HistoryModel(1, n_ctx=20), what=what)


def law(mode: VerifyMode, case: Case) -> partial[None]:
    return partial(exactly_the_targets_law, case, mode)


greedy = laws.every_drafter_same_as_plain
rejection = law("rejection", tables_case())
block = law("block", tables_case())
wider_block = law("block", tables_case(n_vocab=4))
truncated = law("rejection", tables_case(replace(PLAIN, top_k=2)))
tempered = law("rejection", tables_case(TEMPERED))
match = law("match", tables_case())
lookup_like = law("rejection", laws.certain_case([1, 0]))
penalised = law(
    "rejection", tables_case(replace(PLAIN, repeat_penalty=1.7, repeat_last_n=2))
)
dry = law(
    "rejection", tables_case(replace(PLAIN, dry_multiplier=0.8, dry_allowed_length=1))
)
xtc = law(
    "rejection", tables_case(replace(PLAIN, xtc_probability=0.5, xtc_threshold=0.2))
)
constrained = law("rejection", test_output_constraint.CASES["a masked draft"])
BIASED = replace(
    PLAIN,
    logit_bias=((1, 1.5), (2, -3.0)),
    presence_penalty=0.7,
    frequency_penalty=0.4,
    repeat_last_n=3,
)
biased = law("block", tables_case(BIASED))
coupled = partial(laws.every_draft_same_as_plain, PLAIN, 2)
twin = partial(laws.always_right, "the target", TEMPERED, "rejection")
coupled_twin = partial(laws.always_right, "the target", laws.SAMPLED)
head_twin = partial(laws.always_right, "eagle3", laws.SAMPLED)
assistant_twin = partial(laws.always_right, "assistant", GREEDY)
block_twin = partial(laws.always_right, "block head", GREEDY)
lattice_twin = partial(laws.always_right, "lattice", GREEDY)
watched = partial(
    test_token_probabilities.test_each_verifier_with_a_draft_model, "rejection", PLAIN
)
all_of_a_row = partial(
    test_token_probabilities.test_the_probabilities_of_all_tokens_add_up_to_one,
    300,
    1.0,
)
end = partial(laws.end_cuts, DRAFTERS["oracle"])
limits = partial(laws.exact_limits, DRAFTERS["oracle"])


@dataclass(frozen=True)
class Mutant:
    where: Any
    old: str
    new: str
    check: Callable[[], None]


def check_that_it_is_caught(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """The check passes with the code as it is, and fails with the planted bug."""
    mutant.check()
    plant(monkeypatch, mutant.where, mutant.old, mutant.new)
    with pytest.raises(AssertionError):
        mutant.check()


# fmt: off
MUTANTS: dict[str, Mutant] = {
    "off by one in rollback": Mutant(PrefixCache.rewind_to, "self.model.truncate(kept)",
        "self.model.truncate(kept + 1)", greedy),
    "residual not renormalised": Mutant(verifiers.residual_probs, "left / total", "left",
        rejection),
    "redraw after a rejection: a certain guess": Mutant(verifiers.RejectionVerifier.verify,
        "residual_probs(p, q)", "p.probs", lookup_like),
    "redraw after a rejection: match": Mutant(verifiers.SampleAndMatchVerifier.verify,
        "return i, own", "return i, self._sample(distribution_at(i))", match),
    "draft never rolled back": Mutant(ModelDrafter.propose, "draft_cache.rewind_to(tokens)",
        "draft_cache.n_cached or draft_cache.rewind_to(tokens)",
        laws.drafter_remembers_what_happened),
    "end inside an accepted run ignored": Mutant(speculative_loop._cut_at_end,
        "if answer.is_eog(token)", "if False", end),
    "seed reused for each token: match": Mutant(verifiers.SeededRandom.__init__, GENERATOR,
        RESEEDED, partial(laws.rarely_by_chance, "match")),
    "draft's temperature not applied: a worse draft": Mutant(DraftSampler.distribution_after,
        "compute_distribution(logits, sampling,", f"compute_distribution(logits, {COLD},", twin),
    "draft's temperature not applied: another law than it says": Mutant(DraftSampler.sample_draft,
        "verifier.sample_draft_token(distribution,",
        f"verifier.sample_draft_token(compute_distribution(logits, {COLD}),", tempered),
    "DRY that does not see the draft": Mutant(speculative_loop._TargetDistributions.__call__,
        "*self._drafted[:i]]", "]", dry),
    "XTC tossed anew by the target": Mutant(speculative_loop._TargetDistributions.__call__,
        "self._sampling, recent, grammar)", f"{TOSSED}, recent, grammar)", xtc),
    "accept always": Mutant(verifiers.RejectionVerifier.verify, "ratio < 1.0", "ratio < 0.0",
        rejection),
    "accept by p alone": Mutant(verifiers.RejectionVerifier.verify, "p.prob(token) / q_prob",
        "p.prob(token)", truncated),
    "block: the residual of token rejection": Mutant(verifiers.BlockVerifier.verify,
        "residual_probs(p, q, shares[n])", "residual_probs(p, q)", wider_block),
    "block: the last threshold is not its share": Mutant(verifiers.BlockVerifier.verify,
        "probability = shares[-1]", "probability = shares[-1] ** 2", block),
    "block: the bonus from the row before": Mutant(verifiers.BlockVerifier.verify,
        "self._sample(distribution_at(n))", "self._sample(distribution_at(max(0, n - 1)))", block),
    "coupled: one noise for a whole draft": Mutant(verifiers.GumbelCoupledVerifier.verify,
        "index + i)", "index)", coupled),
    "head: a draft token before the last": Mutant(HeadRunner.next_logits,
        "continue_draft(token)", "continue_draft(0 * token)", head_twin),
    "assistant: rows of earlier drafts": Mutant(HeadRunner.first_logits,
        "self._pending.skip_to_newest()", "pass", assistant_twin),
    "lattice: scores after another candidate": Mutant(block_head.lattice_logits,
        "k * (1 + before)", "k", lattice_twin),
    "recurrent draft: a rejected token stays in its state": Mutant(ModelDrafter.propose,
        "draft_cache.n_cached == len(tokens)", "draft_cache.n_cached == len(tokens) + 1",
        laws.recurrent_draft_reads_its_draft_again_at_most),
    "block head: drafts before it has the newest states": Mutant(BlockHeadRunner.draft_block,
        "self._inject_pending()", "self.head", block_twin),
    "a draft's own noise": Mutant(DraftSampler.sample_draft, "index + i", "index", coupled_twin),
    "noise without the token": Mutant(sampling.gumbel_argmax, "(token + 1) * _GOLDEN", "_GOLDEN",
        partial(laws.rarely_by_chance, "coupled")),
    "a penalty that forgets the draft": Mutant(speculative_loop._TargetDistributions.__call__,
        "*self._drafted[:i]", "", penalised),
    "a presence penalty that counts": Mutant(sampling._apply_bias_and_penalties,
        "counts * sampling.frequency_penalty + sampling.presence_penalty",
        "counts * (sampling.frequency_penalty + sampling.presence_penalty) * (len(recent) % 2)",
        biased),
    "one token too many": Mutant(speculative_loop.speculative_decode, "end - len(tokens) - 1",
        "end - len(tokens)", limits),
    "a draft that is longer than asked for": Mutant(speculative_loop._make_draft,
        "min(len(draft.tokens), limit)", "len(draft.tokens)", laws.broken_drafts_change_no_text),
    "a draft with ids that no text has": Mutant(speculative_loop._make_draft,
        "0 <= token < n_vocab", "0 <= token", laws.broken_drafts_change_no_text),
    "a context that overflows": Mutant(speculative_loop.speculative_decode, "target.model.n_ctx)",
        "target.model.n_ctx + 2)", no_context_overflows),
    "the whole prompt known, and nothing to read": Mutant(PrefixCache.rewind_to, "len(tokens) - 1",
        "len(tokens)", partial(closing, "model")),
    "another text, taken for the same": Mutant(PrefixCache.rewind_to,
        "self._n_matched if tokens is self._last_text else 0", "self._n_matched",
        partial(closing, "model")),
    "ranks from nought": Mutant(token_probabilities._rank, "int(n_before) + 1", "int(n_before)",
        all_of_a_row),
    "rows of the draft, kept by llama.cpp": Mutant(DraftSampler.sample_draft, "logits.copy()",
        "logits", watched),
    "a grammar's state that forgets the text": Mutant(OutputConstraint.commit,
        "[self._states[len(text) - self._n_committed]]", "[self._states[0]]", constrained),
    "a sampled draft without its forbidden token": Mutant(OutputConstraint.fit_draft,
        "n += 1", "pass",
        law("rejection", test_output_constraint.unmasked())),
    "forced tokens of the text before the draft": Mutant(OutputConstraint.forced_after,
        "state_after(text, drafted)", "state_after(text)",
        test_output_constraint.test_a_draft_goes_on_with_what_the_grammar_forces),
    "a draft's own grammar a token late": Mutant(DraftSampler.distribution_after,
        "state_after(tokens, drafted)", "state_after(tokens, drafted[:-1])",
        test_output_constraint.test_no_draft_leaves_the_grammar),
    "a draft that moves the parser of the text": Mutant(TextBetweenCalls.advance,
        "parser = parser.fork()", "pass",
        test_output_constraint.test_a_draft_that_begins_to_think_leaves_the_text_as_it_is),
    "a call that is over, and goes on": Mutant(tool_call_text._enter_call,
        "calls.is_complete(grammar)", "False",
        test_output_constraint.test_free_text_has_the_distribution_that_it_has_without_tools),
    "the beginning of a mark, forgotten": Mutant(TextBetweenCalls.advance,
        "tokens.begun(text)", "b''",
        partial(test_tool_call_text.test_a_token_may_end_the_mark_and_begin_the_call,
            "<tool_call", b">x", False)),
    "lookup goes on over the end of a text": Mutant(LookupDrafter._index_tokens, "*lost, _END]", "*lost]",
        test_lookup.test_what_the_text_no_longer_has_is_like_text_before_it),
    "lookup in another client's text": Mutant(LookupDrafter.begin_answer,
        "self._restart()", "pass", partial(closing, "lookup")),
    "a draft longer than can be rolled back, without a checkpoint": Mutant(
        speculative_loop._run_round, "not target.save_draft_start()", "False",
        test_speculative_loop.test_without_a_checkpoint_a_draft_is_no_longer_than_can_be_rolled_back),
}
# fmt: on


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutant: Mutant
) -> None:
    check_that_it_is_caught(monkeypatch, mutant)
