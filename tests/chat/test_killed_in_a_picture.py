"""A chat whose engine is killed while it reads a picture goes on with another engine."""

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError, UsageError
from localspec.launch import EngineClient, LoadOptions, ResolvedPair, start_engine
from localspec.protocol.events import Event, PictureReading
from tests.support.picture_bytes import png, shades
from tests.support.vision_models import VisionModels
from tests.support.zoo import Zoo


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_the_question_and_its_picture_are_kept(
    vision_models: VisionModels, tmp_path: Path
) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(png(shades(40, 30)))
    pair = ResolvedPair(vision_models["gemma3"].model, None)
    session = ChatSession(pair, seed=1)
    # A short answer would have ended before the signal comes.
    session.change_settings(max_tokens=900)
    with closing(load(pair)) as killed:
        session.attach_engine(killed)
        (picture,) = session.pictures.load([photo])
        session.add_picture(picture)
        session.ask("hi")
        photo.unlink()

        with pytest.raises(LocalspecError, match="killed"):
            for delta in session.stream_answer(killed):
                if isinstance(delta.event, PictureReading):
                    os.kill(killed.pid, signal.SIGKILL)

    assert session.is_interrupted
    with closing(load(pair)) as engine:
        session.attach_engine(engine)
        session.regenerate()
        events: list[Event] = [each.event for each in session.stream_answer(engine)]

    assert session.answer.finished is not None
    assert session.answer.finished.reason in ("length", "eog")
    assert any(isinstance(event, PictureReading) for event in events)
    session.close()


def load(pair: ResolvedPair) -> EngineClient:
    return start_engine(LoadOptions(ctx=1024, threads=1).to_request(pair))


def test_a_chat_names_models_that_see_where_its_own_does_not(zoo: Zoo) -> None:
    pair = ResolvedPair(zoo["chatty"], None)
    session = ChatSession(pair, seed=1)
    with closing(load(pair)) as engine:
        session.attach_engine(engine)

        with pytest.raises(UsageError, match="does not see pictures") as failure:
            session.require_sight(name_others=True)

    assert failure.value.hint.startswith("These do: ")
    session.close()
