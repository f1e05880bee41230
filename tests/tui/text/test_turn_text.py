"""A turn: the stored text is what is shown, with its events or without."""

import re
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.style import Style

from localspec.chat.answer import GeneratedAnswer, replay_turn, with_plain_speed
from localspec.chat.conversation import Turn
from localspec.protocol.events import GenerationFinished, Round
from localspec.tui.text.call_text import stored_states
from localspec.tui.text.turn_text import Speaker, TurnText
from localspec.tui.themes import MarkdownStyle
from tests.support.fake_tools import write_call
from tests.support.scripted_engine import answer, pieces

LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark")
TAGS = ("<think>", "</think>")


NO_STYLES: defaultdict[str, Style] = defaultdict(Style)


def shown(text: TurnText) -> str:
    """Without spaces: a word of many tokens wraps otherwise than one of few."""
    drawn = ""
    for y in range(text.height(60)):
        drawn += "".join(segment.text for segment in text.line(y, NO_STYLES))
    return "".join(drawn.split())


def without_time(text: TurnText) -> str:
    """Without the line under the answer, which needs its events."""
    drawn = [
        "".join(segment.text for segment in text.line(y, NO_STYLES)).strip()
        for y in range(text.height(60))
    ]
    if re.fullmatch(r"\d+ tokens?( in \d+ steps?)?( · .*)?", drawn[-1]):
        drawn.pop()
    return "".join("".join(drawn).split())


def new_text(turn: Turn, *, raw: bool, token_view: bool) -> TurnText:
    text = TurnText(turn, Speaker("model", raw), LOOK)
    text.set_thinking_unfolded(True)
    text.show_tokens(token_view=token_view, colours=True, marks=False)
    return text


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.text("ab <>*`\n#1-漢\u200d", min_size=1, max_size=12),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_an_answer_looks_the_same_streamed_stored_and_without_its_events(
    pieces: list[str], thinks: bool, raw: bool, token_view: bool
) -> None:
    words = ["<think>", "because", "</think>", *pieces] if thinks else pieces
    begun = Turn("why <b>?", id=1)
    turn = begun.with_events(list(answer(words)))
    streamed = new_text(begun, raw=raw, token_view=token_view)
    streamed.add_deltas(replay_turn(turn, TAGS)[1])
    streamed.finish()
    for events in (turn.events, turn.events[1:], turn.events[:2], ()):
        stored = new_text(begun, raw=raw, token_view=token_view)
        stored.show_stored(replace(turn, events=events), TAGS)
        stored.finish()
        assert without_time(stored) == without_time(streamed)


@pytest.mark.parametrize("raw", [False, True])
def test_events_that_are_another_text_colour_nothing(raw: bool) -> None:
    turn = Turn("q", id=1).with_events(list(answer(["one", " two"])))
    turn = replace(turn, answer="one three")
    text = new_text(turn, raw=raw, token_view=True)
    text.show_stored(turn, None)
    assert not text.rounds
    assert "onethree" in shown(text)


@pytest.mark.parametrize("token_view", [True, False])
def test_the_time_of_an_answer_is_under_it(token_view: bool) -> None:
    """21.5 ms for the word after the first; a plain one takes 20 ms at 50 tok/s."""
    rounds = [event for event in answer(["one", "two"]) if isinstance(event, Round)]
    end = with_plain_speed(GenerationFinished("stop"), 50.0)
    turn = Turn("why?", id=1).with_events([*rounds, end])
    text = new_text(turn, raw=False, token_view=token_view)
    text.show_stored(turn, TAGS)
    text.finish()
    assert shown(text).endswith("2tokensin2steps·22ms")


def test_a_live_answer_has_the_line_of_its_panel() -> None:
    words = list("abcdefghijklmnopqrstuvwxyzabcdefghi")
    *events, end = answer(words)
    assert isinstance(end, GenerationFinished)
    turn = Turn("why?", id=1).with_events([*events, with_plain_speed(end, 50.0)])
    text = new_text(Turn("why?", id=1), raw=False, token_view=False)
    text.add_deltas(replay_turn(turn, TAGS)[1])
    text.finish()
    assert shown(text).endswith("35tokensin10steps·194msinsteadof680ms")


CALLS = f"""First:

```py
one()
```
{write_call("now", city="Rome")} Then Oslo.
{write_call("now", city="Oslo")}
{write_call("now", city="Lima")}

Now I wait:

```py
two()
```
"""
IN_ORDER = [
    "First:",
    "one()",
    "city:Rome",
    "ThenOslo.",
    "city:Oslo",
    "city:Lima",
    "NowIwait:",
    "two()",
]


def live_text(text: str, size: int) -> tuple[TurnText, Turn]:
    """An answer as it streams, whose calls are shown after all of its text."""
    turn = Turn("Go", id=1)
    generated = GeneratedAnswer(turn)
    generated.offer_tools("generic")
    shown_text = new_text(turn, raw=False, token_view=False)
    for event in answer(pieces(text, size)):
        shown_text.add_deltas([generated.add(event)])
    for state in stored_states(generated.turn, ()):
        shown_text.show_call(state)
    shown_text.finish()
    return shown_text, generated.turn


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_text_and_calls_are_drawn_in_their_order(size: int) -> None:
    live, turn = live_text(CALLS, size)
    stored = new_text(turn, raw=False, token_view=False)
    stored.show_stored(turn, None)
    stored.finish()

    drawn = shown(live)
    places = [drawn.index(word) for word in IN_ORDER]
    assert places == sorted(places)
    assert shown(stored) == drawn


def test_blocks_of_code_around_calls_have_numbers_of_their_own() -> None:
    live, _ = live_text(CALLS, 7)
    assert [each.count_code_blocks() for each in live.markdowns] == [1, 1, 2]


def test_blank_text_between_calls_takes_no_lines() -> None:
    two = f"{write_call('now', city='Rome')}\n\n{write_call('now', city='Oslo')}\n"
    live, _ = live_text(two, 3)
    assert len(live.markdowns) == 1


def test_a_new_theme_holds_for_the_texts_behind_calls() -> None:
    live, turn = live_text(CALLS, 7)
    before = shown(live)
    live.restyle(LOOK)
    assert shown(live) == before
    assert turn.calls
