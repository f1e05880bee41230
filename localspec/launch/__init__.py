"""From what a person typed to a running engine."""

from localspec.launch.choosing import (
    Choice,
    check_drafter,
    choose,
    file,
    lasting,
    preferred_drafter,
    says,
    with_head,
)
from localspec.launch.fitting import fitted
from localspec.launch.starting import HEAD, SETTINGS, Engine, Remembering, start

__all__ = [
    "HEAD",
    "SETTINGS",
    "Choice",
    "Engine",
    "Remembering",
    "check_drafter",
    "choose",
    "file",
    "fitted",
    "lasting",
    "preferred_drafter",
    "says",
    "start",
    "with_head",
]
