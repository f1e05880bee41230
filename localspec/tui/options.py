"""How a person wants the app: what the terminal can show, keys, theme; and what to load with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localspec.launch import Choice
from localspec.protocol.wire import DRAFT_MAX, Load
from localspec.tui import themes
from localspec.tui.glyphs import RICH, Glyphs


@dataclass(slots=True)
class Options:
    """Shared by the screens; `panel` is remembered from one chat to the next."""

    glyphs: Glyphs = RICH
    colour: bool = True
    theme: str = themes.DEFAULT
    panel: bool | None = None
    """None: shown where there is room."""
    seed: int | None = None
    """Of every chat; None: drawn anew for each."""
    keymap: Mapping[str, str] = field(default_factory=dict)
    """A person's own keys by the ids of keys.py."""
    download_limit: float | None = None
    """Bytes a second."""

    @property
    def marks(self) -> bool:
        """Whether token classes need glyphs: where there is no colour."""
        return not self.colour or self.theme == themes.MONOCHROME

    def load(self, choice: Choice) -> Load:
        draft = str(choice.draft) if choice.draft else None
        return Load(str(choice.target), draft, draft_max=DRAFT_MAX)
