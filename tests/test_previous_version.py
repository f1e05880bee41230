"""Files written by the version before the renaming are read with the same meaning."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from localspec import config
from localspec.chat import events_file
from localspec.chat.export import render_json
from localspec.chat.history import ChatHistory
from localspec.launch import recent_pairs
from localspec.machine import measurements
from localspec.machine.measurements import MeasurementStore, make_key
from localspec.protocol.events import EngineReady, GenerationFinished, Round
from localspec.protocol.wire import LoadCommand
from localspec.tui import key_bindings

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
    assert written == expected
    assert [turn["parent"] for turn in written["chat"]["turns"]] == [None, None, 2]
    assert chat.settings.sampling.temperature == 0.5


def test_settings_and_keys(folder: Path) -> None:
    values = config.load()
    keys = ("screen.theme", "answers.temperature", "downloads.limit")
    assert [values.get(key) for key in keys] == ["high-contrast", 0.5, 12]
    assert values.key_bindings == {
        "chat.send": "ctrl+s",
        "chat.newline": "enter,ctrl+j",
        "doctor.mend": "m",
        "home.unfilter": "ctrl+u",
    }
    valid, errors = key_bindings.validate_user_keys(values.key_bindings)
    assert not errors and valid["doctor.repair"] == "m"  # under its name of now
    assert len(valid) == len(values.key_bindings), "an id that means nothing now"


def test_an_events_file(folder: Path) -> None:
    events = events_file.read(folder / "events.jsonl")
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(events) == len(lines)
    assert isinstance(events[0], EngineReady)
    assert isinstance(events[-1], GenerationFinished)
    rounds = [event for event in events if isinstance(event, Round)]
    assert sum(len(event.tokens) for event in rounds) == 40
    assert any(token.p_target is not None for event in rounds for token in event.tokens)


def test_measured_costs_and_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "measured.sqlite"
    store = MeasurementStore(path)
    with sqlite3.connect(path) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM measured")]
    (costs,) = (store.read_costs(key) for key in keys)
    assert costs is not None
    assert costs.t1_ms == 2.1957
    assert costs.c == 0.135
    assert costs.threads == 1
    assert costs.curve["5"] == 2.4323
    assert "coupled" in costs.survival
    monkeypatch.setattr(measurements, "_is_from_environment", lambda *_: True)
    memory = store.read_all()[0].memory
    assert memory is not None
    assert memory.used == memory.predicted == {"CPU": 31863680}
    now = json.loads(make_key(LoadCommand(str(path), str(path))))
    before = json.loads(keys[0])
    now.pop("gpu", None)  # a build for a GPU adds it, the file is of a CPU's
    assert set(now) == set(before)
    assert set(now["target"]) == set(before["target"])


def test_the_pair_of_the_last_run(folder: Path) -> None:
    assert recent_pairs.load_last() == ("demo", "auto")
