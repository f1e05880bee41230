"""What is said of a picture or audio while the model reads it."""

from __future__ import annotations

from localspec.protocol.events import PictureReading
from localspec.units import about_duration


def _name_reading(event: PictureReading) -> str:
    """What is read: `the picture`, `the audio`, or `picture 2 of 3`."""
    what = "picture" if event.seconds is None else "audio"
    if event.of > 1:
        return f"{what} {event.n} of {event.of}"
    return f"the {what}"


def describe_reading(event: PictureReading) -> str:
    """Such as "reading the picture, about 16 s", or "reading picture 2 of 3"."""
    what = _name_reading(event)
    about = about_duration(event.seconds_expected)
    if not about:
        return f"reading {what}"
    return f"reading {what}, {about}"
