"""Chats of other programs come in whole, once, and all or none."""

import copy
import json
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from localspec.chat import chat_import, export, import_formats
from localspec.chat.chat_import import ImportReport
from localspec.chat.conversation import Attachment, Conversation, Turn
from localspec.chat.history import ChatHistory, ChatPair, SavedChat
from localspec.chat.import_formats import parse_document
from localspec.chat.settings import ChatSettings
from localspec.errors import LocalspecError, NotFoundError, StorageError, UsageError


def gpt(node_id: str, parent: str | None, role: str, *parts: Any, **more: Any) -> Any:
    """A node of ChatGPT's tree; keyword arguments are metadata."""
    content_type = more.pop("content_type", "text")
    message = {
        "id": node_id,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": 1699564800.0,
        "content": {"content_type": content_type, "parts": list(parts)},
        "recipient": more.pop("recipient", "all"),
        "metadata": more,
    }
    return {"id": node_id, "parent": parent, "children": [], "message": message}


IMAGE = {
    "content_type": "image_asset_pointer",
    "asset_pointer": "file-service://file-1",
}
CHATGPT = [
    {
        "title": "A fox",
        "create_time": 1699564800.0,
        "update_time": 1699568400.0,
        "current_node": "e",
        "mapping": {
            "root": {"id": "root", "message": None, "parent": None, "children": ["s"]},
            "s": gpt(
                "s", "root", "system", "", is_visually_hidden_from_conversation=True
            ),
            "a": gpt(
                "a", "s", "user", IMAGE, "What is it?", content_type="multimodal_text"
            ),
            "b": gpt("b", "a", "assistant", "A dog.", model_slug="gpt-4"),
            "c": gpt("c", "a", "assistant", "A fox.", model_slug="gpt-4o"),
            "d": gpt("d", "c", "user", "Draw one."),
            "tool": gpt("tool", "d", "assistant", "{}", recipient="dalle.text2im"),
            "drawn": gpt(
                "drawn", "tool", "tool", IMAGE, content_type="multimodal_text"
            ),
            "e": gpt("e", "drawn", "assistant", "Here.", model_slug="gpt-4o"),
        },
    }
]


def llama(
    node_id: str, parent: str | None, role: str, content: str, **more: Any
) -> Any:
    return {
        "id": node_id, "convId": "1", "parent": parent, "role": role, "type": "text",
        "content": content, "timestamp": 1764000000000, "children": [], **more,
    }  # fmt: skip


LLAMA: dict[str, Any] = {
    "conv": {"id": "1", "name": "Sums", "currNode": "b2", "lastModified": 1764000000000},
    "messages": [
        llama("r", None, "system", "", type="root"),
        llama("s", "r", "system", "Be brief."),
        llama(
            "a", "s", "user", "1 + 1?",
            extra=[
                {"type": "TEXT", "name": "n.txt", "content": "one"},
                {"type": "IMAGE", "name": "x.png", "base64Url": "data:image/png;base64,AA"},
            ],
        ),
        llama("b", "a", "assistant", "3", model="qwen3"),
        llama("b2", "a", "assistant", "2", model="qwen3", reasoningContent="One and one."),
    ],
}  # fmt: skip
SESSION = "\n".join(
    json.dumps(record)
    for record in (
        {"type": "session", "harness": "llama.app", **LLAMA["conv"]},
        *({"type": "message", "message": message} for message in LLAMA["messages"]),
        {"type": "of a later version"},
    )
)


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


LM_STUDIO = {
    "name": "Poems",
    "createdAt": 1764000000000,
    "lastUsedModel": {"identifier": "gemma-3"},
    "perChatPredictionConfig": {
        "fields": [{"key": "llm.prediction.systemPrompt", "value": "Rhyme."}]
    },
    "messages": [
        {
            "currentlySelected": 0,
            "versions": [
                {"type": "singleStep", "role": "user", "content": [text_block("A poem.")]}
            ],
        },
        {
            "currentlySelected": 1,
            "versions": [
                {"type": "multiStep", "role": "assistant", "steps": [
                    {"type": "contentBlock", "content": [text_block("No.")]},
                ]},
                {"type": "multiStep", "role": "assistant", "steps": [
                    {"type": "contentBlock", "content": [text_block("Hm.")],
                     "style": {"type": "thinking"}},
                    {"type": "contentBlock", "content": [text_block("Roses.")]},
                ]},
            ],
        },
    ],
}  # fmt: skip
OPEN_WEBUI = [
    {
        "id": "1", "title": "Rain", "created_at": 1764000000, "updated_at": 1764000001,
        "chat": {"title": "Rain", "models": ["phi-4"], "history": {
            "currentId": "b",
            "messages": {
                "a": {"id": "a", "parentId": None, "childrenIds": ["b"], "role": "user",
                      "content": "Will it rain?"},
                "b": {"id": "b", "parentId": "a", "childrenIds": [], "role": "assistant",
                      "content": "Perhaps.", "model": "phi-4"},
            },
        }},
    }
]  # fmt: skip
EXPORTS = {
    "ChatGPT": json.dumps(CHATGPT),
    "llama.cpp": json.dumps(LLAMA),
    "llama.cpp, several": json.dumps([LLAMA, LLAMA]),
    "llama.cpp, lines": SESSION,
    "LM Studio": json.dumps(LM_STUDIO),
    "Open WebUI": json.dumps(OPEN_WEBUI),
}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    opened = ChatHistory.open(tmp_path / "folder" / "chats.sqlite")
    yield opened
    opened.close()


def import_texts(history: ChatHistory, folder: Path, *texts: str) -> ImportReport:
    files = []
    for number, text in enumerate(texts):
        files.append(folder / f"{number}.json")
        files[-1].write_text(text, encoding="utf-8")
    return chat_import.import_files(history, files)


def load(history: ChatHistory, report: ImportReport) -> SavedChat:
    (chat_id,) = report.chat_ids
    return history.load_chat(chat_id)


def spoken(chat: SavedChat) -> list[tuple[str, str]]:
    return [(turn.question, turn.answer) for turn in chat.conversation.turns]


def all_text(history: ChatHistory) -> list[Any]:
    entries = history.list_chats()
    return [(entry, spoken(history.load_chat(entry.id))) for entry in entries]


# --- what each format becomes
# ------------------------------------------------------------------------------


def test_chatgpts_tree_keeps_its_branches_and_the_current_one_is_selected(
    history: ChatHistory, tmp_path: Path
) -> None:
    chat = load(history, import_texts(history, tmp_path, json.dumps(CHATGPT)))
    assert spoken(chat) == [
        ("[image: file-1]\n\nWhat is it?", "A fox."),
        ("Draw one.", "[image: file-1]\n\nHere."),
    ]
    first = chat.conversation.turns[0]
    assert [turn.answer for turn in chat.conversation.branches(first.id)] == [
        "A dog.",
        "A fox.",
    ]
    entry = chat.list_entry
    assert (entry.title, entry.pair.name, entry.turn_count) == ("A fox", "gpt-4o", 2)
    assert (entry.created, entry.updated) == (1699564800.0, 1699568400.0)


@pytest.mark.parametrize("text", [json.dumps(LLAMA), json.dumps([LLAMA]), SESSION])
def test_all_forms_of_llama_cpps_web_ui(
    history: ChatHistory, tmp_path: Path, text: str
) -> None:
    chat = load(history, import_texts(history, tmp_path, text))
    assert spoken(chat) == [
        ("[image: x.png]\n\n1 + 1?", "<think>One and one.</think>2")
    ]
    assert chat.conversation.system == "Be brief."
    (turn,) = chat.conversation.turns
    assert turn.attachments == (Attachment("n.txt", "one"),)
    assert turn.visible_answer(chat.list_entry.pair.thinking) == "2"
    assert chat.list_entry.title == "Sums"
    assert chat.list_entry.updated == 1764000000.0


def test_lm_studios_selected_versions(history: ChatHistory, tmp_path: Path) -> None:
    chat = load(history, import_texts(history, tmp_path, json.dumps(LM_STUDIO)))
    assert spoken(chat) == [("A poem.", "<think>Hm.</think>Roses.")]
    assert len(chat.conversation.all_turns) == 2
    assert chat.conversation.system == "Rhyme."
    assert chat.list_entry.pair.name == "gemma-3"


def test_open_webui(history: ChatHistory, tmp_path: Path) -> None:
    chat = load(history, import_texts(history, tmp_path, json.dumps(OPEN_WEBUI)))
    assert spoken(chat) == [("Will it rain?", "Perhaps.")]
    assert chat.list_entry.pair.name == "phi-4"


def test_a_question_without_an_answer_waits_for_one(
    history: ChatHistory, tmp_path: Path
) -> None:
    asked = copy.deepcopy(OPEN_WEBUI)
    del asked[0]["chat"]["history"]["messages"]["b"]  # type: ignore[index]
    chat = load(history, import_texts(history, tmp_path, json.dumps(asked)))
    assert spoken(chat) == [("Will it rain?", "")]
    assert chat.conversation.turns[-1].finish_reason is None


def test_a_chat_of_thousands_of_messages() -> None:
    """No step of the import calls itself for each message."""
    mapping = {"0": gpt("0", None, "user", "0")}
    for n in range(1, 6000):
        role = "assistant" if n % 2 else "user"
        mapping[str(n)] = gpt(str(n), str(n - 1), role, str(n))
    (chat,) = parse_document(json.dumps([{"mapping": mapping, "current_node": "5999"}]))
    assert len(chat.conversation.turns) == 3000


# --- our own exports
# ------------------------------------------------------------------------------

_TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="<>\0"), max_size=20
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    turns: list[Turn] = []
    for turn_id in range(1, draw(st.integers(1, 6)) + 1):
        parent = draw(st.sampled_from([None, *(turn.id for turn in turns)]))
        turns.append(
            Turn(
                draw(_TEXTS),
                draw(_TEXTS),
                draw(st.sampled_from([None, "eog", "length"])),
                attempt=draw(st.integers(0, 3)),
                attachments=tuple(
                    Attachment("n", text) for text in draw(st.lists(_TEXTS, max_size=1))
                ),
                id=turn_id,
                parent=parent,
                model=draw(_TEXTS),
            )
        )
    head = draw(st.sampled_from([turn.id for turn in turns]))
    return Conversation(draw(st.integers(0, 99)), draw(_TEXTS), turns, head)


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_our_own_export_comes_back_as_it_was(conversation: Conversation) -> None:
    chat_settings = replace(ChatSettings(), max_tokens=7, stop=("x",))
    before = export.snapshot_chat(conversation, ChatPair("m", name="m"), chat_settings)
    (after,) = parse_document(export.render_json(before))
    assert after.conversation.all_turns == conversation.all_turns
    assert after.conversation.turns == conversation.turns
    assert after.conversation.system == conversation.system
    assert after.pair_refs == ("m", "auto")
    assert (after.conversation.seed, after.settings) == (
        conversation.seed,
        chat_settings,
    )


def test_thinking_of_our_own_export_stays_apart(
    history: ChatHistory, tmp_path: Path
) -> None:
    imported = load(history, import_texts(history, tmp_path, SESSION))
    text = export.render_json(imported)
    (again,) = parse_document(text)
    assert again.conversation.turns == imported.conversation.turns
    assert again.has_thinking


# --- once, all or none
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", EXPORTS.values(), ids=EXPORTS)
def test_a_chat_that_is_here_is_not_imported_again(
    history: ChatHistory, tmp_path: Path, text: str
) -> None:
    first = import_texts(history, tmp_path, text)
    assert first.chat_ids
    before = all_text(history)
    again = import_texts(history, tmp_path, text)
    assert (again.chat_ids, again.n_known > 0) == ((), True)
    assert all_text(history) == before


def test_a_chat_that_went_on_here_is_not_imported_again(
    history: ChatHistory, tmp_path: Path
) -> None:
    chat = load(history, import_texts(history, tmp_path, json.dumps(OPEN_WEBUI)))
    conversation = chat.conversation
    turn = conversation.ask("And tomorrow?")
    entry = chat.list_entry
    imported = parse_document(json.dumps(OPEN_WEBUI))[0]
    metadata = chat_import._build_metadata(imported)
    history.save_chat(chat.location, metadata, [turn])
    assert import_texts(history, tmp_path, json.dumps(OPEN_WEBUI)).n_known == 1
    assert [each.id for each in history.list_chats()] == [entry.id]


def test_imported_chats_do_not_become_the_last_one(
    history: ChatHistory, tmp_path: Path
) -> None:
    own = import_texts(history, tmp_path, json.dumps(LM_STUDIO)).chat_ids[0]
    chat = history.load_chat(own)
    metadata = chat_import._build_metadata(parse_document(json.dumps(LM_STUDIO))[0])
    history.save_chat(chat.location, metadata)
    import_texts(history, tmp_path, json.dumps(OPEN_WEBUI), json.dumps(CHATGPT))
    assert history.find_last_id() == own
    assert [entry.title for entry in history.list_chats()] == ["Poems", "Rain", "A fox"]


def test_if_one_file_is_broken_nothing_is_imported(
    history: ChatHistory, tmp_path: Path
) -> None:
    broken = json.dumps([*CHATGPT, {"mapping": 3}])
    with pytest.raises(UsageError, match=r"1\.json.*\[1\]\.mapping"):
        import_texts(history, tmp_path, json.dumps(LM_STUDIO), broken)
    assert history.list_chats() == []


BROKEN = {
    "empty": "",
    "a number": "3",
    "text": "hello",
    "an object": "{}",
    "cut off": json.dumps(CHATGPT)[:-20],
    "deep": "[" * 100_000,
    "deep object": '{"mapping":' * 50_000,
    "a huge number": json.dumps(OPEN_WEBUI).replace("1764000000", "9" * 5000),
    "messages without versions": '{"messages": [{"role": "user", "content": "a"}]}',
    "a circle": json.dumps(
        [{"mapping": {"a": gpt("a", "b", "user", "x"), "b": gpt("b", "a", "user", "y")}}]
    ),
    "twice one id": json.dumps({
        "schema": 1, "chat": {"turns": [
            {"id": 1, "parent": None, "question": "a", "answer": "b"},
            {"id": 1, "parent": None, "question": "a", "answer": "c"},
        ]},
    }),
    "a turn before its parent": json.dumps({
        "schema": 1,
        "chat": {"turns": [{"id": 1, "parent": 2, "question": "a", "answer": "b"},
                           {"id": 2, "parent": 1, "question": "a", "answer": "b"}]},
    }),
}  # fmt: skip


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_export_is_refused_in_one_line(
    history: ChatHistory, tmp_path: Path, text: str
) -> None:
    with pytest.raises(UsageError) as refused:
        import_texts(history, tmp_path, text)
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 600
    assert "Formats: localspec, ChatGPT" in refused.value.hint
    assert history.list_chats() == []


def test_a_file_that_cannot_be_read(history: ChatHistory, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        chat_import.import_files(history, [tmp_path / "none.json"])
    with pytest.raises(UsageError, match="it is no file"):
        chat_import.import_files(history, [tmp_path])
    picture = tmp_path / "x.png"
    picture.write_bytes(b"\x89PNG\0\0")
    with pytest.raises(UsageError, match="it is not text"):
        chat_import.import_files(history, [picture])


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="no such rights"
)
def test_a_file_without_permission(history: ChatHistory, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("[]")
    file.chmod(0)
    with pytest.raises(StorageError):
        chat_import.import_files(history, [file])


WRONG_VALUES: list[Any] = [
    None,
    3,
    -1.5,
    "x",
    "",
    [],
    {},
    [[]],
    {"a": 1},
    True,
    "\ud800",
    2**70,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


@pytest.mark.parametrize(
    "document",
    [CHATGPT, LLAMA, LM_STUDIO, OPEN_WEBUI],
    ids=lambda each: type(each).__name__,
)
@given(data=st.data())
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_wrong_value_is_refused_or_read_and_never_a_crash(
    document: Any, data: st.DataObject
) -> None:
    changed = copy.deepcopy(document)
    path = data.draw(st.sampled_from(list(places(document))[1:]))
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(st.sampled_from(WRONG_VALUES))
    try:
        chats = parse_document(json.dumps(changed))
    except LocalspecError:
        return
    for chat in chats:
        ids = {turn.id for turn in chat.conversation.all_turns}
        assert {turn.parent for turn in chat.conversation.all_turns} <= ids | {None}


# --- archives
# ------------------------------------------------------------------------------


def archive(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conversations.json", json.dumps(CHATGPT)),
        ("export/conversations-003.json", json.dumps(CHATGPT)),
        ("2026_conv_1_sums.jsonl", SESSION),
    ],
)
def test_an_archive_is_opened(
    history: ChatHistory, tmp_path: Path, name: str, text: str
) -> None:
    files = {"chat.html": "<html>", "user.json": "{}", name: text}
    report = chat_import.import_files(history, [archive(tmp_path / "x", files)])
    assert len(report.chat_ids) == 1


def test_an_archive_without_chats_says_what_it_lacks(
    history: ChatHistory, tmp_path: Path
) -> None:
    packed = archive(tmp_path / "x.zip", {"notes.txt": "x"})
    with pytest.raises(UsageError, match=r"no conversations\.json"):
        chat_import.import_files(history, [packed])


def test_what_is_packed_too_small_to_be_true_is_refused(
    history: ChatHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_import, "_MAX_FILE_BYTES", 1 << 20)
    packed = archive(tmp_path / "x.zip", {"conversations.json": " " * (2 << 20)})
    with pytest.raises(UsageError, match="more than 1 MB"):
        chat_import.import_files(history, [packed])
    damaged = tmp_path / "damaged.zip"
    whole = archive(tmp_path / "y.zip", {"conversations.json": "[" + "1," * 900 + "1]"})
    data = bytearray(whole.read_bytes())
    data[60:70] = b"\xff" * 10
    damaged.write_bytes(data)
    with pytest.raises(UsageError, match="damaged"):
        chat_import.import_files(history, [damaged])
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (2 << 20))
    with pytest.raises(UsageError, match="more than 1 MB"):
        chat_import.import_files(history, [large])


def test_every_format_is_named_in_the_hint() -> None:
    for name in ("localspec", "ChatGPT", "llama.cpp", "LM Studio", "Open WebUI"):
        assert name in import_formats.FORMATS
