"""The dialog that shows a call of a tool in full: its arguments and its result."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.tool_loop import CallState
from localspec.report.tool_calls import (
    call_name,
    describe_allowance,
    describe_provider,
    look_of_call,
)
from localspec.sanitize import sanitize
from localspec.tui.notices import copy_text
from localspec.tui.text.blocks import (
    BlankLine,
    Paragraph,
    TextBlock,
    ThumbnailBlock,
)
from localspec.tui.text.call_text import make_argument_blocks
from localspec.tui.text.turn_text import format_picture
from localspec.tui.widgets.text_view import TextView
from localspec.units import count


class CallDetailsView(TextView):
    following = False

    def show(self, state: CallState, *, draws_pictures: bool) -> None:
        """`draws_pictures`: the terminal has half blocks."""
        self._blocks.blocks = [*_make_blocks(state, draws_pictures=draws_pictures)]
        self.update_blocks()
        self.scroll_home(animate=False)


def _make_blocks(state: CallState, *, draws_pictures: bool) -> list[TextBlock]:
    blocks: list[TextBlock] = []
    if state.request.tool is not None:
        provider = describe_provider(state.request.tool)
        blocks += [Paragraph(f"runs in {provider}", "muted"), BlankLine()]
    arguments = make_argument_blocks(state.request, is_folded=False)
    blocks.append(Paragraph("Arguments", "role"))
    blocks += arguments or [Paragraph("none", "muted")]
    blocks += [BlankLine(), Paragraph("Result", "role")]
    result = state.result
    if result is None:
        blocks.append(Paragraph(look_of_call(state).words, "muted"))
        return blocks
    for picture in result.pictures:
        blocks.append(Paragraph(format_picture(picture), "muted"))
        if picture.thumbnail is not None and draws_pictures:
            blocks.append(ThumbnailBlock(picture.thumbnail))
    if result.text:
        blocks.append(Paragraph(sanitize(result.text)))
    elif not result.pictures:
        blocks.append(Paragraph("empty", "muted"))
    return blocks


class CallDetailsScreen(ModalScreen[None]):
    """Shows one of the calls of a chat; the arrows go to the others."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape,q,alt+t", "dismiss", "Back"),
        Binding("left", "go(-1)", "Previous call"),
        Binding("right", "go(1)", "Next call"),
        Binding("up", "scroll(-1)", "Up"),
        Binding("down", "scroll(1)", "Down"),
        Binding("pageup", "page(-1)", "Page up"),
        Binding("pagedown,space", "page(1)", "Page down"),
        Binding("home", "edge(-1)", "Beginning"),
        Binding("end", "edge(1)", "End"),
        Binding("c", "copy", "Copy the result"),
    ]

    def __init__(
        self, states: Sequence[CallState], index: int, *, draws_pictures: bool
    ) -> None:
        super().__init__()
        self._draws_pictures = draws_pictures
        self._states = states
        self._index = index

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(id="call-name", classes="heading", markup=False)
            yield Static(id="call-outcome", markup=False)
            yield CallDetailsView()
            yield Static(id="call-keys", classes="hint", markup=False)

    def on_mount(self) -> None:
        self._show_call()

    @property
    def _state(self) -> CallState:
        return self._states[self._index]

    @property
    def _view(self) -> CallDetailsView:
        return self.query_one(CallDetailsView)

    def _show_call(self) -> None:
        state = self._state
        name = call_name(state.request)
        self.query_one("#call-name", Static).update(Content(name))
        look = look_of_call(state)
        parts = [f"{look.sign} {look.words}"]
        if state.result is not None:
            parts.append(describe_allowance(state.result.verdict))
            parts.append(count(len(state.result.text), "character"))
        outcome = " · ".join(part for part in parts if part)
        self.query_one("#call-outcome", Static).update(
            Content.styled(outcome, "$muted")
        )
        self._view.show(state, draws_pictures=self._draws_pictures)
        keys = ["↑↓ scroll", "c copy the result", "esc back"]
        if len(self._states) > 1:
            which = f"{self._index + 1} of {len(self._states)}"
            keys.insert(0, f"←→ call {which}")
        self.query_one("#call-keys", Static).update(Content("   ".join(keys)))

    def action_go(self, by: int) -> None:
        index = self._index + by
        if 0 <= index < len(self._states):
            self._index = index
            self._show_call()

    def action_scroll(self, by: int) -> None:
        self._view.scroll_relative(y=by, animate=False)

    def action_page(self, by: int) -> None:
        if by > 0:
            self._view.scroll_page_down(animate=False)
        else:
            self._view.scroll_page_up(animate=False)

    def action_edge(self, by: int) -> None:
        if by > 0:
            self._view.scroll_end(animate=False)
        else:
            self._view.scroll_home(animate=False)

    def action_copy(self) -> None:
        result = self._state.result
        if result is None or not result.text:
            self.notify("There is no result.", markup=False)
            return
        text = result.text
        copy_text(self.app, lambda: text)
