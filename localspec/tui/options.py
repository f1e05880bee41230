"""How a person wants the app: what the terminal can show, keys, theme; and what to load with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from localspec.chat.fields import Overflow
from localspec.fit.advisor import Wish
from localspec.launch import Choice, says
from localspec.protocol.wire import DRAFT_MAX, Load
from localspec.tui import themes
from localspec.tui.chats import Chats
from localspec.tui.glyphs import RICH, Glyphs
from localspec.tui.wizard.whatif import WhatIf


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
    keymap: dict[str, str] = field(default_factory=dict)
    """A person's own keys by the ids of keys.py; changed in place, for whoever holds it."""
    download_limit: float | None = None
    """Bytes a second."""
    chats: Chats | None = None
    """Where chats are kept; None: only as long as the app runs."""
    overflow: Overflow = "ask"
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
    trouble: tuple[str, ...] = ()
    """What is wrong with the person's settings, to be said until it is mended."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Options of the command line by the variables they have set."""
    asked: dict[Choice, WhatIf] = field(default_factory=dict)
    """What a pair is to be loaded with, where the wizard was told."""
    anyway: set[Choice] = field(default_factory=set)
    """What is to be loaded though it seems not to fit."""

    @property
    def marks(self) -> bool:
        """Whether token classes need glyphs: where there is no colour."""
        return not self.colour or self.theme == themes.MONOCHROME

    def wish(self, choice: Choice) -> Wish:
        """The pair with whatever settings suit; its entry may suggest a context."""
        draft = str(choice.draft) if choice.draft else None
        load = Load(str(choice.target), draft, draft_max=DRAFT_MAX)
        asked = self.asked.get(choice, WhatIf())
        ctx = asked.ctx or choice.suggested.ctx
        anyway = choice in self.anyway
        return Wish(load, ctx=ctx, kv=asked.kv, found=says(choice), anyway=anyway)
