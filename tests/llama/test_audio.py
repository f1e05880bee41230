"""Audio in a context: read as libmtmd reads it, cut, copied, stopped, and decoded.

`test_a_planted_bug_is_found` plants bugs that give wrong logits without an error; each
must fail one of these checks.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from localspec.errors import AudioError, LocalspecError, ModelFileError, UsageError
from localspec.llama.context import LlamaContext
from localspec.llama.images import Projector, Samples, pad_audio
from localspec.machine.llama_params import ModelRole
from localspec.models import audio_files
from localspec.models.gguf import reader
from localspec.models.projector_check import check_projector
from localspec.spec.protocols import DecodeInterrupted, Logits
from tests.spec.test_mutants import plant
from tests.support.audio_bytes import (
    MP3_RATE,
    MP3_SAMPLES,
    claiming_mp3s,
    flac,
    loud,
    silent_mp3,
)
from tests.support.audio_models import (
    HEARING_KINDS,
    RATE,
    SEEING_AND_HEARING,
    AudioModels,
    tune,
    wav,
)
from tests.support.picture_prompts import (
    PICTURE_SETTINGS,
    SMALL,
    Part,
    SeeingModel,
    picture_places,
    seeing_model,
    shown_ids,
)

SETTINGS = replace(PICTURE_SETTINGS, n_ctx=2048)
TOLERANCE = 0.02
SHORT = tune(0.6)
LONGER = tune(1.9, seed=1)
CHAT: tuple[Part, ...] = ("user: hear ", LONGER, " and ", SHORT, " what is it?")

Check = Callable[[AudioModels, str], None]


def assert_near(row: Logits, expected: Logits) -> None:
    np.testing.assert_allclose(row, expected, rtol=0, atol=TOLERANCE)


# --- equal to libmtmd


def check_prompts(models: AudioModels, kind: str) -> None:
    """Tokens, positions and logits are those of libmtmd's own path, to the bit."""
    prompts: list[tuple[Part, ...]] = [
        ("user: ", SHORT, "what?"),
        ("user: ", LONGER, "what?"),
        ("user: ", SHORT, SHORT, " and ", LONGER, "what?"),
    ]
    if kind in SEEING_AND_HEARING:
        prompts.append(("user: see ", SMALL, " hear ", SHORT, "what?"))
        prompts.append(("hear ", SHORT, SMALL, "what?"))
    with seeing_model(models, kind, settings=SETTINGS) as model:
        for parts in prompts:
            if kind == "qwen2a":
                parts = parts[-4:]  # noqa: PLW2901  750 rows each
            expected_ids, expected_position, expected = model.read_by_libmtmd(*parts)
            ids = model.prompt(*parts)
            row = model.read_anew(ids)
            assert shown_ids(ids) == expected_ids
            assert model.context.position(len(ids)) == expected_position
            np.testing.assert_array_equal(row, expected)


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_a_prompt_is_read_as_libmtmd_reads_it(
    audio_models: AudioModels, kind: str
) -> None:
    check_prompts(audio_models, kind)


@pytest.mark.parametrize(
    ("kind", "n_pieces"), [("voxtral", 2), ("gemma4a", 2), ("gemma4ua", 1)]
)
def test_audio_of_31_seconds_is_read_in_pieces(
    audio_models: AudioModels, kind: str, n_pieces: int
) -> None:
    parts: tuple[Part, ...] = ("user: ", tune(31), "what?")
    with seeing_model(audio_models, kind, settings=SETTINGS) as model:
        expected_ids, _, expected = model.read_by_libmtmd(*parts)
        ids = model.prompt(*parts)
        assert shown_ids(ids) == expected_ids
        assert len(picture_places(ids)) == n_pieces
        np.testing.assert_array_equal(model.read_anew(ids), expected)


@pytest.mark.parametrize("kind", HEARING_KINDS)
@pytest.mark.parametrize("n_more", [1, 1599, 1600])
def test_a_short_rest_of_audio_ends_no_process(
    audio_models: AudioModels, kind: str, n_more: int
) -> None:
    """Of 30 seconds and one sample, and of one sample alone."""
    with seeing_model(audio_models, kind, settings=SETTINGS) as model:
        projector = model.projector
        for n in (n_more, 30 * RATE + n_more):
            samples = pad_audio(np.full(n, 0.1, np.float32), RATE)
            rows = projector.unencoded(model.prompt("hear ", samples))
            for each in rows:
                assert np.isfinite(each.load_states()).all()
            assert rows


def test_padding_adds_silence_to_a_last_piece_of_less_than_a_tenth() -> None:
    one = np.ones(1, np.float32)

    assert len(pad_audio(one, RATE)) == 1600
    assert pad_audio(one, RATE).sum() == 1
    assert len(pad_audio(np.ones(1600, np.float32), RATE)) == 1600
    assert len(pad_audio(np.ones(480_000, np.float32), RATE)) == 480_000
    assert len(pad_audio(np.ones(480_001, np.float32), RATE)) == 481_600


# --- cuts and copies


def check_cuts(models: AudioModels, kind: str) -> None:
    """Wherever a text is cut, what is left is whole, and the text is read on alike."""
    with seeing_model(models, kind, settings=SETTINGS, snapshots=6) as model:
        context = model.context
        ids = model.prompt(*CHAT)
        inside = set[int]()
        tried = set(range(0, len(ids), 50))
        for start, end in picture_places(ids):
            inside |= set(range(start + 1, end))
            tried |= {start - 1, start, start + 1, end - 1, end, end + 1}
        expected = model.read_anew(ids)
        for cut in sorted(tried):
            context.truncate(cut)
            assert context.n_past <= cut
            assert context.n_past not in inside
            assert_near(model.read(ids), expected)


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_a_text_is_cut_anywhere(audio_models: AudioModels, kind: str) -> None:
    check_cuts(audio_models, kind)


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_a_saved_memory_has_its_audio(audio_models: AudioModels, kind: str) -> None:
    with seeing_model(audio_models, kind, settings=SETTINGS, snapshots=6) as model:
        context = model.context
        ids = model.prompt(*CHAT)
        expected = model.read_anew([*ids, 50, 51])
        model.read_anew(ids)
        state = context.save_state()
        model.read_anew(model.prompt("other ", SHORT, " text"))
        assert context.restore_state(state, len(ids))
        assert_near(model.read([*ids, 50, 51]), expected)
        start, _ = picture_places(ids)[1]
        context.truncate(start)
        assert_near(model.read([*ids, 50, 51]), expected)


@pytest.mark.parametrize(("kind", "n_ubatch"), product(HEARING_KINDS, (32, 100)))
def test_audio_longer_than_a_pass_is_read_in_several(
    audio_models: AudioModels, kind: str, n_ubatch: int
) -> None:
    """As libmtmd reads it in passes of that width."""
    parts: tuple[Part, ...] = ("hear ", tune(5.3), " what?")
    narrow = replace(SETTINGS, n_ubatch=n_ubatch)
    with seeing_model(audio_models, kind, settings=narrow, max_rows=16) as model:
        _, _, expected = model.read_by_libmtmd(*parts)
        np.testing.assert_array_equal(model.read_anew(model.prompt(*parts)), expected)


def test_other_audio_of_the_same_length_is_other_audio(
    audio_models: AudioModels,
) -> None:
    with seeing_model(audio_models, "gemma4a") as model:
        first = model.prompt("hear ", SHORT, " what?")
        other = model.prompt("hear ", tune(0.6, seed=9), " what?")
        again = model.prompt("hear ", SHORT.copy(), " what?")

        assert first == again
        assert first != other
        assert len(first) == len(other)
        moved = model.read_anew(first) - model.read_anew(other)
        assert np.abs(moved).max() > 0.05


def test_rows_are_computed_once(
    audio_models: AudioModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    with seeing_model(audio_models, "gemma4a") as model:
        original = model.projector._encode_chunk

        def counting(chunk: object, rows: object) -> object:
            encoded.append(1)
            return original(chunk, rows)  # type: ignore[arg-type]

        monkeypatch.setattr(model.projector, "_encode_chunk", counting)
        ids = model.prompt(*CHAT)
        assert not encoded
        model.read_anew(ids)
        model.read_anew([*ids, 40])
        assert len(encoded) == 2


# --- stopping


@pytest.mark.parametrize("kind", HEARING_KINDS)
def test_computing_rows_can_be_stopped(
    audio_models: AudioModels, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """At every place where it is asked; then the next audio is whole."""
    with seeing_model(audio_models, kind, settings=SETTINGS) as model:
        context = model.context
        projector = model.projector
        ids = model.prompt(*CHAT)
        expected = model.read_anew(ids)
        n_asked = 0
        stop_at = 0

        def is_interrupted() -> bool:
            nonlocal n_asked
            n_asked += 1
            return n_asked >= stop_at

        capfd.readouterr()
        for each in (1, 2, 3, 5, 9, 30, 300, 5000):
            stop_at = each
            n_asked = 0
            projector._states.clear()
            projector._state_bytes = 0
            context.is_interrupted = lambda: False
            context.truncate(0)
            context.is_interrupted = is_interrupted
            try:
                row = model.read(ids)
            except DecodeInterrupted:
                context.is_interrupted = lambda: False
                assert_near(model.read(ids), expected)
            else:
                assert_near(row, expected)
        assert capfd.readouterr().err == ""


# --- decoding


def decode(model: SeeingModel, data: bytes) -> Samples:
    kind = audio_files.check_audio(data, "x").kind
    return model.projector.decode_audio(audio_files.remove_claims(data, kind))


def test_files_are_decoded_to_samples(audio_models: AudioModels) -> None:
    whole = loud(9000)
    expected = whole.astype(np.float32) / 32768
    with seeing_model(audio_models, "gemma4ua") as model:
        from_flac = decode(model, flac(whole))
        from_wav = decode(model, wav((whole / 32767).astype(np.float32)))

    np.testing.assert_allclose(from_flac, expected, atol=1e-4)
    np.testing.assert_allclose(from_wav, expected, atol=1e-4)


@pytest.mark.parametrize(("rate", "channels"), [(44_100, 2), (8_000, 1), (48_000, 6)])
def test_audio_of_any_rate_becomes_one_channel_at_the_projectors(
    audio_models: AudioModels, rate: int, channels: int
) -> None:
    seconds = 1.5
    data = wav(tune(seconds, rate=rate), rate, channels)
    with seeing_model(audio_models, "gemma4ua") as model:
        samples = decode(model, data)

    assert len(samples) == pytest.approx(seconds * RATE, abs=2)
    assert samples.std() > 0.1


@pytest.mark.parametrize("claimed", [None, 50])
def test_an_mp3_has_the_length_that_its_frames_have(
    audio_models: AudioModels, claimed: int | None
) -> None:
    data = silent_mp3(50, claimed)
    with seeing_model(audio_models, "gemma4ua") as model:
        samples = decode(model, data)

    assert len(samples) == pytest.approx(
        50 * MP3_SAMPLES * RATE / MP3_RATE, abs=RATE * 0.06
    )


HOUR_OF_FRAMES = 3600 * MP3_RATE // MP3_SAMPLES


@pytest.mark.parametrize("what", claiming_mp3s(1))
def test_no_frame_of_an_mp3_makes_it_longer_than_was_checked(
    audio_models: AudioModels, what: str
) -> None:
    """The decoder takes the memory for what it believes: 14 kB took 10 GB."""
    data = claiming_mp3s(HOUR_OF_FRAMES)[what]
    try:
        checked = audio_files.check_audio(data, "x")
    except AudioError:
        return
    with seeing_model(audio_models, "gemma4ua") as model:
        samples = decode(model, data)

    assert len(samples) <= (checked.seconds + 0.01) * RATE


def test_other_bytes_and_damaged_audio_are_refused(audio_models: AudioModels) -> None:
    broken = b"fLaC" + b"\xff" * 200
    with seeing_model(audio_models, "gemma4ua") as model:
        for data in (b"", b"text", broken, b"ID3" + b"\0" * 50):
            with pytest.raises(UsageError, match=r"damaged|no audio"):
                model.projector.decode_audio(data)


# --- projectors that cannot be used


def test_stacks_at_which_llama_cpp_would_end_are_refused(
    audio_models: AudioModels,
) -> None:
    path = audio_models["voxtral"].projector
    good = reader.read(path)
    check_projector(good, path.name)
    bad = replace(good, keys={**good.keys, "clip.audio.projector.stack_factor": 8})

    with pytest.raises(ModelFileError, match="stacks of 8 do not fill"):
        check_projector(bad, path.name)


def test_a_projector_whose_marks_the_vocabulary_lacks_is_refused(
    audio_models: AudioModels,
) -> None:
    """The first has the width of the second, whose vocabulary has no such words."""
    settings = ModelRole(SETTINGS, 1, 0)
    model = audio_models["voxtral"].model
    path = audio_models["qwen2a"].projector
    with (
        closing(LlamaContext(model, settings)) as context,
        pytest.raises(ModelFileError, match="vocabulary lacks"),
    ):
        Projector(path, context, kind="qwen2vl_merger")


# --- planted bugs


def _mutate(old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: plant(monkeypatch, Projector._read_chunk, old, new)


BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "audio does not move": (
        _mutate("np.ones((_N_AXES, 1), np.int32)", "np.zeros((_N_AXES, 1), np.int32)"),
        "qwen2a",
    ),
    "rows of audio stand at one place": (
        _mutate(
            "np.arange(n_rows, dtype=np.int32), (_N_AXES",
            "np.zeros(n_rows, dtype=np.int32), (_N_AXES",
        ),
        "qwen2a",
    ),
    "audio sees what is behind it": (
        _mutate(
            "mtmd_decode_use_non_causal(self.handle, chunk)",
            "mtmd_support_audio(self.handle)",
        ),
        "gemma4a",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(
    audio_models: AudioModels, monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    plant_it, kind = BUGS[bug]
    plant_it(monkeypatch)
    with pytest.raises((AssertionError, LocalspecError)):
        check_prompts(audio_models, kind)
