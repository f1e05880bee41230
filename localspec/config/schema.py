"""The settings of config.toml: types, defaults, labels and help, for all user interfaces."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from localspec.speculation import SPECS

THEMES = ("localspec-dark", "localspec-light", "high-contrast", "monochrome")
OVERFLOW_POLICIES = ("ask", "stop", "drop", "summarise")


class SettingType(Protocol):
    """The type of a setting's value."""

    @property
    def expects(self) -> str:
        """The possible values, as text after `must be`."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The possible texts, if they can be listed."""

    def validate(self, value: object) -> object:
        """Check a value of the file and return it. Raises ValueError."""

    def parse(self, text: str) -> object:
        """Parse the text of a user, a variable or a command. Raises ValueError."""

    def format(self, value: object) -> str:
        """Return the text that `parse` accepts; empty for None."""


@dataclass(frozen=True, slots=True)
class BoolType:
    expects: str = "true or false"
    choices: tuple[str, ...] = ("true", "false")

    def validate(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    def parse(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "on", "yes", "1"):
            return True
        if word in ("false", "off", "no", "0"):
            return False
        raise ValueError

    def format(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class ChoiceType:
    choices: tuple[str, ...]

    @property
    def expects(self) -> str:
        *most, last = (f'"{word}"' for word in self.choices)
        return f"{', '.join(most)} or {last}"

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or value not in self.choices:
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return self.validate(text.strip().lower())

    def format(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number from `minimum`, or above it if `exclusive`."""

    expects: str
    minimum: float = 0.0
    exclusive: bool = False
    choices: tuple[str, ...] = ()

    def validate(self, value: object) -> float:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not self._is_in_range(value)
        ):
            raise ValueError
        return value

    def _is_in_range(self, value: float) -> bool:
        return math.isfinite(value) and (
            value > self.minimum if self.exclusive else value >= self.minimum
        )

    def parse(self, text: str) -> float:
        value = float(text.strip().replace(",", "."))
        return self.validate(
            int(value) if value.is_integer() and "e" not in text.lower() else value
        )

    def format(self, value: object) -> str:
        return f"{value:g}" if isinstance(value, int | float) else ""


@dataclass(frozen=True, slots=True)
class TextType:
    """One line of text, not empty."""

    expects: str
    choices: tuple[str, ...] = ()

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError
        return value

    def parse(self, text: str) -> str:
        return self.validate(text.strip())

    def format(self, value: object) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class FolderType:
    """An absolute path. The folder need not exist: its disk may be disconnected."""

    expects: str = 'the absolute path of a folder, in quotes: "~/models"'
    choices: tuple[str, ...] = ()

    def validate(self, value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise ValueError
        if not os.path.isabs(path := os.path.expanduser(value)):
            raise ValueError
        return path

    def parse(self, text: str) -> str:
        if not text.strip() or "\0" in text:
            raise ValueError
        return os.path.abspath(os.path.expanduser(text.strip()))

    def format(self, value: object) -> str:
        return "" if value is None else str(value)


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
            ChoiceType(THEMES),
            THEMES[0],
            "theme",
            "Colours of the app. Monochrome uses underlines and symbols instead.",
        ),
        SettingDefinition(
            "screen.ascii",
            BoolType(),
            False,
            "plain ASCII",
            "For terminals and fonts without line, arrow and block characters.",
        ),
        SettingDefinition(
            "run.pair",
            TextType("a pair, a model or a file, in quotes, as after `localspec run`"),
            None,
            "default model",
            "The pair or model that `localspec run` opens without arguments.",
            unset_label="the last one used",
            cli_flags="MODEL",
            takes_effect="at the next start",
        ),
        SettingDefinition(
            "chats.keep",
            BoolType(),
            True,
            "save chats",
            "On this computer only. Off: new chats are not saved.",
            cli_flags="--private",
            takes_effect="for new chats",
            safe_value=False,
        ),
        SettingDefinition(
            "chats.overflow",
            ChoiceType(OVERFLOW_POLICIES),
            "ask",
            "when the context is full",
            "Ask; stop; drop the oldest turns; or replace them by a summary.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "chats.show_thinking",
            BoolType(),
            False,
            "show thinking",
            "Expand the model's thinking by default.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.temperature",
            NumberType("0 or more"),
            None,
            "temperature",
            "0 is greedy. Overrides the pair's own default.",
            unset_label="the pair's default",
            cli_flags="--temperature",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.spec",
            ChoiceType(SPECS),
            "auto",
            "speculation",
            "auto: the fastest drafter; off: no speculation; or one drafter, if the pair has it.",
            cli_flags="--spec",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "models.folder",
            FolderType(),
            None,
            "model folder",
            "Its .gguf files are listed together with those of the Hugging Face cache.",
            unset_label="none",
            cli_flags="--models-dir",
            env_var_override="LOCALSPEC_MODELS_DIR",
        ),
        SettingDefinition(
            "network.offline",
            BoolType(),
            False,
            "offline mode",
            "Never use the network, not even for requested downloads.",
            cli_flags="--offline",
            env_var_override="HF_HUB_OFFLINE",
            safe_value=True,
        ),
        SettingDefinition(
            "downloads.limit",
            NumberType("a number of MB/s above 0", exclusive=True),
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
