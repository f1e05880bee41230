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
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    decode,
    encode,
)

SCORED = Token(
    7,
    "é",
    "correction",
    0.5,
    None,
    1,
    (
        Alternative(8, "x", 0.25, 2, 0.75, was_drafted=True),
        Alternative(9, "\ufffd", 0.125, 3),
    ),
)
SAMPLE: list[Event] = [
    EngineReady(
        {"llama.cpp": "b1"}, "m", None, ("CPU",), {"n": 1}, {"used": None}, 1.5
    ),
    EngineReady({}, "m", "d", (), {}, {}, 1.5, (Notice("info", "a", "b"),)),
    Prefill(1, 2, 0),
    SpeculationPlan("on", "asked"),
    Round(
        0, "model", "why", 2, 1, (Token(7, "é", "accepted"),), RoundTimes(1.0, 2.0, 3.0)
    ),
    Round(1, "model", "why", 1, 0, (SCORED,), RoundTimes(1.0, 2.0, 3.0), overlap="hit"),
    Notice("warning", "code", 'é\n\t"\\…😀\x1b\u2028\ud800\x00', "hint"),
    GenerationFinished("eog", "tail", {"tokens": 3, "ms": 1, "notices": [{"a": 1}]}),
    EngineExit("signal 9", ("one", "two"), "try again"),
]


def test_the_keys_of_tokens_are_those_of_earlier_versions() -> None:
    plain, scored = (json.loads(encode(event))["tokens"][0] for event in SAMPLE[4:6])
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
    assert (
        scored["instead"][0] == draft_token and scored["instead"][1]["p_draft"] is None
    )


def test_unknown_fields_and_events_are_ignored() -> None:
    """A later version may say more of an event, a token, times, and a notice."""
    assert {type(event) for event in SAMPLE} == set(get_args(Event))
    for event in SAMPLE:
        assert "\n" not in encode(event) and decode(encode(event)) == event
        body = json.loads(encode(event)) | {"new": {"a": [1]}, "v": 2}
        for inner in (body.get("tokens"), body.get("notices"), [body.get("ms")]):
            for item in inner or []:
                if isinstance(item, dict):
                    item["new"] = 1
                    for other in item.get("instead", []):
                        other["new"] = 1
        assert decode(json.dumps(body)) == event
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
        with pytest.raises(ValueError):
            events.parse_event(json.loads(encode(SAMPLE[4])) | {name: value})
