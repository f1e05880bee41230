"""What screens ask the app to show: screens do not import each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from textual.message import Message


@dataclass(eq=False)
class OpenScreen(Message):
    """Makes a screen with these arguments and shows it."""

    name: (
        str  # Of its module in `tui/screens/` and of what makes it: `chat.ChatScreen`.
    )
    arguments: tuple[Any, ...]
    # Receives the screen's result when it is left.
    then: Callable[[Any], None] = lambda _: None
