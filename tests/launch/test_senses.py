"""What a loaded model sees and hears, and what is said where it does not."""

import pytest

from localspec.errors import AudioError, PictureError
from localspec.launch import sight
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import PictureRef
from tests.support.chat_audio import ready_to_hear
from tests.support.chat_pictures import ready_to_see
from tests.support.scripted_engine import ready

PICTURE = PictureRef("/a", "1")
AUDIO = PictureRef("/b", "2", kind="audio")
LOADED = [
    (ready(), False, False),
    (ready_to_see(), True, False),
    (ready_to_hear(), False, True),
    (ready_to_hear(sees=True), True, True),
]


@pytest.mark.parametrize(("loaded", "sees", "hears"), LOADED)
def test_a_projector_may_serve_either_sense_or_both(
    loaded: EngineReady, sees: bool, hears: bool
) -> None:
    assert sight.has_sight(loaded) == sees
    assert sight.has_hearing(loaded) == hears


def test_each_file_of_a_message_needs_its_sense() -> None:
    sight.require_senses(ready(), ())
    sight.require_senses(ready_to_see(), (PICTURE,))
    sight.require_senses(ready_to_hear(), (AUDIO,))
    sight.require_senses(ready_to_hear(sees=True), (AUDIO, PICTURE))

    with pytest.raises(AudioError, match="does not hear"):
        sight.require_senses(ready_to_see(), (PICTURE, AUDIO))
    with pytest.raises(PictureError, match="does not see"):
        sight.require_senses(ready_to_hear(), (PICTURE, AUDIO))


def test_the_error_names_models_that_hear() -> None:
    assert "gemma-4-e2b" in sight.no_hearing_error("Parrot").hint


def test_a_model_whose_projector_is_missing_is_told_how_to_get_it() -> None:
    error = sight.no_hearing_error("Gemma 4 E2B", "gemma-4-e2b")

    assert "which is not loaded" in error.message
    assert "localspec pull gemma-4-e2b" in error.hint
