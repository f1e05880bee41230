"""Pictures in exports of chats, and in imports of our own exports."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from localspec.chat import chat_import, copying, export
from localspec.chat.conversation import Conversation, PictureAttachment
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.import_formats import parse_document
from localspec.chat.settings import ChatSettings
from localspec.errors import UsageError
from tests.chat.saved_chats import PAIR, about, add_events, answer
from tests.support.chat_pictures import PHOTO, SKETCH, attachment, thumbnail

HOSTILE = 'a](x) ![b"><script>\x1b[2J\u202e.png'
BODIES = {attachment(data).sha256: data for data in (PHOTO, SKETCH)}
ADDRESS = f"data:image/png;base64,{base64.b64encode(PHOTO).decode()}"


def chat(*pictures: PictureAttachment, question: str = "What is it?") -> SavedChat:
    conversation = Conversation(7)
    conversation.ask(question, (), pictures)
    add_events(conversation, answer("A photo."))
    conversation.retry()
    add_events(conversation, answer("A picture."))
    return export.snapshot_chat(conversation, PAIR, ChatSettings(), BODIES.get)


class Pictures(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.policy = ""
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = dict(attrs)
        if tag == "img":
            self.found.append(values)
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"] or ""


def test_a_page_shows_the_picture() -> None:
    page = Pictures(export.render_html(chat(attachment(name=HOSTILE))))

    (picture,) = page.found
    assert picture["src"] == ADDRESS
    assert picture["alt"] == 'a](x) ![b"><script>\ufffd.png'
    assert "script" not in page.tags
    assert page.policy.endswith("; img-src data:")


def test_a_page_without_pictures_allows_none() -> None:
    page = Pictures(export.render_html(chat()))
    assert page.policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_markdown_shows_the_picture_before_the_question() -> None:
    text = export.render_markdown(chat(attachment(name=HOSTILE)))

    tokens = MarkdownIt().parse(text)
    inline = [token for token in tokens if token.type == "inline"]
    images = [
        child
        for token in inline
        for child in token.children or ()
        if child.type == "image"
    ]
    (image,) = images
    assert image.attrs["src"] == ADDRESS
    assert image.children is not None
    shown = "".join(child.content for child in image.children)
    assert shown == 'a](x) ![b"><script>\ufffd.png'
    assert text.index(ADDRESS) < text.index("What is it?")


def test_a_plain_text_names_the_picture() -> None:
    text = export.render_text(chat(attachment()))
    assert text.startswith("You: [image: photo.png]\n\nWhat is it?\n\n")
    alone = export.render_text(chat(attachment(), question=""))
    assert alone.startswith("You: [image: photo.png]\n\n")


def test_a_copy_of_the_chat_names_the_picture() -> None:
    text = copying.select_text(chat(attachment()), "all")
    assert "[image: photo.png]" in text
    assert "base64" not in text


@pytest.mark.parametrize("render", [export.render_html, export.render_markdown])
def test_a_picture_that_was_lost_is_named(render: Any) -> None:
    lost = replace(chat(attachment()), read_picture={}.get)
    assert "[image: photo.png]" in render(lost)


@pytest.mark.parametrize("kind", ["svg+xml", "html", 'png"><script>'])
def test_a_picture_of_an_unknown_kind_is_named(kind: str) -> None:
    text = export.render_html(chat(replace(attachment(), kind=kind)))
    assert "[image: photo.png]" in text
    assert "<img" not in text


def test_json_has_the_bytes_once() -> None:
    text = export.render_json(chat(attachment(), attachment(name="again.png")))

    body = json.loads(text)["chat"]
    assert body["pictures"] == {attachment().sha256: base64.b64encode(PHOTO).decode()}
    names = [picture["name"] for picture in body["turns"][1]["pictures"]]
    assert names == ["photo.png", "again.png"]


def test_json_without_pictures_is_as_it_was() -> None:
    body = json.loads(export.render_json(chat()))["chat"]
    assert "pictures" not in body
    assert all("pictures" not in turn for turn in body["turns"])


# --- imports


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(tmp_path / "chats" / "chats.sqlite")) as opened:
        yield opened


def test_our_own_export_brings_its_pictures(
    history: ChatHistory, tmp_path: Path
) -> None:
    photo = replace(attachment(), n_rows=24, thumbnail=thumbnail())
    before = chat(photo, attachment(SKETCH, "sketch.png"))
    file = tmp_path / "chat.json"
    file.write_text(export.render_json(before))

    (chat_id,) = chat_import.import_files(history, [file]).chat_ids

    after = history.load_chat(chat_id)
    assert [turn.pictures for turn in after.conversation.all_turns] == [
        turn.pictures for turn in before.conversation.all_turns
    ]
    assert after.read_picture(photo.sha256) == PHOTO
    assert after.read_picture(attachment(SKETCH).sha256) == SKETCH
    assert json.loads(export.render_json(after))["chat"]["pictures"].keys() == {*BODIES}


@pytest.mark.parametrize(
    "body",
    [
        "!",
        "",
        base64.b64encode(PHOTO[:40]).decode(),
        base64.b64encode(b"<svg>").decode(),
        base64.b64encode(SKETCH).decode(),
    ],
    ids=["not Base64", "empty", "cut", "no picture", "another one"],
)
def test_a_picture_that_is_damaged_imports_nothing(
    body: str, history: ChatHistory, tmp_path: Path
) -> None:
    document = json.loads(export.render_json(chat(attachment())))
    document["chat"]["pictures"] = {attachment().sha256: body}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(document))

    with pytest.raises(UsageError, match=f"pictures.{attachment().sha256}"):
        chat_import.import_files(history, [file])

    assert history.list_chats() == []


def test_an_export_that_lost_a_picture_is_imported_without_it() -> None:
    document = json.loads(export.render_json(chat(attachment())))
    del document["chat"]["pictures"]

    (imported,) = parse_document(json.dumps(document))

    assert imported.conversation.turns[-1].pictures == (attachment(),)
    assert imported.pictures == {}


def test_a_saved_chat_is_exported_with_its_pictures(history: ChatHistory) -> None:
    saved = chat(attachment()).conversation
    location = history.save_chat(None, about(saved), saved.all_turns, BODIES.get)

    assert ADDRESS in export.render_markdown(history.load_chat(location.chat_id))
