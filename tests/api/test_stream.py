"""Streamed answers: pieces, early ends, several streams."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import assert_type

import pytest

from localspec import LLM, Piece, errors
from tests.api.conftest import Load
from tests.support.zoo import HELLO_TEXT

LONG = 60_000
"""Max tokens: more than any test waits for."""


def few(llm: LLM, count: int = 3) -> list[str]:
    """The next answer, to check that the engine still works."""
    return llm.generate("a", temperature=0, max_tokens=count).text.split()


def test_pieces_are_the_answer(load: Load) -> None:
    stream = load("parrot", "parrot", spec="model").stream("a", temperature=0)
    pieces = list(stream)
    assert_type(pieces, list[Piece])
    assert "".join(map(str, pieces)) == stream.answer.text == HELLO_TEXT
    assert tuple(piece.token for piece in pieces) == stream.answer.tokens
    assert [piece.kind for piece in pieces] == [token.kind for token in stream.answer.tokens]
    assert list(stream) == [], "it is at its end"


def test_held_back_text_comes_in_a_last_piece_of_no_token(load: Load) -> None:
    stream = load("parrot").stream("a", temperature=0, stop="! never", max_tokens=5)
    pieces = list(stream)
    assert "".join(map(str, pieces)) == stream.answer.text == " Hello, world!"
    assert (pieces[-1].text, pieces[-1].token, pieces[-1].kind) == ("!", None, None)


def test_leaving_early_stops_the_engine(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    with llm.stream("a", temperature=0, max_tokens=LONG) as stream:
        said = "".join(piece.text for piece in itertools.islice(stream, 4))
    assert said == " one two three four"
    answer = stream.answer
    assert answer.finish_reason == "cancelled" and answer.text.startswith(said)
    assert 4 <= len(answer.tokens) < LONG
    assert list(stream) == []
    assert few(llm) == ["one", "two", "three"]


def test_a_loop_that_is_left_stops_the_engine(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    for piece in llm.stream("a", temperature=0, max_tokens=LONG):
        assert piece.text == " one"
        break
    gc.collect()
    assert few(llm) == ["one", "two", "three"]


def test_a_stream_keeps_its_engine(load: Load) -> None:
    stream = load("parrot").stream("a", temperature=0)
    gc.collect()
    assert "".join(map(str, stream)) == HELLO_TEXT


def test_stop_lets_the_written_pieces_through(load: Load) -> None:
    stream = load("chatter", ctx=LONG).stream("a", temperature=0, max_tokens=LONG)
    first = next(stream)
    stream.stop()
    rest = "".join(map(str, stream))
    assert first.text + rest == stream.answer.text
    assert stream.answer.finish_reason == "cancelled"


def test_a_stream_that_nobody_reads_blocks_nobody(load: Load) -> None:
    """In one thread: the second answer waits for the first, which continues unread."""
    llm = load("chatter", ctx=2048)
    first = llm.stream("a", temperature=0, max_tokens=500)
    assert few(llm) == ["one", "two", "three"]
    assert len(list(first)) == 500


def test_streams_come_in_the_order_in_which_they_were_asked_for(load: Load) -> None:
    llm = load("chatter", ctx=2048)
    streams = [llm.stream("a", temperature=0, max_tokens=n) for n in (40, 1, 9)]
    for stream, n in zip(reversed(streams), (9, 1, 40), strict=True):
        assert len(list(stream)) == n
    assert not any(piece for stream in streams for piece in stream)


def test_a_stream_closed_before_its_turn_says_nothing(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    first = llm.stream("a", temperature=0, max_tokens=LONG)
    next(first)
    second = llm.stream("a", temperature=0, max_tokens=LONG)
    second.close()
    first.close()
    answer = second.answer
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", (), "cancelled")
    assert answer.speculation["acceptance_rate"] is None
    assert answer.document().keys() == first.answer.document().keys()
    assert answer.timings.keys() == first.answer.timings.keys()
    assert answer.speculation.keys() == first.answer.speculation.keys()
    assert few(llm) == ["one", "two", "three"]


def test_what_goes_wrong_is_raised_where_pieces_are_read(load: Load) -> None:
    stream = load("nan-later").stream("a", temperature=0)
    with pytest.raises(errors.EngineError) as failure:
        list(stream)
    assert failure.value.said
    with pytest.raises(errors.EngineError):
        next(stream)
    with pytest.raises(errors.EngineError):
        stream.answer  # noqa: B018


def test_stop_from_another_thread(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    begun = threading.Event()

    def stopper() -> None:
        begun.wait(60)
        llm.stop()

    other = threading.Thread(target=stopper)
    other.start()
    stream = llm.stream("a", temperature=0, max_tokens=LONG)
    next(stream)
    begun.set()
    assert stream.answer.finish_reason == "cancelled"
    other.join()
    llm.stop()  # no effect: there is nothing to stop
    assert few(llm) == ["one", "two", "three"]


def test_closing_ends_what_is_written_and_refuses_what_waits(load: Load) -> None:
    llm = load("chatter", ctx=LONG)
    first = llm.stream("a", temperature=0, max_tokens=LONG)
    next(first)
    second = llm.stream("a", temperature=0, max_tokens=LONG)
    llm.close()
    assert first.answer.finish_reason == "cancelled"
    with pytest.raises(errors.UsageError, match="This LLM is closed"):
        next(second)
