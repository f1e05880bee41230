"""A kept chat as a document for others: a page by itself, or JSON (docs/json.md)."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from localspec.chat import transcript
from localspec.chat.conversation import Conversation
from localspec.chat.history import Kept, Listed, Pair, Place
from localspec.chat.keeping import title
from localspec.chat.settings import Settings
from localspec.chat.thinking import split
from localspec.chat.turn import Attachment, Turn
from localspec.clean import clean
from localspec.protocol import events

_CODE = re.compile(r"^```([^\n`]*)\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.DOTALL | re.MULTILINE)
_PAGE = """\
<!DOCTYPE html>
<html lang="">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; }}
body {{ padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; }}
h2 {{ font-size: 0.9rem; margin: 1.5rem 0 0.2rem; opacity: 0.7; }}
.said {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.you {{ border-left: 3px solid; padding-left: 0.8rem; }}
details {{ opacity: 0.75; margin: 0.4rem 0; }}
pre {{ overflow-x: auto; padding: 0.6rem; border: 1px solid; border-radius: 4px; }}
footer {{ margin-top: 3rem; font-size: 0.8rem; opacity: 0.6; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
<footer>{footer}</footer>
</body>
</html>
"""


def when(seconds: float) -> str:
    """A moment in UTC, ISO 8601."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat(timespec="seconds")


def so_far(conversation: Conversation, pair: Pair, settings: Settings) -> Kept:
    """A chat as it stands, kept or not."""
    now = datetime.now(UTC).timestamp()
    listed = Listed(0, title(conversation), pair, len(conversation.turns), now, now)
    return Kept(Place("", 0), listed, conversation, settings)


def written(kept: Kept, suffix: str) -> str:
    """In the form that the ending of a file's name asks for."""
    suffix = suffix.lower()
    if suffix == ".json":
        return f"{document(kept)}\n"
    return page(kept) if suffix == ".html" else (markdown if suffix == ".md" else plain)(kept)


def plain(kept: Kept) -> str:
    """Role words before each turn; thinking is left out."""
    pair = kept.listed.pair
    return transcript.plain(kept.conversation, pair.name, pair.thinking)


# --- Markdown -----------------------------------------------------------------------------


def markdown(chat: Kept) -> str:
    """The path that is shown; thinking is left out."""
    pair = chat.listed.pair
    text = transcript.markdown(chat.conversation, pair.name or "model", pair.thinking)
    turns = chat.conversation.turns
    return f"{text}\n*(interrupted)*\n" if turns and turns[-1].reason is None else text


# --- JSON ---------------------------------------------------------------------------------


def listed(one: Listed) -> dict[str, Any]:
    """A chat in a list."""
    return {
        "id": one.id,
        "title": one.title,
        "model": one.pair.name,
        "pair": {"model": one.pair.model, "draft": one.pair.draft},
        "turns": one.turns,
        "created": when(one.created),
        "updated": when(one.updated),
    }


def document(chat: Kept, *, rounds: bool = False) -> str:
    """All branches; with every event of the answers where `rounds`."""
    conversation = chat.conversation
    body = {
        "schema": 1,
        "chat": listed(chat.listed)
        | {
            "seed": conversation.seed,
            "system": conversation.system,
            "settings": asdict(chat.settings),
            "path": [turn.id for turn in conversation.turns],
            "turns": [_turn(turn, chat, rounds) for turn in conversation.all],
        },
    }
    return json.dumps(body)


def _turn(turn: Turn, chat: Kept, rounds: bool) -> dict[str, Any]:
    parts = split(turn.answer, chat.listed.pair.thinking, turn.begins_inside)
    body = {
        "id": turn.id,
        "parent": turn.parent,
        "attempt": turn.attempt,
        "model": turn.model,
        "question": turn.question,
        "attached": [asdict(file) for file in turn.attached],
        "thinking": "".join(part.text for part in parts if part.thought),
        "answer": "".join(part.text for part in parts if not part.thought),
        "finish_reason": turn.reason,
        "interrupted": turn.reason is None,
    }
    if rounds:
        body["events"] = [json.loads(events.encode(event)) for event in turn.events]
    return body


# --- HTML ---------------------------------------------------------------------------------


def page(chat: Kept) -> str:
    """The path that is shown, as one file that needs no other; thinking is folded."""
    title = _safe(chat.listed.title, multiline=False) or "A chat"
    name = _safe(chat.listed.pair.name, multiline=False) or "model"
    system = chat.conversation.system
    blocks = [f"<h2>System</h2>\n{_said(system)}"] if system else []
    for turn in chat.conversation.turns:
        blocks += _asked(turn)
        blocks.append(f"<h2>{_safe(turn.model, multiline=False) or name}</h2>")
        blocks += _answered(turn, chat)
    footer = f"{name} · {when(chat.listed.updated)} · localspec"
    return _PAGE.format(title=title, body="\n".join(blocks), footer=footer)


def _asked(turn: Turn) -> Iterator[str]:
    if turn.question or turn.attached:
        yield "<h2>You</h2>"
    yield from map(_file, turn.attached)
    if turn.question:
        yield _said(turn.question, "said you")


def _file(file: Attachment) -> str:
    name = _safe(file.name, multiline=False)
    return f"<details><summary>{name}</summary><pre>{_safe(file.text)}</pre></details>"


def _answered(turn: Turn, chat: Kept) -> Iterator[str]:
    for part in split(turn.answer, chat.listed.pair.thinking, turn.begins_inside):
        if part.thought:
            words = _said(part.text.strip("\n"))
            yield f"<details><summary>Thinking</summary>{words}</details>"
        else:
            yield from _parts(part.text)
    if turn.reason is None:
        yield "<p><em>interrupted</em></p>"


def _parts(text: str) -> Iterator[str]:
    """Prose as it stands, and code between fences."""
    end = 0
    for code in _CODE.finditer(text):
        yield from _prose(text[end : code.start()])
        yield f"<pre><code>{_safe(code[2])}</code></pre>"
        end = code.end()
    yield from _prose(text[end:])


def _prose(text: str) -> Iterator[str]:
    if text.strip():
        yield _said(text.strip("\n"))


def _said(text: str, kind: str = "said") -> str:
    return f'<div class="{kind}">{_safe(text)}</div>'


def _safe(text: str, *, multiline: bool = True) -> str:
    return html.escape(clean(text, multiline=multiline))
