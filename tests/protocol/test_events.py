"""Events that are written can be read, also by another version."""

import json
from typing import get_args

import pytest

from localspec.protocol import events
from localspec.protocol.events import (
    Alternative,
    EngineExit,
    EngineReady,
    Event,
    GenerationFinished,
    Notice,
    PictureReading,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Thumbnail,
    Token,
    decode,
    encode,
)

SCORED = Token(
    7,
    "é",
    "correction",
    p_target=0.5,
    p_draft=None,
    rank=1,
    alternatives=(
        Alternative(8, "x", p=0.25, rank=2, p_draft=0.75, was_drafted=True),
        Alternative(9, "\ufffd", p=0.125, rank=3),
    ),
)
PLAIN_ROUND = Round(
    n=0,
    source="model",
    reason="why",
    drafted=2,
    accepted=1,
    tokens=(Token(7, "é", "accepted"),),
    ms=RoundTimes(draft=1.0, verify=2.0, host=3.0),
)
SCORED_ROUND = Round(
    n=1,
    source="model",
    reason="why",
    drafted=1,
    accepted=0,
    tokens=(SCORED,),
    ms=RoundTimes(draft=1.0, verify=2.0, host=3.0),
    overlap="hit",
    rejected=('é\n"', ""),
)
SAMPLE: list[Event] = [
    EngineReady(
        engine={"llama.cpp": "b1"},
        model="m",
        draft=None,
        devices=("CPU",),
        settings={"n": 1},
        memory={"used": None},
        load_ms=1.5,
    ),
    EngineReady(
        engine={},
        model="m",
        draft="d",
        devices=(),
        settings={},
        memory={},
        load_ms=1.5,
        notices=(Notice("info", "a", "b"),),
    ),
    PictureReading(n=1, of=2, rows=266, width=1920, height=1080),
    PictureReading(
        n=2,
        of=2,
        rows=16,
        width=2,
        height=1,
        sha256="00ff",
        seconds_expected=1.5,
        thumbnail=Thumbnail(2, 1, "AAAA////"),
    ),
    Prefill(done=1, total=2, reused=0),
    SpeculationPlan("on", "asked"),
    PLAIN_ROUND,
    SCORED_ROUND,
    Notice("warning", "code", 'é\n\t"\\…😀\x1b\u2028\ud800\x00', "hint"),
    GenerationFinished("eog", "tail", {"tokens": 3, "ms": 1, "notices": [{"a": 1}]}),
    EngineExit("signal 9", ("one", "two"), "try again"),
]


def test_the_keys_of_tokens_are_those_of_earlier_versions() -> None:
    (plain,) = json.loads(encode(PLAIN_ROUND))["tokens"]
    (scored,) = json.loads(encode(SCORED_ROUND))["tokens"]

    assert set(plain) == {"id", "text", "class"}
    assert set(scored) == {
        "id",
        "text",
        "class",
        "p_target",
        "p_draft",
        "rank",
        "instead",
    }
    draft_token = {
        "id": 8,
        "text": "x",
        "p": 0.25,
        "rank": 2,
        "p_draft": 0.75,
        "guessed": True,
    }
    first, second = scored["instead"]
    assert first == draft_token
    assert second["p_draft"] is None


def test_each_event_is_read_as_it_was_written() -> None:
    assert {type(event) for event in SAMPLE} == set(get_args(Event))
    for event in SAMPLE:
        line = encode(event)
        assert "\n" not in line
        assert decode(line) == event


def test_unknown_fields_are_ignored() -> None:
    """A later version may say more of an event, a token, times, and a notice."""
    for event in SAMPLE:
        body = json.loads(encode(event)) | {"new": {"a": [1]}, "v": 2}
        parts = [*body.get("tokens", []), *body.get("notices", [])]
        if "ms" in body:
            parts.append(body["ms"])
        for part in parts:
            part["new"] = 1
            for other in part.get("instead", []):
                other["new"] = 1
        assert decode(json.dumps(body)) == event


def test_unknown_events_are_skipped() -> None:
    assert decode('{"v":1,"ev":"weather","sky":"blue"}') is None
    assert decode('{"v":1,"ev":null}') is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "3",
        "null",
        "[]",
        '"round"',
        "{}",
        '{"v":1}',
        "nonsense",
        '{"ev":"round"}',
    ],
)
def test_a_line_that_is_no_event_is_an_error(line: str) -> None:
    with pytest.raises(ValueError):
        decode(line)


PLAIN_TOKEN = {"id": 1, "text": "", "class": "plain"}


def test_a_broken_part_is_an_error_of_the_same_kind() -> None:
    for name, value in [
        ("tokens", [{}]),
        ("tokens", [3]),
        ("tokens", [PLAIN_TOKEN | {"p_target": "0.5"}]),
        ("tokens", [PLAIN_TOKEN | {"p_target": 0.5, "instead": [{}]}]),
        ("ms", {"draft": 1.0}),
        ("ms", {"draft": 10**400, "verify": 1.0, "host": 1.0}),
        ("accepted", 10**12),
    ]:
        body = json.loads(encode(PLAIN_ROUND)) | {name: value}
        with pytest.raises(ValueError):
            events.parse_event(body)


def test_a_thumbnail_of_another_size_is_refused() -> None:
    line = encode(PictureReading(1, 1, 16, 2, 2, thumbnail=Thumbnail(2, 2, "AAAA")))

    with pytest.raises(ValueError, match="thumbnail"):
        decode(line)
