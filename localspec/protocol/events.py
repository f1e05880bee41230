"""Events of the engine, as frozen msgspec Structs and as lines of JSON.

The wire, `--events` files and history use the same schema, which docs/events.md
describes. Every line has `"v": 1` and `"ev"`. Unknown fields are ignored, and unknown
events skipped.
"""

from __future__ import annotations

import json
import json.encoder
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from localspec.protocol.json_values import Number, from_json, to_plain

SCHEMA_VERSION = 1
TokenCount = Annotated[int, Meta(ge=0)]
DraftCount = Annotated[int, Meta(ge=0, le=100_000)]
"""Draft tokens of a round; a file with more of them is damaged."""
MAX_REJECTED_CHARS = 64
"""Of one rejected draft token: a token of 128 spaces need not be shown whole."""
RejectedText = Annotated[str, Meta(max_length=MAX_REJECTED_CHARS)]

TokenClass = Literal["accepted", "bonus", "correction", "plain"]
FinishReason = Literal["eog", "stop", "length", "context", "cancelled", "error"]
SpeculationState = Literal["on", "probing", "paused", "off"]
Overlap = Literal["", "hit", "miss"]
"""Whether a draft was continued during the target pass before.

`hit`: what was drafted then could be used; `miss`: it could not.
"""


class Alternative(Struct, frozen=True):
    """A token that was not emitted.

    `p` and `rank` are the target's; `p_draft` is None unless it is the rejected draft
    token of a draft model.
    """

    id: int
    text: str
    p: Number
    rank: int
    p_draft: Number | None = None
    was_drafted: bool = field(default=False, name="guessed")
    """Whether this is the draft token that was rejected here."""
    piece: str | None = None  # As in `Token`.


class TokenScore(Struct, frozen=True):
    """Probabilities of one token of a finished answer; fields as in `Token`."""

    p_target: Number
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
    kind: TokenClass = field(name="class")
    p_target: Number | None = None
    p_draft: Number | None = None
    rank: int | None = None
    alternatives: tuple[Alternative, ...] = field(default=(), name="instead")
    """The rejected draft token first, then the target's likeliest other tokens."""
    piece: str | None = None
    """Its own bytes, as Latin-1, where they are not those of `text`."""


class RoundTimes(Struct, frozen=True):
    """Milliseconds of a round.

    `draft` and `verify` are inside llama_decode of the draft and of the target; `host`
    is outside both.
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
    load_ms: Number
    notices: tuple[Notice, ...] = ()


class Prefill(Struct, frozen=True):
    """The prompt tokens in the KV cache so far.

    They are `done` of `total`, and `reused` of them were there before.
    """

    done: TokenCount
    total: TokenCount
    reused: TokenCount
    thinking: bool = False  # Whether the answer begins inside a thinking part.


class Thumbnail(Struct, frozen=True):
    """A small copy of a picture: its rows from the top, three bytes (RGB) a pixel."""

    width: Annotated[int, Meta(ge=1, le=256)]
    height: Annotated[int, Meta(ge=1, le=256)]
    rgb: Annotated[str, Meta(max_length=400_000)]  # In Base64.


class PictureReading(Struct, frozen=True):
    """The projector begins to read a picture or audio of the prompt.

    It is the `n`th of the `of` that it has to read for this answer; it reads none again
    that it knows.
    """

    n: Annotated[int, Meta(ge=1)]
    of: Annotated[int, Meta(ge=1)]
    rows: TokenCount  # Of the context.
    width: Annotated[int, Meta(ge=0)] = 0  # In pixels, as a person sees it.
    height: Annotated[int, Meta(ge=0)] = 0
    seconds: Number | None = None  # How long audio is; None: it is a picture.
    sha256: str = ""
    seconds_expected: Number | None = None  # None: unknown.
    thumbnail: Thumbnail | None = None


class SpeculationPlan(Struct, frozen=True):
    """The state of speculation and its reason.

    `speedup` is over plain decoding, None if not measured; `until` is the round of the
    next probe while paused.
    """

    state: SpeculationState
    why: str
    speedup: Number | None = None
    until: int | None = None


class Round(Struct, frozen=True):
    """One round of draft, verify, accept and commit.

    `source` is None if nothing was drafted.
    """

    n: int
    source: str | None
    reason: str
    drafted: DraftCount
    accepted: DraftCount
    tokens: tuple[Token, ...]
    ms: RoundTimes
    overlap: Overlap = ""
    rejected: tuple[RejectedText, ...] = ()
    """The texts of the draft tokens that were thrown away, in their order.

    The first is the one that the target rejected; those after it continued a text that
    was not written. Earlier versions did not record them.
    """


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
    | PictureReading
    | SpeculationPlan
    | Round
    | Notice
    | GenerationFinished
    | EngineExit
)

_EVENT_TYPES: dict[str, type[Event]] = {
    "ready": EngineReady,
    "prefill": Prefill,
    "picture": PictureReading,
    "plan": SpeculationPlan,
    "round": Round,
    "notice": Notice,
    "finished": GenerationFinished,
    "dead": EngineExit,
}
"""Names on the wire, in event files and in the history: not the classes' names."""
_EVENT_NAMES = {kind: name for name, kind in _EVENT_TYPES.items()}
_quote = json.encoder.encode_basestring_ascii
_to_compact_json = json.JSONEncoder(separators=(",", ":")).encode


def encode(event: Event) -> str:
    """One line of JSON, without a line feed."""
    if isinstance(event, Round):
        return _encode_round(event)
    head = {"v": SCHEMA_VERSION, "ev": _EVENT_NAMES[type(event)]}
    return _to_compact_json(head | to_plain(event))


def _encode_round(event: Round) -> str:
    """Encode a round without dictionaries: nothing else is encoded for every token.

    A round of four tokens takes 8 µs, by `to_builtins` and `json` 56 µs. msgspec's own
    encoder takes 6 µs, but it writes no lone surrogates, and it does not escape text
    outside ASCII, as event files always had it.
    """
    tokens = ",".join(map(_encode_token, event.tokens))
    source = "null" if event.source is None else _quote(event.source)
    reason = _quote(event.reason)
    overlap = f',"overlap":"{event.overlap}"' if event.overlap else ""
    rejected = ""
    if event.rejected:
        rejected = f',"rejected":[{",".join(map(_quote, event.rejected))}]'
    ms = event.ms
    times = f'{{"draft":{ms.draft!r},"verify":{ms.verify!r},"host":{ms.host!r}}}'
    head = f'"v":{SCHEMA_VERSION},"ev":"round","n":{event.n},"source":{source}'
    counts = f'"drafted":{event.drafted},"accepted":{event.accepted}'
    return (
        f'{{{head},"reason":{reason},{counts},"tokens":[{tokens}],"ms":{times}'
        f"{overlap}{rejected}}}"
    )


def _encode_token(token: Token) -> str:
    if token.p_target is not None:
        return _to_compact_json(token_to_json(token))
    return f'{{"id":{token.id},"text":{_quote(token.text)},"class":"{token.kind}"}}'


def token_to_json(token: Token) -> dict[str, Any]:
    """The JSON object of a token, with probabilities if it has any."""
    if token.p_target is None:
        return {"id": token.id, "text": token.text, "class": token.kind}
    body: dict[str, Any] = to_plain(token)
    body["instead"] = list(body["instead"])
    for part in (body, *body["instead"]):
        if part["piece"] is None:
            del part["piece"]
    return body


def decode(line: str) -> Event | None:
    """As `parse_event`, from a line."""
    return parse_event(json.loads(line))


def parse_event(body: Any) -> Event | None:
    """None for an event unknown to this version.

    Raises ValueError if it is not an event, or a field is missing or wrong.
    """
    if not isinstance(body, dict) or "ev" not in body:
        raise ValueError("not an event")
    kind = _EVENT_TYPES.get(str(body["ev"]))
    if kind is None:
        return None
    event = from_json(kind, body)
    if isinstance(event, Round) and event.accepted > event.drafted:
        raise ValueError("a round with more accepted than drafted tokens")
    if isinstance(event, PictureReading) and event.thumbnail is not None:
        thumbnail = event.thumbnail
        # Three bytes are four characters of Base64.
        if len(thumbnail.rgb) != 4 * thumbnail.width * thumbnail.height:
            raise ValueError("a thumbnail of another size")
    return event
