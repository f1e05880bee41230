"""No parser of a model's answer can stand still, lose text, or read it again and again."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.models.chat_template.json_repair import JsonRepairer
from localspec.models.chat_template.text_scanner import StepError, TextScanner
from localspec.models.chat_template.thinking_tags import AnswerPart, make_parser


class WordReader:
    """Reads words; one at the end of a piece may go on."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.n_steps = 0

    def read(self, text: str, start: int) -> int:
        self.n_steps += 1
        end = text.find(" ", start)
        if end < 0:
            return start
        self.words.append(text[start:end])
        return end + 1


def test_a_step_that_waits_is_called_again_with_the_same_text_and_more() -> None:
    scanner = TextScanner()
    reader = WordReader()
    scanner.feed("one tw", reader.read)
    assert (reader.words, scanner.unread) == (["one"], "tw")
    scanner.feed("o three", reader.read)
    assert reader.words == ["one", "two"]
    assert scanner.take_unread() == "three"
    assert scanner.unread == ""


def test_a_fork_goes_on_by_itself() -> None:
    scanner = TextScanner()
    reader = WordReader()
    scanner.feed("tw", reader.read)
    twin = scanner.fork()
    scanner.feed("o ", reader.read)
    twin.feed("ins ", reader.read)
    assert reader.words == ["two", "twins"]


@pytest.mark.parametrize("reached", [-1, 0, 4])
def test_a_step_that_reads_backwards_or_beyond_the_text_is_a_fault(
    reached: int,
) -> None:
    scanner = TextScanner()

    def step(text: str, start: int) -> int:
        return 1 if start == 0 else reached

    with pytest.raises(StepError):
        scanner.feed("abc", step)


@given(st.text("a ", max_size=40), st.integers(1, 5))
def test_there_are_at_most_as_many_steps_as_characters_and_pieces(
    text: str, size: int
) -> None:
    scanner = TextScanner()
    reader = WordReader()
    for piece in cut(text, size):
        scanner.feed(piece, reader.read)
    assert reader.n_steps <= 2 * len(text)
    assert " ".join([*reader.words, scanner.take_unread()]) == text


# --- every parser that is built on it, with the marks of its family

TAGS = {
    "think": (("<think>", "</think>"), "<think> </think> < / thi nk> t"),
    "gemma": (
        ("<|channel>thought\n", "<channel|>"),
        "<|channel> thought \n <channel|> <",
    ),
    "harmony": (
        ("<|channel|>analysis<|message|>", "<|end|>"),
        "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|call|> to= assistant "
        "analysis final commentary json functions.f < |> ` \n",
    ),
    "solar": (
        ("<|think|>", "<|end|>"),
        "<|begin|> <|think|> <|content|> <|end|> assistant < |>",
    ),
}
LETTERS = "éß漢"
"""Letters that no mark has: each must come out once, in order."""
NO_HEADER = '{["'
"""The same for Harmony, in whose headers a model may write other words."""


def cut(text: str, size: int) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def read_answer(family: str, text: str, size: int) -> str:
    parser = make_parser(TAGS[family][0])
    parts: list[AnswerPart] = []
    for piece in cut(text, size):
        parts += parser.feed(piece)
    parts += parser.flush()
    return "".join(part.text for part in parts)


def read_json(text: str, size: int) -> str:
    """The object that begins with a text, as it is repaired, and what follows it."""
    repairer = JsonRepairer()
    written = []
    for piece in cut("{" + text, size):
        valid, rest = repairer.feed(piece)
        written += [valid, rest]
    repaired = "".join([*written, repairer.close()])
    escape = re.compile(r"\\u([0-9a-f]{4})")
    return escape.sub(lambda found: chr(int(found[1], 16)), repaired)


READERS: dict[str, tuple[Callable[[str, int], str], list[str]]] = {
    "json": (read_json, [*'{}[]",:\\ ', "\\u", "d800", "true", "1e5", "\n", "NaN"]),
}
for _family, (_, _marks) in TAGS.items():
    READERS[_family] = (partial(read_answer, _family), _marks.split(" "))


@pytest.mark.parametrize("name", READERS)
@given(data=st.data(), size=st.sampled_from([1, 2, 3, 7, 1000]))
def test_any_text_of_a_familys_marks_loses_no_letter(
    name: str, data: st.DataObject, size: int
) -> None:
    read, marks = READERS[name]
    letters = NO_HEADER if name == "harmony" else LETTERS
    pieces = st.lists(st.sampled_from([*marks, *letters]), max_size=14)
    text = "".join(data.draw(pieces))
    others = f"[^{re.escape(letters)}]"
    assert re.sub(others, "", read(text, size)) == re.sub(others, "", text)


@pytest.mark.timeout(100)
@pytest.mark.parametrize("name", READERS)
def test_each_mark_again_and_again_takes_linear_time(name: str) -> None:
    """With a reader of quadratic time this would take minutes."""
    read, marks = READERS[name]
    for mark in marks:
        text = mark * (20_000 // len(mark))
        read(text, 1)
        read(text, len(text))
