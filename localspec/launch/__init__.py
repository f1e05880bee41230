"""Resolving model arguments to files, and starting the engine."""

from localspec.launch.engine_client import (
    EXACT_NOTICE,
    HEAD_NOTICE,
    SETTINGS_NOTICE,
    EngineClient,
)
from localspec.launch.pair import (
    ResolvedPair,
    check_drafter,
    check_target,
    make_portable_refs,
    preferred_drafter,
    resolve_file,
    resolve_or_pull,
    resolve_pair,
    with_default_draft,
)
from localspec.launch.start import (
    NO_PROJECTOR,
    Engine,
    LoadOptions,
    StartEngine,
    choose_settings,
    has_faster_copy,
    saved_criteria,
    start_engine,
)
