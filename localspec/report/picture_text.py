"""What is said of a picture while the model reads it."""

from __future__ import annotations

from localspec.protocol.events import PictureReading
from localspec.units import duration


def describe_reading(event: PictureReading) -> str:
    """Such as "reading the picture, about 16 s", or "reading picture 2 of 3"."""
    what = "the picture"
    if event.of > 1:
        what = f"picture {event.n} of {event.of}"
    if event.seconds_expected is None or event.seconds_expected < 1:
        return f"reading {what}"
    return f"reading {what}, about {duration(event.seconds_expected)}"
