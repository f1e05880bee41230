"""Events of the engine, as frozen dataclasses and as JSON lines.

The wire, `--events` files and history use the same schema. Every line has `"v": 1` and
`"ev"`; unknown fields are ignored and unknown events skipped. Documented in
docs/events.md.
"""

from __future__ import annotations

import json
import json.encoder
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import fields

SCHEMA_VERSION = 1
_MAX_DRAFTED = 100_000  # More draft tokens in a round are no number of ours.

TokenClass = Literal["accepted", "bonus", "correction", "plain"]
FinishReason = Literal["eog", "stop", "length", "context", "cancelled", "error"]
SpeculationState = Literal["on", "probing", "paused", "off"]
Overlap = Literal["", "hit", "miss"]
"""Whether a draft was continued during the target pass before, and if so, whether what
was drafted then could be used.
"""


class Alternative(Struct, frozen=True):
    """A token that was not emitted. `p` and `rank` are the target's; `p_draft` is None
    unless it is the rejected draft token of a draft model.
    """

    id: int
    text: str
    p: float
    rank: int
    p_draft: float | None = None
    was_drafted: bool = False  # Whether this is the draft token that was rejected here.
    piece: str | None = None  # As in `Token`.


class TokenScore(Struct, frozen=True):
    """Probabilities of one token of a finished answer; fields as in `Token`."""

    p_target: float
    rank: int
    alternatives: tuple[Alternative, ...] = ()


class Token(Struct, frozen=True):
    """One emitted token. `text` is empty while its last character is incomplete.

    The other fields are None unless probabilities were requested: softmax of the raw
    logits, before temperature and truncation. `rank` counts from 1; `p_draft` is None
    if no draft model was used.
    """

    id: int
    text: str
    kind: TokenClass
    p_target: float | None = None
    p_draft: float | None = None
    rank: int | None = None
    alternatives: tuple[Alternative, ...] = ()
    """The rejected draft token first, then the target's likeliest other tokens."""
    # Its own bytes, as Latin-1, where they are not those of `text`.
    piece: str | None = None


class RoundTimes(Struct, frozen=True):
    """Milliseconds of a round: in the draft's llama_decode, in the target's, outside
    both.
    """

    draft: float
    verify: float
    host: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.host


class Notice(Struct, frozen=True):
    """A message for the user."""

    level: Literal["info", "warning", "error"]
    code: str
    message: str
    hint: str = ""


class EngineReady(Struct, frozen=True):
    """The pair is loaded.

    `settings` are the effective ones; memory in bytes, None if unknown.
    """

    engine: dict[str, str]
    model: str
    draft: str | None
    devices: tuple[str, ...]
    settings: dict[str, Any]
    memory: dict[str, int | None]
    load_ms: float
    notices: tuple[Notice, ...] = ()


class Prefill(Struct, frozen=True):
    """Prompt tokens in the KV cache so far, of how many, and how many of them were
    reused.
    """

    done: int
    total: int
    reused: int
    thinking: bool = False  # Whether the answer begins inside a thinking part.


class SpeculationPlan(Struct, frozen=True):
    """The state of speculation and its reason.

    `speedup` is over plain decoding, None if not measured; `until` is the round of the
    next probe while paused.
    """

    state: SpeculationState
    why: str
    speedup: float | None = None
    until: int | None = None


class Round(Struct, frozen=True):
    """One round of draft, verify, accept and commit; `source` is None if nothing was
    drafted.
    """

    n: int
    source: str | None
    reason: str
    drafted: int
    accepted: int
    tokens: tuple[Token, ...]
    ms: RoundTimes
    overlap: Overlap = ""


class GenerationFinished(Struct, frozen=True):
    """The end of an answer.

    `tail` is the text that was held back in the UTF-8 or stop buffer.
    """

    reason: FinishReason
    tail: str = ""
    totals: dict[str, Any] = field(default_factory=dict)
    stop: str = ""  # The stop string that ended it.


class EngineExit(Struct, frozen=True):
    """The engine process exited: the cause, its last log lines, and a hint."""

    how: str
    log: tuple[str, ...] = ()
    hint: str = ""


Event = (
    EngineReady
    | Prefill
    | SpeculationPlan
    | Round
    | Notice
    | GenerationFinished
    | EngineExit
)

_EVENT_TYPES: dict[str, type[Event]] = {
    "ready": EngineReady,
    "prefill": Prefill,
    "plan": SpeculationPlan,
    "round": Round,
    "notice": Notice,
    "finished": GenerationFinished,
    "dead": EngineExit,
}
"""Names on the wire, in --events files and in the history; they do not follow class
names.
"""
_FIELDS = {
    kind: tuple(f.name for f in fields(kind))
    for kind in (*_EVENT_TYPES.values(), RoundTimes)
}
_ALTERNATIVE_KEYS = {
    "guessed" if f.name == "was_drafted" else f.name: f.name
    for f in fields(Alternative)
}
"""JSON keys and fields."""
_EVENT_NAMES = {kind: name for name, kind in _EVENT_TYPES.items()}
_quote = json.encoder.encode_basestring_ascii
_to_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(event: Event) -> str:
    """One line of JSON, without a line feed."""
    if isinstance(event, Round):
        return _encode_round(event)
    head = {"v": SCHEMA_VERSION, "ev": _EVENT_NAMES[type(event)]}
    return _to_compact_json(head | _to_json_value(event))


def _encode_round(event: Round) -> str:
    """Without dictionaries, because nothing else is encoded for every token."""
    tokens = ",".join(
        [
            f'{{"id":{token.id},"text":{_quote(token.text)},"class":"{token.kind}"}}'
            if token.p_target is None
            else _to_compact_json(token_to_json(token))
            for token in event.tokens
        ]
    )
    source = "null" if event.source is None else _quote(event.source)
    ms = event.ms
    overlap = f',"overlap":"{event.overlap}"' if event.overlap else ""
    return (
        f'{{"v":{SCHEMA_VERSION},"ev":"round","n":{event.n},"source":{source},'
        f'"reason":{_quote(event.reason)},"drafted":{event.drafted},"accepted":{event.accepted},'
        f'"tokens":[{tokens}],"ms":{{"draft":{ms.draft!r},"verify":{ms.verify!r},'
        f'"host":{ms.host!r}}}{overlap}}}'
    )


def decode(line: str) -> Event | None:
    """As `from_json`, from a line."""
    return from_json(json.loads(line))


def from_json(value: Any) -> Event | None:
    """None for an event unknown to this version.

    Raises ValueError if it is not an event.
    """
    if not isinstance(value, dict) or "ev" not in value:
        raise ValueError("not an event")
    kind = _EVENT_TYPES.get(str(value["ev"]))
    if kind is None:
        return None
    given = [name for name in _FIELDS[kind] if name in value]
    try:
        event = kind(**{name: _from_json_value(name, value[name]) for name in given})
        if (
            isinstance(event, Round)
            and not 0 <= event.accepted <= event.drafted <= _MAX_DRAFTED
        ):
            raise ValueError("a round with an impossible number of draft tokens")
        return event
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"a field of {value['ev']!r} is missing or wrong") from error


def _to_json_value(value: Any) -> Any:
    if names := _FIELDS.get(type(value)):
        return {name: _to_json_value(getattr(value, name)) for name in names}
    return list(map(_to_json_value, value)) if isinstance(value, tuple) else value


def token_to_json(token: Token) -> dict[str, Any]:
    """The JSON object of a token, with probabilities if it has any."""
    body: dict[str, Any] = {"id": token.id, "text": token.text, "class": token.kind}
    if token.p_target is not None:
        body |= {
            "p_target": token.p_target,
            "p_draft": token.p_draft,
            "rank": token.rank,
        }
        items = [
            {key: getattr(alternative, name) for key, name in _ALTERNATIVE_KEYS.items()}
            for alternative in token.alternatives
        ]
        body["instead"] = [
            {
                key: value
                for key, value in item.items()
                if key != "piece" or value is not None
            }
            for item in items
        ]
        if token.piece is not None:
            body["piece"] = token.piece
    return body


def _parse_token(body: dict[str, Any]) -> Token:
    if "p_target" not in body:
        return Token(body["id"], body["text"], body["class"])
    alternatives = tuple(
        Alternative(
            **{
                name: item[key]
                for key, name in _ALTERNATIVE_KEYS.items()
                if key in item
            }
        )
        for item in body["instead"]
    )
    scores = body["p_target"], body.get("p_draft"), body.get("rank")
    piece = body.get("piece")
    return Token(body["id"], body["text"], body["class"], *scores, alternatives, piece)


def _from_json_value(name: str, value: Any) -> Any:
    if name == "tokens":
        return tuple(map(_parse_token, value))
    if name == "ms":
        return RoundTimes(
            float(value["draft"]), float(value["verify"]), float(value["host"])
        )
    if name == "notices":
        names = _FIELDS[Notice]
        return tuple(
            Notice(**{n: notice[n] for n in names if n in notice}) for notice in value
        )
    return tuple(value) if isinstance(value, list) else value
