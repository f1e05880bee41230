"""The user's configuration: config.toml, environment variables and command-line
options.
"""

from __future__ import annotations

from localspec import paths
from localspec.config.effective import (
    OPTION_PREFIX,
    EffectiveConfig,
    EffectiveSetting,
    resolve,
)
from localspec.config.options import OPTIONS, SETTINGS, select
from localspec.errors import UsageError

EDIT_HINT = "Fix it: localspec config edit"
UNSET_HINT = "Change or unset it."


def load() -> EffectiveConfig:
    """Like `resolve`, for commands: they must not run with a wrong setting.

    Raises UsageError with the first error.
    """
    effective = resolve()
    if effective.errors:
        error = effective.errors[0]
        raise UsageError(error, EDIT_HINT if is_in_file(error) else UNSET_HINT)
    return effective


def is_in_file(error: str) -> bool:
    """Whether an error of EffectiveConfig is in config.toml, not in a variable or an
    option.
    """
    return str(paths.config_file()) in error
