"""A guess is drawn with the text, and is no part of what is copied or kept."""

from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.style import Style

from localspec.chat.answer import AnswerDelta
from localspec.tui.text.blocks import BlockStack, TextBlock, TokenText, join_sources
from localspec.tui.text.live_frames import NO_GUESS, LiveGuess
from localspec.tui.text.markdown import MarkdownText
from localspec.tui.text.source_map import DrawnPlace
from localspec.tui.text.token_classes import ClassRun, VisibleClasses
from localspec.tui.themes import MarkdownStyle, TokenStyles
from tests.tui.text.test_live_frames import deltas_of, round_of

TOKENS = TokenStyles("on #003300", "#ffaa00", "#777777", "strike #666666")
LOOK = MarkdownStyle("#7aa7f0", "#8b929c", "one-dark", TOKENS)
STYLES: defaultdict[str, Style] = defaultdict(
    Style,
    {
        "accepted": Style.parse(TOKENS.accepted),
        "correction": Style.parse(TOKENS.correction),
        "draft": Style.parse(TOKENS.draft),
        "rejected": Style.parse(TOKENS.rejected),
    },
)
GUESS = LiveGuess(" city", n_own=5, right=" hall", unchecked=" is old")
PIECE = st.text("ab *`\n#1-é.", max_size=12)
GUESSED = st.text("xy *`\n#2-ü.", max_size=12)
GUESSES = st.builds(LiveGuess, GUESSED, st.integers(0, 9), GUESSED, GUESSED)


def markdown(text: str, guess: LiveGuess) -> MarkdownText:
    shown = MarkdownText(LOOK)
    classes = VisibleClasses()
    classes.append(ClassRun(len(text), "accepted"))
    shown.show_classes(classes)
    shown.write(text)
    shown.show_guess(guess)
    return shown


def tokens(guess: LiveGuess, *deltas: AnswerDelta) -> TokenText:
    shown = TokenText("")
    shown.set_marking(show_classes=True, show_marks=False)
    for delta in deltas:
        shown.extend(delta.event.tokens)  # type: ignore[union-attr]
    shown.show_guess(guess)
    return shown


def rows(block: TextBlock, width: int = 60) -> list[str]:
    lines = range(block.height(width))
    drawn = ["".join(run.text for run in block.line(y, STYLES)) for y in lines]
    return [row.rstrip() for row in drawn]


def looks(block: TextBlock, width: int = 60) -> dict[str, str]:
    """Each look, and the text that has it."""
    found: defaultdict[str, str] = defaultdict(str)
    names = {style: name for name, style in STYLES.items()}
    for y in range(block.height(width)):
        for segment in block.line(y, STYLES):
            found[names.get(segment.style or Style(), "text")] += segment.text
    return {name: text for name, text in found.items() if text.strip()}


def test_the_guess_is_behind_the_text_and_what_was_rejected_before_the_last_word() -> (
    None
):
    shown = markdown("The old town", GUESS)
    assert rows(shown) == ["The old city town hall is old"]
    assert looks(shown) == {
        "accepted": "The old town hall",
        "rejected": "city",
        "draft": " is old",
    }


def test_in_a_completion_it_looks_the_same() -> None:
    deltas = deltas_of(round_of(["The", " old"], " town", " city"))
    shown = tokens(GUESS, *deltas)
    assert rows(shown) == ["The old city town hall is old"]
    assert looks(shown) == {
        "accepted": "The old hall",
        "rejected": "city",
        "correction": " town",
        "draft": "  is old",
    }


def test_the_guess_wraps_as_the_text_will() -> None:
    shown = markdown("The old town", LiveGuess(unchecked=" hall is"))
    written = markdown("The old town hall is", NO_GUESS)
    completion = tokens(
        LiveGuess(unchecked=" hall is"), *deltas_of(round_of(["The", " old"], " town"))
    )
    assert rows(shown, 14) == rows(written, 14) == ["The old town", "hall is"]
    assert rows(completion, 14) == rows(written, 14)


def test_a_guess_may_begin_a_block() -> None:
    shown = markdown("Done.\n\n", LiveGuess(unchecked="Next"))
    shown.write("")
    assert rows(shown) == ["Done.", "", "Next"]


def test_without_colours_no_guess_is_drawn() -> None:
    shown = MarkdownText(LOOK)
    shown.write("The old town")
    shown.show_guess(GUESS)
    assert rows(shown) == ["The old town"]


@settings(deadline=None, max_examples=200)
@given(PIECE, PIECE, GUESSES, st.integers(4, 40))
def test_a_guess_is_never_copied(
    finished: str, text: str, guess: LiveGuess, width: int
) -> None:
    source = f"{finished}\n\n{text}"
    shown = markdown(source, guess)
    stack = BlockStack()
    stack.blocks = [shown]
    copied = join_sources(stack, stack.height(width))
    assert not Counter("".join(copied.split())) - Counter(source)


def test_a_marked_part_of_a_line_has_no_guess() -> None:
    shown = markdown("The old town", GUESS)
    shown.height(60)
    source = shown.source_map(0)
    assert source.cut(DrawnPlace(0, 4), DrawnPlace(0, 60)) == "old town"
    assert source.cut(DrawnPlace(0, 0), DrawnPlace(0, 14)) == "The old t"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(PIECE, GUESSES), max_size=8), st.integers(4, 40))
def test_guesses_leave_no_trace(
    written: list[tuple[str, LiveGuess]], width: int
) -> None:
    """The text looks as if there had been none, also a completion."""
    classes = VisibleClasses()
    live = MarkdownText(LOOK)
    live.show_classes(classes)
    completion = tokens(NO_GUESS)
    for text, guess in written:
        classes.append(ClassRun(len(text), "plain"))
        live.write(text)
        live.show_guess(guess)
        live.height(width)
        completion.extend(round_of([], text).tokens)
        completion.show_guess(guess)
        completion.height(width)
    live.show_guess(NO_GUESS)
    completion.show_guess(NO_GUESS)
    whole = markdown("".join(text for text, _ in written), NO_GUESS)
    assert rows(live, width) == rows(whole, width)
    again = tokens(NO_GUESS)
    for text, _ in written:
        again.extend(round_of([], text).tokens)
    assert rows(completion, width) == rows(again, width)
