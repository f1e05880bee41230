"""What is wide enough stays in the middle of a terminal that is wider still."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import Vertical
from textual.layout import WidgetPlacement
from textual.screen import Screen


class CenteredLayout:
    """Of whatever stands in it: what has a greatest width stands in the middle, the rest as ever.

    Textual's own `align` moves all of them together.  A plain class, for the first widget among
    its bases is what a style sheet knows a widget by.
    """

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Called each time they are arranged; our own size may still be the one before."""
        wide = max(map(_outer_width, placements), default=0)
        if isinstance(self, Screen):  # of which nothing may be as wide as the terminal
            wide = self.app.size.width
        return list(_center_placements(placements, wide))


class CenteredColumn(CenteredLayout, Vertical):
    """One below the other."""


def _outer_width(placement: WidgetPlacement) -> int:
    return placement.region.width + placement.margin.width


def _center_placements(
    placements: Iterable[WidgetPlacement], available_width: int
) -> Iterable[WidgetPlacement]:
    for one in placements:
        room = (available_width - _outer_width(one)) // 2
        if room > 0 and one.widget.styles.max_width is not None:
            yield one._replace(region=one.region.translate((room, 0)))
        else:
            yield one
