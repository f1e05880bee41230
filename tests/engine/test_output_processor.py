"""Steps become rounds of text with their sums; text ends where it must."""

import codecs
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.engine.output_processor import IncrementalDetokenizer, OutputProcessor
from localspec.protocol import events
from localspec.protocol.events import (
    MAX_REJECTED_CHARS,
    Alternative,
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
)
from localspec.spec.drafters import NoDrafter
from localspec.spec.protocols import Draft
from localspec.spec.speculative_loop import Drafting, LoopEnd, RoundResult
from localspec.spec.token_probabilities import TokenProbabilities
from tests.support.fake_models import job

END = 5
PIECES = [b"a", b"\xc3", b"\xa9", b"bc", b" ", b"<end>", b"", b" " * 200]
CONTROL = 6
SPACES = 7
"""Token 1 and token 2 are an é together, and broken alone."""


class Words:
    def is_eog(self, token: int) -> bool:
        return token == END

    def piece(self, token: int) -> bytes:
        assert token != END, "an end has no text"
        return PIECES[token]

    def token_text(self, token: int) -> bytes:
        return b"</s>" if token == END else b"?"

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        assert not add_special
        return [CONTROL] if text == "<|user|>" else [0, 0]


def steps(
    *rounds: tuple[list[int], int, list[int]], reason: str = "eog"
) -> Iterator[object]:
    """A loop's results: of each round the draft, how many were accepted, and the tokens."""
    yield Prefill(0, 4, 0)
    for drafted, accepted, tokens in rounds:
        yield round_result(drafted, accepted, tokens)
    yield LoopEnd(reason)  # type: ignore[arg-type]


def round_result(
    drafted: list[int],
    accepted: int,
    tokens: list[int],
    probabilities: tuple[TokenProbabilities, ...] = (),
) -> RoundResult:
    source = "model" if drafted else None
    return RoundResult(
        Draft(drafted, source=source),
        accepted=accepted,
        tokens=tokens,
        ms=RoundTimes(draft=1.0, verify=2.0, host=0.5),
        width=1 + len(drafted),
        probabilities=probabilities,
    )


def told(loop: object, *stops: str) -> list[Event]:
    answer = replace(job([0], 99), stop_strings=stops)
    drafting = Drafting(NoDrafter(), 5, SpeculationPlan("on", "as asked"))
    processor = OutputProcessor(answer, drafting, Words())  # type: ignore[arg-type]
    return list(processor.process(loop))  # type: ignore[arg-type]


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def tokens_of(events: list[Event]) -> list[Token]:
    tokens: list[Token] = []
    for event in rounds(events):
        tokens += event.tokens
    return tokens


def text(events: list[Event]) -> str:
    shown = "".join(token.text for token in tokens_of(events))
    for event in events:
        if isinstance(event, GenerationFinished):
            shown += event.tail
    return shown


def test_each_token_tells_how_it_came() -> None:
    events = told(
        steps(([], 0, [0]), ([0, 3, 0], 2, [0, 3, 4]), ([3, 3], 2, [3, 3, END]))
    )

    kinds = [[token.kind for token in event.tokens] for event in rounds(events)]
    assert kinds == [
        ["plain"],
        ["accepted", "accepted", "correction"],
        ["accepted", "accepted", "bonus"],
    ]
    assert [event.n for event in rounds(events)] == [0, 1, 2]
    assert [event.source for event in rounds(events)] == [None, "model", "model"]
    assert text(events) == "aabc bcbc"


def test_draft_tokens_that_were_thrown_away_have_their_texts() -> None:
    all_accepted = ([3, 3], 2, [3, 3, 4])
    first_rejected = ([0, 3], 0, [4])
    third_rejected = ([0, 3, 3, 0, END], 2, [0, 3, 4])

    events = told(steps(([], 0, [0]), all_accepted, first_rejected, third_rejected))

    assert [event.rejected for event in rounds(events)] == [
        (),
        (),
        ("a", "bc"),
        ("bc", "a", ""),
    ]


def test_a_rejected_token_may_end_the_character_of_an_accepted_one() -> None:
    (event,) = rounds(told(steps(([1, 2, 1], 1, [1, 0]))))

    assert event.rejected == ("é", "")
    assert text([event]) == "�a"


def test_behind_a_stop_string_nothing_was_rejected() -> None:
    (event,) = rounds(told(steps(([0, 3, 4], 2, [0, 3, 0])), "bc"))

    assert event.rejected == ()


def test_the_text_of_a_rejected_token_is_bounded() -> None:
    (event,) = rounds(told(steps(([SPACES], 0, [0]))))

    assert event.rejected == (" " * MAX_REJECTED_CHARS,)


def test_a_stop_string_cuts_inside_an_accepted_run() -> None:
    guessed = [0, 3, 4, 0, 3]
    events = told(steps(([], 0, [0]), (guessed, 5, [*guessed, 0])), "c a")
    assert text(events) == "aab"
    last = rounds(events)[-1]
    assert [token.id for token in last.tokens] == guessed[:4]
    assert last.drafted == 5
    assert last.accepted == 4
    (end,) = [event for event in events if isinstance(event, GenerationFinished)]
    assert end is events[-1]
    assert end.reason == "stop"
    assert end.totals["tokens"] == 5
    assert end.tail == ""


def test_a_broken_character_is_never_shown() -> None:
    events = told(
        steps(([], 0, [1]), ([2, 1], 2, [2, 1, 0]), ([], 0, [1]), reason="length")
    )
    shown = [token.text for token in tokens_of(events)]
    assert shown[:2] == ["", "é"]
    assert text(events) == "é�a�"


def test_probabilities_become_those_of_tokens_with_the_others_as_text() -> None:
    chosen = Alternative(0, "", p=0.6, rank=1, p_draft=0.01)
    others = (
        Alternative(2, "", p=0.2, rank=2, p_draft=0.9, was_drafted=True),
        Alternative(3, "", p=0.1, rank=3),
        Alternative(END, "", p=0.05, rank=4),
    )
    probabilities = (TokenProbabilities(chosen, others),)
    step = round_result([2], 0, [0], probabilities)

    (token,) = tokens_of(told(iter([step, LoopEnd("length")])))

    assert token == Token(
        0,
        "a",
        "correction",
        p_target=0.6,
        p_draft=0.01,
        rank=1,
        alternatives=(
            replace(others[0], text="\ufffd", piece="\xa9"),
            replace(others[1], text="bc"),
            replace(others[2], text="</s>"),
        ),
    )


def test_a_control_token_may_be_a_stop_string() -> None:
    """It has no text in which the string could be found."""
    events = told(steps(([], 0, [0, 3, CONTROL, 0])), "b<", "<|user|>")

    assert [token.text for token in tokens_of(events)] == ["a", "bc", ""]
    assert isinstance(events[-1], GenerationFinished)
    assert events[-1].reason == "stop"
    assert events[-1].tail == ""


def test_what_was_held_back_is_shown_before_such_a_stop_string() -> None:
    events = told(steps(([], 0, [0, 3, CONTROL])), "bcd", "<|user|>")

    assert text(events) == "abc"


def streamed(pieces: list[bytes], stops: tuple[str, ...] = ()) -> tuple[str, str]:
    """The whole text and the stop string, as a reader of each piece would see them.

    Only half a character is held back, and what may become a stop string.
    """
    stream = IncrementalDetokenizer(stops)
    shown = ""
    data = b""
    for piece in pieces:
        shown += stream.push(piece)
        data += piece
        if stream.found_stop:
            break
        with suppress(UnicodeDecodeError):
            whole = codecs.getincrementaldecoder("utf-8")().decode(data)
            held = whole.removeprefix(shown)
            assert any(text.startswith(held) for text in ("", *stops))
    return shown + stream.finish(), stream.found_stop


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str]:
    """Where the text ends: the stop string that is whole first, the longest of those."""
    ends: list[tuple[int, int, str]] = []
    for stop in filter(None, stops):
        at = text.find(stop)
        if at >= 0:
            ends.append((at + len(stop), at, stop))
    if not ends:
        return len(text), ""
    _, at, stop = min(ends)
    return at, stop


PLACES = st.lists(st.integers(0, 200), max_size=12)
STOPS = st.lists(st.text("ab\né", max_size=4), max_size=3).map(tuple)


@settings(derandomize=True, max_examples=150)
@given(
    st.binary(max_size=20) | st.lists(st.sampled_from("aé😀".encode())).map(bytes),
    PLACES,
)
def test_any_pieces_of_any_bytes_give_the_same_text(
    data: bytes, places: list[int]
) -> None:
    assert streamed(cut(data, places)) == (data.decode("utf-8", "replace"), "")


@settings(derandomize=True, max_examples=300)
@given(st.text("ab\né", max_size=16), STOPS, PLACES)
@example("abba", ("bb", "abba"), [2, 3])
def test_stop_strings_cut_exactly_in_any_pieces(
    text: str, stops: tuple[str, ...], places: list[int]
) -> None:
    end, stop = first_stop(text, stops)
    assert streamed(cut(text.encode(), places), stops) == (text[:end], stop)


def test_probabilities_are_cut_with_the_text_and_bytes_belong_to_their_token() -> None:
    """Whenever its text is shown: half a character, and what may become a stop string."""
    tokens = [1, 2, 3, 0]
    scores = tuple(
        TokenProbabilities(Alternative(token, "", p=0.5, rank=1), ())
        for token in tokens
    )
    step = round_result([], 0, tokens, scores)

    (event,) = rounds(told(iter([step, LoopEnd("length")]), "bc"))

    assert [token.id for token in event.tokens] == [1, 2, 3]
    assert [token.text for token in event.tokens] == ["", "é", ""]
    assert [token.piece for token in event.tokens] == ["\xc3", "\xa9", "bc"]
    assert [token.p_target for token in event.tokens] == [0.5, 0.5, 0.5]
    assert events.decode(events.encode(event)) == event
