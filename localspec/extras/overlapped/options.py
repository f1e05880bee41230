"""The option of overlapped drafting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localspec.config.option_types import SWITCH_OR_AUTO, Option, Setting
from localspec.errors import Hint, UsageError

OVERLAP = Option(
    "overlap",
    SWITCH_OR_AUTO,
    "Draft while the target verifies; auto: across devices, where it is worth it.",
    title="overlapped drafting",
    offered=("command", "python"),
    setting=Setting("answers.overlap", "when a model is loaded"),
)


def check_verification(
    given: Mapping[str, Any], is_from_config: Callable[[str], bool]
) -> None:
    """Raise UsageError if `--overlap on` meets a verification method that draws from
    the draft's distribution. A preference of config.toml gives way instead.
    """
    verify = given.get("verify")
    is_refused = verify in ("rejection", "block")
    if given.get("overlap") and is_refused and not is_from_config("overlap"):
        raise verification_error(str(verify))


def verification_error(verify: str) -> UsageError:
    return UsageError(
        f"Overlapped drafting does not work with verification {verify}.",
        Hint("Use {verify=coupled} or match with {overlap=on}."),
    )
