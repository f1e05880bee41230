"""What is said of a picture or audio while the model reads it."""

from __future__ import annotations

from localspec.protocol.events import PictureReading
from localspec.units import duration


def name_reading(event: PictureReading) -> str:
    """What is read: `the picture`, `the audio`, or `picture 2 of 3`."""
    what = "picture" if event.seconds is None else "audio"
    if event.of > 1:
        return f"{what} {event.n} of {event.of}"
    return f"the {what}"


def describe_reading(event: PictureReading) -> str:
    """Such as "reading the picture, about 16 s", or "reading picture 2 of 3"."""
    what = name_reading(event)
    if event.seconds_expected is None or event.seconds_expected < 1:
        return f"reading {what}"
    return f"reading {what}, about {duration(event.seconds_expected)}"
