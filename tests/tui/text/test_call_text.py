"""The rows of a tool call: of one height, foldable, and all of the value in them."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from localspec.chat.conversation import CallResult, Turn
from localspec.chat.tool_loop import CallPhase, CallState
from localspec.protocol.wire import ToolCall
from localspec.report.tool_calls import CallArgument
from localspec.tools.approval import CallRequest
from localspec.tui.text import call_text
from localspec.tui.text.blocks import TextBlock
from localspec.tui.text.call_text import ArgumentBlock, CallBlock, stored_states

NO_STYLES: defaultdict[str, Style] = defaultdict(Style)
PHASES: tuple[CallPhase, ...] = (
    "writing",
    "asking",
    "running",
    "done",
    "refused",
    "failed",
    "stopped",
)


def draw(block: TextBlock, width: int = 60) -> list[str]:
    rows: list[str] = []
    for y in range(block.height(width)):
        segments = block.line(y, NO_STYLES)
        rows.append("".join(segment.text for segment in segments))
    return rows


def make_state(phase: CallPhase, text: str = "") -> CallState:
    request = CallRequest("c1", "clock_now", None, {"city": "Rome"}, "{}")
    return CallState(request, phase, CallResult("c1", "clock.now", text, False, "once"))


def test_every_state_has_two_rows_with_a_sign_and_words() -> None:
    for phase in PHASES:
        first, second = draw(CallBlock(make_state(phase)))
        assert "clock_now  city: Rome" in first
        assert first[0] in "…?▸✗✓"
        assert second.strip()


@given(st.text(max_size=300), st.integers(2, 80))
def test_no_row_is_wider_than_the_view(text: str, width: int) -> None:
    state = make_state("done", text)
    for row in draw(CallBlock(state), width):
        assert cell_len(row) <= width
        assert "\n" not in row


def test_a_call_that_runs_for_long_shows_its_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_text, "SHOWN_SECONDS", 0)
    assert draw(CallBlock(make_state("running")))[1] == "  running 0 s · esc stops"


def test_a_folded_value_says_how_many_rows_are_missing() -> None:
    value = "\n".join(f"row {number}" for number in range(9))
    folded = ArgumentBlock(CallArgument("text", value), 4, is_folded=True)
    assert draw(folded) == [
        "text  row 0",
        "      row 1",
        "      row 2",
        "      … 6 more lines",
    ]
    whole = ArgumentBlock(CallArgument("text", value), 4, is_folded=False)
    assert draw(whole)[-1] == "      row 8"


def test_a_value_that_is_little_longer_is_not_folded() -> None:
    value = "\n".join(f"row {number}" for number in range(5))
    block = ArgumentBlock(CallArgument("text", value), 4, is_folded=True)
    assert len(draw(block)) == 5
    assert block.n_hidden == 0


def test_an_empty_value_has_its_name() -> None:
    assert draw(ArgumentBlock(CallArgument("text", ""), 4, is_folded=True)) == [
        "text  "
    ]


def test_a_copy_of_a_value_is_the_value() -> None:
    value = "a long value that is wrapped in several rows of this width"
    block = ArgumentBlock(CallArgument("text", value), 4, is_folded=False)
    assert block.height(30) > 1
    assert block.source_map(0).source == value


def test_a_saved_call_without_a_result_was_stopped() -> None:
    turn = Turn("", calls=(ToolCall("c1", "clock_now", '{"city": "Rome"}'),))
    (state,) = stored_states(turn, ())
    assert state.phase == "stopped"
    assert state.request.arguments == {"city": "Rome"}


def test_a_saved_call_whose_arguments_are_no_json_is_shown_as_it_is() -> None:
    turn = Turn("", calls=(ToolCall("c1", "clock_now", '{"city": '),))
    result = CallResult("c1", "clock_now", "wrong", True, "wrong")
    (state,) = stored_states(turn, (result,))
    assert draw(CallBlock(state)) == ['✗ clock_now  {"city":', "  failed: wrong"]
