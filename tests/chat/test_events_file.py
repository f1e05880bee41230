"""Reading event files, damaged ones too, and splitting them into answers."""

from pathlib import Path

import pytest

from localspec.chat import events_file
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.protocol import events as ev

READY = ev.EngineReady(
    engine={"llama.cpp": "x"},
    model="m.gguf",
    draft=None,
    devices=("CPU",),
    settings={"a": {"b": 1}},
    memory={"used": None},
    load_ms=1.5,
)
TIMES = ev.RoundTimes(draft=1.0, verify=2.0, host=0.5)


def said(n: int, text: str = " a") -> ev.Round:
    other = ev.Alternative(4, " b", 0.25, 2, 0.5, True)
    token = ev.Token(3, text, "accepted", 0.5, 0.25, 1, (other,))
    return ev.Round(
        n=n,
        source="model",
        reason="asked for",
        drafted=2,
        accepted=1,
        tokens=(token, ev.Token(5, " c", "correction")),
        ms=TIMES,
    )


SAID = ev.encode(said(0)).encode()
ANSWER: list[ev.Event] = [
    ev.SpeculationPlan("on", "it pays", 1.5), ev.Prefill(4, 4, 0), said(0), said(1),
    ev.Notice("info", "x", "y"), ev.GenerationFinished("eog", "", {"tokens": 4}),
]  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(file: Path, *lines: str | ev.Event) -> None:
    told = [line if isinstance(line, str) else ev.encode(line) for line in lines]
    file.write_text("\n".join(told) + "\n", encoding="utf-8")


def test_answers_of_a_chat(file: Path) -> None:
    died: list[ev.Event] = [*ANSWER[:3], ev.EngineExit("signal SIGKILL")]
    cut: list[ev.Event] = [ev.Prefill(4, 4, 0), said(0), said(1)]
    write(file, READY, *ANSWER, *died, READY, *ANSWER, *cut, *cut)
    events = events_file.read(file)
    found = events_file.split_answers(events)
    assert events[: 1 + len(ANSWER)] == [READY, *ANSWER]
    assert found == [tuple(ANSWER), tuple(died), tuple(ANSWER), tuple(cut), tuple(cut)]


@pytest.mark.parametrize("code", events_file.OVERFLOW_CODES)
def test_an_answer_that_got_room_is_one(code: str) -> None:
    room = ev.Notice("info", code, "The context is full: …")
    plan = ev.SpeculationPlan("on", "it pays")
    begun: list[ev.Event] = [plan, ev.Prefill(9, 9, 0), said(0), said(1), room]
    for first in (0, 2):  # older versions restarted round numbers
        rest: list[ev.Event] = [plan, ev.Prefill(7, 7, 2), said(first), said(first + 1)]
        whole: list[ev.Event] = [*begun, *rest, ev.GenerationFinished("eog")]
        led: list[ev.Event] = [room, *whole]  # an overflow before the first round
        found = events_file.split_answers([READY, *ANSWER, *led, *whole, *ANSWER])
        assert found == [tuple(ANSWER), tuple(led), tuple(whole), tuple(ANSWER)]


DAMAGED = {
    "not JSON": "{",
    "too deep": "[" * 100_000,
    "a huge number": '{"v":1,"ev":"round","n":' + "9" * 5000 + "}",
    "a wrong type": ev.encode(said(1)).replace('"n":1', '"n":"1"'),
    "a wrong text": ev.encode(said(1)).replace('" a"', "17"),
    "a wrong class": ev.encode(said(1)).replace('"accepted","p', '"golden","p'),
    "a wrong alternative": ev.encode(said(1)).replace('" b"', "null"),
    "fewer than none": ev.encode(ev.Prefill(4, 4, 0)).replace('"done":4', '"done":-1'),
    "an impossible end": ev.encode(ev.GenerationFinished("eog")).replace(
        "eog", "bored"
    ),
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(line: str, file: Path) -> None:
    write(file, READY, said(0), line, *ANSWER[-1:])
    notice, *events = events_file.read(file)
    assert events == [READY, said(0), ANSWER[-1]] and isinstance(notice, ev.Notice)
    assert notice.message == "Line 3 is damaged: skipped."


def test_skipped_lines_are_named(file: Path) -> None:
    for lines, message in [
        ((b"\xff\xfe", SAID, b"\xff" * 9), "Lines 1 and 3 are damaged: skipped."),
        ((*[b"?"] * 9, SAID), "Lines 1, 2, 3, 4, 5 and 4 more are damaged: skipped."),
        (
            (SAID, b'{"v":1,"ev":"dream","about":"sheep"}'),
            "Line 2 is of a type this version does not know: skipped.",
        ),
    ]:
        file.write_bytes(b"\n".join(lines))
        notice, event = events_file.read(file)
        assert isinstance(notice, ev.Notice) and (notice.message, event) == (
            message,
            said(0),
        )


def test_nothing_to_show(file: Path) -> None:
    with pytest.raises(NotFoundError):
        events_file.read(file)
    with pytest.raises(StorageError):
        events_file.read(file.parent)
    for content, words in [
        (b"\n\n", "is empty"),
        (b"GGUF\x03\0\0\0\xff\n", "is not an event file: line 1 is damaged"),
        (ev.encode(READY).encode(), "contains no answer"),
    ]:
        file.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            events_file.read(file)
