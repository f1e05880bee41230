"""The settings of config.toml: types, defaults, labels and help, for all user interfaces."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.speculation_methods import SPECS
from localspec.worker_address import parse_addresses

THEMES = ("localspec-dark", "localspec-light", "high-contrast", "monochrome", "ansi")
OVERFLOW_POLICIES = ("ask", "stop", "drop", "summarise")


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting's value."""

    expects: str
    """The possible values, as text after `must be`."""
    validate: Callable[[object], object]
    """Check a value of the file and return it. Raises ValueError."""
    read: Callable[[str], object]
    """Convert a text to a value for `validate`. Raises ValueError."""
    choices: tuple[str, ...] = ()
    """The possible texts, if they can be listed."""

    def parse(self, text: str) -> object:
        """Parse the text of a user, a variable or a command. Raises ValueError."""
        return self.validate(self.read(text))

    def format(self, value: object) -> str:
        """Return the text that `parse` accepts; empty for None."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return f"{value:g}"
        return "" if value is None else str(value)


def _check(is_valid: Callable[[Any], bool]) -> Callable[[object], object]:
    def validate(value: object) -> object:
        if not is_valid(value):
            raise ValueError
        return value

    return validate


_BOOL_WORDS = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(
    ("false", "off", "no", "0"), False
)
BOOL = SettingType(
    "true or false",
    _check(lambda value: isinstance(value, bool)),
    lambda text: _BOOL_WORDS.get(text.strip().lower()),
    ("true", "false"),
)


def choice_type(choices: tuple[str, ...], *, older: Mapping[str, str] | None = None) -> SettingType:
    """`older`: words of earlier versions, with what they mean now."""
    *most, last = (f'"{word}"' for word in choices)
    is_valid = _check(lambda value: isinstance(value, str) and value in choices)
    return SettingType(
        f"{', '.join(most)} or {last}",
        lambda value: is_valid((older or {}).get(str(value), value)),
        lambda text: text.strip().lower(),
        choices,
    )


def number_type(expects: str, *, zero: bool = True) -> SettingType:
    """A number from 0, or above it without `zero`."""

    def is_valid(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return math.isfinite(value) and (value > 0 or (zero and value == 0))

    return SettingType(expects, _check(is_valid), _read_number)


def _read_number(text: str) -> float:
    value = float(text.strip().replace(",", "."))
    return int(value) if value.is_integer() and "e" not in text.lower() else value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


def _validate_workers(value: object) -> str:
    """The computers need not be reachable."""
    if not isinstance(value, str):
        raise ValueError
    try:
        parse_addresses(value)
    except UsageError as error:
        raise ValueError from error
    return value.strip()


def _validate_folder(value: object) -> str:
    """The folder need not exist: its disk may be disconnected."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    if not os.path.isabs(path := os.path.expanduser(value)):
        raise ValueError
    return path


FOLDER = SettingType(
    'the absolute path of a folder, in quotes: "~/models"',
    _validate_folder,
    lambda text: os.path.abspath(os.path.expanduser(text.strip())) if text.strip() else "",
)


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One setting of config.toml."""

    key: str
    """`table.name`, as in `config set`."""
    value_type: SettingType
    default: object
    """None: unset; shown as `unset_label`."""
    label: str
    help: str
    """One line."""
    unset_label: str = ""
    """Shown if there is no value."""
    cli_flags: str = ""
    """Command-line options that override the setting."""
    takes_effect: str = ""
    """When a change takes effect; empty means at once."""
    env_var_override: str = ""
    """The variable's name, if it does not follow from `key`."""
    safe_value: object = None
    """Used if the value is set but invalid, so that a typo does not reduce privacy."""

    @property
    def env_var(self) -> str:
        """The environment variable that overrides the file."""
        return self.env_var_override or f"LOCALSPEC_{self.key.replace('.', '_').upper()}"

    @property
    def table(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    def display(self, value: object) -> str:
        """Format a value for the screen: `on`, `20`, `no limit`."""
        if value is None:
            return self.unset_label
        if isinstance(value, bool):
            return "on" if value else "off"
        return self.value_type.format(value)


TABLES: Mapping[str, str] = {
    "screen": "Screen",
    "run": "Running",
    "chats": "Chats",
    "answers": "Answers",
    "presets": "",
    "models": "Models and the network",
    "network": "",
    "downloads": "",
    "keys": "Keys",
}
"""The tables in order, with screen headings. An empty heading continues the previous section."""

SETTINGS: Mapping[str, SettingDefinition] = {
    setting.key: setting
    for setting in (
        SettingDefinition(
            "screen.theme",
            choice_type(THEMES),
            THEMES[0],
            "theme",
            "Colours of the app; ansi: the terminal's own. Monochrome uses underlines and symbols.",
        ),
        SettingDefinition(
            "screen.ascii",
            BOOL,
            False,
            "plain ASCII",
            "For terminals and fonts without line, arrow and block characters.",
        ),
        SettingDefinition(
            "run.pair",
            SettingType(
                "a pair, a model or a file, in quotes, as after `localspec run`",
                _check(_is_text),
                str.strip,
            ),
            None,
            "default model",
            "The pair or model that `localspec run` opens without arguments.",
            unset_label="the last one used",
            cli_flags="MODEL",
            takes_effect="at the next start",
        ),
        SettingDefinition(
            "run.workers",
            SettingType(
                'one or two computers, in quotes: "gpu-box, 192.168.1.20:50053"',
                _validate_workers,
                str.strip,
            ),
            None,
            "other computers",
            "They run localspec worker, and share models that are too large or too slow here.",
            unset_label="none",
            cli_flags="--workers",
            takes_effect="when a model is loaded",
        ),
        SettingDefinition(
            "chats.keep",
            BOOL,
            True,
            "save chats",
            "On this computer only. Off: new chats are not saved.",
            cli_flags="--private",
            takes_effect="for new chats",
            safe_value=False,
        ),
        SettingDefinition(
            "chats.overflow",
            choice_type(OVERFLOW_POLICIES),
            "ask",
            "when the context is full",
            "Ask; stop; drop the oldest turns; or replace them by a summary.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "chats.show_thinking",
            BOOL,
            False,
            "show thinking",
            "Expand the model's thinking by default.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.temperature",
            number_type("0 or more"),
            None,
            "temperature",
            "0 is greedy. Overrides the pair's own default.",
            unset_label="the pair's default",
            cli_flags="--temperature",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.spec",
            choice_type(SPECS),
            "auto",
            "speculation",
            "auto: the fastest drafter; off: no speculation; or one drafter, if the pair has it.",
            cli_flags="--spec",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.exact",
            choice_type(("on", "off"), older={"auto": "off"}),
            "off",
            "exact mode",
            "On a CPU, attention that computes passes of every width alike.",
            cli_flags="--exact",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.overlap",
            choice_type(("auto", "on", "off")),
            "auto",
            "overlapped drafting",
            "Draft while the target verifies; auto: across devices, where it is worth it.",
            cli_flags="--overlap",
            takes_effect="when a model is loaded",
        ),
        SettingDefinition(
            "models.folder",
            FOLDER,
            None,
            "model folder",
            "Its .gguf files are listed together with those of the Hugging Face cache.",
            unset_label="none",
            cli_flags="--models-dir",
            env_var_override="LOCALSPEC_MODELS_DIR",
        ),
        SettingDefinition(
            "network.offline",
            BOOL,
            False,
            "offline mode",
            "Never use the network, not even for requested downloads.",
            cli_flags="--offline",
            env_var_override="HF_HUB_OFFLINE",
            safe_value=True,
        ),
        SettingDefinition(
            "downloads.limit",
            number_type("a number of MB/s above 0", zero=False),
            None,
            "download limit (MB/s)",
            "Maximum speed of all downloads together.",
            unset_label="no limit",
            cli_flags="pull --limit",
        ),
    )
}
"""By key, in screen order."""


def find_nearest_key(key: str, ids: frozenset[str] = frozenset()) -> str:
    """Find the most similar key, or "". `ids` are the action ids of [keys]."""
    keys = {key: key for key in (*SETTINGS, *(f"keys.{id_}" for id_ in ids))}
    by_name = {setting.name: setting.key for setting in SETTINGS.values()}
    matches = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    matches = matches or difflib.get_close_matches(key.rpartition(".")[2], by_name, n=1, cutoff=0.7)
    return (keys | by_name)[matches[0]] if matches else ""
