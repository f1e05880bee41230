"""One message from one line or several, typed or pasted."""

import pytest

from localspec.cli import readline_prompt
from localspec.cli.readline_prompt import ReadlinePrompt


class Typist:
    """Types these lines; pasted ones wait already when the one before was read."""

    def __init__(self, *lines: str, pasted: int = 0) -> None:
        self.lines = list(lines)
        self.pasted = pasted
        self.prompts: list[str] = []

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.pasted -= 1
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def waits(self) -> bool:
        return self.pasted > 0


def test_a_message() -> None:
    for lines, message in [
        (["hello"], "hello"),
        ([""], ""),
        (["one\\", "two\\", "three"], "one\ntwo\nthree"),
        (['"""one', "", 'two"""'], "one\n\ntwo"),
        (['"""', "one", '"""'], "one"),
        (['"""one"""'], "one"),
        (["one\\"], "one\\"),
        (['"""one', "two"], "one\ntwo"),
        (["one\ntwo"], "one\ntwo"),
    ]:
        typist = Typist(*lines)
        assert ReadlinePrompt("> ", typist.ask, typist.waits).read_message() == message
        assert typist.prompts[0] == "> " and not any(typist.prompts[1:])


def test_a_paste_that_comes_line_by_line_is_one_message() -> None:
    typist = Typist("one", "two", "three", "next", pasted=3)
    composer = ReadlinePrompt("> ", typist.ask, typist.waits)
    assert (
        composer.read_message() == "one\ntwo\nthree"
        and composer.read_message() == "next"
    )


def test_commands_typed_ahead_are_not_joined() -> None:
    typist = Typist("/stats", "/exit", pasted=2)
    composer = ReadlinePrompt("> ", typist.ask, typist.waits)
    assert [composer.read_message(), composer.read_message()] == ["/stats", "/exit"]


def test_unmarked_pastes_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TERM=dumb: what waits already belongs to what was read."""
    monkeypatch.setenv("TERM", "dumb")
    assert readline_prompt._lacks_bracketed_paste(object())
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not readline_prompt._lacks_bracketed_paste(object())
