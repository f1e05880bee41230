"""What an option is, and the types of values.

A value reaches localspec in two ways. People type it, for the command line, `/set`, an
environment variable or the preferences: `ValueType.parse` reads the text. Programs give
it, in Python, JSON or TOML: `ValueType.check` checks it. Both return the same value:
"0,5" and 0.5 are 0.5, and "auto" is None for many options.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any, Literal, get_args

from msgspec import Struct, field

from localspec import paths
from localspec.errors import UsageError
from localspec.protocol.wire import SplitMode

MAX_INT = 2**31 - 1


class ValueType(Struct, frozen=True):
    """How the values of an option are written, read and checked.

    `read`, `check` and `parse` raise ValueError, or UsageError to say more.
    """

    hint: str  # The possible values, for people.
    read: Callable[[str], Any]  # Convert typed text to a value that `check` accepts.
    check: Callable[[Any], Any]
    """Check a value of Python, JSON or TOML, and return it as the program uses it."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """Words that can be typed, and their values."""
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other words that can be typed, such as those of earlier versions.

    Each has the word of `words` that it stands for.
    """
    late_words: Callable[[], Mapping[str, Any]] = dict
    """More words, which take time to find.

    They are looked up for lists, and for a word that is none of `words`.
    """
    is_text: bool = False  # Whether upper and lower case differ.
    metavar: str | None = None
    low: float = 0
    high: float = math.inf  # Of a number, like `low`.
    is_whole: bool = False

    def parse(self, text: str) -> Any:
        """Parse what a person typed; an empty text is the first word."""
        text = text.strip()
        word = text.lower()
        if self.is_text and not text:
            word = next(iter(self.words), "")
        word = self.synonyms.get(word, word)
        if word in self.words:
            return self.words[word]
        late_words = self.late_words()
        if word in late_words:
            return late_words[word]
        if not self.is_text:
            text = word
        try:
            return self.check(self.read(text))
        except (OverflowError, RecursionError, OSError) as error:
            raise ValueError from error

    @property
    def possible(self) -> str:
        """The possible values for people, with the words that take time to find."""
        return ", ".join([self.hint, *self.late_words()])

    def all_words(self) -> dict[str, Any]:
        """The words, with those that take time to find."""
        return {**self.words, **self.late_words()}

    def format(self, value: Any) -> str:
        """The text that `parse` reads; empty if there is none for None."""
        for word, meant in self.words.items():
            if meant == value:
                return word
        if isinstance(value, tuple):
            return _format_texts(value) if self is TEXTS else ",".join(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, float):
            return f"{value:g}"
        return "" if value is None else str(value)

    # --- config.toml has true and false, numbers, and else the text that `parse` reads
    # ----------------------------------------------------------------------

    @property
    def expects(self) -> str:
        """The possible values, as text after `must be`."""
        if self is SWITCH:
            return "true or false"
        if not self.words:
            return self.hint.partition(";")[0]
        *most, last = (f'"{word}"' for word in self.all_words())
        return f"{', '.join(most)} or {last}"

    def from_toml(self, value: Any) -> Any:
        has_words = bool(self.words) and self is not SWITCH
        if has_words and isinstance(value, str):
            return self.parse(value)
        return self.check(value)

    def to_toml(self, value: Any) -> Any:
        if value in (None, ()) and not self.words:
            return None
        if self is SWITCH:
            return value
        if isinstance(value, float):
            return int(value) if value.is_integer() else value
        if isinstance(value, int) and not self.words:
            return value
        return self.format(value)


def number(
    hint: str,
    low: float = 0,
    high: float = math.inf,
    *,
    above: bool = False,
    whole: bool = False,
    none: str = "",
) -> ValueType:
    """A finite number from `low`, or `above` it, to `high`.

    `none` is the word for None. A comma in typed text is a decimal point.
    """
    kind: Any = Integral if whole else Real

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ValueError
        # nan fails the first comparison, infinity the last.
        is_high_enough = value > low if above else value >= low
        if not is_high_enough or value > high or value == math.inf:
            raise ValueError
        return int(value) if whole else float(value)

    def read(text: str) -> float:
        if whole:
            return int(text)
        return float(text.replace(",", "."))

    words: dict[str, Any] = {}
    if none:
        words = {none: None}
        hint = f"{hint}, or {none}"
    return ValueType(
        hint=hint,
        read=read,
        check=check,
        words=words,
        metavar="N" if whole else "X",
        low=low,
        high=high,
        is_whole=whole,
    )


def whole(hint: str, low: int = 0, high: int = MAX_INT, none: str = "") -> ValueType:
    """A whole number, as `number`."""
    return number(hint, low=low, high=high, whole=True, none=none)


def choice(
    words: Iterable[str] | Mapping[str, Any],
    synonyms: Mapping[str, str] = {},
    late_words: Callable[[], Mapping[str, Any]] = dict,
) -> ValueType:
    """Words, or words with their values; `late_words` as in `ValueType`."""
    values = words if isinstance(words, Mapping) else {word: word for word in words}

    def check(value: Any) -> Any:
        for meant in values.values():
            if value is meant or (isinstance(meant, str) and value == meant):
                return meant
        if isinstance(value, str):
            found = late_words()
            if value in found:
                return found[value]
        raise ValueError

    def read(_: str) -> Any:
        raise ValueError

    return ValueType(
        hint=", ".join(values),
        read=read,
        check=check,
        words=values,
        synonyms=synonyms,
        late_words=late_words,
    )


def text(hint: str, *, multiline: bool = False) -> ValueType:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        if not (multiline or value.isprintable()):
            raise ValueError
        return value if multiline else value.strip()

    return ValueType(hint, str, check, is_text=True)


def _check_folder(value: Any) -> str:
    """The folder need not exist: its disk may be disconnected."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        raise ValueError
    return path


def _read_folder(typed: str) -> str:
    if not typed:
        return ""
    path = os.path.expanduser(paths.parse_typed_path(typed))
    return os.path.abspath(path)


def _check_file_or_none(value: Any) -> str:
    """The path of a file, from any folder, or the word none. The file need not exist."""
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError
    if text.strip() == "none":
        return "none"
    return os.path.abspath(os.path.expanduser(text))


def _read_file_or_none(typed: str) -> str:
    return paths.parse_typed_path(typed)


def _check_texts(value: Any) -> tuple[str, ...]:
    """One text, or several."""
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    texts = tuple(value) if is_list else (value,)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError
    return texts


def _read_texts(typed: str) -> Any:
    if typed.startswith("["):
        return json.loads(typed)
    return typed.replace("\\n", "\n")


def _format_texts(texts: tuple[str, ...]) -> str:
    """One text as it is, if it can be typed so; else a list."""
    plain = texts[0].replace("\n", "\\n").strip()
    is_plain = not plain.startswith("[") and TEXTS.parse(plain) == texts
    return plain if is_plain else json.dumps(texts)


def check_json_schema(schema: str) -> str:
    """Raise UsageError unless the text is a JSON object.

    The engine checks the schema itself.
    """
    try:
        is_object = isinstance(json.loads(schema), dict)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The JSON Schema is not valid JSON: {error}.") from error
    if not is_object:
        raise UsageError(
            "A JSON Schema is an object.", 'For example: {"type": "object"}'
        )
    return schema


def _check_schema(value: Any) -> str:
    """JSON, a dict, or a class of Pydantic."""
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if isinstance(value, Mapping):
        value = json.dumps(value)
    if not isinstance(value, str):
        raise ValueError
    return check_json_schema(value)


def _read_schema(typed: str) -> str:
    """JSON, or the path of its file, as one line."""
    path = os.path.expanduser(paths.parse_typed_path(typed))
    if not typed.startswith("{") and os.path.isfile(path):
        with open(path, encoding="utf-8") as file:
            typed = file.read()
    return json.dumps(json.loads(check_json_schema(typed)), ensure_ascii=False)


_SPLIT_MODES = get_args(SplitMode)


def _check_split(value: Any) -> str | tuple[float, ...]:
    """A mode, or one share for each device."""
    if isinstance(value, str):
        if value not in _SPLIT_MODES:
            raise ValueError
        return value
    try:
        return tuple(float(share) for share in value)
    except TypeError as error:
        raise ValueError from error


def _read_split(typed: str) -> str | list[str]:
    return typed if typed in _SPLIT_MODES else typed.split(",")


_ON_OFF = {"on": True, "off": False}
_YES_NO = {
    "true": "on",
    "yes": "on",
    "1": "on",
    "false": "off",
    "no": "off",
    "0": "off",
}
SWITCH = choice(_ON_OFF, _YES_NO)
SWITCH_OR_AUTO = choice(_ON_OFF | {"auto": None})
TEXTS = ValueType(
    'a text (\\n is a new line), or several: ["a", "b"]; none',
    read=_read_texts,
    check=_check_texts,
    words={"none": ()},
    is_text=True,
)
GRAMMAR = text("the text of a GBNF grammar", multiline=True)
JSON_SCHEMA = ValueType(
    "a JSON Schema, or the path of its file: answers follow it; off",
    read=_read_schema,
    check=_check_schema,
    words={"off": ""},
    is_text=True,
)
FOLDER = ValueType(
    'the absolute path of a folder, in quotes: "~/models"',
    read=_read_folder,
    check=_check_folder,
    is_text=True,
)
FILE_OR_NONE = ValueType(
    "the path of a file, or none",
    read=_read_file_or_none,
    check=_check_file_or_none,
    is_text=True,
)
SPLIT = ValueType(
    "none, layer, tensor, row, or shares such as 3,1",
    read=_read_split,
    check=_check_split,
)


# --- options
# ----------------------------------------------------------------------

FrontEnd = Literal["command", "python", "chat", "request"]
EVERYWHERE: tuple[FrontEnd, ...] = get_args(FrontEnd)


class Setting(Struct, frozen=True):
    """An option's key in config.toml, and its row in the preferences."""

    key: str  # `table.name`, as in `config set`.
    takes_effect: str = ""  # When a change takes effect; empty means at once.
    help: str = ""  # One line; empty if that of the flag says it.
    unset_label: str = ""  # Shown if there is no value.
    # What overrides it on the command line, if that is not the option's flag.
    flags: str = ""
    variable: str = ""
    """The environment variable that overrides it, if it does not follow from `key`."""
    safe_value: object = None
    """Used if the value is set but invalid, so that a typo does not reduce privacy."""


class RequestRange(Struct, frozen=True):
    """The numbers of a request, where they are not those of the type."""

    low: float
    high: float
    replaced: Mapping[float, float] = field(default_factory=dict)
    """Numbers that stand for another, such as llama.cpp's -1."""


class Option(Struct, frozen=True):
    name: str
    """Python's argument, the request's field, `/set NAME`, and a preset's key.

    With dashes it is the flag: `top_k` is `--top-k`.
    """
    value_type: ValueType
    about: str = ""  # The help of the flag.
    default: Any = None
    title: str = ""  # The label, if it is not the name.
    offered: tuple[FrontEnd, ...] = EVERYWHERE
    metavar: str | None = None
    setting: Setting = field(default=Setting(""))
    request: RequestRange | None = None
    fills: str = ""  # The field of its value, if that has another name.

    @property
    def label(self) -> str:
        """On screens."""
        return self.title or self.name.replace("_", " ")

    @property
    def hint(self) -> str:
        """The possible values."""
        return self.value_type.possible

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def attribute(self) -> str:
        """The field that it fills of `SamplingParams`, `ChatSettings` or `LoadOptions`."""
        return self.fills or self.name

    # --- the setting in config.toml
    # ----------------------------------------------------------------------

    @property
    def key(self) -> str:
        return self.setting.key

    @property
    def help(self) -> str:
        return self.setting.help or self.about

    @property
    def env_var(self) -> str:
        """The environment variable that overrides the file."""
        if self.setting.variable:
            return self.setting.variable
        name = self.key.replace(".", "_").upper()
        return f"LOCALSPEC_{name}"

    def display(self, value: object) -> str:
        """Format a setting's value for the screen: `on`, `20`, `no limit`."""
        return self.value_type.format(value) or self.setting.unset_label
