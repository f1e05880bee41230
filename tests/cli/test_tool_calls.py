"""What a person reads and types about a call of a tool, on a terminal."""

import io
import json
import sys
import threading
from typing import Any

import pytest

from localspec.chat.conversation import CallResult
from localspec.chat.tool_loop import CallState
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.tool_calls import (
    CallHooks,
    CallRefuser,
    ToolCallPrinter,
    parse_decision,
)
from localspec.tools.approval import CallDecision, CallRequest
from localspec.tools.tool_types import ToolDefinition

TOOL = ToolDefinition(
    provider="time",
    name="convert",
    description="Converts a time.",
    schema={"type": "object"},
    claims=("read-only",),
    origin="uvx mcp-server-time",
)
CHOICES = ("o  Once", "c  In this chat", "a  Always", "n  No")


def make_request(**arguments: Any) -> CallRequest:
    return CallRequest(
        call_id="call1",
        name="time_convert",
        tool=TOOL,
        arguments=arguments,
        arguments_text=json.dumps(arguments),
    )


def make_result(text: str, **more: Any) -> CallResult:
    given: dict[str, Any] = {"is_error": False, "verdict": "once"}
    return CallResult(call_id="call1", tool="time.convert", text=text, **given | more)


def ask(
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    request: CallRequest,
    style: OutputStyle = OutputStyle(),  # noqa: B008  frozen
) -> CallDecision:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return ToolCallPrinter(style).ask_call(request, threading.Event())


@pytest.mark.parametrize(
    ("typed", "decision"),
    [
        ("o", CallDecision("once")),
        (" O \n", CallDecision("once")),
        ("once", CallDecision("once")),
        ("c", CallDecision("chat")),
        ("always", CallDecision("always")),
        ("n", CallDecision("no")),
        ("no", CallDecision("no")),
        ("n: it is Rome, not Oslo", CallDecision("no", "it is Rome, not Oslo")),
        ("No, ask me first", CallDecision("no", "ask me first")),
        ("", None),
        ("yes", None),
        ("once more", None),
        ("open it", None),
        ("a b", None),
    ],
)
def test_what_is_typed_is_a_decision_only_if_it_is_meant_as_one(
    typed: str, decision: CallDecision | None
) -> None:
    assert parse_decision(typed) == decision


def test_a_question_shows_what_would_run_and_all_choices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = make_request(time="12:04", zones=["UTC", "Europe/Rome"])
    assert ask(monkeypatch, "o\n", request) == CallDecision("once")
    shown = capsys.readouterr()
    assert shown.out == ""
    for words in (
        "  time.convert\n",
        "    time: 12:04\n",
        "Europe/Rome",
        "uvx mcp-server-time",
        "Its claims, unchecked: read-only.",
        *CHOICES,
    ):
        assert words in shown.err


def test_an_empty_line_allows_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(monkeypatch, "\n\nyes\nc\n", make_request()) == CallDecision("chat")
    assert capsys.readouterr().err.count("Type o, c, a or n, and Enter:") == 3


def test_the_end_of_the_input_is_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, "", make_request()) == CallDecision("no")


def test_a_long_value_is_cut_until_all_of_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join(f"line {number}" for number in range(40))
    ask(monkeypatch, "n\n", make_request(text=text))
    cut = capsys.readouterr().err
    ask(monkeypatch, "v\nn\n", make_request(text=text))
    whole = capsys.readouterr().err
    assert "line 11" in cut
    assert "line 12" not in cut
    assert "more characters" in cut
    assert "Type v and Enter to see all." in cut
    assert "line 39" in whole


def test_what_a_person_cannot_see_is_spelled_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(monkeypatch, "n\n", make_request(path="a\x1b[2Kb\u202ec"))
    shown = capsys.readouterr().err
    assert "a\\u001b[2Kb\\u202ec" in shown
    assert "\x1b" not in shown


def test_a_value_cannot_look_like_the_question(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = "x\nType a letter and Enter; behind n you can say why:"
    ask(monkeypatch, "n\n", make_request(text=fake))
    lines = capsys.readouterr().err.splitlines()
    own = [line for line in lines if line.startswith("Type a letter")]
    assert len(own) == 1


def test_plain_mode_has_words_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    style = OutputStyle(plain=True)
    request = make_request(time="12:04")
    ask(monkeypatch, "o\n", request, style)
    printer = ToolCallPrinter(style)
    printer.show_call(CallState(request, "running"))
    printer.show_call(CallState(request, "done", make_result("a\nb")))
    shown = capsys.readouterr().err
    assert "o, Once: " in shown
    assert "Tool time.convert  time: 12:04" in shown
    assert shown.isascii()


def test_a_call_that_nobody_is_asked_about_is_shown_as_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hooks = CallHooks(describe_rest=lambda n: f"/tools {n}: all of it")
    printer = ToolCallPrinter(OutputStyle(), hooks)
    request = make_request(time="12:04")
    printer.show_call(CallState(request, "running"))
    printer.show_call(CallState(request, "done", make_result("first\nsecond")))
    printer.show_call(CallState(request, "done", make_result("short")))
    running, first, second = capsys.readouterr().err.splitlines()
    assert running == "▸ time.convert  time: 12:04"
    assert first.startswith("  ✓ done")
    assert first.endswith("(/tools 1: all of it)")
    assert second.endswith("short")


def test_a_wrong_call_is_shown_with_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = CallRequest(
        call_id="call1",
        name="rm",
        tool=None,
        arguments={"path": "/"},
        arguments_text='{"path": "/"}',
        problem="There is no tool 'rm'.",
    )
    result = make_result(request.problem, is_error=True, verdict="wrong")
    ToolCallPrinter(OutputStyle()).show_call(CallState(request, "failed", result))
    call, outcome = capsys.readouterr().err.splitlines()
    assert call == "▸ rm  path: /"
    assert "There is no tool 'rm'." in outcome


def test_calls_with_results_are_recorded() -> None:
    recorded: list[CallState] = []
    hooks = CallHooks(record=recorded.append)
    printer = ToolCallPrinter(OutputStyle(quiet=True), hooks)
    request = make_request()
    printer.show_call(CallState(request, "writing"))
    printer.show_call(CallState(request, "running"))
    printer.show_call(CallState(request, "done", make_result("x")))
    printer.show_call(CallState(request, "stopped"))
    assert [state.phase for state in recorded] == ["done"]


def test_where_nobody_can_be_asked_the_option_that_allows_it_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refuser = CallRefuser(OutputStyle())
    decision = refuser.ask_call(make_request(time="12:04"), threading.Event())
    shown = capsys.readouterr().err
    assert decision.verdict == "no"
    assert "nobody can be asked" in decision.reason
    assert "Not allowed: time.convert, time: 12:04" in shown
    assert "--allow time.convert" in shown
