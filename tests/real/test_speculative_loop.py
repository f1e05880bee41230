"""Every drafter gives the text of plain decoding: in chats of five turns, and on hostile text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from localspec.bench.lossless_check import AnswerRecorder
from localspec.engine.session import Session
from localspec.protocol.wire import GenerateCommand, SamplingParams, VerifyMode
from tests.real import chats
from tests.real.chats import CHATS, HOSTILE
from tests.real.test_session import AS_RUN, TARGET, prompts
from tests.support.sessions import loaded, require_same_logits_at_every_width, say

pytestmark = pytest.mark.long

TOKENS = 16
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(temperature=0.8, seed=11),
}
VERIFIERS: tuple[VerifyMode, ...] = get_args(VerifyMode)
DRAFTERS = (
    ("plain_session", "lookup"),
    ("head_session", "eagle3"),
    ("truncated_session", "model"),
    ("head_session", "auto"),
)
"""The session's fixture and the drafter."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("chat", range(len(CHATS)))
def test_every_drafter_gives_plain_decodings_text(
    chat: int, sampling: str, plain_session: Session, request: pytest.FixtureRequest
) -> None:
    """Two drafters a chat; greedily with each verifier, a seed gives one text with `coupled`."""
    questions, greedy = CHATS[chat], sampling == "greedy"
    given: dict[str, Any] = {"sampling": SAMPLINGS[sampling], "max_tokens": TOKENS}
    plain = [said.ids for said in chats.run(plain_session, questions, spec="off", **given)]
    for n in range((chat + greedy) % 2, len(DRAFTERS), 2):
        fixture, spec = DRAFTERS[n]
        verify = VERIFIERS[(chat + n) % len(VERIFIERS)] if greedy else "coupled"
        session = request.getfixturevalue(fixture)
        answers = list(
            chats.run(session, questions, spec=spec, verify=verify, draft_length=3, **given)
        )
        assert [said.ids for said in answers] == plain, (spec, verify)
        drafted = sum(said.speculation["drafted"] for said in answers)
        assert drafted > 0 or spec in ("auto", "lookup")  # both may find nothing to draft


def replayed(session: Any, request: GenerateCommand) -> tuple[list[int], list[int]]:
    """An answer, and what the same passes choose without speculation: whatever widths round to."""
    recorder = AnswerRecorder(session, lambda: False)
    answer = recorder.record(request)
    return answer.ids, list(recorder.replay(answer).best)


@pytest.mark.parametrize(("sampling", "chat"), [("greedy", 0), ("seeded", 1)])
def test_sliding_windows_change_no_answer(gemma_session: Session, sampling: str, chat: int) -> None:
    """A base model: it goes on with the texts, each longer by the answer before."""
    text = ""
    for question in CHATS[chat]:
        text += f"\n\nQuestion: {question}\nAnswer:"
        request = GenerateCommand(text, SAMPLINGS[sampling], TOKENS, spec="lookup")
        drafted, again = replayed(gemma_session, request)
        assert drafted == again, question
        text += say(gemma_session, text, spec="off", max_tokens=TOKENS).text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_another_vocabulary_drafts_hostile_text(text: str, crossed_session: Session) -> None:
    """Emoji, tabs, names of control tokens and parts of characters, at a high temperature."""
    hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    drafted, again = replayed(crossed_session, GenerateCommand(text, hot, 6, spec="crossvocab"))
    assert drafted == again


def test_another_vocabulary_gives_the_seeds_text(smollm: Path) -> None:
    """By the quick target; `test_session.py` has its other drafts."""
    require_same_logits_at_every_width(TARGET)
    given: dict[str, Any] = {"sampling": SAMPLINGS["seeded"], "max_tokens": 64}
    drafted = accepted = 0
    with loaded(TARGET, smollm, AS_RUN) as session:
        for text in prompts(8):
            # Reads the prompt for both: a pass of 64 tokens and more rounds differently.
            say(session, text, spec="off", max_tokens=1)
            plain = say(session, text, spec="off", **given)
            said = say(session, text, spec="crossvocab", draft_length=2, **given)
            assert said.ids == plain.ids, text
            drafted += said.speculation["drafted"]
            accepted += said.speculation["accepted"]
    assert drafted > accepted > 0


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_answered_like_any_other(
    text: str, plain_session: Session, head_session: Session
) -> None:
    plain = chats.ask(plain_session, chats.user(text), spec="off", max_tokens=8)
    assert "<|im_" not in plain.text
    for session, spec in ((plain_session, "lookup"), (head_session, "eagle3")):
        assert chats.ask(session, chats.user(text), spec=spec, max_tokens=8).ids == plain.ids
