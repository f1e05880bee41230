"""Audio in chats: attachments, and what an engine reports when it reads them."""

from typing import Any

from localspec.chat.conversation import PictureAttachment
from localspec.models.audio_files import accept_audio
from localspec.protocol.events import EngineReady, Event, PictureReading
from tests.support.audio_models import tune, wav
from tests.support.scripted_engine import answer, ready

VOICE = wav(tune(2.4))
SONG = wav(tune(1.2, seed=8))


def recording(data: bytes = VOICE, name: str = "voice.wav") -> PictureAttachment:
    audio = accept_audio(data, name).audio
    return PictureAttachment(
        audio.name, audio.sha256, kind=audio.kind, seconds=audio.seconds
    )


def heard(*words: str, data: bytes = VOICE) -> list[Event]:
    """An answer to a question with audio."""
    plan, *rest = answer(words)
    audio = recording(data)
    event = PictureReading(
        n=1, of=1, rows=60, seconds=audio.seconds, sha256=audio.sha256
    )
    return [plan, event, *rest]


def ready_to_hear(*, sees: bool = False, **more: Any) -> EngineReady:
    """A loaded pair that takes audio."""
    loaded = ready(**more)
    rows = 256 if sees else 0
    loaded.settings["images"] = {"kind": "gemma4v", "max_rows": rows, "audio": True}
    return loaded
