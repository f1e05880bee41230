"""The KV cache over edits and branches, a full context, stop strings and whole characters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.engine.session import Session
from localspec.protocol.wire import ChatMessage
from tests.real import chats
from tests.real.conftest import ROOMY
from tests.support.sessions import Said, loaded, say

pytestmark = pytest.mark.long

RARE = "𓀀𓃰"
"""Spelled in four bytes each by both models; Gemma has whole tokens for the usual emoji."""
LINES = "".join(f"{n}: {RARE} naïve 日本語\n" for n in range(6))
DRAFTERS = [("plain_session", "off"), ("plain_session", "lookup"), ("head_session", "eagle3")]


@pytest.fixture(params=DRAFTERS, ids=[spec for _, spec in DRAFTERS])
def way(request: pytest.FixtureRequest) -> tuple[Session, str]:
    fixture, spec = request.param
    return request.getfixturevalue(fixture), spec


def test_an_edited_turn_and_the_way_back_reuse_what_they_share(
    way: tuple[Session, str], plain_session: Session
) -> None:
    session, spec = way

    def turn(history: list[ChatMessage], question: str) -> tuple[Said, list[ChatMessage]]:
        messages = [*history, *chats.user(question)]
        said = chats.ask(session, messages, spec=spec, max_tokens=24)
        return said, [*messages, ChatMessage("assistant", said.text, tuple(said.ids))]

    first, history = turn([], "Name three trees.")
    edits = [turn(history, question)[0] for question in ("Name one more.", "Which is tallest?")]
    back, _ = turn(history, "Name one more.")
    n_shared = first.totals["prompt_tokens"] + len(first.ids) - 1
    assert edits[0].totals["reused_tokens"] >= n_shared - 8
    assert back.totals["reused_tokens"] >= n_shared - 8
    assert back.ids == edits[0].ids
    for question, edited in zip(("Name one more.", "Which is tallest?"), edits, strict=True):
        say(plain_session, "\x00", spec="off", max_tokens=1)  # nothing to reuse
        messages = [*history, *chats.user(question)]
        fresh = chats.ask(plain_session, messages, spec="off", max_tokens=24)
        assert fresh.totals["reused_tokens"] == 0
        assert edited.ids == fresh.ids


def test_a_full_context_ends_the_answer_where_plain_decoding_is(smollm: Path, head: Path) -> None:
    story = chats.user("Write a very long story about the sea, with many chapters.")
    small = replace(ROOMY, n_ctx=256)
    with loaded(smollm, head, small) as session:
        answers = [
            chats.ask(session, story, spec=spec, max_tokens=1000) for spec in ("off", "eagle3")
        ]
    for said in answers:
        assert said.reason == "context"
        assert said.totals["prompt_tokens"] + len(said.ids) in (256, 257)
        assert said.ids == answers[0].ids


def test_stop_strings_cut_exactly(way: tuple[Session, str], plain_session: Session) -> None:
    session, spec = way
    question = chats.user("Describe a bicycle in two sentences.")
    text = chats.ask(plain_session, question, spec="off", max_tokens=40).text
    for start, end in ((0, 3), (20, 24), (37, 45), (len(text) - 5, len(text) - 1)):
        stop = text[start:end]
        said = chats.ask(session, question, spec=spec, max_tokens=40, stop=(stop,))
        assert (said.text, said.reason) == (text[: text.index(stop)], "stop"), stop


@pytest.mark.parametrize(
    ("fixture", "spec"), [*DRAFTERS, ("gemma_session", "off"), ("gemma_session", "lookup")]
)
def test_characters_of_several_tokens_arrive_whole(
    fixture: str, spec: str, request: pytest.FixtureRequest
) -> None:
    session = request.getfixturevalue(fixture)
    said = say(session, LINES, spec=spec, max_tokens=48)
    assert f"6: {RARE} naïve 日本語\n" in said.text
    pieces = [session._target.vocabulary.piece(token) for token in said.ids]
    assert said.text == b"".join(pieces).decode("utf-8", "replace")
    texts = [token.text for event in said.rounds for token in event.tokens]
    assert all("\ufffd" not in text for text in texts)
    assert sum(not text for text in texts) >= 6, "few tokens were parts of a character"
