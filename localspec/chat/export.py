"""Exporting a chat as text, Markdown, HTML or JSON (docs/json.md)."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from localspec.chat.conversation import (
    CallResult,
    Conversation,
    PictureAttachment,
    Turn,
    format_question,
)
from localspec.chat.history import (
    ChatListEntry,
    ChatLocation,
    ChatPair,
    SavedChat,
    name_answers,
    name_chat_model,
)
from localspec.chat.pictures import PictureReader, no_pictures
from localspec.chat.settings import ChatSettings
from localspec.chat.titles import make_title
from localspec.config import toml_file
from localspec.errors import StorageError
from localspec.protocol import events
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_CODE_BLOCK = re.compile(
    r"^```[^\n`]*\n(.*?)(?:^```[ \t]*$\n?|\Z)", re.DOTALL | re.MULTILINE
)

_FENCE = re.compile(r"^`{3,}", re.MULTILINE)
_MARKDOWN_MARK = re.compile(r"[\[\]\\<>&*`]")

_HTML_PAGE = """\
<!DOCTYPE html>
<html lang="">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{policy}">
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


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PICTURE_POLICY = "; img-src data:"  # A page without pictures lacks it.
_AUDIO_POLICY = "; media-src data:"
_MEDIA_TYPES = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "bmp": "image/bmp",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
}
"""The media types, by the kind of a picture or of audio."""


def format_timestamp(seconds: float) -> str:
    """Format seconds since 1970 as ISO 8601 in UTC; invalid values give 1970."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    return "1970-01-01T00:00:00+00:00"


def snapshot_chat(
    conversation: Conversation,
    pair: ChatPair,
    settings: ChatSettings,
    read_picture: PictureReader = no_pictures,
) -> SavedChat:
    """Copy a conversation, so that it can be exported while it goes on."""
    now = datetime.now(UTC).timestamp()
    entry = ChatListEntry(
        id=0,
        title=make_title(conversation),
        pair=pair,
        turn_count=len(conversation.questions),
        created=now,
        updated=now,
    )
    return SavedChat(
        ChatLocation("", 0), entry, conversation.copy(), settings, read_picture
    )


def render(chat: SavedChat, suffix: str) -> str:
    """Render the format of a file suffix: .json, .html, .md, else plain text."""
    renderers = {".html": render_html, ".md": render_markdown, ".json": render_json}
    render_chat = renderers.get(suffix.lower(), render_text)
    return render_chat(chat)


def save_file(path: Path, text: str, *, overwrite: bool) -> None:
    """Write the file atomically. Raises StorageError."""
    shown = sanitize(str(path), multiline=False)
    if not overwrite and os.path.exists(path):
        raise StorageError(f"{shown} already exists.", "Choose another name.")
    if not os.path.isdir(path.parent):
        raise StorageError(
            f"{shown} cannot be written: no such folder.", "Choose another place."
        )
    toml_file.write_atomically(path, text.encode("utf-8", "replace").decode())


def render_text(chat: SavedChat) -> str:
    """The selected path, without thinking; pictures are named."""
    speeches = _speeches(chat, "Answer", _name_picture)
    blocks = (f"{speaker}: {text}".rstrip("\n") for speaker, text in speeches)
    return "\n\n".join(blocks) + "\n"


def render_markdown(chat: SavedChat) -> str:
    """The selected path, without thinking; pictures are in it."""
    name = name_chat_model(chat.list_entry.pair) or "model"

    def show_picture(picture: PictureAttachment) -> str:
        address = _picture_address(picture, chat)
        if not address:
            return _name_picture(picture)
        text = _MARKDOWN_MARK.sub(r"\\\g<0>", _picture_name(picture))
        if picture.is_audio:
            return f"[{text}]({address})"
        return f"![{text}]({address})"

    blocks = [f"# A chat with {name}"]
    for speaker, text in _speeches(chat, "model", show_picture, _fence):
        blocks += [f"## {speaker}", _close_blocks(text.strip("\n"))]
    turns = chat.conversation.turns
    if turns and turns[-1].finish_reason is None:
        blocks.append("*(interrupted)*")
    return "\n\n".join(blocks) + "\n"


_HTML_ENDS = {
    "<!--": "-->",
    "<?": "?>",
    "<![cdata[": "]]>",
    "<!": ">",
    **{f"<{tag}": f"</{tag}>" for tag in ("script", "pre", "style", "textarea")},
}
"""What ends an HTML block that a blank line does not (CommonMark 0.31, section 4.6)."""


@cache
def _block_parser() -> MarkdownIt:
    """CommonMark's blocks, without what is inside of them: a quarter of the time."""
    from markdown_it import MarkdownIt  # noqa: PLC0415  only for this format

    return MarkdownIt().disable("inline")


def _close_blocks(text: str) -> str:
    """Close the code or HTML block that the text leaves open.

    It would swallow what follows.
    """
    last = _block_parser().parse(f"{text}\n\n# end")[-1]
    if last.type == "fence":
        return f"{text}\n{last.markup}"
    if last.type == "html_block":
        opening = last.content.lstrip().lower()
        for start, end in _HTML_ENDS.items():
            if opening.startswith(start):
                return f"{text}\n{end}"
        return f"{text}\n"
    return text


def _fence(text: str) -> str:
    """A code block, whose fence is longer than each fence in the text."""
    longest = max(_FENCE.findall(text), key=len, default="``")
    fence = f"{longest}`"
    return f"{fence}\n{text}\n{fence}"


def _speeches(
    chat: SavedChat,
    default_name: str,
    show_picture: Callable[[PictureAttachment], str],
    show_result: Callable[[str], str] = lambda text: text,
) -> Iterator[tuple[str, str]]:
    """Yield each speaker and what was said; a tool is the speaker of its result.

    `default_name`: of a model that is unknown. `show_picture`, `show_result`: what
    stands for a picture, and for the text of a result.
    """
    conversation = chat.conversation
    pair = chat.list_entry.pair
    names = _name_answers(chat)
    n_before = _turns_before_system(conversation)
    for n, turn in enumerate(conversation.turns):
        if n == n_before:
            yield "System", sanitize(conversation.system)
        parts = [show_picture(picture) for picture in turn.pictures]
        question = sanitize(format_question(turn))
        if question:
            parts.append(question)
        if parts:
            yield "You", "\n\n".join(parts)
        for result in turn.results:
            shown = [show_picture(picture) for picture in result.pictures]
            shown.append(show_result(sanitize(result.text)))
            yield _name_result(result), "\n\n".join(shown)
        said = sanitize(turn.visible_answer(pair.thinking))
        calls = _describe_calls(turn)
        yield (
            names[turn.model] or default_name,
            "\n\n".join(filter(None, [said, calls])),
        )


def _name_result(result: CallResult) -> str:
    """The heading of a result: its tool, and whether the call failed."""
    name = sanitize(result.tool, multiline=False)
    return f"{name} (failed)" if result.is_error else name


def _describe_calls(turn: Turn) -> str:
    """A line for each call of an answer; empty without calls."""
    lines: list[str] = []
    for call in turn.calls:
        line = f"[call: {call.name} {call.arguments}]"
        lines.append(sanitize(line, multiline=False))
    return "\n".join(lines)


def _picture_name(picture: PictureAttachment) -> str:
    return sanitize(picture.name, multiline=False)


def _name_picture(picture: PictureAttachment) -> str:
    return f"[{picture.word}: {_picture_name(picture)}]"


def _picture_address(picture: PictureAttachment, chat: SavedChat) -> str:
    """The picture as an address that has its bytes; empty if they are not there."""
    data = chat.read_picture(picture.sha256)
    media_type = _MEDIA_TYPES.get(picture.kind)
    if data is None or media_type is None:
        return ""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _name_answers(chat: SavedChat) -> dict[str, str]:
    pair = chat.list_entry.pair
    return name_answers(name_chat_model(pair), pair, chat.conversation.turns)


def _turns_before_system(conversation: Conversation) -> int | None:
    """Turns of the path before the system prompt was set; None if no turn had it."""
    if conversation.system:
        for n, turn in enumerate(conversation.turns):
            if turn.id > conversation.system_since:
                return n
    return None


def list_entry_json(entry: ChatListEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "title": entry.title,
        "model": entry.pair.name,
        "pair": {"model": entry.pair.model, "draft": entry.pair.draft},
        "turns": entry.turn_count,
        "created": format_timestamp(entry.created),
        "updated": format_timestamp(entry.updated),
    }


def render_json(chat: SavedChat, *, with_events: bool = False) -> str:
    """All branches; `with_events` adds the engine events of each answer.

    The bytes of a picture are there once, however many turns have it.
    """
    conversation = chat.conversation
    body = list_entry_json(chat.list_entry) | {
        "seed": conversation.seed,
        "system": conversation.system,
        "settings": to_builtins(chat.settings),
        "path": [turn.id for turn in conversation.turns],
        "turns": [
            _turn_json(turn, chat, with_events=with_events)
            for turn in conversation.all_turns
        ],
    }
    pictures = _pictures_json(chat)
    if pictures:
        body["pictures"] = pictures
    return json.dumps({"schema": 1, "chat": body}) + "\n"


def _pictures_json(chat: SavedChat) -> dict[str, str]:
    """The bytes of all pictures in Base64, by hash, without those that were lost."""
    pictures: dict[str, str] = {}
    for turn in chat.conversation.all_turns:
        for picture in turn.all_pictures:
            if picture.sha256 in pictures:
                continue
            data = chat.read_picture(picture.sha256)
            if data is not None:
                pictures[picture.sha256] = base64.b64encode(data).decode()
    return pictures


def _turn_json(turn: Turn, chat: SavedChat, *, with_events: bool) -> dict[str, Any]:
    parts = turn.split_answer(chat.list_entry.pair.thinking)
    body = {
        "id": turn.id,
        "parent": turn.parent,
        "attempt": turn.attempt,
        "model": turn.model,
        "question": turn.question,
        "attached": [to_builtins(file) for file in turn.attachments],
        "thinking": "".join(part.text for part in parts if part.is_thinking),
        "answer": "".join(part.text for part in parts if not part.is_thinking),
        "finish_reason": turn.finish_reason,
        "interrupted": turn.finish_reason is None,
    }
    if turn.pictures:
        body["pictures"] = [to_builtins(picture) for picture in turn.pictures]
    if turn.calls:
        body["calls"] = [to_builtins(call) for call in turn.calls]
        body["call_format"] = turn.call_format
    if turn.results:
        body["results"] = [to_builtins(result) for result in turn.results]
    if with_events:
        body["events"] = [json.loads(events.encode(event)) for event in turn.events]
    return body


def render_html(chat: SavedChat) -> str:
    """The selected path as one self-contained page; thinking is collapsed."""
    title = _escape(chat.list_entry.title, multiline=False) or "A chat"
    names = _name_answers(chat)
    name = _escape(names[""]) or "model"
    blocks: list[str] = []
    n_before = _turns_before_system(chat.conversation)
    for n, turn in enumerate(chat.conversation.turns):
        if n == n_before:
            blocks.append(f"<h2>System</h2>\n{_text_html(chat.conversation.system)}")
        blocks += _question_html(turn, chat)
        blocks += _results_html(turn, chat)
        blocks.append(f"<h2>{_escape(names[turn.model]) or name}</h2>")
        blocks += _answer_html(turn, chat)
    footer = f"{name} · {format_timestamp(chat.list_entry.updated)} · localspec"
    policy = _POLICY
    shown: list[PictureAttachment] = []
    for turn in chat.conversation.turns:
        shown += turn.all_pictures
    if any(not each.is_audio for each in shown):
        policy += _PICTURE_POLICY
    if any(each.is_audio for each in shown):
        policy += _AUDIO_POLICY
    return _HTML_PAGE.format(
        title=title, body="\n".join(blocks), footer=footer, policy=policy
    )


def _question_html(turn: Turn, chat: SavedChat) -> Iterator[str]:
    if turn.question or turn.attachments or turn.pictures:
        yield "<h2>You</h2>"
    for picture in turn.pictures:
        yield _picture_html(picture, chat)
    for file in turn.attachments:
        name = _escape(file.name, multiline=False)
        yield f"<details><summary>{name}</summary><pre>{_escape(file.text)}</pre></details>"
    if turn.question:
        yield _text_html(turn.question, "said you")


def _results_html(turn: Turn, chat: SavedChat) -> Iterator[str]:
    for result in turn.results:
        name = _escape(_name_result(result), multiline=False)
        text = _escape(result.text)
        yield f"<details><summary>{name}</summary><pre>{text}</pre></details>"
        for picture in result.pictures:
            yield _picture_html(picture, chat)


def _picture_html(picture: PictureAttachment, chat: SavedChat) -> str:
    name = _escape(picture.name, multiline=False)
    address = _picture_address(picture, chat)
    if not address:
        return _text_html(_name_picture(picture))
    if picture.is_audio:
        return f'<p><audio controls src="{address}" title="{name}"></audio> {name}</p>'
    style = "max-width: 100%; max-height: 30rem"
    return f'<p><img src="{address}" alt="{name}" title="{name}" style="{style}"></p>'


def _answer_html(turn: Turn, chat: SavedChat) -> Iterator[str]:
    for part in turn.split_answer(chat.list_entry.pair.thinking):
        if part.is_thinking:
            body = _text_html(part.text.strip("\n"))
            yield f"<details><summary>Thinking</summary>{body}</details>"
        else:
            yield from _markdown_html(part.text)
    if turn.calls:
        yield _text_html(_describe_calls(turn))
    if turn.finish_reason is None:
        yield "<p><em>interrupted</em></p>"


def _markdown_html(text: str) -> Iterator[str]:
    for n, part in enumerate(_CODE_BLOCK.split(text)):  # every second one is code
        if n % 2:
            yield f"<pre><code>{_escape(part)}</code></pre>"
        elif part.strip():
            yield _text_html(part.strip("\n"))


def _text_html(text: str, css_class: str = "said") -> str:
    return f'<div class="{css_class}">{_escape(text)}</div>'


def _escape(text: str, *, multiline: bool = True) -> str:
    return html.escape(sanitize(text, multiline=multiline))
