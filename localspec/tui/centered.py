"""Horizontal centring of widgets that have a maximum width."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import Vertical
from textual.layout import WidgetPlacement
from textual.screen import Screen


class CenteredLayout:
    """Mix-in of a container: centres each child that has a `max-width`.

    Textual's own `align` moves all children together.  This is a plain class, not a widget,
    because a style sheet finds a widget by the first widget class among its bases.
    """

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Called at each layout; `self.size` may still be the previous size."""
        available = max(map(_outer_width, placements), default=0)
        if isinstance(self, Screen):  # all its children may be narrower than the terminal
            available = self.app.size.width
        return list(_center_placements(placements, available))


class CenteredColumn(CenteredLayout, Vertical):
    pass


def _outer_width(placement: WidgetPlacement) -> int:
    return placement.region.width + placement.margin.width


def _center_placements(
    placements: Iterable[WidgetPlacement], available_width: int
) -> Iterable[WidgetPlacement]:
    for placement in placements:
        margin = (available_width - _outer_width(placement)) // 2
        if margin > 0 and placement.widget.styles.max_width is not None:
            yield placement._replace(region=placement.region.translate((margin, 0)))
        else:
            yield placement
