"""Audio in a chat session: sent, kept with its question, exported, and refused by name."""

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localspec.chat import chat_import, export
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.history.records import load_pictures
from localspec.chat.picture_sources import find_dropped_files
from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError, UsageError
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import GenerateCommand
from tests.support.chat_audio import SONG, VOICE, heard, ready_to_hear, recording
from tests.support.chat_pictures import PHOTO, ready_to_see
from tests.support.scenes import PAIR
from tests.support.scripted_engine import ScriptedEngine

ADDRESS = f"data:audio/wav;base64,{base64.b64encode(VOICE).decode()}"


@pytest.fixture
def history(tmp_path: Path) -> Iterator[ChatHistory]:
    with closing(ChatHistory.open(tmp_path / "chats" / "chats.sqlite")) as opened:
        yield opened


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "voice.wav"
    path.write_bytes(VOICE)
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    return path


class Listener:
    """A session whose engine hears, and says the same to everything."""

    def __init__(self, history: ChatHistory | None = None, **more: Any) -> None:
        self.session = ChatSession(PAIR, 1, history, **more)
        self.load(ready_to_hear(sees=True))

    def load(self, loaded: EngineReady) -> None:
        self.engine = ScriptedEngine(lambda: heard("A", " voice."), ready=loaded)
        self.session.attach_engine(self.engine)

    def attach(self, *paths: Path) -> None:
        for attached in self.session.pictures.load_any(paths):
            self.session.add_picture(attached)

    def ask(self, question: str) -> GenerateCommand:
        self.session.ask(question)
        list(self.session.stream_answer(self.engine))
        return self.engine.asked[-1]


def sent_bytes(request: GenerateCommand, message: int = -1) -> list[bytes]:
    images = request.messages[message].images
    return [Path(image.path).read_bytes() for image in images]


def test_audio_goes_with_the_next_question_and_stays_with_it(
    voice: Path, photo: Path, history: ChatHistory
) -> None:
    listener = Listener(history)
    listener.attach(voice, photo)

    request = listener.ask("What is said?")
    again = listener.ask("And then?")

    assert sent_bytes(request) == [VOICE, PHOTO]
    assert [image.kind for image in request.messages[-1].images] == ["audio", "picture"]
    assert sent_bytes(again, 0) == [VOICE, PHOTO]
    audio, picture = listener.session.conversation.turns[0].pictures
    assert (audio.name, audio.seconds, audio.n_rows) == ("voice.wav", 2.4, 60)
    assert (audio.is_audio, picture.is_audio) == (True, False)


def test_a_chat_that_is_opened_again_sends_its_audio(
    voice: Path, history: ChatHistory
) -> None:
    listener = Listener(history)
    listener.attach(voice)
    listener.ask("What is said?")
    listener.session.close()
    voice.unlink()

    saved = history.load_chat(history.find_last_id())
    again = Listener(history, saved_chat=saved)

    assert sent_bytes(again.ask("And then?"), 0) == [VOICE]
    assert saved.conversation.turns[0].pictures[0].seconds == 2.4
    assert history.read_picture(recording().sha256) == VOICE


def test_a_model_that_does_not_hear_gets_a_line(
    voice: Path, photo: Path, history: ChatHistory
) -> None:
    listener = Listener(history)
    listener.attach(voice, photo)
    listener.ask("What is said?")
    listener.load(ready_to_see())

    request = listener.ask("And then?")

    first = request.messages[0]
    assert first.content == "[audio: voice.wav, not heard by this model]\nWhat is said?"
    assert sent_bytes(request, 0) == [PHOTO]
    (notice,) = listener.session.take_notices()
    assert notice.message == "voice.wav is left out: qwen3-8b does not hear."


def test_a_model_that_only_hears_gets_a_line_for_a_picture(
    voice: Path, photo: Path, history: ChatHistory
) -> None:
    listener = Listener(history)
    listener.attach(voice, photo)
    listener.ask("What is said?")
    listener.load(ready_to_hear())

    request = listener.ask("And then?")

    assert sent_bytes(request, 0) == [VOICE]
    assert "[image: photo.png, not seen by this model]" in request.messages[0].content


def test_audio_is_refused_for_a_model_that_does_not_hear(voice: Path) -> None:
    listener = Listener()
    listener.attach(voice)
    listener.load(ready_to_see())

    with pytest.raises(LocalspecError, match="qwen3-8b does not hear"):
        listener.session.ask("What is said?")

    assert listener.session.conversation.turns == ()
    assert len(listener.session.pending_pictures) == 1


def test_a_picture_is_refused_for_a_model_that_only_hears(photo: Path) -> None:
    listener = Listener()
    listener.attach(photo)
    listener.load(ready_to_hear())

    with pytest.raises(LocalspecError, match="does not see pictures"):
        listener.session.ask("What is it?")


def test_pictures_and_audio_are_removed_each_alone(voice: Path, photo: Path) -> None:
    listener = Listener()
    session = listener.session
    listener.attach(voice, photo)

    session.remove_audio()
    assert [each.name for each in session.pending_pictures] == ["photo.png"]
    listener.attach(voice)
    session.remove_pictures()
    assert [each.name for each in session.pending_pictures] == ["voice.wav"]


def test_pictures_and_audio_share_a_limit(tmp_path: Path, photo: Path) -> None:
    listener = Listener()
    listener.attach(photo)
    for n in range(19):
        path = tmp_path / f"{n}.wav"
        path.write_bytes(SONG + bytes((n,)))
        listener.attach(path)

    path.write_bytes(VOICE)
    with pytest.raises(UsageError, match="at most 20 pictures and audio files"):
        listener.attach(path)


def test_a_dragged_path_of_audio_is_found(voice: Path, photo: Path) -> None:
    assert find_dropped_files(f"'{voice}' {photo}") == [voice, photo]
    assert find_dropped_files(str(voice.with_name("none.wav"))) == []


# --- exports


def exported(voice: Path) -> SavedChat:
    listener = Listener()
    listener.attach(voice)
    listener.ask("What is said?")
    return listener.session.snapshot()


def test_exports_carry_the_audio(voice: Path) -> None:
    saved = exported(voice)

    page = export.render_html(saved)
    assert f'<audio controls src="{ADDRESS}"' in page
    assert "; media-src data:" in page
    assert "img-src" not in page
    assert f"[voice.wav]({ADDRESS})" in export.render_markdown(saved)
    assert "[audio: voice.wav]" in export.render_text(saved)


def test_our_own_export_brings_its_audio(
    voice: Path, history: ChatHistory, tmp_path: Path
) -> None:
    file = tmp_path / "chat.json"
    file.write_text(export.render_json(exported(voice)), errors="strict")

    (chat_id,) = chat_import.import_files(history, [file]).chat_ids

    after = history.load_chat(chat_id)
    (audio,) = after.conversation.turns[0].pictures
    assert (audio.name, audio.kind, audio.seconds) == ("voice.wav", "wav", 2.4)
    assert after.read_picture(audio.sha256) == VOICE


def test_damaged_audio_imports_nothing(
    voice: Path, history: ChatHistory, tmp_path: Path
) -> None:
    document = json.loads(export.render_json(exported(voice)))
    encoded = base64.b64encode(VOICE[:100]).decode()
    document["chat"]["pictures"] = {recording().sha256: encoded}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(document), errors="strict")

    with pytest.raises(UsageError, match="incomplete"):
        chat_import.import_files(history, [file])


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "-1", '"long"'])
def test_a_length_that_is_none_is_not_loaded(seconds: str) -> None:
    text = json.dumps([{"name": "a", "sha256": "b", "kind": "wav", "seconds": 0}])

    assert load_pictures(text.replace(": 0}", f": {seconds}}}")) == ()
    assert load_pictures(text)[0].is_audio
