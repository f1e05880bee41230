"""The question whether a call of a tool may run, between the answer and the message.

The message keeps the keyboard: what is typed ahead allows nothing. Tab goes to the
choices, and back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.report.tool_calls import (
    CALL_CHOICES,
    CallChoice,
    describe_claims,
    describe_description,
    describe_provider,
    shorten_name,
)
from localspec.tools.approval import CallDecision, CallRequest
from localspec.tui.text.blocks import Paragraph
from localspec.tui.text.call_text import ArgumentBlock, make_argument_blocks
from localspec.tui.widgets.pointer_list import MarkedList
from localspec.tui.widgets.text_view import TextView

MIN_ASKED_SECONDS = 0.5
"""A choice that is made sooner is ignored.

It was meant for the question before: the second half of a double click.
"""
_GAP = "  "


class ArgumentView(TextView):
    """The arguments of a call; as high as they are, up to the style sheet's limit."""

    following = False

    def show(self, request: CallRequest, *, is_folded: bool) -> None:
        blocks = make_argument_blocks(request, is_folded=is_folded)
        self._blocks.blocks = [*blocks]
        if not blocks:
            self._blocks.blocks = [Paragraph("It gets no arguments.", "muted")]
        self.update_blocks()
        self._fit_height()

    def _rewrap(self) -> None:
        super()._rewrap()
        self._fit_height()

    def _fit_height(self) -> None:
        if self._width:
            self.styles.height = max(1, self._blocks.height)

    @property
    def has_folded(self) -> bool:
        """Whether a value is shown only in part."""
        return any(
            isinstance(block, ArgumentBlock) and block.n_hidden > 0
            for block in self.blocks
        )


class CallChoiceList(MarkedList):
    """Once, in this chat, always, or no."""

    BINDINGS = [  # noqa: RUF012
        ("right", "fold(False)", "All of the arguments"),
        ("left", "fold(True)", "The beginning of long arguments"),
    ]

    @dataclass(eq=False)
    class FoldingChanged(Message):
        is_folded: bool

    def __init__(self) -> None:
        options = [Option(_draw_choice(choice)) for choice in CALL_CHOICES]
        super().__init__(*options, id_="call-choices")

    def action_fold(self, is_folded: bool) -> None:
        self.post_message(self.FoldingChanged(is_folded))


def _draw_choice(choice: CallChoice) -> Content:
    width = max(len(each.label) for each in CALL_CHOICES)
    label = f"{choice.label:<{width}}"
    return Content.assemble(label, (f"{_GAP}{choice.consequence}", "$muted"))


class CallQuestion(Vertical):
    """Shows one call, as it will run, and the choices; hidden without a call."""

    @dataclass(eq=False)
    class Decided(Message):
        decision: CallDecision

    def __init__(self) -> None:
        super().__init__()
        self.display = False
        self.request: CallRequest | None = None
        self._asked_at = float("-inf")
        self._is_folded = True

    def compose(self) -> ComposeResult:
        yield Static(id="call-tool", markup=False)
        yield Static(id="call-claims", markup=False)
        yield ArgumentView(id="call-arguments")
        yield CallChoiceList()
        reason = Input(placeholder="why not? the model is told", id="refusal")
        reason.cursor_blink = False
        yield reason
        yield Static(id="call-hint", classes="hint", markup=False)

    def ask(self, request: CallRequest) -> None:
        """Show another call. Nothing is chosen until a person goes to the choices."""
        self.request = request
        self._asked_at = time.monotonic()
        self._is_folded = True
        self.display = True
        self.query_one("#refusal", Input).value = ""
        self._show_reason_field(shown=False)
        self.query_one(OptionList).highlighted = None
        self._draw_tool(request)
        self._draw_arguments()
        self.query_one(ArgumentView).scroll_home(animate=False)

    def close(self) -> None:
        self.request = None
        self.display = False

    @property
    def has_keyboard(self) -> bool:
        return self.has_focus_within

    def take_keyboard(self) -> None:
        choices = self.query_one(CallChoiceList)
        if choices.highlighted is None:
            choices.highlighted = 0
        self.screen.set_focus(choices)
        self._draw_hint()

    def on_descendant_blur(self) -> None:
        self.call_after_refresh(self._show_keyboard)

    def _show_keyboard(self) -> None:
        """Mark no choice while enter would not take it."""
        if not self.has_keyboard:
            self.query_one(OptionList).highlighted = None
        self._draw_hint()

    # --- drawing
    # ----------------------------------------------------------------------------

    def _draw_tool(self, request: CallRequest) -> None:
        tool = request.tool
        if tool is None:  # Such a call cannot run, so nobody is asked about it.
            return
        question = Content.assemble(
            ("The model asks to run ", "$accent"),
            (f"“{shorten_name(tool.name)}”", "bold"),
            f", a tool of {describe_provider(tool)}. ",
            ("May it?", "$accent"),
        )
        self.query_one("#call-tool", Static).update(question)
        parts = [describe_description(tool), describe_claims(tool)]
        text = " ".join(part for part in parts if part)
        claims = self.query_one("#call-claims", Static)
        claims.set_class(not text, "-empty")
        claims.update(Content.styled(text, "$muted"))

    def _draw_arguments(self) -> None:
        if self.request is not None:
            self.query_one(ArgumentView).show(self.request, is_folded=self._is_folded)
            self._draw_hint()

    def _draw_hint(self) -> None:
        keys = ["tab choose", "esc stop the answer"]
        if self.is_reason_typed:
            keys = ["enter refuse", "esc back"]
        elif self.has_keyboard:
            keys = ["enter take", "↑↓ choose", "tab back", "esc stop"]
            if self.query_one(ArgumentView).has_folded:
                keys.insert(2, "→ all of the arguments")
            elif not self._is_folded:
                keys.insert(2, "← fold")
        self.query_one("#call-hint", Static).update(Content("   ".join(keys)))

    def _show_reason_field(self, *, shown: bool) -> None:
        self.query_one("#refusal").display = shown

    # --- choosing
    # ----------------------------------------------------------------------------

    @on(CallChoiceList.FoldingChanged)
    def _fold(self, message: CallChoiceList.FoldingChanged) -> None:
        self._is_folded = message.is_folded
        self._draw_arguments()

    @on(OptionList.OptionSelected)
    def _take(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if time.monotonic() - self._asked_at < MIN_ASKED_SECONDS:
            return
        choice = CALL_CHOICES[event.option_index]
        if choice.verdict != "no":
            self._decide(CallDecision(choice.verdict))
            return
        self._show_reason_field(shown=True)
        self.screen.set_focus(self.query_one("#refusal", Input))
        self._draw_hint()

    @on(Input.Submitted, "#refusal")
    def _refuse(self, event: Input.Submitted) -> None:
        event.stop()
        self._decide(CallDecision("no", event.value.strip()))

    @property
    def is_reason_typed(self) -> bool:
        """Whether what is typed is the reason of a refusal."""
        return self.query_one("#refusal").has_focus

    def leave_reason(self) -> bool:
        """Give the keyboard back to the choices, if the reason had it.

        Returns whether it had.
        """
        if not self.is_reason_typed:
            return False
        self._show_reason_field(shown=False)
        self.take_keyboard()
        return True

    def _decide(self, decision: CallDecision) -> None:
        if self.request is not None:
            self.post_message(self.Decided(decision))

    def scroll_arguments(self, by: int) -> bool:
        """Scroll the arguments by a page, if they are longer than what is seen.

        Returns whether the key was used: not if the message has the keyboard.
        """
        arguments = self.query_one(ArgumentView)
        if not self.has_keyboard or not arguments.max_scroll_y:
            return False
        if by > 0:
            arguments.scroll_page_down(animate=False)
        else:
            arguments.scroll_page_up(animate=False)
        return True
