"""Pictures for a loaded pair: their files, and what to say if its target does not see."""

from __future__ import annotations

import math
import shlex
from contextlib import suppress
from pathlib import Path

from localspec.errors import Hint, LocalspecError, PictureError
from localspec.models import catalog, model_lookup, projectors
from localspec.models.local_files import inventory
from localspec.models.pictures import PICTURE_FILES, PictureData
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import PictureRef
from localspec.sanitize import sanitize

_MAX_NAMED = 3


def put_picture(picture: PictureData) -> PictureRef:
    """A picture as a message names it: in a file that the engine can read.

    Raises StorageError.
    """
    path = PICTURE_FILES.put(picture.data)
    header = picture.picture
    return PictureRef(str(path), header.sha256, header.name)


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
    if reference and _is_listed_as_seeing(reference):
        command = f"localspec pull {shlex.quote(sanitize(reference, multiline=False))}"
        return PictureError(
            f"{shown} sees with its projector (mmproj), which is not loaded.",
            Hint(f"Download it: {command}. Or name its file: {{image_model=FILE}}."),
        )
    hint: str = Hint("Give its projector (mmproj): {image_model=FILE}.")
    seeing = find_seeing_models()
    if seeing:
        hint = f"These do: {', '.join(seeing)}."
    return PictureError(f"{shown} does not see pictures.", hint)


def find_seeing_models() -> list[str]:
    """References of some models that see: of this computer, else of the catalogue."""
    models = inventory.list_models()
    found: list[str] = []
    for model in models:
        if model.path in projectors.map_projectors([model]):
            found.append(model_lookup.shortest_reference(model, models))
        if len(found) == _MAX_NAMED:
            break
    if not found:
        catalogue, _ = catalog.load_valid()
        listed = [each for each in catalogue.models.values() if each.sees]
        listed.sort(key=lambda each: each.size or math.inf)
        found = [each.id for each in listed[:_MAX_NAMED]]
    return [sanitize(each, multiline=False) for each in found]


def add_seeing_models(hint: str) -> str:
    """A hint for what a model that sees could read; it takes a moment to find some."""
    names = find_seeing_models()
    if not names:
        return hint
    return f"{hint} Or use a model that sees: {', '.join(names)}."


def _is_listed_as_seeing(reference: str) -> bool:
    with suppress(LocalspecError):
        entry = model_lookup.resolve(reference).target.catalog_model
        return entry is not None and bool(entry.sees)
    return False
