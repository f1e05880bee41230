"""Calls of tools and their results in exports, and in imports of our own exports."""

import json
from typing import Any

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from localspec.chat import copying, export
from localspec.chat.conversation import CallResult, Conversation
from localspec.chat.history import SavedChat
from localspec.chat.import_formats import parse_document
from localspec.chat.settings import ChatSettings
from localspec.errors import UsageError
from localspec.protocol.wire import ToolCall
from tests.chat.saved_chats import PAIR, add_events, answer
from tests.support.chat_pictures import PHOTO, attachment
from tests.support.fake_tools import write_call

CALL = ToolCall("call00100", "time_now", '{"zone": "UTC"}')
HOSTILE = "```\n# You\n</pre><script>\x1b[2J\u202e"


def chat(
    text: str = "It is teatime.", *, is_error: bool = False, with_picture: bool = False
) -> SavedChat:
    pictures = (attachment(),) if with_picture else ()
    result = CallResult(
        "call00100", "time.now", text, is_error, "once", pictures=pictures
    )
    conversation = Conversation(7)
    conversation.ask("How late is it?")
    written = ["I look</think>", "Let me see. ", write_call("time_now", zone="UTC")]
    turn = add_events(conversation, answer(*written, thinking=True))
    conversation.update_turn(replace(turn, calls=(CALL,), call_format="generic"))
    conversation.add_results([result])
    add_events(conversation, answer("Time for tea."))
    bodies = {attachment().sha256: PHOTO}
    return export.snapshot_chat(conversation, PAIR, ChatSettings(), bodies.get)


def test_a_text_names_the_call_and_has_the_result() -> None:
    assert export.render_text(chat()) == (
        "You: How late is it?\n\n"
        "Qwen3 8B: Let me see.\n\n"
        '[call: time_now {"zone": "UTC"}]\n\n'
        "time.now: It is teatime.\n\n"
        "Qwen3 8B: Time for tea.\n"
    )


def test_a_failed_call_is_named_so() -> None:
    text = export.render_text(chat("No clock.", is_error=True))

    assert "time.now (failed): No clock." in text


def test_markdown_shows_a_result_as_a_block_that_it_cannot_end() -> None:
    text = export.render_markdown(chat(HOSTILE))

    headings = [
        token.map
        for token in MarkdownIt().parse(text)
        if token.type == "heading_open" and token.tag == "h2"
    ]
    assert len(headings) == 4
    assert "\x1b" not in text


def test_a_page_folds_the_result_and_escapes_it() -> None:
    page = export.render_html(chat(HOSTILE, with_picture=True))

    assert "<details><summary>time.now</summary><pre>```" in page
    assert "<script>" not in page
    assert page.count("data:image/png;base64,") == 1
    assert "img-src data:" in page
    assert "[call: time_now" in page


@pytest.mark.parametrize("with_events", [False, True])
def test_our_own_export_comes_back(with_events: bool) -> None:
    exported = chat(with_picture=True)
    text = export.render_json(exported, with_events=with_events)

    (imported,) = parse_document(text)

    turns = imported.conversation.turns
    before = exported.conversation.turns
    assert [turn.calls for turn in turns] == [turn.calls for turn in before]
    assert [turn.results for turn in turns] == [turn.results for turn in before]
    markers = ("<think>", "</think>")
    assert [turn.visible_answer(markers) for turn in turns] == [
        "Let me see.",
        "Time for tea.",
    ]
    assert set(imported.pictures) == {attachment().sha256}


def test_json_has_calls_and_results_apart_from_the_answer() -> None:
    first, second = json.loads(export.render_json(chat()))["chat"]["turns"]

    assert first["answer"].strip() == "Let me see."
    assert first["thinking"] == "I look"
    assert first["calls"][0]["name"] == "time_now"
    assert second["results"][0]["text"] == "It is teatime."
    assert "results" not in first and "calls" not in second


@pytest.mark.parametrize(
    "damage", [{"results": 3}, {"results": [{"tool": "x"}]}, {"calls": [{}]}]
)
def test_a_damaged_export_is_refused(damage: dict[str, Any]) -> None:
    document = json.loads(export.render_json(chat()))
    document["chat"]["turns"][1] |= damage

    with pytest.raises(UsageError, match="no export"):
        parse_document(json.dumps(document))


def test_a_turn_is_copied_with_its_last_answer() -> None:
    assert copying.select_text(chat(), "1") == "Time for tea."
