"""From what a person typed to a running engine."""

from localspec.launch.choosing import Choice, choose, file, lasting, says, with_head
from localspec.launch.fitting import fitted
from localspec.launch.starting import HEAD, SETTINGS, Engine, Remembering, start

__all__ = [
    "HEAD",
    "SETTINGS",
    "Choice",
    "Engine",
    "Remembering",
    "choose",
    "file",
    "fitted",
    "lasting",
    "says",
    "start",
    "with_head",
]
