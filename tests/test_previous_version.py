"""Chats of the version before the renaming are read by this one, unchanged in meaning."""

import json
import shutil
from pathlib import Path

import pytest

from localspec.chat.export import render_json
from localspec.chat.history import ChatHistory

FILES = Path(__file__).with_name("previous_version")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files, where this version looks for them."""
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats.sqlite").rename(tmp_path / "chats" / "chats.sqlite")
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path))
    return tmp_path


def test_chats_with_branches_and_token_rounds(folder: Path) -> None:
    history = ChatHistory.open(folder / "chats" / "chats.sqlite")
    chat = history.load_chat(1)
    history.close()
    written = json.loads(render_json(chat, with_events=True))
    expected = json.loads((folder / "chat.json").read_text(encoding="utf-8"))
    settings = written["chat"]["settings"]
    for older, newer in (
        (expected["chat"]["settings"]["sampling"], settings["sampling"]),
        (expected["chat"]["settings"], settings),
    ):
        for name in newer.keys() - older.keys():  # settings that have come since
            del newer[name]
    for turn in expected["chat"]["turns"]:
        for event in turn["events"]:
            event.pop("guarded", None)  # of near-ties, which are not computed again now
            if event["ev"] == "finished":
                event.setdefault("stop", "")  # it has come since
    # A title that no person gave is made of the question's words, without their frame.
    assert written["chat"].pop("title") == "def add(a, b)"
    assert expected["chat"].pop("title") == "def add(a, b):"
    assert written == expected
    assert [turn["parent"] for turn in written["chat"]["turns"]] == [None, None, 2]
    assert chat.settings.sampling.temperature == 0.5
