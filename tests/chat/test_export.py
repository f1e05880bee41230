"""Exported chats: complete, escaped, readable by other programs."""

import json
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from localspec.chat import export
from localspec.chat.conversation import Attachment, Conversation
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.settings import ChatSettings
from localspec.protocol import events
from tests.chat.saved_chats import about, add_events, answer
from tests.chat.test_session import Talk

HOSTILE = "<script>alert('x')</script> & \"q\" \x1b[2J\u202e"
CODE = "see:\n```python\nif a < b:\n    pass\n```\nand <b>that</b>"


@pytest.fixture
def kept(tmp_path: Path) -> SavedChat:
    talk = Conversation(3, f"be brief {HOSTILE}")
    first = talk.ask(HOSTILE, [Attachment(f"a{HOSTILE}.txt", HOSTILE)])
    add_events(talk, answer("they ask</think>", CODE, thinking=True))
    talk.edit_turn(first.id, "another")
    add_events(talk, answer("way"))
    talk.switch_branch(first.id)
    talk.ask("more")
    add_events(talk, answer("cut o")[:-1])
    with closing(ChatHistory.open(tmp_path / "chats" / "chats.sqlite")) as history:
        place = history.save_chat(None, about(talk), talk.all_turns)
        return history.load_chat(place.chat_id)


class Page(HTMLParser):
    """Collects the page's text as a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_by_itself(kept: SavedChat) -> None:
    text = export.render_html(kept)
    page = Page(text)
    allowed = (
        "html head meta title style body h1 h2 div details summary pre code p em footer"
    )
    assert set(page.tags) <= set(allowed.split())
    assert "<script>alert('x')</script> & \"q\" \ufffd" in page.texts
    assert "if a < b:\n    pass\n" in page.texts
    assert page.texts.count("Thinking") == 1 and "they ask" in page.texts
    assert "interrupted" in page.texts and "way" not in page.texts
    assert "\x1b" not in text and "\u202e" not in text


def test_each_answer_has_the_name_of_its_model(kept: SavedChat) -> None:
    kept.conversation.set_model("Llama <3>\x1b[2J")
    body = export.render_markdown(kept)
    assert (
        body.startswith("# A chat with Qwen3 8B\n") and body.count("## Qwen3 8B\n") == 1
    )
    assert body.count("## Llama <3>\n") == 1 and "\x1b" not in export.render_text(kept)
    assert "\n\nLlama <3>: cut o" in export.render_text(kept)
    assert "<h2>Llama &lt;3&gt;</h2>" in export.render_html(kept)
    turns = json.loads(export.render_json(kept))["chat"]["turns"]
    assert [turn["model"] for turn in turns] == ["", "", "Llama <3>\x1b[2J"]


def test_json(kept: SavedChat) -> None:
    whole = json.loads(export.render_json(kept, with_events=True))["chat"]["turns"][0][
        "events"
    ]
    assert tuple(map(events.parse_event, whole)) == kept.conversation.turns[0].events
    chat = json.loads(export.render_json(kept))["chat"]
    assert chat["path"] == [1, 3] and [turn["parent"] for turn in chat["turns"]] == [
        None,
        None,
        1,
    ]
    first, second, third = chat["turns"]
    assert (first["thinking"], first["answer"]) == ("they ask", CODE)
    assert first["attached"] == [{"name": f"a{HOSTILE}.txt", "text": HOSTILE}]
    assert (second["attempt"], second["finish_reason"], second["interrupted"]) == (
        1,
        "eog",
        False,
    )
    assert (third["answer"], third["finish_reason"], third["interrupted"]) == (
        "cut o",
        None,
        True,
    )
    assert "events" not in first and chat["created"].endswith("+00:00")


@pytest.mark.parametrize("suffix", ["md", "html", "txt"])
def test_a_system_prompt_stands_where_it_was_set(tmp_path: Path, suffix: str) -> None:
    history = ChatHistory.open(tmp_path / "chats.sqlite")
    talk = Talk(history)

    def exported(name: str) -> str:
        path = talk.save(tmp_path / f"{name}.{suffix}")
        return path.read_text(encoding="utf-8")

    talk.ask("one")
    talk.type("/system Use rhymes.")
    assert "Use rhymes." not in exported("before")
    talk.ask("two")
    after = exported("after")
    talk.session.close()
    chat = history.load_chat(history.find_last_id())
    history.close()
    for text in (after, export.render(chat, f".{suffix}")):
        assert text.index("one") < text.index("Use rhymes.") < text.index("two")


@pytest.mark.parametrize(
    "text",
    [
        "```py\nx = 1",
        "~~~~\ncode\n~~~",
        "````\n```\ncode\n```",
        "text\n\n<!-- a comment\n\nmore",
        "<pre>\n\ncode",
        "- ```py\n  code\n  ```",
        "> ```\n> code",
        "text with a ` and ```",
        "```\nclosed\n```",
    ],
)
def test_an_answer_that_was_stopped_in_a_block_swallows_nothing(text: str) -> None:
    conversation = Conversation(0)
    for _ in range(2):
        conversation.ask("q?")
        add_events(conversation, answer(text))
    chat = export.snapshot_chat(conversation, about(conversation).pair, ChatSettings())
    tokens = MarkdownIt().parse(export.render_markdown(chat))
    headings = [
        tokens[i + 1].content
        for i, one in enumerate(tokens)
        if one.type == "heading_open"
    ]
    assert headings[1:] == [headings[1], headings[2]] * 2 and headings[1] == "You"


def test_texts_have_what_was_said_without_thinking(kept: SavedChat) -> None:
    text = export.render_markdown(kept)
    assert text.startswith("# A chat with Qwen3 8B\n\n## System\n\nbe brief <script>")
    assert (
        f"\n\n## Qwen3 8B\n\n{CODE}\n\n## You\n\nmore\n\n" in text
        and "they ask" not in text
    )
    assert text.endswith("cut o\n\n*(interrupted)*\n")
    plain = export.render_text(kept)
    assert (
        plain.startswith("System: be brief")
        and f"\n\nQwen3 8B: {CODE}\n\nYou: more" in plain
    )
    assert plain.endswith("\n\nQwen3 8B: cut o\n") and "\x1b" not in text + plain
