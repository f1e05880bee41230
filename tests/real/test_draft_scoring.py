"""What `pair test` judges a draft to reach is what it reaches when it is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from localspec.bench import draft_test
from localspec.engine.session import Session
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    SamplingParams,
    ScoreDraftCommand,
)
from tests.real import chats
from tests.real.chats import CHATS

pytestmark = pytest.mark.long

COSTS = MeasuredCosts(10.0, {"1": 1.0, "9": 2.0}, 0.1)
LENGTH = 3


def test_a_head_is_judged_as_it_runs(session_of: Callable[[str], Session]) -> None:
    session = session_of("head")
    scored, drafted, accepted = [], 0, 0
    given: dict[str, Any] = {"sampling": SamplingParams(temperature=0.8, seed=11), "max_tokens": 48}
    for chat in CHATS:
        for question in map(chats.user, chat[:2]):
            plain = chats.ask(session, question, spec="off", **given)
            asked = GenerateCommand(messages=tuple(question), **given)
            command = ScoreDraftCommand(asked, tuple(plain.ids))
            scored.append((command, session.score_draft(command)))
            said = chats.ask(session, question, spec="model", draft_length=LENGTH, **given)
            assert said.ids == plain.ids
            drafted += said.speculation["drafted"]
            accepted += said.speculation["accepted"]
    rates = draft_test.judge("draft", "model", scored, COSTS).by_length[LENGTH]
    assert rates.totals.acceptance_rate == pytest.approx(accepted / drafted, abs=0.02)
