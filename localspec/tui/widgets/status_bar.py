"""The status line of a chat: keys at the left, numbers at the right."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from localspec.chat.session import ChatSession
from localspec.tui.app_options import AppOptions
from localspec.tui.key_bindings import fit_footer, format_footer, format_key
from localspec.tui.widgets.transcript import Transcript
from localspec.units import milliseconds

_NARROW_WIDTH = 80  # The app's breakpoint for narrow terminals.


class StatusBar(Static):
    """A single text, so that the layout does not move."""

    def __init__(self, options: AppOptions) -> None:
        super().__init__(markup=False)
        self._options = options
        self._keys_and_numbers = ("", "")

    def draw(self, session: ChatSession, phase: str, transcript: Transcript) -> None:
        keymap = self._options.keymap
        if transcript.is_cursor_active:
            keys = format_footer(keymap, "tokens")
        else:
            labels = {"chat.stop": "stop" if phase == "answering" else "back"}
            keys = format_footer(keymap, "composer", "chat", "app", label_overrides=labels)
            if transcript.token_view:
                send, _, others = keys.partition("  ")
                walk_key = format_key(keymap.get("chat.walk", "tab"))
                keys = f"{send}  {walk_key} select token  {others}"
        numbers = _status_numbers(session, phase)
        if transcript.is_cursor_active and self.app.size.width < _NARROW_WIDTH:
            numbers = ""  # the keys are needed to leave the token view
        if not transcript.following:
            end_key = format_key(keymap.get("chat.end", "ctrl+end"))
            numbers = f"more below: {end_key}   {numbers}"
        if self._keys_and_numbers != (keys, numbers):
            self._keys_and_numbers = (keys, numbers)
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        keys, numbers = self._keys_and_numbers
        width = self.content_size.width
        while cell_len(numbers) > width and "   " in numbers:
            numbers = numbers.rpartition("   ")[0]
        keys = fit_footer(keys, width - cell_len(numbers) - 3)
        space = " " * (width - cell_len(keys) - cell_len(numbers))
        self.update(Content(f"{keys}{space}{numbers}"), layout=False)


def _status_numbers(session: ChatSession, phase: str) -> str:
    stats = session.stats
    if phase == "loading":
        return "loading"
    parts: list[str] = []
    if stats.prefill is not None and stats.prefill.done < stats.prefill.total:
        parts.append(f"reading prompt {stats.prefill.done:,} / {stats.prefill.total:,}")
    if session.loaded is not None:
        parts.append(
            f"ctx {_short_count(stats.context_tokens)} / {_short_count(session.loaded.n_ctx)}"
        )
    if session.n_omitted_turns:
        turns = "turn" if session.n_omitted_turns == 1 else "turns"
        parts.append(f"{session.n_omitted_turns} old {turns} left out")
    if stats.reused_tokens:
        parts.append(f"reused {_short_count(stats.reused_tokens)}")
    if stats.first_token_ms is not None and phase != "answering":
        parts.append(f"first token {milliseconds(stats.first_token_ms)}")
    return "   ".join(parts)


def _short_count(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)
