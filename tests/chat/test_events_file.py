"""Reading event files, damaged ones too, and splitting them into answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat import events_file
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.protocol.events import (
    Alternative,
    EngineExit,
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    encode,
)

READY = EngineReady(
    {"llama.cpp": "x"}, "m.gguf", None, ("CPU",), {"a": {"b": 1}}, {"used": None}, 1.5
)
TIMES = RoundTimes(1.0, 2.0, 0.5)


def said(n: int, text: str = " a") -> Round:
    other = Alternative(4, " b", 0.25, 2, 0.5, True)
    token = Token(3, text, "accepted", 0.5, 0.25, 1, (other,))
    return Round(n, "model", "asked for", 2, 1, (token, Token(5, " c", "correction")), TIMES)


SAID = encode(said(0)).encode()
ANSWER: list[Event] = [
    SpeculationPlan("on", "it pays", 1.5),
    Prefill(4, 4, 0),
    said(0),
    said(1),
    Notice("info", "x", "y"),
    GenerationFinished("eog", "", {"tokens": 4}),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(file: Path, *lines: str | Event) -> None:
    told = [line if isinstance(line, str) else encode(line) for line in lines]
    file.write_text("\n".join(told) + "\n", encoding="utf-8")


def test_what_was_written_is_read(file: Path) -> None:
    write(file, READY, *ANSWER)
    assert events_file.read(file) == [READY, *ANSWER]


def test_answers_of_a_chat(file: Path) -> None:
    died: list[Event] = [*ANSWER[:3], EngineExit("signal SIGKILL")]
    cut: list[Event] = [Prefill(4, 4, 0), said(0), said(1)]
    write(file, READY, *ANSWER, *died, READY, *ANSWER, *cut, *cut)
    found = events_file.split_answers(events_file.read(file))
    assert found == [tuple(ANSWER), tuple(died), tuple(ANSWER), tuple(cut), tuple(cut)]


@pytest.mark.parametrize("code", events_file.OVERFLOW_CODES)
def test_an_answer_that_got_room_is_one(code: str) -> None:
    room = Notice("info", code, "The context is full: …")
    plan = SpeculationPlan("on", "it pays")
    begun: list[Event] = [plan, Prefill(9, 9, 0), said(0), said(1), room]
    for first in (0, 2):  # older versions restarted round numbers
        rest: list[Event] = [plan, Prefill(7, 7, 2), said(first), said(first + 1)]
        whole: list[Event] = [*begun, *rest, GenerationFinished("eog")]
        led: list[Event] = [room, *whole]  # an overflow before the first round
        found = events_file.split_answers([READY, *ANSWER, *led, *whole, *ANSWER])
        assert found == [tuple(ANSWER), tuple(led), tuple(whole), tuple(ANSWER)]


DAMAGED = {
    "not JSON": "{",
    "no event": '{"v":1}',
    "too deep": "[" * 100_000,
    "a huge number": '{"v":1,"ev":"round","n":' + "9" * 5000 + "}",
    "a field missing": '{"v":1,"ev":"round","n":1}',
    "a wrong type": encode(said(1)).replace('"n":1', '"n":"1"'),
    "a wrong text": encode(said(1)).replace('" a"', "17"),
    "a wrong class": encode(said(1)).replace('"accepted","p', '"golden","p'),
    "a wrong alternative": encode(said(1)).replace('" b"', "null"),
    "more kept than said": encode(said(1)).replace('"accepted":1', '"accepted":1000000000'),
    "fewer than none": encode(Prefill(4, 4, 0)).replace('"done":4', '"done":-1'),
    "an impossible end": encode(GenerationFinished("eog")).replace("eog", "bored"),
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(line: str, file: Path) -> None:
    write(file, READY, said(0), line, *ANSWER[-1:])
    notice, *events = events_file.read(file)
    assert events == [READY, said(0), ANSWER[-1]]
    assert isinstance(notice, Notice)
    assert notice.message == "Line 3 is damaged: skipped."


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((b"\xff\xfe", SAID, b"\xff" * 9), "Lines 1 and 3 are damaged: skipped."),
        ((*[b"?"] * 9, SAID), "Lines 1, 2, 3, 4, 5 and 4 more are damaged: skipped."),
        (
            (SAID, b'{"v":1,"ev":"dream","about":"sheep"}'),
            "Line 2 is of a type this version does not know: skipped.",
        ),
    ],
)
def test_skipped_lines_are_named(lines: tuple[bytes, ...], message: str, file: Path) -> None:
    file.write_bytes(b"\n".join(lines))
    notice, event = events_file.read(file)
    assert isinstance(notice, Notice)
    assert (notice.message, event) == (message, said(0))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n\n", "is empty"),
        (b"GGUF\x03\0\0\0\xff\n", "is not an event file: line 1 is damaged"),
        (encode(READY).encode(), "contains no answer"),
    ],
)
def test_nothing_to_show(content: bytes, words: str, file: Path) -> None:
    with pytest.raises(NotFoundError):
        events_file.read(file)
    file.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        events_file.read(file)
    with pytest.raises(StorageError):
        events_file.read(file.parent)
