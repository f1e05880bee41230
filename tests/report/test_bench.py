"""Reports of `bench` and `pair test`."""

import pytest

from localspec.bench.draft_test import DraftJudgement, DraftRates
from localspec.protocol.round_totals import RoundTotals
from localspec.report.bench import format_judgements
from localspec.report.lines import plain_text

RATES = {n: DraftRates(RoundTotals(), 8.8) for n in range(1, 9)}
LOOKUP = DraftJudgement("lookup", "lookup", plain_tps=462.2, by_length=RATES)


@pytest.mark.parametrize("other_load", [None, 0.0, 0.125])
def test_on_a_quiet_computer_drafts_are_judged(other_load: float | None) -> None:
    shown = [plain_text(line) for line in format_judgements([LOOKUP], other_load)]

    assert "0.02×" in shown[1]
    assert shown[-1] == "None is faster here: `auto` would pause it."


@pytest.mark.parametrize("other_load", [0.126, 0.6, 1.0])
def test_beside_other_programs_no_speed_is_shown(other_load: float) -> None:
    shown = [plain_text(line) for line in format_judgements([LOOKUP], other_load)]

    assert shown[1].split()[-3:] == ["–", "–", "–"]
    assert shown[-1].startswith("Other programs used ")
    assert "×" not in "".join(shown)
    assert "462" not in "".join(shown)
