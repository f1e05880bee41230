"""scripts/bench/regret.py: how rounds are priced apart from the clock, and that it runs."""

import pytest
import regret

from localspec.paths import package_data_dir
from localspec.protocol.events import Round, RoundTimes, Token

DEMO = package_data_dir() / "demo"


def done(drafted: int, accepted: int, verify: float, draft: float = 0.0) -> Round:
    tokens = (Token(7, "a", "plain"),) * (accepted + 1)
    return Round(0, "model", "", drafted, accepted, tokens, RoundTimes(draft, verify, 0.0))


def test_a_slow_moment_is_no_loss_and_a_failed_draft_is() -> None:
    plain = [done(0, 0, 10.0)] * 97
    slow = [*plain, done(0, 0, 500.0)]
    failed = [*plain, done(2, 0, 20.0, draft=10.0)]
    gained = [*plain, done(2, 2, 600.0, draft=10.0), done(2, 2, 20.0, draft=10.0)]
    never_plain = [done(2, 2, 20.0)] * 3
    found = regret.speedups([slow, failed, gained, never_plain])
    assert found == pytest.approx([1.0, 98 / 100, 103 / 103, 9 / 6])
