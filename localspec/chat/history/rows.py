"""Rows of the history's tables from what they keep, and back, with suspicion."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, get_args

from localspec.chat import recording
from localspec.chat.history.kept import Listed, Pair
from localspec.chat.settings import Settings
from localspec.chat.turn import Attachment, Cut, Turn
from localspec.protocol import events
from localspec.protocol.events import Event, FinishReason, Prefill
from localspec.protocol.parts import made

_LARGEST = 256 * 1024 * 1024
"""Bytes of one checkpoint, unpacked: a damaged one must not fill the memory."""

TURN = "key, id, parent, question, attached, answer, reason, attempt, inside, model"
"""The columns of which `turn` makes a turn."""
LISTED = "id, title, pair, turns, created, updated"


def plain(text: str) -> str:
    """What SQLite can keep: lone surrogates become a mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


# --- small parts ------------------------------------------------------------------------


def of_settings(settings: Settings) -> str:
    return json.dumps(asdict(settings))


def settings(text: object) -> Settings:
    """As they were kept; the defaults where that makes no sense."""
    try:
        found = made(Settings, _object(text))
    except ValueError:
        return Settings()
    return found if recording.fits(found, Settings) else Settings()


def of_pair(pair: Pair) -> str:
    return json.dumps(asdict(pair))


def pair(text: object) -> Pair:
    try:
        found = made(Pair, _object(text))
    except ValueError:
        return Pair("")
    sound = recording.fits(found, Pair) and len(found.thinking or "ab") == 2
    return found if sound else Pair("")


def of_cut(cut: Cut) -> str:
    return json.dumps(asdict(cut)) if cut.turns else ""


def cut(text: object) -> Cut:
    """None at all where it makes no sense: then all turns are sent."""
    try:
        found = made(Cut, _object(text)) if text else Cut()
    except ValueError:
        return Cut()
    return found if recording.fits(found, Cut) and found.turns >= 0 else Cut()


def of_attached(attached: Iterable[Attachment]) -> str:
    return json.dumps([[file.name, file.text] for file in attached])


def attached(text: object) -> tuple[Attachment, ...]:
    try:
        return tuple(Attachment(str(name), str(body)) for name, body in json.loads(str(text)))
    except (ValueError, TypeError, RecursionError):
        return ()


def _object(text: object) -> Mapping[str, Any]:
    try:
        body = json.loads(str(text))
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


# --- events -----------------------------------------------------------------------------


def packed(heard: Iterable[Event]) -> bytes:
    """Lines of JSON, compressed: about a sixth."""
    return zlib.compress("\n".join(map(events.encode, heard)).encode(), 6)


def unpacked(body: Any) -> list[Event]:
    """Those of a checkpoint; none of a damaged one, which its checksum gives away."""
    reader = zlib.decompressobj()
    try:
        lines = reader.decompress(body, _LARGEST).decode().split("\n")
    except (TypeError, ValueError, zlib.error):
        return []
    if not reader.eof:
        return []
    found = []
    for line in filter(None, lines):
        try:
            event = events.decode(line)
        except (ValueError, RecursionError):
            continue
        if event is not None:
            found.append(event)
    return found


# --- whole rows -------------------------------------------------------------------------


def listed(row: Sequence[Any]) -> Listed:
    """Raises ValueError where the row makes no sense."""
    id_, title, pair_, turns, created, updated = row
    try:
        return Listed(int(id_), str(title), pair(pair_), int(turns), float(created), float(updated))
    except (TypeError, OverflowError) as error:
        raise ValueError("a damaged row") from error


def turn(row: Sequence[Any], heard: Sequence[Event] | None = None) -> Turn:
    """`heard` are its events; None where they were not looked at.

    Raises ValueError where the row makes no sense.
    """
    _, id_, parent, question, files, answer, reason, attempt, inside, model = row
    if heard is None:
        heard = [Prefill(0, 0, 0, thinking=True)] if inside else []
    if not isinstance(id_, int) or not isinstance(attempt, int):
        raise ValueError("a damaged row")
    return Turn(
        str(question),
        str(answer),
        reason if reason in get_args(FinishReason) else None,
        attempt,
        tuple(heard),
        attached(files),
        id_,
        parent if isinstance(parent, int) else None,
        str(model),
    )


def grown(turns: Iterable[Turn]) -> list[Turn]:
    """Those that make a tree: what follows nothing that is here begins the chat."""
    known: dict[int, Turn] = {}
    for one in sorted(turns, key=lambda turn: turn.id):
        orphan = one.parent is not None and one.parent not in known
        known[one.id] = replace(one, parent=None) if orphan else one
    return list(known.values())
