"""Every value that config.toml may have: one table behind file, commands, screen and docs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from localspec.config.kinds import Choice, Folder, Kind, Number, Switch, Text
from localspec.speculation import SPECS

THEMES = ("localspec-dark", "localspec-light", "high-contrast", "monochrome")
OVERFLOWS = ("ask", "stop", "drop", "summarise")


@dataclass(frozen=True, slots=True)
class Value:
    """One setting, as a person knows it."""

    key: str
    """`table.name`, as in the file and after `config set`."""
    kind: Kind
    default: object
    """None: what suits, in words `none`."""
    label: str
    about: str
    """One line of help."""
    none: str = ""
    """What holds where nothing is set."""
    flags: str = ""
    """Options of the command line that go before it."""
    when: str = ""
    """From when a change counts; empty: at once."""
    own_variable: str = ""
    """A variable that has another name than its key suggests."""
    careful: object = None
    """What holds where somebody set it and it cannot be read: privacy is not lost by a typo."""

    @property
    def variable(self) -> str:
        """The variable that goes before the file."""
        return self.own_variable or f"LOCALSPEC_{self.key.replace('.', '_').upper()}"

    @property
    def table(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    def words(self, value: object) -> str:
        """A value for people: `on`, `20`, `no limit`."""
        if value is None:
            return self.none
        if isinstance(value, bool):
            return "on" if value else "off"
        return self.kind.shown(value)


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

VALUES: Mapping[str, Value] = {
    value.key: value
    for value in (
        Value(
            "screen.theme",
            Choice(THEMES),
            THEMES[0],
            "colours",
            "Of the whole app. Monochrome tells by underlines and signs.",
        ),
        Value(
            "screen.ascii",
            Switch(),
            False,
            "plain ASCII signs",
            "For terminals and fonts without lines, arrows and blocks.",
        ),
        Value(
            "run.pair",
            Text("a pair, a model or a file, in quotes, as after `localspec run`"),
            None,
            "pair to begin with",
            "What `localspec run` opens where none is named.",
            none="the last one used",
            flags="MODEL",
            when="from the next run",
        ),
        Value(
            "chats.keep",
            Switch(),
            True,
            "chats are kept",
            "On this computer, and nowhere else. Off: new chats leave no trace.",
            flags="--private",
            when="for new chats",
            careful=False,
        ),
        Value(
            "chats.overflow",
            Choice(OVERFLOWS),
            "ask",
            "when the context is full",
            "Ask; stop; drop the oldest turns; or drop them with a summary in their place.",
            when="for new chats",
        ),
        Value(
            "chats.show_thinking",
            Switch(),
            False,
            "thinking shown",
            "Whether what a model thinks is unfolded from the start.",
            when="for new chats",
        ),
        Value(
            "answers.temperature",
            Number("0 or more"),
            None,
            "temperature",
            "0 always takes the likeliest token. One that is set goes before the pair's own.",
            none="the pair's own",
            flags="--temperature",
            when="for new chats",
        ),
        Value(
            "answers.spec",
            Choice(SPECS),
            "auto",
            "speculation",
            "auto: whatever pays; off: no guesses; or one drafter, for pairs that have it.",
            flags="--spec",
            when="for new chats",
        ),
        Value(
            "models.folder",
            Folder(),
            None,
            "folder of own models",
            "Its .gguf files are listed beside the hub's cache.",
            none="none",
            flags="--models-dir",
            own_variable="LOCALSPEC_MODELS_DIR",
        ),
        Value(
            "network.offline",
            Switch(),
            False,
            "never use the network",
            "Nothing is looked up or downloaded, whatever is asked.",
            flags="--offline",
            own_variable="HF_HUB_OFFLINE",
            careful=True,
        ),
        Value(
            "downloads.limit",
            Number("a number of MB a second, above 0", above=True),
            None,
            "downloads, MB a second",
            "The most that all downloads take together.",
            none="no limit",
            flags="pull --limit",
        ),
    )
}
"""By key, in the order of the screen."""


def nearest(key: str, ids: frozenset[str] = frozenset()) -> str:
    """The known key that was probably meant, or empty.  `ids`: of keys that can be changed."""
    known = {one: one for one in (*VALUES, *(f"keys.{id_}" for id_ in ids))}
    by_name = {value.name: value.key for value in VALUES.values()}
    found = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    found = found or difflib.get_close_matches(key.rpartition(".")[2], by_name, n=1, cutoff=0.7)
    return (known | by_name)[found[0]] if found else ""
