"""What is written can be read, also by another version."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.protocol import events
from localspec.protocol.events import (
    Alternative,
    EngineExit,
    EngineReady,
    Event,
    FinishReason,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    SpeculationState,
    Token,
    TokenClass,
    decode,
    encode,
)

TEXT = st.text('aé\n\t"\\…😀\x1b\u2028\ud800\x00', max_size=8)
COUNT = st.integers(0, 2**40)
NUMBER = st.floats(0, 1e9, allow_nan=False)
PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | COUNT | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
TABLE = st.dictionaries(TEXT, PLAIN, max_size=3)
NOTICES = st.builds(Notice, st.sampled_from(["info", "warning", "error"]), TEXT, TEXT, TEXT)
KINDS_OF_TOKEN = st.sampled_from(get_args(TokenClass))
CHANCE = st.floats(0, 1)


def several(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(of, max_size=3).map(tuple)


ALTERNATIVES = st.builds(Alternative, COUNT, TEXT, CHANCE, COUNT, st.none() | CHANCE, st.booleans())
TOKENS = st.builds(Token, COUNT, TEXT, KINDS_OF_TOKEN) | st.builds(
    Token, COUNT, TEXT, KINDS_OF_TOKEN, CHANCE, st.none() | CHANCE, COUNT, several(ALTERNATIVES)
)
SEEN = Token(
    7,
    "é",
    "correction",
    0.5,
    None,
    1,
    (Alternative(8, "x", 0.25, 2, 0.75, was_drafted=True), Alternative(9, "\ufffd", 0.125, 3)),
)


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        EngineReady,
        st.dictionaries(TEXT, TEXT, max_size=2),
        TEXT,
        st.none() | TEXT,
        several(TEXT),
        TABLE,
        st.dictionaries(TEXT, st.none() | COUNT, max_size=2),
        NUMBER,
        several(NOTICES),
    ),
    st.builds(Prefill, COUNT, COUNT, COUNT),
    st.builds(
        SpeculationPlan,
        st.sampled_from(get_args(SpeculationState)),
        TEXT,
        st.none() | NUMBER,
        st.none() | COUNT,
    ),
    st.builds(
        Round,
        COUNT,
        st.none() | TEXT,
        TEXT,
        COUNT,
        COUNT,
        several(TOKENS),
        st.builds(RoundTimes, NUMBER, NUMBER, NUMBER),
    ),
    NOTICES,
    st.builds(GenerationFinished, st.sampled_from(get_args(FinishReason)), TEXT, TABLE),
    st.builds(EngineExit, TEXT, several(TEXT), TEXT),
)
SAMPLE: list[Event] = [
    EngineReady({"llama.cpp": "b1"}, "m", None, ("CPU",), {"n": 1}, {"used": None}, 1.5),
    EngineReady({}, "m", "d", (), {}, {}, 1.5, (Notice("info", "a", "b"),)),
    Prefill(1, 2, 0),
    SpeculationPlan("on", "asked"),
    Round(0, "model", "why", 2, 1, (Token(7, "é", "accepted"),), RoundTimes(1.0, 2.0, 3.0)),
    Round(1, "model", "why", 1, 0, (SEEN,), RoundTimes(1.0, 2.0, 3.0), overlap="hit"),
    Notice("warning", "code", "message", "hint"),
    GenerationFinished("eog", "tail", {"tokens": 3, "ms": 1, "notices": [{"a": 1}]}),
    EngineExit("signal 9", ("one", "two"), "try again"),
]
KINDS = [type(event).__name__ for event in SAMPLE]


@settings(deadline=None, derandomize=True, max_examples=200)
@given(EVENTS)
def test_what_is_written_is_read_again(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event


def test_every_line_says_version_and_name() -> None:
    for event in SAMPLE:
        body = json.loads(encode(event))
        assert (body["v"], body["ev"]) == (1, events._EVENT_NAMES[type(event)])
        left_out = {"overlap"} if isinstance(event, Round) and not event.overlap else set()
        assert set(body) == {"v", "ev"} | {field.name for field in fields(event)} - left_out


def test_a_token_says_its_probabilities_only_where_they_are_known() -> None:
    plain, seen = (json.loads(encode(event))["tokens"][0] for event in SAMPLE[4:6])
    assert set(plain) == {"id", "text", "class"}
    assert set(seen) == {"id", "text", "class", "p_target", "p_draft", "rank", "instead"}
    assert seen["instead"][0] == {
        "id": 8,
        "text": "x",
        "p": 0.25,
        "rank": 2,
        "p_draft": 0.75,
        "guessed": True,
    }
    assert seen["instead"][1]["p_draft"] is None


def test_the_sample_has_every_kind() -> None:
    assert {type(event) for event in SAMPLE} == set(get_args(Event))
    assert set(KINDS) == {kind.__name__ for kind in get_args(events.Event)}


def test_unknown_fields_are_ignored() -> None:
    for event in SAMPLE:
        assert decode(json.dumps(json.loads(encode(event)) | {"new": {"a": [1]}, "v": 2})) == event


def test_unknown_fields_are_ignored_inside_too() -> None:
    """A later version may say more of a token, of times, and of a notice."""
    for event in SAMPLE:
        body = json.loads(encode(event))
        for inner in (body.get("tokens"), body.get("notices"), [body.get("ms")]):
            for item in inner or []:
                if isinstance(item, dict):
                    item["new"] = 1
                    for other in item.get("instead", []):
                        other["new"] = 1
        assert decode(json.dumps(body)) == event


def test_unknown_events_are_skipped() -> None:
    assert decode('{"v":1,"ev":"weather","sky":"blue"}') is None
    assert decode('{"v":1,"ev":null}') is None


def test_a_line_that_is_no_event_is_an_error() -> None:
    for line in (
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
    ):
        with pytest.raises(ValueError):
            decode(line)


def test_a_missing_field_is_an_error_unless_it_has_a_default() -> None:
    for event in SAMPLE:
        body = json.loads(encode(event))
        for name in set(body) - {"v", "ev"}:
            line = json.dumps({key: value for key, value in body.items() if key != name})
            try:
                decode(line)
            except ValueError:
                continue
            optional = {"notices", "speedup", "until", "hint", "tail", "totals", "log"}
            optional |= {"overlap"}
            assert name in optional | {"thinking"}


BROKEN = [
    ("tokens", [{}]),
    ("tokens", [{"id": 1, "text": ""}]),
    ("tokens", [3]),
    ("tokens", [{"id": 1, "text": "", "class": "plain", "p_target": 0.5}]),
    ("tokens", [{"id": 1, "text": "", "class": "plain", "p_target": 0.5, "instead": [{}]}]),
    ("tokens", [{"id": 1, "text": "", "class": "plain", "p_target": 0.5, "instead": [3]}]),
    ("tokens", None),
    ("tokens", 3),
    ("ms", None),
    ("ms", {}),
    ("ms", {"draft": 1.0}),
]


def test_a_broken_part_is_an_error_of_the_same_kind() -> None:
    for name, value in BROKEN:
        body = json.loads(encode(SAMPLE[4])) | {name: value}
        with pytest.raises(ValueError):
            decode(json.dumps(body))
