"""Audio files: what their headers say, and which are refused by name."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import AudioError, NotFoundError
from localspec.models import audio_files
from localspec.models.audio_files import Audio, check_audio, load_audio, remove_claims
from tests.support.audio_bytes import (
    MP3_RATE,
    MP3_SAMPLES,
    chunk,
    flac,
    hostile_files,
    id3_tag,
    loud,
    riff,
    silent_mp3,
    wav_format,
)
from tests.support.audio_models import tune, wav

HOSTILE = hostile_files()


@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (44_100, 2), (8_000, 1)])
def test_a_wav_says_how_long_it_is(rate: int, channels: int) -> None:
    data = wav(tune(1.5, rate=rate), rate, channels)

    audio = check_audio(data, "voice.wav")

    assert (audio.kind, audio.seconds, audio.sample_rate) == ("wav", 1.5, rate)
    assert (audio.name, audio.n_bytes) == ("voice.wav", len(data))


@pytest.mark.parametrize("claimed", [None, 100, 60])
@pytest.mark.parametrize("has_tag", [True, False])
def test_the_frames_of_an_mp3_are_counted(claimed: int | None, has_tag: bool) -> None:
    tag = id3_tag(300) if has_tag else b""
    data = silent_mp3(100, claimed, tag) + b"TAG" + b"\0" * 125

    audio = check_audio(data, "song.mp3")

    assert audio.kind == "mp3"
    assert audio.seconds == pytest.approx(100 * MP3_SAMPLES / MP3_RATE, abs=0.001)


@pytest.mark.parametrize("n", [1, 1000, 1024, 1025, 50_000, 200_000])
def test_a_flac_says_how_long_it_is(n: int) -> None:
    audio = check_audio(flac(loud(n)), "voice.flac")

    assert (audio.kind, audio.sample_rate) == ("flac", 16_000)
    assert audio.seconds == round(n / 16_000, 3)


def test_a_wav_that_was_written_to_a_pipe_goes_on_to_its_end() -> None:
    data = riff(wav_format(), chunk(b"data", b"\1\2" * 16_000))
    endless = data.replace(struct.pack("<I", 32_000), b"\xff\xff\xff\xff")

    assert check_audio(endless, "piped.wav").seconds == 1


def test_of_a_wav_only_its_format_and_its_samples_are_decoded() -> None:
    samples = b"\1\2\3\4" * 500
    fact = chunk(b"fact", b"\xff\xff\xff\xf0")
    format_ = wav_format(channels=2)
    odd = riff(chunk(b"LIST", b"odd"), format_, fact, chunk(b"data", samples))

    plain = remove_claims(odd, "wav")

    assert plain == riff(format_, chunk(b"data", samples))
    assert check_audio(plain, "x.wav").seconds == check_audio(odd, "x.wav").seconds


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_heard_is_refused_by_name(name: str) -> None:
    data, said = HOSTILE[name]

    with pytest.raises(AudioError) as raised:
        check_audio(data, "hostile.wav")

    assert raised.value.message.startswith("hostile.wav ")
    assert said in raised.value.message
    assert "\n" not in raised.value.message
    assert raised.value.hint


def test_a_file_that_is_too_large_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audio_files, "MAX_AUDIO_BYTES", 1000)
    path = tmp_path / "large.wav"
    path.write_bytes(wav(tune(1)))

    with pytest.raises(AudioError, match=r"large\.wav has 32,044 bytes"):
        load_audio(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"There is no file .*gone\.wav"):
        load_audio(tmp_path / "gone.wav")
    with pytest.raises(AudioError, match="is a folder"):
        load_audio(tmp_path)


def _read(data: bytes) -> Audio | None:
    try:
        return check_audio(data, "any")
    except AudioError:
        return None


WHOLE = (wav(tune(0.3)), silent_mp3(30, 30, id3_tag(20)), flac(loud(4000)))


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, len(WHOLE) - 1),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4),
    st.integers(0, 12_000),
)
def test_changed_bytes_are_read_or_refused(
    which: int, changes: list[tuple[int, int]], length: int
) -> None:
    changed = bytearray(WHOLE[which])
    for at, byte in changes:
        changed[at % len(changed)] = byte
    cut = bytes(changed[: length + 1])

    audio = _read(cut)

    if audio is not None:
        assert 0 < audio.seconds <= audio_files.MAX_AUDIO_SECONDS
        # llama.cpp takes memory for that long.
        assert audio.seconds * audio.sample_rate <= 8 * len(changed) + 1e6


def test_a_file_that_is_cut_is_not_taken_for_a_whole_one() -> None:
    for data in WHOLE:
        for share in (0.1, 0.3, 0.6):
            assert _read(data[: int(len(data) * share)]) is None


def test_names_of_audio_are_known_whatever_their_case() -> None:
    assert audio_files.is_audio_name("Voice Memo.WAV")
    assert audio_files.is_audio_name("/music/a.mp3")
    assert audio_files.is_audio_name("song.ogg")  # It is refused by name.
    assert not audio_files.is_audio_name("photo.jpg")


def test_noise_is_not_taken_for_audio() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        assert _read(rng.bytes(2000)) is None
