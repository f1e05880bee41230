"""What is shown where an answer or a load failed: what happened, and what to try."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.clean import clean
from localspec.errors import LocalspecError


class Failure(Static):
    """An error in two sentences, and the keys that help."""

    def __init__(self, error: LocalspecError, keys: str) -> None:
        super().__init__(markup=False)
        self._error = error
        self._keys = keys

    def on_mount(self) -> None:
        hint = clean(self._error.hint, multiline=False)
        parts: list[tuple[str, str]] = [
            (clean(self._error.message, multiline=False), "bold $error"),
            (f"\n{hint}" if hint else "", ""),
            (f"\n{self._keys}" if self._keys else "", "$muted"),
        ]
        self.update(Content.assemble(*parts))
