"""The colours of an answer: each character has those of the token that wrote it."""

from collections import defaultdict
from itertools import cycle
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style

from localspec.chat.answer import replay_turn
from localspec.chat.conversation import Turn
from localspec.protocol.events import (
    Event,
    GenerationFinished,
    Round,
    RoundTimes,
    Token,
    TokenClass,
)
from localspec.sanitize import sanitize
from localspec.tui.text import source_map, token_classes
from localspec.tui.text.markdown import MarkdownText
from localspec.tui.text.token_classes import (
    ClassAligner,
    ClassRun,
    VisibleClasses,
    skip_runs,
    style_by_class,
)
from localspec.tui.text.turn_text import Speaker, TurnText
from localspec.tui.themes import MarkdownStyle, TokenStyles

TOKENS = TokenStyles("on #003300", "#ffaa00", "#777777", "strike #777777")
LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark", TOKENS)
TAGS = ("<think>", "</think>")
KINDS: tuple[TokenClass, ...] = get_args(TokenClass)
NO_STYLES: defaultdict[str, Style] = defaultdict(Style)
GROUND = Style.parse(TOKENS.accepted).bgcolor
ORANGE = Style.parse(TOKENS.correction).color

PIECE = st.text("ab <>*`\n#1-漢é.", min_size=1, max_size=6)
WRITTEN = st.lists(st.tuples(PIECE, st.sampled_from(KINDS)), min_size=1, max_size=14)
Written = list[tuple[str, TokenClass]]


def rounds(written: Written, width: int = 1) -> list[Event]:
    tokens = [Token(1, text, kind) for text, kind in written]
    events: list[Event] = []
    for n, start in enumerate(range(0, len(tokens), width)):
        own = tuple(tokens[start : start + width])
        events.append(Round(n, "lookup", "", 1, 1, own, RoundTimes(1.0, 1.0, 1.0)))
    return [*events, GenerationFinished("eog")]


def coloured(turn: Turn) -> TurnText:
    text = TurnText(turn, Speaker("model", raw=False), LOOK)
    text.show_tokens(token_view=False, colours=True, marks=False)
    return text


def streamed(written: Written, width: int = 1, columns: int = 50) -> TurnText:
    """Drawn after each round."""
    begun = Turn("q", id=1)
    text = coloured(begun)
    turn = begun.with_events(rounds(written, width))
    for delta in replay_turn(turn, TAGS)[1]:
        text.add_deltas([delta])
        text.height(columns)
    return text


def drawn(text: MarkdownText | TurnText, columns: int = 50) -> list[Segment]:
    segments: list[Segment] = []
    for y in range(text.height(columns)):
        segments += text.line(y, NO_STYLES)
    return segments


def looks(text: MarkdownText | TurnText) -> list[tuple[str, TokenClass | None]]:
    """Each drawn character that is no blank, with the class that its colours say."""
    found: list[tuple[str, TokenClass | None]] = []
    for segment in drawn(text):
        kind: TokenClass | None = None
        if segment.style is not None and segment.style.bgcolor == GROUND:
            kind = "accepted"
        elif segment.style is not None and segment.style.color == ORANGE:
            kind = "correction"
        found += [(letter, kind) for letter in segment.text if not letter.isspace()]
    return found


def seen(kind: TokenClass | None) -> TokenClass | None:
    """What the model wrote by itself has no colour of its own."""
    return kind if kind in ("accepted", "correction") else None


def test_a_word_is_drawn_in_the_colours_of_the_token_that_wrote_it() -> None:
    text = streamed(
        [("The", "plain"), (" **old** one", "accepted"), (" is", "correction")]
    )
    of_answer = looks(text.markdown)
    assert of_answer == [
        *[(letter, None) for letter in "The"],
        *[(letter, "accepted") for letter in "oldone"],
        *[(letter, "correction") for letter in "is"],
    ]


def test_a_blank_between_two_words_belongs_to_the_token_that_wrote_it() -> None:
    text = streamed([("one", "plain"), (" two three", "accepted"), (" four", "plain")])
    on_ground = [
        segment.text
        for segment in drawn(text.markdown)
        if segment.style is not None and segment.style.bgcolor == GROUND
    ]
    assert "".join(on_ground) == " two three"


def test_a_table_whose_cells_are_drawn_in_another_order_has_no_colours() -> None:
    table = "| a | b |\n|---|---|\n| one two three four | five six seven eight |\n"
    text = streamed([(table, "accepted")])
    lines = [text.markdown.line(y, {}) for y in range(text.markdown.height(24))]
    styles = [segment.style for line in lines for segment in line]
    assert all(style is None or style.bgcolor is None for style in styles)


@settings(deadline=None, max_examples=150)
@given(WRITTEN, st.booleans(), st.integers(1, 4))
@example([("\x1b[3", "plain"), ("1mred", "accepted")], False, 1)
def test_each_visible_character_has_the_class_of_its_token(
    written: Written, thinks: bool, width: int
) -> None:
    """Whatever the thinking, the tags, and the characters that are removed."""
    answer = written
    if thinks:
        answer = [
            ("<think>", "plain"),
            ("hm", "accepted"),
            ("</think>", "bonus"),
            *written,
        ]
    text = streamed(answer, width)
    letters = [(letter, kind) for part, kind in written for letter in part]
    expected = "".join(letter for letter, _ in letters)
    runs = list(text._pieces[0].classes.slice(0, text._pieces[0].classes.length))
    kinds = [run.token_class for run in runs for _ in range(run.length)]
    if sanitize(expected) == expected and "<" not in expected:
        assert kinds == [kind for _, kind in letters]
    else:
        assert len(kinds) == text._pieces[0].classes.length


@settings(deadline=None, max_examples=60)
@given(WRITTEN, st.booleans())
@example([("\n", "accepted"), ("1.\n", "accepted"), ("1\n", "bonus")], False)
def test_a_stored_answer_has_the_colours_that_it_was_streamed_in(
    written: Written, thinks: bool
) -> None:
    answer = written
    if thinks:
        answer = [
            ("<think>", "plain"),
            ("hm", "accepted"),
            ("</think>", "bonus"),
            *written,
        ]
    begun = Turn("q", id=1)
    turn = begun.with_events(rounds(answer))
    live = streamed(answer)
    live.finish()
    stored = coloured(begun)
    stored.show_stored(turn, TAGS)
    stored.finish()
    assert looks(stored.markdown) == looks(live.markdown)


def test_blocks_have_the_colours_of_their_own_place_in_the_answer() -> None:
    """Also code, whose block is finished while the answer goes on, and a long one."""
    kinds = cycle(KINDS)
    words = [
        "Look",
        ":\n\n",
        "```py\n",
        "x = 1\n",
        "```\n",
        "\n",
        *["word "] * 900,
        "end",
    ]
    written = [(word, next(kinds)) for word in words]
    text = streamed(written, width=3)
    expected = [
        (letter, seen(kind))
        for word, kind in written
        for letter in word.replace("```", "")
        if not letter.isspace()
    ]
    of_answer = [look for look in looks(text.markdown) if look[0] != "▌"]
    label = of_answer.pop(5)  # The number of the block of code.
    assert label == ("1", None)
    assert of_answer == expected


def test_events_that_are_another_text_colour_no_text() -> None:
    turn = Turn("q", id=1).with_events(
        rounds([("one", "accepted"), (" two", "accepted")])
    )
    turn = replace(turn, answer="one three")
    text = coloured(turn)
    text.show_stored(turn, None)
    assert looks(text.markdown) == [(letter, None) for letter in "onethree"]


def test_colours_can_be_turned_off_and_on_again() -> None:
    text = streamed([("one", "plain"), (" two\n\n", "accepted"), ("three", "accepted")])
    with_colours = looks(text.markdown)
    text.show_tokens(token_view=False, colours=False, marks=False)
    assert {kind for _, kind in looks(text.markdown)} == {None}
    text.show_tokens(token_view=False, colours=True, marks=False)
    assert looks(text.markdown) == with_colours


def test_the_end_of_a_very_long_stored_answer_has_its_colours() -> None:
    words = [f"word{n} " for n in range(36_000)]
    written = [(word, KINDS[n % 4]) for n, word in enumerate(words)]
    turn = Turn("q", id=1).with_events(rounds(written, width=4))
    text = coloured(turn)
    text.show_stored(turn, None)
    text.finish()
    n_hidden = sum(map(len, words)) - text._pieces[0].classes.length
    assert n_hidden > 0
    expected = [kind for word, kind in written for _ in word][n_hidden:]
    runs = text._pieces[0].classes.slice(0, text._pieces[0].classes.length)
    assert [run.token_class for run in runs for _ in range(run.length)] == expected


def test_a_frame_costs_the_same_wherever_it_is_in_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted in characters whose place in the source is looked for."""
    mapped = [0]
    find_runs = source_map.find_runs

    def count(source: str, rows: list[str]) -> object:
        mapped[0] += len(source)
        return find_runs(source, rows)

    monkeypatch.setattr(token_classes, "find_runs", count)
    begun = Turn("q", id=1)
    text = coloured(begun)
    written: Written = []
    for n in range(400):
        written += [(f"line {n} of the", "plain"), (" answer\n", "accepted")]
        if n % 20 == 0:
            written.append(("\n", "plain"))
    deltas = replay_turn(begun.with_events(rounds(written, 2)), None)[1]
    by_frame = []
    for delta in deltas:
        mapped[0] = 0
        text.add_deltas([delta])
        height = text.height(80)
        for y in range(max(0, height - 40), height):
            text.line(y, NO_STYLES)
        by_frame.append(mapped[0])
    assert max(by_frame[-100:]) <= 1.5 * max(by_frame[100:200])


def test_runs_beyond_the_text_are_of_no_token() -> None:
    classes = VisibleClasses()
    classes.append(ClassRun(3, "accepted"))
    classes.append(ClassRun(2, "accepted"))
    classes.append(ClassRun(1, "plain"))
    assert list(classes.slice(4, 9)) == [
        ClassRun(1, "accepted"),
        ClassRun(1, "plain"),
        ClassRun(3, None),
    ]
    assert list(skip_runs(classes.slice(0, 6), 5)) == [ClassRun(1, "plain")]


def test_a_part_in_another_form_than_its_tokens_has_no_class() -> None:
    aligner = ClassAligner()
    aligner.add_tokens([Token(1, "<|channel|>x<|message|>Hi", "accepted")])
    shown = replay_turn(
        Turn("q", id=1).with_events(rounds([("Something else", "plain")])), None
    )[1]
    assert aligner.align(shown[0].parts) == [[ClassRun(len("Something else"), None)]]


def test_styles_are_added_to_those_that_a_line_has() -> None:
    line = [Segment("ab", Style(bold=True)), Segment("cd")]
    runs = [ClassRun(1, "plain"), ClassRun(2, "accepted"), ClassRun(1, None)]
    (styled,) = style_by_class([line], "abcd", runs, TOKENS)
    ground = Style.parse(TOKENS.accepted)
    assert styled == [
        Segment("a", Style(bold=True)),
        Segment("b", Style(bold=True) + ground),
        Segment("c", ground),
        Segment("d", Style.null()),
    ]
