"""The rows of a screen as text, and widgets shown alone with the app's style sheet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.app import ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner


def find_rows(screen: Screen[Any]) -> list[str]:
    """What each row of the terminal shows; rows of the screens below are behind it."""
    strips = screen._compositor.render_strips()
    return [strip.text.rstrip() for strip in strips]


class _WidgetScreen(Screen[None]):
    def __init__(self, *widgets: Widget) -> None:
        super().__init__()
        self._widgets = widgets

    def compose(self) -> ComposeResult:
        yield from self._widgets


@asynccontextmanager
async def show_widgets(
    *widgets: Widget, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Pilot[Any]]:
    app = LocalspecApp(AppOptions(), EngineRunner(), lambda: _WidgetScreen(*widgets))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield pilot
