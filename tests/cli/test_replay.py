"""`localspec replay`: a recorded answer told round by round."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Round,
    RoundTimes,
    Token,
    encode,
)
from tests.cli.command import harmful, hello, localspec
from tests.support.zoo import HOSTILE, Zoo

TIMES = RoundTimes(1.0, 10.0, 1.0)


@pytest.fixture(scope="module")
def recorded(zoo: Zoo) -> Path:
    path = zoo.folder / "recorded.jsonl"
    assert hello(zoo, "--spec", "model", "--events", str(path)).code == 0
    return path


def test_marks(recorded: Path) -> None:
    done = localspec("replay", recorded)
    assert done.code == 0
    assert done.text.startswith("parrot.gguf with parrot.gguf\n")
    assert "  0  plain" in done.text
    assert " Hello·" in done.text
    assert "ˢ" in done.text
    assert "9 tokens in 3 passes, acceptance rate 7 of 7, 3.0 tokens per target pass" in done.text
    assert done.text.endswith("The model ended the answer.\n")
    assert "accepted" in done.err
    assert not harmful(done.out)


def test_words(recorded: Path) -> None:
    done = localspec("replay", recorded, "--plain")
    assert 'nothing drafted. Plain " Hello".' in done.text
    assert 'model drafted 5, 5 accepted: ",", " wor", "ld", "!", "\\n".' in done.text
    assert "accepted" not in done.err
    assert done.text.isascii()
    assert localspec("replay", recorded, env={"TERM": "dumb"}).text == done.text


def test_colours(recorded: Path) -> None:
    done = localspec("replay", recorded, env={"FORCE_COLOR": "1"})
    assert b"\x1b[32m" in done.out
    plain = localspec("replay", recorded, "--no-color", env={"FORCE_COLOR": "1"})
    assert b"\x1b" not in plain.out


def test_an_attacking_file(tmp_path: Path) -> None:
    tokens = tuple(Token(i, text, "plain") for i, text in enumerate(HOSTILE))
    path = tmp_path / "attack.jsonl"
    events: tuple[Event, ...] = (
        EngineReady({}, "\x1b[2Jm", None, (), {}, {}, 1.0),
        Round(1, "\x1b]0;x\x07", "", len(tokens), 3, tokens, TIMES),
        GenerationFinished("eog", totals={"tokens": "many"}),
    )
    path.write_text("\n".join(encode(event) for event in events), encoding="utf-8")
    for options in ((), ("--plain",)):
        done = localspec("replay", path, *options)
        assert done.code == 0
        assert not harmful(done.out)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [(None, 3, "There is no file"), ("", 2, "is empty"), ("x\n", 2, "is not an event file")],
)
def test_nothing_to_replay(content: str | None, code: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    if content is not None:
        path.write_text(content)
    done = localspec("replay", path)
    assert (done.code, done.out) == (code, b"")
    assert words in done.err
    assert "Create one: localspec run" in done.err


def test_a_damaged_line_is_named(recorded: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("{\n" + recorded.read_text(encoding="utf-8"), encoding="utf-8")
    done = localspec("replay", path)
    assert done.code == 0
    assert "localspec: Line 1 is damaged: skipped." in done.err
