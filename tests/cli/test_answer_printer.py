"""Where an answer is rendered, where it is wrapped, and where it is as it was written."""

import io

import pytest

from localspec.chat.answer import AnswerDelta
from localspec.cli.answer_printer import AnswerPrinter, ChatAnswerPrinter, OutputStyle
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.protocol.events import EngineReady, Round, RoundTimes, Token

TEXT = "Some **bold words**,\nand `code`.\n\n- one\n- two"
RENDERED = "Some \x1b[1mbold words\x1b[0m,\nand \x1b[36mcode\x1b[0m.\n\n• one\n• two\n"
READY = EngineReady({}, "m", None, (), {}, {}, 0)


class Output(io.StringIO):
    """Standard output, which may be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def make_output(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool) -> Output:
    output = Output(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setenv("COLUMNS", "20")
    return output


def round_of(text: str) -> Round:
    times = RoundTimes(0, 1, 0)
    return Round(0, None, "", 0, 0, (Token(1, text, "plain"),), times)


def print_once(*, colour: bool, plain: bool, is_markdown: bool, as_json: bool) -> None:
    printer = AnswerPrinter(
        OutputStyle(plain=plain, colour=colour, quiet=True),
        READY,
        as_json=as_json,
        is_markdown=is_markdown,
        mark_tokens=False,
        show_stats=False,
    )
    for word in TEXT.split(" "):
        printer.on_event(round_of(word if word == "Some" else f" {word}"))
    printer.end_line()


def test_one_answer_is_rendered_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    output = make_output(monkeypatch, is_terminal=True)
    print_once(colour=True, plain=False, is_markdown=True, as_json=False)
    shown = output.getvalue()
    assert "\x1b[1mbold words\x1b[0m" in shown
    assert shown.endswith("• two\n")


@pytest.mark.parametrize(
    ("is_terminal", "colour", "plain", "is_markdown"),
    [
        (False, True, False, True),  # FORCE_COLOR, into a pipe
        (True, False, False, True),
        (True, True, True, True),
        (True, True, False, False),  # a completion model
    ],
)
def test_elsewhere_it_is_as_the_model_wrote_it(
    is_terminal: bool,
    colour: bool,
    plain: bool,
    is_markdown: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = make_output(monkeypatch, is_terminal=is_terminal)
    print_once(colour=colour, plain=plain, is_markdown=is_markdown, as_json=False)
    assert output.getvalue() == TEXT + "\n"


def print_in_chat(printer: ChatAnswerPrinter, *parts: AnswerPart) -> None:
    for part in parts:
        printer.print_delta(AnswerDelta(round_of(part.text), (part,)))
    printer.finish([])


def test_in_a_chat_an_answer_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    output = make_output(monkeypatch, is_terminal=True)
    printer = ChatAnswerPrinter(OutputStyle(colour=True), "m", is_markdown=True)
    print_in_chat(printer, AnswerPart(False, TEXT))
    assert output.getvalue() == RENDERED


def test_without_colours_it_is_wrapped_and_keeps_its_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = make_output(monkeypatch, is_terminal=True)
    printer = ChatAnswerPrinter(OutputStyle(), "m", is_markdown=True)
    print_in_chat(printer, AnswerPart(False, "**One** two three four five six"))
    assert output.getvalue() == "**One** two three\nfour five six\n"


def test_thinking_that_is_shown_ends_before_the_answer_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = make_output(monkeypatch, is_terminal=True)
    printer = ChatAnswerPrinter(
        OutputStyle(colour=True), "m", is_markdown=True, show_thinking=True
    )
    print_in_chat(
        printer, AnswerPart(True, "Hm, *what*?"), AnswerPart(False, "\n\n**Yes**")
    )
    shown = output.getvalue()
    assert "\x1b[2m*what*?\x1b[0m\n\x1b[1mYes\x1b[0m\n" in shown
