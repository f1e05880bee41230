"""Audio in chats of a whole session: counted, read once, told, and refused by name."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.prompt_pictures import estimate_audio_row
from localspec.engine.session import Session
from localspec.errors import AudioError, PictureError, PromptTooLongError
from localspec.models import projector_shape
from localspec.models.gguf import reader
from localspec.protocol.events import Event, GenerationFinished, PictureReading
from localspec.protocol.wire import (
    ChatMessage,
    CountCommand,
    GenerateCommand,
    SamplingParams,
)
from tests.engine.test_picture_requests import (
    ROOMY,
    SMALL,
    Album,
    answer,
    ask,
    readings,
    seeing,
)
from tests.support import ghost_projectors
from tests.support.audio_bytes import chunk, flac, loud, riff, silent_mp3, wav_format
from tests.support.audio_models import HEARING_KINDS, AudioModels, tune, wav
from tests.support.sessions import GREEDY

SHORT = wav(tune(0.6))
OTHER = wav(tune(0.6, seed=5))
MUSIC = flac(loud(24_000))
SEEDED = SamplingParams(temperature=0.9, top_k=20, seed=11)


@pytest.fixture
def album(tmp_path: Path) -> Album:
    return Album(tmp_path)


@pytest.fixture
def gemma(audio_models: AudioModels) -> Iterator[Session]:
    with seeing(audio_models["gemma4a"]) as session:
        yield session


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_a_prompt_is_counted_as_it_is_then_read(
    audio_models: AudioModels, album: Album, kind: str
) -> None:
    messages = (ask("what is said?", album.add(SHORT)),)
    with seeing(audio_models[kind]) as session:
        counted = session.count(CountCommand(messages=messages)).tokens

        said, events = answer(session, *messages)

    assert said.totals["prompt_tokens"] == counted
    (reading,) = readings(events)
    assert reading.rows > 2
    assert reading.seconds == 0.6
    assert reading.thumbnail is None
    assert reading.seconds_expected is not None


@pytest.mark.parametrize("kind", ["voxtral", "gemma4a", "gemma4ua"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED])
def test_drafts_behind_audio_leave_the_text_as_it_is(
    audio_models: AudioModels, album: Album, kind: str, sampling: SamplingParams
) -> None:
    messages = (ask("the one the one", album.add(SHORT)),)
    more: dict[str, Any] = {"max_tokens": 40, "sampling": sampling}
    with seeing(audio_models[kind], audio_models.draft(kind)) as session:
        plain, _ = answer(session, *messages, spec="off", **more)

        for spec in ("lookup", "model", "auto"):
            said, _ = answer(session, *messages, spec=spec, **more)
            assert said.ids == plain.ids, spec


def test_a_picture_and_audio_are_in_one_prompt(gemma: Session, album: Album) -> None:
    both = ask("compare", album.add(SMALL), album.add(SHORT))

    said, events = answer(gemma, both, max_tokens=40)
    heard, _ = answer(gemma, ask("compare", album.add(SHORT)), max_tokens=40)
    again, _ = answer(gemma, both, max_tokens=40)

    assert [reading.seconds for reading in readings(events)] == [None, 0.6]
    assert said.ids == again.ids
    assert said.ids != heard.ids


def test_a_second_audio_is_read_behind_the_first(gemma: Session, album: Album) -> None:
    first = album.add(SHORT)
    chat = (ask("one", first), ChatMessage("assistant", "ok"))

    _, before = answer(gemma, ask("one", first))
    _, after = answer(gemma, *chat, ask("two", album.add(OTHER)))
    _, mp3 = answer(gemma, ask("three", album.add(silent_mp3(40))))

    assert len(readings(before)) == 1
    assert [each.sha256 for each in readings(after)] == [album.add(OTHER).sha256]
    assert len(readings(mp3)) == 1


def test_other_audio_gives_another_answer(
    audio_models: AudioModels, album: Album
) -> None:
    with seeing(audio_models["gemma4ua"]) as session:
        first, _ = answer(session, ask("hi", album.add(SHORT)), max_tokens=40)
        second, _ = answer(session, ask("hi", album.add(MUSIC)), max_tokens=40)

    assert first.ids != second.ids


def test_a_stop_while_audio_is_read_ends_the_answer(
    gemma: Session, album: Album
) -> None:
    messages = (ask("hi", album.add(SHORT)),)
    request = GenerateCommand(messages=messages, sampling=GREEDY, max_tokens=12)
    events: list[Event] = []
    for event in gemma.generate(request):
        events.append(event)
        if isinstance(event, PictureReading):
            gemma.stop()

    end = events[-1]
    assert isinstance(end, GenerationFinished)
    assert end.reason == "cancelled"
    said, again = answer(gemma, *messages)
    assert len(readings(again)) == 1
    assert said.reason in ("length", "eog")


def test_audio_that_is_too_long_for_the_context_is_refused_before_it_is_read(
    gemma: Session, album: Album
) -> None:
    long = album.add(wav(tune(60)))

    with pytest.raises(PromptTooLongError, match="tokens"):
        answer(gemma, ask("hi", long))
    assert answer(gemma, ask("hi", album.add(SHORT)))[0].reason


# --- what cannot be used


def test_a_model_that_only_sees_or_only_hears_says_so(
    audio_models: AudioModels, album: Album
) -> None:
    with seeing(audio_models["voxtral"]) as hearing:
        with pytest.raises(PictureError, match="voxtral does not see"):
            answer(hearing, ask("hi", album.add(SMALL)))
        assert answer(hearing, ask("hi", album.add(SHORT)))[0].reason
    with seeing(audio_models["voxtral"], projector=None) as deaf:
        ref = album.add(SHORT)
        with pytest.raises(PictureError, match="without a projector"):
            answer(deaf, ask("hi", ref))


def test_ready_says_that_the_model_hears(audio_models: AudioModels) -> None:
    with seeing(audio_models["voxtral"]) as session:
        assert session.ready.settings["images"] == {
            "kind": "voxtral",
            "max_rows": 0,
            "audio": True,
        }


def infinite_wav() -> bytes:
    samples = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38] * 400, "<f4")
    return riff(wav_format(3, bits=32), chunk(b"data", samples.tobytes()))


def claiming_wav() -> bytes:
    """It says four billion samples, of which it has 800."""
    fact = chunk(b"fact", b"\xff\xff\xff\xff")
    return riff(wav_format(), fact, chunk(b"data", b"\1\2" * 800))


@pytest.mark.parametrize("kind", HEARING_KINDS)
@pytest.mark.parametrize("make", [infinite_wav, claiming_wav, lambda: wav(tune(0.001))])
def test_odd_audio_is_read(
    audio_models: AudioModels, album: Album, kind: str, make: Callable[[], bytes]
) -> None:
    with seeing(audio_models[kind]) as session:
        said, _ = answer(session, ask("hi", album.add(make())), max_tokens=2)

    assert said.reason in ("length", "eog")


def test_audio_that_is_damaged_behind_its_header_is_read_or_named(
    gemma: Session, album: Album
) -> None:
    rng = np.random.default_rng(2)
    for data in (MUSIC, silent_mp3(40)):
        for _ in range(20):
            broken = bytearray(data)
            start = int(rng.integers(60, len(broken) - 50))
            broken[start : start + 40] = rng.bytes(40)
            try:
                said, _ = answer(
                    gemma, ask("hi", album.add(bytes(broken), "x.flac")), max_tokens=1
                )
            except AudioError as error:
                assert error.message.startswith("x.flac")
            except PromptTooLongError:
                pass
            else:
                assert said.reason


def test_a_file_that_is_gone_is_named(gemma: Session, album: Album) -> None:
    gone = album.add(SHORT, "voice.wav")
    Path(gone.path).unlink()

    with pytest.raises(PictureError, match=r"voice\.wav is gone"):
        answer(gemma, ask("hi", gone))


# --- memory and time


def test_the_time_of_audio_is_estimated_by_its_tower(tmp_path: Path) -> None:
    tower = ghost_projectors.qwen2_audio()
    header = ghost_projectors.read_header(tower, tmp_path)

    a_row = estimate_audio_row(header, rows=750, n_threads=8)

    assert a_row == pytest.approx(0.0068, rel=0.02)
    assert estimate_audio_row(header, rows=0, n_threads=8) is None


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_the_memory_is_counted_by_the_rule_of_fit(
    audio_models: AudioModels, kind: str
) -> None:
    files = audio_models[kind]
    shape = projector_shape.from_header(reader.read(files.projector))
    rows = shape.rows(on_gpu=False, n_batch=ROOMY.n_ubatch)
    buffer = shape.compute_bytes(rows, on_gpu=False)
    buffer += shape.work_bytes(rows, on_gpu=False)
    with seeing(files) as session, seeing(files, projector=None) as deaf:
        hearing_memory = session.ready.memory
        deaf_memory = deaf.ready.memory
        target = session._pair.target
        batch = 4 * target.n_batch * target.model.n_embd_inp
    more = (hearing_memory["used"] or 0) - (deaf_memory["used"] or 0)
    assert more == shape.weights + buffer + batch
