"""Pictures and audio for a loaded pair: their files, and what to say if its target does
not see or hear.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from localspec.errors import AudioError, Hint, LocalspecError, PictureError
from localspec.models import catalog, model_lookup, projectors
from localspec.models.audio_files import AudioData
from localspec.models.gguf import reader
from localspec.models.local_files import inventory
from localspec.models.pictures import PICTURE_FILES, PictureData
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import PictureRef
from localspec.sanitize import sanitize

_MAX_NAMED = 3
Sense = Literal["sees", "hears"]


def put_picture(picture: PictureData) -> PictureRef:
    """A picture as a message names it: in a file that the engine can read.

    Raises StorageError.
    """
    path = PICTURE_FILES.put(picture.data)
    header = picture.picture
    return PictureRef(str(path), header.sha256, header.name)


def put_audio(audio: AudioData) -> PictureRef:
    """Audio as a message names it: in a file that the engine can read.

    Raises StorageError.
    """
    path = PICTURE_FILES.put(audio.data)
    header = audio.audio
    return PictureRef(str(path), header.sha256, header.name, kind="audio")


def has_hearing(ready: EngineReady) -> bool:
    """Whether the loaded target takes audio."""
    images = ready.settings.get("images")
    return bool(images and images.get("audio"))


def require_hearing(ready: EngineReady) -> None:
    """Raise AudioError if the loaded target takes no audio."""
    if not has_hearing(ready):
        raise no_hearing_error(Path(ready.model).stem)


def require_senses(ready: EngineReady, refs: Iterable[PictureRef]) -> None:
    """Raise PictureError or AudioError if the loaded target cannot take all of them."""
    kinds = {ref.kind for ref in refs}
    if "picture" in kinds:
        require_sight(ready)
    if "audio" in kinds:
        require_hearing(ready)


def has_sight(ready: EngineReady) -> bool:
    """Whether the loaded target takes pictures. A projector may only hear."""
    images = ready.settings.get("images")
    if not images:
        return False
    return bool(images.get("max_rows") != 0)


def require_sight(ready: EngineReady) -> None:
    """Raise PictureError if the loaded target takes no pictures."""
    if not has_sight(ready):
        raise no_sight_error(Path(ready.model).stem)


def no_sight_error(name: str, reference: str = "") -> PictureError:
    """The error for a picture if a model does not see; it names models that do.

    `reference` names the model as the user did. With it, the error tells whether only
    the model's projector is missing.
    """
    shown = sanitize(name, multiline=False)
    message = f"{shown} does not see pictures."
    if _lacks_projector(reference, "sees"):
        message = f"{shown} sees with its projector (mmproj), which is not loaded."
    return PictureError(message, _hint_at_sense(reference, "sees"))


def no_hearing_error(name: str, reference: str = "") -> AudioError:
    """As `no_sight_error`, for audio."""
    shown = sanitize(name, multiline=False)
    message = f"{shown} does not hear."
    if _lacks_projector(reference, "hears"):
        message = f"{shown} hears with its projector (mmproj), which is not loaded."
    return AudioError(message, _hint_at_sense(reference, "hears"))


def _lacks_projector(reference: str, sense: Sense) -> bool:
    """Whether the model that the user named has the sense but for its projector."""
    return bool(reference) and _is_listed_as(reference, sense)


def _hint_at_sense(reference: str, sense: Sense) -> str:
    """How to get the projector, else which models have the sense."""
    if _lacks_projector(reference, sense):
        command = f"localspec pull {shlex.quote(sanitize(reference, multiline=False))}"
        return Hint(f"Download it: {command}. Or name its file: {{image_model=FILE}}.")
    names = _find_models(sense)
    if names:
        return f"These do: {', '.join(names)}."
    return Hint("Give its projector (mmproj): {image_model=FILE}.")


def find_seeing_models() -> list[str]:
    """References of some models that see: of this computer, else of the catalogue."""
    return _find_models("sees")


def find_hearing_models() -> list[str]:
    """References of some models that hear: of this computer, else of the catalogue."""
    return _find_models("hears")


def _find_models(sense: Sense) -> list[str]:
    models = inventory.list_models()
    found: list[str] = []
    for model in models:
        projector = projectors.map_projectors([model]).get(model.path)
        if projector is not None and _serves(projector, sense):
            found.append(model_lookup.shortest_reference(model, models))
        if len(found) == _MAX_NAMED:
            break
    if not found:
        catalogue, _ = catalog.load_valid()
        listed = [each for each in catalogue.models.values() if getattr(each, sense)]
        listed.sort(key=lambda each: each.size or math.inf)
        found = [each.id for each in listed[:_MAX_NAMED]]
    return [sanitize(each, multiline=False) for each in found]


def _serves(projector: Path, sense: Sense) -> bool:
    with suppress(LocalspecError, OSError):
        return bool(getattr(projectors.read_senses(reader.read(projector)), sense))
    return False


def add_seeing_models(hint: str) -> str:
    """A hint for what a model that sees could read; it takes a moment to find some."""
    names = find_seeing_models()
    if not names:
        return hint
    return f"{hint.rstrip('.')}, or use a model that sees: {', '.join(names)}."


def _is_listed_as(reference: str, sense: Sense) -> bool:
    with suppress(LocalspecError):
        entry = model_lookup.resolve(reference).target.catalog_model
        return entry is not None and bool(getattr(entry, sense))
    return False
