"""The user's configuration, and the tables that define it.

- `options.py` is the table of all options. Each row says what its values are, what it
  does, and where it is offered: on the command line, in Python, in a chat, in a request,
  and as a key of config.toml. The command line, `/set`, the preferences, `localspec
  config`, the template of config.toml and docs/settings.md are made of the rows.
- `option_types.py` has the types of rows and values.
- `key_table.py` is the table of the app's keys, which [keys] changes.
- `toml_file.py` reads, changes and edits config.toml.
- `effective.py` finds the value of every setting, and where it comes from.
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
        hint = EDIT_HINT if is_in_file(error) else UNSET_HINT
        raise UsageError(error, hint)
    return effective


def is_in_file(error: str) -> bool:
    """Whether an error of EffectiveConfig is in config.toml.

    Otherwise it is in an environment variable, or in an option.
    """
    return str(paths.config_file()) in error
