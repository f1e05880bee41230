"""Audio in the app: dragged or typed paths, what it costs, and what a turn says of it."""

from pathlib import Path

import pytest
from textual.events import Paste

from localspec.protocol.wire import CountCommand, CountResult
from tests.support.app_driver import Chat
from tests.support.chat_audio import VOICE, heard, ready_to_hear
from tests.support.chat_pictures import PHOTO, ready_to_see, seen
from tests.support.scripted_engine import ScriptedEngine


class HearingEngine(ScriptedEngine):
    """Audio has 60 tokens."""

    def __init__(self) -> None:
        super().__init__(lambda: heard("A", " voice."), ready=ready_to_hear(sees=True))

    def count(self, count: CountCommand) -> CountResult:
        n_files = sum(len(each.images) for each in count.messages)
        return CountResult(8 + 60 * n_files)


@pytest.fixture
def voice(tmp_path: Path) -> Path:
    path = tmp_path / "my voice.wav"
    path.write_bytes(VOICE)
    return path


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    path.write_bytes(PHOTO)
    return path


async def paste(chat: Chat, text: str) -> None:
    chat.screen.composer.post_message(Paste(text))
    await chat.pilot.pause()


def pending(chat: Chat) -> list[str]:
    return [each.name for each in chat.screen.session.pending_pictures]


async def test_a_dropped_path_attaches_the_audio(voice: Path) -> None:
    async with Chat(HearingEngine()) as chat:
        await paste(chat, f"'{voice}'")
        await chat.sees("+ my voice.wav, 2 s, 60 tokens", "/audio - removes it")

        await chat.press("enter")
        await chat.until("ready")

        await chat.sees("You", "+ my voice.wav, 2 s, 60 tokens", "A voice.")
        assert pending(chat) == []


async def test_a_picture_and_audio_are_dropped_together(
    voice: Path, photo: Path
) -> None:
    async with Chat(HearingEngine()) as chat:
        await paste(chat, f"'{voice}' {photo}")
        await chat.sees("/image - removes them", "/audio - removes it")

        assert pending(chat) == ["my voice.wav", "photo.png"]


async def test_audio_is_attached_and_removed_by_command(voice: Path) -> None:
    async with Chat(HearingEngine()) as chat:
        await chat.send(f"/audio {voice}")
        await chat.sees("+ my voice.wav")

        await chat.send("/audio -")

        assert pending(chat) == []


async def test_a_model_that_does_not_hear_takes_the_path_as_text(voice: Path) -> None:
    async with Chat(ScriptedEngine(lambda: seen("no"), ready=ready_to_see())) as chat:
        await paste(chat, f"'{voice}'")
        await chat.sees("does not hear")

        assert pending(chat) == []
        assert str(voice) in chat.typed


async def test_a_file_that_is_no_audio_is_named(photo: Path) -> None:
    async with Chat(HearingEngine()) as chat:
        await chat.send(f"/audio {photo}")
        await chat.sees("photo.png is a picture, not audio")

        assert pending(chat) == []
