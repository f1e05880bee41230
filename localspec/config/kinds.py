"""What a value may be: as the file has it, as a person types it, and in words."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Protocol


class Kind(Protocol):
    """Of one value; None stands for as it comes."""

    @property
    def expects(self) -> str:
        """What is possible, after `must be`."""

    @property
    def words(self) -> tuple[str, ...]:
        """All that can be typed, where they are few."""

    def check(self, found: object) -> object:
        """A value of the file.  Raises ValueError."""

    def typed(self, text: str) -> object:
        """What a person, a variable or a command says.  Raises ValueError."""

    def shown(self, value: object) -> str:
        """As it is typed; empty for None."""


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off; `true` and `false` in the file."""

    expects: str = "true or false"
    words: tuple[str, ...] = ("true", "false")

    def check(self, found: object) -> bool:
        if not isinstance(found, bool):
            raise ValueError
        return found

    def typed(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "on", "yes", "1"):
            return True
        if word in ("false", "off", "no", "0"):
            return False
        raise ValueError

    def shown(self, value: object) -> str:
        return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        *most, last = (f'"{word}"' for word in self.words)
        return f"{', '.join(most)} or {last}"

    def check(self, found: object) -> str:
        if not isinstance(found, str) or found not in self.words:
            raise ValueError
        return found

    def typed(self, text: str) -> str:
        return self.check(text.strip().lower())

    def shown(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class Number:
    """At least `low`, or above it."""

    expects: str
    low: float = 0.0
    above: bool = False
    words: tuple[str, ...] = ()

    def check(self, found: object) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float) or not self._is_in(found):
            raise ValueError
        return found

    def _is_in(self, value: float) -> bool:
        return math.isfinite(value) and (value > self.low if self.above else value >= self.low)

    def typed(self, text: str) -> float:
        value = float(text.strip().replace(",", "."))
        return self.check(int(value) if value.is_integer() and "e" not in text.lower() else value)

    def shown(self, value: object) -> str:
        return f"{value:g}" if isinstance(value, int | float) else ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line that is not empty."""

    expects: str
    words: tuple[str, ...] = ()

    def check(self, found: object) -> str:
        if not isinstance(found, str) or not found.strip() or not found.isprintable():
            raise ValueError
        return found

    def typed(self, text: str) -> str:
        return self.check(text.strip())

    def shown(self, value: object) -> str:
        return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Folder:
    """A whole path.  Whether there is such a folder is not looked at: a disk may be away."""

    expects: str = 'the whole path of a folder, in quotes: "~/models"'
    words: tuple[str, ...] = ()

    def check(self, found: object) -> str:
        if not isinstance(found, str) or "\0" in found:
            raise ValueError
        if not os.path.isabs(path := os.path.expanduser(found)):
            raise ValueError
        return path

    def typed(self, text: str) -> str:
        return os.path.abspath(os.path.expanduser(self._meant(text)))

    def _meant(self, text: str) -> str:
        if not text.strip() or "\0" in text:
            raise ValueError
        return text.strip()

    def shown(self, value: object) -> str:
        return "" if value is None else str(value)
