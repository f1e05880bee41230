"""The command palette: every key, slash command, setting and theme."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from textual.command import DiscoveryHit, Hit, Hits, Provider

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS, CommandCall, SlashCommand
from localspec.config.key_table import KEY_BINDINGS, KeyContext
from localspec.tui import chat_front_end, themes
from localspec.tui.key_bindings import key_label

if TYPE_CHECKING:
    from localspec.tui.app import LocalspecApp
    from localspec.tui.screens.chat import ChatScreen

_SYNONYMS = {
    "app.doctor": "doctor health gpu driver problems troubleshooting",
    "app.interrupt": "cancel",
    "app.log": "error messages llama.cpp",
    "app.preferences": "settings config configuration shortcuts colours offline history",
    "app.quit": "exit close",
    "home.bench": "speed measure",
    "home.export": "save markdown html json download",
    "home.filter": "find filter",
    "home.open": "load local gguf",
    "home.pin": "star favourite favorite",
    "home.remove": "remove erase",
    "home.rename": "title",
    "home.verify": "lossless check",
    "home.wizard": "download install get model",
    "chat.again": "retry redo another",
    "chat.copy": "clipboard",
    "chat.edit": "change question",
    "chat.editor": "external vim nano",
    "chat.model": "change llm load another",
    "chat.new": "clear reset start",
    "chat.panel": "statistics stats acceptance rate speed numbers",
    "chat.serve": "server board api openai",
    "chat.settings": "parameters instructions",
    "chat.stop": "cancel abort home leave",
    "chat.thinking": "reasoning",
    "chat.tokens": "probabilities accepted drafted",
    "chat.turns": "branch history previous",
    "clear": "reset forget",
    "private": "incognito temporary",
    "read": "attach upload document",
    "save": "export markdown html json download",
    "spec": "speculative drafter draft",
    "system": "instructions persona",
    "think": "reasoning",
    "undo": "delete",
}
"""By binding id or slash command: words that neither title nor description has."""
_SAME_AS_KEY = {
    "help", "exit", "new", "regen", "edit", "turns", "show", "stats", "tokens", "copy", "keys",
    "logs", "set",
}  # fmt: skip
"""Slash commands that the palette already has as a key or as settings."""


class PaletteEntry(Struct, frozen=True):
    title: str
    help: str
    words: str
    run: Callable[[], Awaitable[Any] | None]

    def score(self, query: str, fuzzy_score: float) -> float:
        """Words of the title count most, then those of the rest, then letters in order.

        A title of which the query has more words comes first: of "rose-pine" and
        "rose-pine-moon", the first is the one that was typed.
        """
        if _begins_words(query, self.title):
            coverage = len(_split_words(query)) / len(_split_words(self.title))
            return 0.8 + 0.2 * min(coverage, 1.0)
        if _begins_words(query, f"{self.title} {self.help} {self.words}"):
            return 0.7
        return min(fuzzy_score, 1.0) / 2


def _begins_words(query: str, text: str) -> bool:
    """Whether each word of the query is the beginning of a word of the text.

    `localspec-light` is two words.
    """
    words = _split_words(text)
    for typed in _split_words(query):
        if not any(word.startswith(typed) for word in words):
            return False
    return True


def _split_words(text: str) -> list[str]:
    return text.lower().replace(":", " ").replace("-", " ").split()


class ActionProvider(Provider):
    async def discover(self) -> Hits:
        for entry in self._entries():
            yield DiscoveryHit(entry.title, entry.run, help=entry.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for entry in self._entries():
            score = entry.score(query, matcher.match(entry.title))
            if score > 0:
                yield Hit(
                    score, matcher.highlight(entry.title), entry.run, help=entry.help
                )

    def _entries(self) -> Iterator[PaletteEntry]:
        from localspec.tui.screens.chat import ChatScreen  # noqa: PLC0415  starts faster

        yield from self._key_entries()
        if isinstance(self.screen, ChatScreen):
            yield from _chat_entries(self.screen)
        app = cast("LocalspecApp", self.app)
        for theme in themes.THEMES:
            shade = "dark" if theme.dark else "light"
            yield PaletteEntry(
                title=f"Theme: {theme.name}",
                help="Change the colours",
                words=f"colors {shade}",
                run=partial(app.use_theme, theme.name),
            )

    def _key_entries(self) -> Iterator[PaletteEntry]:
        """The keys of the screen below the palette, and those of every screen."""
        app = cast("LocalspecApp", self.app)
        contexts: tuple[KeyContext, ...] = getattr(
            self.screen, "KEY_CONTEXTS", ("home",)
        )
        for key in KEY_BINDINGS:
            if key.context in ("app", *contexts) and key.id != "app.palette":
                node = app if key.context == "app" else self.screen
                yield PaletteEntry(
                    title=key.description,
                    help=key_label(key.id, app.options.keymap),
                    words=_SYNONYMS.get(key.id, ""),
                    run=partial(app.run_action, key.action, default_namespace=node),
                )


def _chat_entries(screen: ChatScreen) -> Iterator[PaletteEntry]:
    """The settings, which open the sheet at their field, and the slash commands."""
    key = key_label("chat.settings", screen.options.keymap)
    for field in CHAT_SETTING_FIELDS.values():
        run = partial(screen.action_settings, field.name)
        yield PaletteEntry(f"Setting: {field.label}", key, field.name, run)
    for command in COMMANDS:
        if command.name not in _SAME_AS_KEY:
            synonyms = _SYNONYMS.get(command.name, "")
            yield PaletteEntry(
                title=command.help,
                help=command.usage,
                words=" ".join([command.name, *command.aliases, synonyms]),
                run=partial(_run_slash, screen, command),
            )


def _run_slash(screen: ChatScreen, command: SlashCommand) -> None:
    """A command that takes an argument is put into the message field."""
    if command.argument:
        screen.composer.edit_text(f"/{command.name} ")
        screen.composer.focus()
    else:
        chat_front_end.run_command(screen, CommandCall(command.name))
