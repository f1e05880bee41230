"""Calls of tools between two answers: asking, running, and the results for the model.

`ChatSession.stream_answer` runs the loop of a chat. `CallRunner.run` is one round of it:
the calls of one answer become results. It has no terminal; a front end is a
`ToolFrontEnd`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.conversation import CallResult, PictureAttachment, Turn
from localspec.errors import LocalspecError
from localspec.protocol.events import Notice
from localspec.protocol.wire import ToolCall
from localspec.sanitize import sanitize
from localspec.tools.approval import (
    Approvals,
    CallDecision,
    CallRequest,
    Verdict,
)
from localspec.tools.tool_types import ResultPicture, StopSignal, ToolResult, make_error
from localspec.tools.toolbox import Toolbox

REASON_MARK = "Reason: "
"""What the model is told of a refusal goes on with the person's own words."""
_GROWTH = 50
"""A call that is being written is shown again when it has grown by this part of it."""
_MAX_REASON = 2_000  # Characters of a refusal's reason.

CallPhase = Literal[
    "writing", "asking", "running", "done", "refused", "failed", "stopped"
]


class CallState(Struct, frozen=True):
    """A call and its phase; it is reported again when that changes.

    A call that is asked about and runs is reported four times: writing, asking, running,
    done. One that is always allowed is not reported as asking.
    """

    request: CallRequest
    """While it is written, with the name and the arguments so far."""
    phase: CallPhase
    result: CallResult | None = None
    """What the model receives, once that is known."""


class ToolFrontEnd(Protocol):
    """Shows calls, and asks a person about them.

    All methods run on the answer's thread.
    """

    def ask_call(self, request: CallRequest, stop: StopSignal) -> CallDecision:
        """Ask a person, and wait. Returns soon after `stop` is set."""
        ...

    def show_call(self, state: CallState) -> None: ...

    def begin_turn(self, turn: Turn) -> None:
        """The results are saved in `turn`, whose answer begins now."""
        ...


PictureKeeper = Callable[[ResultPicture, str], PictureAttachment | None]
"""Keeps a picture of a result under a name; None if it cannot be read."""


def drop_pictures(_: ResultPicture, __: str) -> PictureAttachment | None:
    """Keep none: the caller has no place for pictures, and the text names them."""
    return None


class CallHost(Struct, frozen=True):
    """What the caller of a `CallRunner` does with results that are no text."""

    keep_picture: PictureKeeper = drop_pictures
    notify: Callable[[Notice], None] = lambda _: None
    """Called when a server has failed, and not only one call."""


class CallRunner(Struct, frozen=True, kw_only=True):
    """Asks about the calls of answers, and runs those that are allowed."""

    toolbox: Toolbox
    approvals: Approvals
    front_end: ToolFrontEnd
    stop: StopSignal
    """Set to stop the call that is asked about or runs, and all after it."""
    host: CallHost = CallHost()

    def run(self, calls: Sequence[ToolCall], n_most: int) -> tuple[CallResult, ...]:
        """The results of one answer's calls, which run one after the other.

        Every call gets a result, in the same order: also one that is wrong, refused or
        stopped. The calls after the first `n_most` do not run: of three calls and with
        `n_most` 1, the second and the third get a result that says so.
        """
        results = [self._run_call(call) for call in calls[:n_most]]
        results += [_refuse_surplus(call) for call in calls[n_most:]]
        return tuple(results)

    def _run_call(self, call: ToolCall) -> CallResult:
        request = self.toolbox.make_request(call.id, call.name, call.arguments)
        if self.stop.is_set():
            return self._report(request, _refuse(request, CallDecision("stopped")))
        try:
            decision = self.approvals.decide(request, self._ask)
        except LocalspecError as error:
            # The permission could not be saved, and so was not given.
            decision = CallDecision("no", f"{error.message} {error.hint}".strip())
        if self.stop.is_set():
            decision = CallDecision("stopped")
        if not decision.is_allowed:
            return self._report(request, _refuse(request, decision))
        self.front_end.show_call(CallState(request, "running"))
        result = self._call(request)
        if result.failure:
            failure = sanitize(result.failure, multiline=False)
            self.host.notify(Notice("warning", "tool-server", failure))
        verdict: Verdict = decision.verdict
        if self.stop.is_set() and result.is_error:
            verdict = "stopped"
        return self._report(request, self._convert(request, result, verdict))

    def _ask(self, request: CallRequest) -> CallDecision:
        self.front_end.show_call(CallState(request, "asking"))
        return self.front_end.ask_call(request, self.stop)

    def _call(self, request: CallRequest) -> ToolResult:
        """A provider that breaks its promise not to raise costs only this call."""
        try:
            return self.toolbox.call(request, self.stop)
        except LocalspecError as error:
            return make_error(error.message)
        except Exception as error:  # a Python function of the API may raise anything
            return make_error(f"{type(error).__name__}: {error}")

    def _convert(
        self, request: CallRequest, result: ToolResult, verdict: Verdict
    ) -> CallResult:
        pictures: list[PictureAttachment] = []
        for number, picture in enumerate(result.pictures, 1):
            name = f"{request.full_name}-{number}"
            kept = self.host.keep_picture(picture, name)
            if kept is not None:
                pictures.append(kept)
        return CallResult(
            call_id=request.call_id,
            tool=request.full_name,
            # A lone surrogate is no character: it cannot be saved.
            text=result.text.encode("utf-8", "replace").decode(),
            is_error=result.is_error,
            verdict=verdict,
            pictures=tuple(pictures),
        )

    def _report(self, request: CallRequest, result: CallResult) -> CallResult:
        state = CallState(request, find_phase(result), result=result)
        self.front_end.show_call(state)
        return result


def find_phase(result: CallResult) -> CallPhase:
    """How a call ended, for showing a saved one as a new one."""
    if result.verdict == "no":
        return "refused"
    if result.verdict == "stopped":
        return "stopped"
    if result.is_error:
        return "failed"
    return "done"


def _refuse(request: CallRequest, decision: CallDecision) -> CallResult:
    """The result of a call that does not run: the model is told why."""
    if decision.verdict == "wrong":
        text = decision.reason or request.problem
    elif decision.verdict == "stopped":
        text = "The user stopped this call."
    else:
        text = "The user refused this call."
        reason = decision.reason.strip()[:_MAX_REASON]
        if reason:
            text = f"{text} {REASON_MARK}{reason}"
    return CallResult(
        call_id=request.call_id,
        tool=request.full_name,
        text=text,
        is_error=True,
        verdict=decision.verdict,
    )


def _refuse_surplus(call: ToolCall) -> CallResult:
    """The result of a call beyond the most that an answer may have."""
    return CallResult(
        call_id=call.id,
        tool=call.name,
        text="This call did not run: the answer has too many calls. Answer now.",
        is_error=True,
        verdict="wrong",
    )


class CallProgress:
    """Shows the calls of an answer while the model writes them.

    Each time, a call is read from its beginning. So a long one is shown more seldom: when
    it has grown by a fiftieth. After 1,000 characters that is every 21.
    """

    def __init__(self, toolbox: Toolbox, front_end: ToolFrontEnd) -> None:
        self._toolbox = toolbox
        self._front_end = front_end
        self._shown: tuple[ToolCall, ...] = ()
        self._n_next = 1
        """The calls are shown again when they have this many characters."""

    def show(self, answer: GeneratedAnswer) -> None:
        """Show what is new; a call that does not run, as it was cut, is stopped."""
        n_characters = answer.n_call_characters
        if n_characters < self._n_next and not answer.has_ended:
            return
        self._n_next = n_characters + 1 + n_characters // _GROWTH
        calls = answer.partial_calls
        for i, call in enumerate(calls):
            if call not in self._shown[i : i + 1]:
                self._show(call, "writing")
        self._shown = calls
        if answer.has_ended:
            for call in calls[len(answer.calls) :]:
                self._show(call, "stopped")

    def _show(self, call: ToolCall, phase: CallPhase) -> None:
        request = self._toolbox.make_request(call.id, call.name, call.arguments)
        # What is missing is no mistake yet.
        so_far = replace(request, problem="")
        self._front_end.show_call(CallState(so_far, phase))
