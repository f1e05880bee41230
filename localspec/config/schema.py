"""Every value that config.toml may have: one table behind file, commands, screen and docs."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from localspec.speculation import SPECS

# --- What a value may be: as the file has it, as a person types it, and in words.


class SettingType(Protocol):
    """Of one value; None stands for as it comes."""

    @property
    def expects(self) -> str:
        """What is possible, after `must be`."""

    @property
    def choices(self) -> tuple[str, ...]:
        """All that can be typed, where they are few."""

    def validate(self, found: object) -> object:
        """A value of the file.  Raises ValueError."""

    def parse(self, text: str) -> object:
        """What a person, a variable or a command says.  Raises ValueError."""

    def format(self, value: object) -> str:
        """As it is typed; empty for None."""


@dataclass(frozen=True, slots=True)
class BoolType:
    """On or off; `true` and `false` in the file."""

    expects: str = "true or false"
    choices: tuple[str, ...] = ("true", "false")

    def validate(self, found: object) -> bool:
        if not isinstance(found, bool):
            raise ValueError
        return found

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
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def expects(self) -> str:
        *most, last = (f'"{word}"' for word in self.choices)
        return f"{', '.join(most)} or {last}"

    def validate(self, found: object) -> str:
        if not isinstance(found, str) or found not in self.choices:
            raise ValueError
        return found

    def parse(self, text: str) -> str:
        return self.validate(text.strip().lower())

    def format(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class NumberType:
    """At least `low`, or above it."""

    expects: str
    minimum: float = 0.0
    exclusive: bool = False
    choices: tuple[str, ...] = ()

    def validate(self, found: object) -> float:
        if (
            isinstance(found, bool)
            or not isinstance(found, int | float)
            or not self._is_in_range(found)
        ):
            raise ValueError
        return found

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
    """One line that is not empty."""

    expects: str
    choices: tuple[str, ...] = ()

    def validate(self, found: object) -> str:
        if not isinstance(found, str) or not found.strip() or not found.isprintable():
            raise ValueError
        return found

    def parse(self, text: str) -> str:
        return self.validate(text.strip())

    def format(self, value: object) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class FolderType:
    """A whole path.  Whether there is such a folder is not looked at: a disk may be away."""

    expects: str = 'the whole path of a folder, in quotes: "~/models"'
    choices: tuple[str, ...] = ()

    def validate(self, found: object) -> str:
        if not isinstance(found, str) or "\0" in found:
            raise ValueError
        if not os.path.isabs(path := os.path.expanduser(found)):
            raise ValueError
        return path

    def parse(self, text: str) -> str:
        return os.path.abspath(os.path.expanduser(self._require_text(text)))

    def _require_text(self, text: str) -> str:
        if not text.strip() or "\0" in text:
            raise ValueError
        return text.strip()

    def format(self, value: object) -> str:
        return "" if value is None else str(value)


# --- Every value that config.toml may have: one table behind file, commands, screen and docs.

THEMES = ("localspec-dark", "localspec-light", "high-contrast", "monochrome")
OVERFLOW_POLICIES = ("ask", "stop", "drop", "summarise")


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """One setting, as a person knows it."""

    key: str
    """`table.name`, as in the file and after `config set`."""
    value_type: SettingType
    default: object
    """None: what suits, in words `none`."""
    label: str
    help: str
    """One line of help."""
    unset_label: str = ""
    """What holds where nothing is set."""
    cli_flags: str = ""
    """Options of the command line that go before it."""
    takes_effect: str = ""
    """From when a change counts; empty: at once."""
    env_var_override: str = ""
    """A variable that has another name than its key suggests."""
    safe_value: object = None
    """What holds where somebody set it and it cannot be read: privacy is not lost by a typo."""

    @property
    def env_var(self) -> str:
        """The variable that goes before the file."""
        return self.env_var_override or f"LOCALSPEC_{self.key.replace('.', '_').upper()}"

    @property
    def table(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    def display(self, value: object) -> str:
        """A value for people: `on`, `20`, `no limit`."""
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
"""The file's tables in order, and the headings that begin with them."""

SETTINGS: Mapping[str, SettingDefinition] = {
    value.key: value
    for value in (
        SettingDefinition(
            "screen.theme",
            ChoiceType(THEMES),
            THEMES[0],
            "colours",
            "Of the whole app. Monochrome tells by underlines and signs.",
        ),
        SettingDefinition(
            "screen.ascii",
            BoolType(),
            False,
            "plain ASCII signs",
            "For terminals and fonts without lines, arrows and blocks.",
        ),
        SettingDefinition(
            "run.pair",
            TextType("a pair, a model or a file, in quotes, as after `localspec run`"),
            None,
            "pair to begin with",
            "What `localspec run` opens where none is named.",
            unset_label="the last one used",
            cli_flags="MODEL",
            takes_effect="from the next run",
        ),
        SettingDefinition(
            "chats.keep",
            BoolType(),
            True,
            "chats are kept",
            "On this computer, and nowhere else. Off: new chats leave no trace.",
            cli_flags="--private",
            takes_effect="for new chats",
            safe_value=False,
        ),
        SettingDefinition(
            "chats.overflow",
            ChoiceType(OVERFLOW_POLICIES),
            "ask",
            "when the context is full",
            "Ask; stop; drop the oldest turns; or drop them with a summary in their place.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "chats.show_thinking",
            BoolType(),
            False,
            "thinking shown",
            "Whether what a model thinks is unfolded from the start.",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.temperature",
            NumberType("0 or more"),
            None,
            "temperature",
            "0 always takes the likeliest token. One that is set goes before the pair's own.",
            unset_label="the pair's own",
            cli_flags="--temperature",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "answers.spec",
            ChoiceType(SPECS),
            "auto",
            "speculation",
            "auto: whatever pays; off: no guesses; or one drafter, for pairs that have it.",
            cli_flags="--spec",
            takes_effect="for new chats",
        ),
        SettingDefinition(
            "models.folder",
            FolderType(),
            None,
            "folder of own models",
            "Its .gguf files are listed beside the hub's cache.",
            unset_label="none",
            cli_flags="--models-dir",
            env_var_override="LOCALSPEC_MODELS_DIR",
        ),
        SettingDefinition(
            "network.offline",
            BoolType(),
            False,
            "never use the network",
            "Nothing is looked up or downloaded, whatever is asked.",
            cli_flags="--offline",
            env_var_override="HF_HUB_OFFLINE",
            safe_value=True,
        ),
        SettingDefinition(
            "downloads.limit",
            NumberType("a number of MB a second, above 0", exclusive=True),
            None,
            "downloads, MB a second",
            "The most that all downloads take together.",
            unset_label="no limit",
            cli_flags="pull --limit",
        ),
    )
}
"""By key, in the order of the screen."""


def find_nearest_key(key: str, ids: frozenset[str] = frozenset()) -> str:
    """The known key that was probably meant, or empty.  `ids`: of keys that can be changed."""
    known = {one: one for one in (*SETTINGS, *(f"keys.{id_}" for id_ in ids))}
    by_name = {value.name: value.key for value in SETTINGS.values()}
    found = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    found = found or difflib.get_close_matches(key.rpartition(".")[2], by_name, n=1, cutoff=0.7)
    return (known | by_name)[found[0]] if found else ""
