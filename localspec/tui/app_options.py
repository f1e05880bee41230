"""Options of the app: preferences, terminal capabilities, and load settings per pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import draft_kinds, launch
from localspec.chat.session import ChatSession
from localspec.chat.settings import OverflowPolicy
from localspec.config import EffectiveConfig, key_table
from localspec.fit.advisor import SettingsRequest
from localspec.launch import LoadOptions, ResolvedPair
from localspec.tui import terminal, themes
from localspec.tui.saved_chats import SavedChats
from localspec.tui.wizard.what_if import WhatIf

PanelMode = Literal["off", "figures", "details"]
PANEL_MODES: tuple[PanelMode, ...] = ("off", "figures", "details")
"""What the speculation panel shows, in the order in which its key goes through it."""


class AppOptions(Struct):
    """Shared by all screens; mutable, so that changed preferences apply at once."""

    ascii_only: bool = False
    colour: bool = True
    theme: str = themes.DEFAULT_THEME
    show_guesses: bool = True
    """Whether answers show by colour which text was guessed, and the guess itself."""
    slow_motion: bool = False
    """Whether answers are shown at reading speed, while the engine runs ahead."""
    demo_slow_motion: bool = False
    """The same for the bundled demo, which is too fast to be watched."""
    panel: PanelMode | None = None
    """What the speculation panel shows; None: figures if the terminal is wide enough."""
    seed: int | None = None  # Seed of every chat; None: a random one for each.
    keymap: dict[str, str] = field(default_factory=dict)
    """User keys by binding id.  Changed in place: screens keep a reference."""
    download_limit: float | None = None  # Bytes per second.
    chats: SavedChats | None = None  # The saved chats; None: chats end with the app.
    overflow: OverflowPolicy = "ask"  # Policy of new chats when the context is full.
    first_run: bool = False  # Whether to show the welcome screen.
    show_thinking: bool = False  # Whether new chats show the thinking unfolded.
    temperature: float | None = None  # Of new chats; None: the pair's default.
    spec: str = "auto"  # Drafter of new chats (`--spec`).
    exact: bool = False  # Exact mode of new chats.
    load: LoadOptions = field(default=LoadOptions(can_skip_remote=True))
    """Preferences for every load."""
    offline: bool = False
    settings_errors: tuple[str, ...] = ()
    """Errors in config.toml, shown until they are fixed."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Command-line options, by their environment variables."""
    load_overrides: dict[tuple[Path, Path | None], WhatIf] = field(default_factory=dict)
    """Load settings chosen in the wizard, by the files of the pair."""
    force_load: set[tuple[Path, Path | None]] = field(default_factory=set)
    """Files of pairs to load even if they are predicted not to fit."""

    @property
    def show_token_marks(self) -> bool:
        """Whether token classes need marks, because there is no colour."""
        return not self.colour or self.theme == themes.MONOCHROME

    @property
    def reverse_marked_rows(self) -> bool:
        return self.show_token_marks or self.theme == themes.ANSI

    def is_slow(self, session: ChatSession) -> bool:
        """Whether answers of this chat are shown in slow motion."""
        return self.demo_slow_motion if session.is_demo else self.slow_motion

    def toggle_slow_motion(self, session: ChatSession) -> None:
        if session.is_demo:
            self.demo_slow_motion = not self.demo_slow_motion
        else:
            self.slow_motion = not self.slow_motion

    def build_load_request(
        self,
        pair: ResolvedPair,
        *,
        exact: bool = False,
        ctx: int | None = None,
        draft_length: int | None = None,
    ) -> SettingsRequest:
        overrides = self.load_overrides.get(pair.files, WhatIf())
        options = replace(
            self.load,
            ctx=ctx or overrides.ctx,
            kv=overrides.kv,
            exact=exact,
            draft_length=draft_length,
            anyway=pair.files in self.force_load,
        )
        spec = "auto"  # The chat can change to a drafter that needs no draft model.
        if not draft_kinds.needs_no_draft(self.spec):
            spec = launch.preferred_drafter(pair, self.spec)
        return options.to_request(pair, spec)


_DAMAGED_FILE = "Using the defaults; nothing is saved until it is fixed."


def apply_preferences(options: AppOptions, view: EffectiveConfig) -> None:
    """Applies preferences at start-up and on change.

    Invalid values fall back to the default.
    """
    keys, key_errors = key_table.validate_user_keys(view.key_bindings)
    is_valid = not key_errors and not view.file.error
    # The keys that worked stay until the file is right.
    if is_valid or not options.keymap:
        options.keymap.clear()
        options.keymap.update(keys)
    options.theme = view.get("screen.theme")
    options.ascii_only = view.get("screen.ascii") or not terminal.shows_unicode()
    options.show_guesses = view.get("screen.guesses")
    slow_motion = view.settings["screen.slow_motion"]
    options.slow_motion = slow_motion.current
    options.demo_slow_motion = slow_motion.current or slow_motion.origin == "default"
    limit = view.get("downloads.limit")
    options.download_limit = limit * 1e6 if limit else None
    options.offline = view.get("network.offline")
    options.overflow = view.get("chats.overflow")
    options.show_thinking = view.get("chats.show_thinking")
    options.temperature = view.get("answers.temperature")
    options.spec = view.get("answers.spec")
    options.load = LoadOptions.saved(view)
    options.exact = view.get("answers.exact")
    if options.chats is not None:
        options.chats.private = not view.get("chats.keep")
    path = view.file.path
    errors: list[str] = []
    for text in (*view.errors, *view.warnings):
        # The preferences show the whole path.
        errors.append(text.replace(str(path), path.name))
    if view.file.error:
        errors.append(_DAMAGED_FILE)
    options.settings_errors = (*errors, *key_errors)


def format_settings_banner(options: AppOptions) -> str:
    """One line for Home; empty if there is no error."""
    if not options.settings_errors:
        return ""
    first, *more = options.settings_errors
    parts = [first]
    if not first.endswith((".", "?")):
        parts = [f"{first}."]
    if _DAMAGED_FILE in more:
        parts.append(_DAMAGED_FILE)
    elif more:
        parts.append(f"And {len(more)} more.")
    key = options.keymap.get("app.preferences", "f10")
    parts.append(f"{key} shows the details.")
    return " ".join(parts)
