"""Refuses verification methods that draw from the draft's distribution.

With them, what is drafted ahead would depend on timing, and so would the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localspec.errors import Hint, UsageError


def check_options(
    given: Mapping[str, Any], is_from_config: Callable[[str], bool]
) -> None:
    """Raise UsageError if `--overlap on` is given with such a method.

    If overlap is a preference of config.toml, it is ignored instead.
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
