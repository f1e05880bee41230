"""Pictures in chats: attachments, and what an engine reports when it reads them."""

import base64
from collections.abc import Callable
from typing import Any

from localspec.chat.conversation import PictureAttachment
from localspec.models.pictures import accept_picture
from localspec.protocol.events import EngineReady, Event, PictureReading, Thumbnail
from localspec.protocol.wire import CountCommand, CountResult
from tests.support.picture_bytes import empty_png, png, shades
from tests.support.scripted_engine import ScriptedEngine, answer, ready

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


class SeeingEngine(ScriptedEngine):
    """A picture has 1,020 tokens, and takes 16 s to read."""

    n_rows = 1020
    seconds: float | None = 16.2

    def __init__(self, *scripts: Callable[[], Any]) -> None:
        super().__init__(
            *scripts or (lambda: seen("A", " photo."),), ready=ready_to_see()
        )

    def count(self, count: CountCommand) -> CountResult:
        n_images = sum(len(each.images) for each in count.messages)
        seconds = None
        if self.seconds is not None:
            seconds = self.seconds * n_images
        return CountResult(8 + self.n_rows * n_images, seconds)


BEACH = empty_png(1920, 1080)
"""Its thumbnail shows sky, sea and sand."""
_SKY = (120, 180, 235)
_SEA = (30, 90, 160)
_SAND = (225, 200, 140)
_SUN = (250, 220, 90)


def beach_thumbnail() -> Thumbnail:
    """48 × 27 pixels, of the shape of the picture."""
    pixels = bytearray()
    for y in range(27):
        for x in range(48):
            colour = _SKY
            if y > 12:
                colour = _SEA
            if y > 18 - x // 12:
                colour = _SAND
            if (x - 38) ** 2 + (y - 5) ** 2 < 10:
                colour = _SUN
            pixels += bytes(colour)
    return Thumbnail(48, 27, base64.b64encode(pixels).decode())
