"""What stands around the wizard's steps: the title with its dials, and the keys of the moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from textual.content import Content

from localspec.fit.report import Fit
from localspec.models.catalog import Pair
from localspec.tui.keys import fitting, footer
from localspec.tui.wizard import whatif
from localspec.tui.wizard.whatif import Dial, WhatIf

USES = {
    "chat": "questions, ideas, conversation",
    "code": "programs: writing, explaining, mending",
    "writing": "stories, letters, a text of one's own",
    "documents": "long texts: summaries, what they say of something",
}
WORKING = "Looking at this computer and the catalogue …"
NOTHING = (
    "Nothing in the catalogue fits here.  tab and the arrows try another context or type of keys "
    "and values, g another card.  o opens files of your own."
)
_HIDDEN = {
    1: ("less", "more", "dial", "card", "draft", "target", "settings"),
    2: ("draft", "target", "settings"),
    3: ("dial", "card"),
}
"""Keys that a step does without in its last line."""


def use_line(n: int, use: str) -> Content:
    """A choice of the first step."""
    return Content.assemble((f" {n}  ", "$accent"), (f"{use:<12}", "bold"), (USES[use], "$muted"))


def first(width: int) -> Content:
    """The title of the first step, which asks."""
    return Content.assemble((_title(1, width), "bold"), ("   What for?", "$muted"))


def head(step: int, what: WhatIf, dial: Dial, fit: Fit | None, width: int) -> Content:
    """The title, and the dials at the line's end; `fit`: what was chosen where a dial is open."""
    title = _title(step, width)
    dials = whatif.line(what, dial, fit, width - len(title) - 2)
    between = " " * max(2, width - len(title) - dials.cell_length)
    return Content.assemble((title, "bold"), between, dials)


def _title(step: int, width: int) -> str:
    return f"New pair · {step} of 3" if width >= 70 else f"{step} of 3"


def hints(step: int, taking: str, own: Mapping[str, str], width: int) -> str:
    """The keys of a step; `taking`: what enter does on the last."""
    does = {1: "enter choose", 2: "enter look closer", 3: taking}[step]
    now = {f"wizard.{name}": "" for name in _HIDDEN[step]}
    return fitting(f"{does}  {footer(own, 'wizard', 'app', now=now)}", width)


def taking(pair: Pair | None, ready: Collection[str]) -> str:
    """What enter does with a pair."""
    if pair is not None and pair.id in ready:
        return "enter chat"
    return f"enter download {'both ' if pair is not None and pair.draft else ''}and chat"
