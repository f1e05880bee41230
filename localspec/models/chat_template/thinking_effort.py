"""How hard a model thinks: maps an effort to its chat template and the engine."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from localspec.errors import UsageError

ThinkingControl = Literal["levels", "switch", "budget"]
"""What can be set of a model's thinking.

* `levels`: the template reads `reasoning_effort` (gpt-oss).
* `switch`: the template turns thinking on and off (Qwen 3).
* `budget`: the engine can end the thinking after some tokens.
"""
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""OpenAI's and Anthropic's words."""
_LEVELS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
_BUDGETS = {"none": 0, "minimal": 256, "low": 1024, "medium": 4096}
"""Tokens, for a model without another control; other efforts have no limit."""


class ThinkingParams(NamedTuple):
    think: bool | None
    """For the template; None for its default."""
    level: str
    """The template's `reasoning_effort`; empty for its default."""
    budget: int | None
    """Maximum thinking tokens; None is no limit."""


def check_thinking(
    controls: Collection[str],
    *,
    think: bool | None = None,
    effort: str = "",
    budget: int | None = None,
) -> None:
    """Raises UsageError if a setting needs thinking and the model has none.

    All front ends use this rule. Turning off what the model does not have is allowed.
    """
    if controls:
        return
    missing = ""
    if think:
        missing = "so it cannot be turned on"
    elif effort not in ("", "none", "minimal"):
        missing = f"so no effort {effort}"
    elif budget is not None:
        missing = "so no thinking budget"
    if missing:
        raise UsageError(f"This model's chat template has no thinking, {missing}.")


def resolve_effort(
    effort: str, think: bool | None, budget: int | None, controls: Collection[str]
) -> ThinkingParams:
    """What an effort (or "") is with these controls.

    `think` and `budget` come first if they are given. Raises UsageError for an effort
    where the model has no thinking.
    """
    check_thinking(controls, effort=effort)
    if think is False:
        effort = "none"
    has_levels = "levels" in controls
    has_switch = "switch" in controls
    if effort and has_switch and think is None:
        is_off = effort == "none" or (effort == "minimal" and not has_levels)
        think = not is_off
    level = ""
    if has_levels:
        level = _LEVELS.get(effort, effort)
    if budget is None and not has_switch and (effort == "none" or not has_levels):
        budget = _BUDGETS.get(effort)
    if "budget" not in controls:
        budget = None
    return ThinkingParams(think, level, budget)
