"""How a person wants the app: what the terminal can show, keys, theme; and what to load with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from localspec.chat.settings import OverflowPolicy
from localspec.config import Config, EffectiveConfig
from localspec.fit.advisor import SettingsRequest
from localspec.launch import ResolvedPair, describe_detected_head
from localspec.protocol.wire import DRAFT_MAX, LoadCommand
from localspec.tui import glyphs, key_bindings, themes
from localspec.tui.glyphs import UNICODE, Glyphs
from localspec.tui.saved_chats import SavedChats
from localspec.tui.wizard.what_if import WhatIf


@dataclass(slots=True)
class AppOptions:
    """Shared by the screens; `panel` is remembered from one chat to the next."""

    glyphs: Glyphs = UNICODE
    colour: bool = True
    theme: str = themes.DEFAULT_THEME
    show_panel: bool | None = None
    """None: shown where there is room."""
    seed: int | None = None
    """Of every chat; None: drawn anew for each."""
    keymap: dict[str, str] = field(default_factory=dict)
    """A person's own keys by the ids of keys.py; changed in place, for whoever holds it."""
    download_limit: float | None = None
    """Bytes a second."""
    chats: SavedChats | None = None
    """Where chats are kept; None: only as long as the app runs."""
    overflow: OverflowPolicy = "ask"
    """What a new chat does where it outgrows its context."""
    first_run: bool = False
    """Whether nobody was here before."""
    show_thinking: bool = False
    """Whether a new chat unfolds what is thought."""
    temperature: float | None = None
    """Of a new chat; None: the pair's own."""
    spec: str = "auto"
    """How a new chat speculates."""
    offline: bool = False
    """Whether the network is never used."""
    settings_errors: tuple[str, ...] = ()
    """What is wrong with the person's settings, to be said until it is mended."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Options of the command line by the variables they have set."""
    load_overrides: dict[ResolvedPair, WhatIf] = field(default_factory=dict)
    """What a pair is to be loaded with, where the wizard was told."""
    force_load: set[ResolvedPair] = field(default_factory=set)
    """What is to be loaded though it seems not to fit."""

    @property
    def show_token_marks(self) -> bool:
        """Whether token classes need glyphs: where there is no colour."""
        return not self.colour or self.theme == themes.MONOCHROME

    def build_load_request(self, choice: ResolvedPair) -> SettingsRequest:
        """The pair with whatever settings suit; its entry may suggest a context."""
        draft = str(choice.draft) if choice.draft else None
        load = LoadCommand(str(choice.target), draft, draft_max=DRAFT_MAX)
        asked = self.load_overrides.get(choice, WhatIf())
        ctx = asked.ctx or choice.suggested_settings.ctx
        anyway = choice in self.force_load
        return SettingsRequest(
            load,
            ctx=ctx,
            kv=asked.kv,
            draft_note=describe_detected_head(choice),
            skip_memory_check=anyway,
        )


# --- What a person prefers, put to use: at the start, and again whenever it is changed.


def apply_preferences(options: AppOptions, view: EffectiveConfig) -> None:
    """Into what the screens share; what is wrong in the file is as it comes, and is said."""
    known = Config.from_effective(view)
    keys, refused = key_bindings.validate_user_keys(known.key_bindings)
    options.keymap.clear()
    options.keymap.update(keys)
    options.theme = known.theme
    options.glyphs = glyphs.detect_glyphs(known.ascii)
    options.download_limit = known.download_limit * 1e6 if known.download_limit else None
    options.offline = known.offline
    options.overflow = known.overflow
    options.show_thinking = known.show_thinking
    options.temperature, options.spec = known.temperature, known.spec
    if options.chats is not None:
        options.chats.set_saving(not known.private_chats)
    options.settings_errors = (*_find_settings_errors(view), *refused)


def _find_settings_errors(view: EffectiveConfig) -> Iterator[str]:
    """In few words: the whole path stands in the preferences."""
    path = view.file.path
    for said in (*view.errors, *view.warnings):
        yield said.replace(str(path), path.name)
    if view.file.error is not None:
        yield "All is as it comes, and nothing is written, until it is mended."


def format_settings_banner(options: AppOptions) -> str:
    """One line for the first screen; empty where nothing is wrong."""
    if not options.settings_errors:
        return ""
    first, *more = options.settings_errors
    damaged = "until it is mended" in "".join(more)
    rest = f" {more[-1]}" if damaged else f" And {len(more)} more." if more else ""
    key = options.keymap.get("app.preferences", "f10")
    return f"{first}{'' if first.endswith(('.', '?')) else '.'}{rest} {key} shows it."
