"""Pictures in chats: attachments, and what an engine reports when it reads them."""

import base64
from typing import Any

from localspec.chat.conversation import PictureAttachment
from localspec.models.pictures import accept_picture
from localspec.protocol.events import EngineReady, Event, PictureReading, Thumbnail
from tests.support.picture_bytes import png, shades
from tests.support.scripted_engine import answer, ready

PHOTO = png(shades(12, 8))
SKETCH = png(shades(5, 9))
IMAGES = {"kind": "gemma3", "max_rows": 256, "audio": False}


def attachment(data: bytes = PHOTO, name: str = "photo.png") -> PictureAttachment:
    header = accept_picture(data, name).picture
    return PictureAttachment(
        header.name,
        header.sha256,
        kind=header.kind,
        width=header.width,
        height=header.height,
    )


def thumbnail(width: int = 3, height: int = 2) -> Thumbnail:
    pixels = bytes(40 * n % 256 for n in range(3 * width * height))
    return Thumbnail(width, height, base64.b64encode(pixels).decode())


def reading(data: bytes = PHOTO, **more: Any) -> PictureReading:
    """The event of a picture that is read."""
    picture = attachment(data)
    given: dict[str, Any] = {"n": 1, "of": 1, "rows": 24, "thumbnail": thumbnail()}
    return PictureReading(
        **(given | more),
        width=picture.width,
        height=picture.height,
        sha256=picture.sha256,
    )


def seen(*words: str, data: bytes = PHOTO) -> list[Event]:
    """An answer to a question with a picture."""
    plan, *rest = answer(words)
    return [plan, reading(data), *rest]


def ready_to_see(**more: Any) -> EngineReady:
    """A loaded pair that takes pictures."""
    loaded = ready(**more)
    loaded.settings["images"] = IMAGES
    return loaded
