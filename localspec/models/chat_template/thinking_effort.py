"""How hard a model thinks: an effort becomes what its chat template and the engine can
do.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from localspec.errors import UsageError

ThinkingControl = Literal["levels", "switch", "budget"]
"""`levels`: the template reads `reasoning_effort` (gpt-oss); `switch`: it turns
thinking on and off (Qwen 3); `budget`: the engine can end the thinking after some
tokens.
"""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's and Anthropic's words."""
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
# Without another control.
_BUDGETS = {
    "none": 0,
    "minimal": 256,
    "low": 1024,
    "medium": 4096,
}


class ThinkingParams(NamedTuple):
    think: bool | None  # For the template; None for its default.
    level: str  # The template's `reasoning_effort`; empty for its default.
    budget: int | None  # Maximum thinking tokens.


def resolve_effort(
    effort: str, think: bool | None, budget: int | None, controls: Collection[str]
) -> ThinkingParams:
    """What an effort (or "") is with these controls; `think` and `budget` if they are
    given.

    Raises UsageError for an effort where the model has no thinking.
    """
    if effort not in ("", "none", "minimal") and not controls:
        raise UsageError(
            f"This model's chat template has no thinking, so no effort {effort}."
        )
    if think is False:
        effort = "none"
    if effort and "switch" in controls and think is None:
        think = effort != "none" and (effort != "minimal" or "levels" in controls)
    level = _LEVELS.get(effort, effort) if "levels" in controls else ""
    if budget is None and (effort == "none" or "levels" not in controls):
        budget = _BUDGETS.get(effort) if "switch" not in controls else None
    return ThinkingParams(think, level, budget if "budget" in controls else None)
