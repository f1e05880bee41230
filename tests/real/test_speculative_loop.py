"""Every drafter gives the text of plain decoding, in chats and on hostile text."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from localspec.bench.lossless_check import AnswerRecorder
from localspec.engine.session import Session
from localspec.protocol.wire import GenerateCommand, SamplingParams, VerifyMode
from tests.real import chats
from tests.real.chats import CHATS, HOSTILE
from tests.support.sessions import say

pytestmark = pytest.mark.long

TOKENS = 16
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(temperature=0.8, seed=11),
}
VERIFIERS: tuple[VerifyMode, ...] = get_args(VerifyMode)
DRAFTERS = (
    ("plain", "lookup"),
    ("head", "eagle3"),
    ("truncated", "model"),
    ("head", "auto"),
)
"""The pair and the drafter."""


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("chat", range(len(CHATS)))
def test_every_drafter_gives_plain_decodings_text(
    chat: int, sampling: str, session_of: Callable[[str], Session]
) -> None:
    """Each chat is answered with two drafters.

    Greedy texts are equal with every method of verification, seeded ones with `coupled`.
    """
    questions = CHATS[chat]
    greedy = sampling == "greedy"
    given: dict[str, Any] = {"sampling": SAMPLINGS[sampling], "max_tokens": TOKENS}
    plain = [
        said.ids
        for said in chats.run(session_of("plain"), questions, spec="off", **given)
    ]
    for n in range((chat + greedy) % 2, len(DRAFTERS), 2):
        pair, spec = DRAFTERS[n]
        verify = VERIFIERS[n] if greedy else "coupled"
        asked = {"spec": spec, "verify": verify, "draft_length": 3, **given}
        answers = list(chats.run(session_of(pair), questions, **asked))
        assert [said.ids for said in answers] == plain, (spec, verify)
        drafted = sum(said.speculation["drafted"] for said in answers)
        # both may find nothing to draft
        assert drafted > 0 or spec in (
            "auto",
            "lookup",
        )


def replayed(session: Any, request: GenerateCommand) -> tuple[list[int], list[int]]:
    """The tokens of an answer, and what the same passes choose without speculation."""
    recorder = AnswerRecorder(session, lambda: False)
    answer = recorder.record(request)
    return answer.ids, list(recorder.replay(answer).best)


@pytest.mark.parametrize(("sampling", "chat"), [("greedy", 0), ("seeded", 1)])
def test_sliding_windows_change_no_answer(
    session_of: Callable[[str], Session], sampling: str, chat: int
) -> None:
    """A base model: it goes on with the texts, each longer by the answer before."""
    text = ""
    for question in CHATS[chat]:
        text += f"\n\nQuestion: {question}\nAnswer:"
        request = GenerateCommand(text, SAMPLINGS[sampling], TOKENS, spec="lookup")
        drafted, again = replayed(session_of("gemma"), request)
        assert drafted == again, question
        text += say(session_of("gemma"), text, spec="off", max_tokens=TOKENS).text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_answered_like_any_other(
    text: str, session_of: Callable[[str], Session]
) -> None:
    asked: dict[str, Any] = {"messages": chats.user(text), "max_tokens": 8}
    plain = chats.ask(session_of("plain"), spec="off", **asked)
    assert "<|im_" not in plain.text
    for pair, spec in (("plain", "lookup"), ("head", "eagle3")):
        assert chats.ask(session_of(pair), spec=spec, **asked).ids == plain.ids


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_drafted_by_another_vocabulary(
    text: str, session_of: Callable[[str], Session]
) -> None:
    """At a high temperature."""
    pytest.importorskip("localspec.extras.crossvocab")
    hot = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    request = GenerateCommand(text, hot, 6, spec="crossvocab")

    drafted, again = replayed(session_of("crossed"), request)

    assert drafted == again
