"""Resolving model arguments to files, and starting the engine."""

from localspec.launch.resolve import (
    ResolvedPair,
    check_drafter,
    describe_detected_head,
    make_portable_refs,
    preferred_drafter,
    resolve_file,
    resolve_pair,
    with_detected_head,
)
from localspec.launch.start import (
    HEAD_NOTICE,
    SETTINGS_NOTICE,
    Engine,
    MeasuredEngine,
    choose_settings,
    start_engine,
)

__all__ = [
    "HEAD_NOTICE",
    "SETTINGS_NOTICE",
    "Engine",
    "MeasuredEngine",
    "ResolvedPair",
    "check_drafter",
    "choose_settings",
    "describe_detected_head",
    "make_portable_refs",
    "preferred_drafter",
    "resolve_file",
    "resolve_pair",
    "start_engine",
    "with_detected_head",
]
