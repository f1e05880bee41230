"""The option of overlapped drafting."""

from __future__ import annotations

from localspec.config.option_types import SWITCH_OR_AUTO, Option, Setting

OVERLAP = Option(
    "overlap",
    SWITCH_OR_AUTO,
    "Draft while the target verifies; auto: across devices, where it is worth it.",
    title="overlapped drafting",
    offered=("command", "python"),
    setting=Setting("answers.overlap", "when a model is loaded"),
)
