"""Laws of drafters that need another vocabulary in their setting.

Its drafters pass all other laws with those of the core (`law_drafters.py`).
"""

import pytest
from msgspec.structs import replace

from localspec.engine import draft_scoring
from localspec.protocol.wire import SamplingParams, VerifyMode
from localspec.spec.prefix_cache import PrefixCache
from tests.engine.test_draft_scoring import rates, recorded
from tests.extras.crossvocab.fake_vocabularies import PERMUTED, PermutedModel, crossed
from tests.extras.crossvocab.law_drafters import crossed_by
from tests.spec.laws import (
    PROMPT,
    SAMPLED,
    Case,
    exactly_the_targets_law,
    history,
    tables_case,
)
from tests.support.fake_models import PLAIN, TableModel, table

SHARED_BY_TWO = ("b", "x", "a")
REPEAT = replace(PLAIN, repeat_penalty=1.7, repeat_last_n=2)
DRY_AND_XTC = replace(
    PLAIN, dry_multiplier=0.8, dry_allowed_length=1, xtc_probability=0.3
)


def shared_tokens_case(sampling: SamplingParams) -> Case:
    """A draft with two of the target's three tokens, and one that the target lacks."""
    pieces = (("a", "b", "ab"), SHARED_BY_TWO)
    drafter = crossed_by(lambda: TableModel(table(12, 3, scale=1.0)), pieces)
    return replace(tables_case(sampling), drafter=drafter)


@pytest.mark.parametrize("mode", ["rejection", "block", "match"])
@pytest.mark.parametrize(
    "sampling", [PLAIN, REPEAT, DRY_AND_XTC], ids=["plain", "penalty", "DRY and XTC"]
)
def test_the_law_is_the_targets_to_the_last_bits(
    sampling: SamplingParams, mode: VerifyMode
) -> None:
    exactly_the_targets_law(shared_tokens_case(sampling), mode)


def test_the_target_under_other_numbers_is_judged_to_be_always_right() -> None:
    answer, command = recorded(SAMPLED)
    cache = PrefixCache(PermutedModel(history()))
    pieces = ("abcdef", PERMUTED)
    drafter = crossed(
        cache, answer.prepared.verifier, SAMPLED, len(PROMPT), pieces=pieces
    )

    score = draft_scoring.score_drafter(drafter, answer)

    for found in rates(command, score).values():
        assert found.acceptance_rate == 1.0
