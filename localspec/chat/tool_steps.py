"""An answer with tools that belongs to no chat session: of the API, and of `run -p`.

It is made in steps. Each step is one request to the engine, whose messages are those of
the caller and those of the steps before. Between two steps the calls run.

For "What time is it?" the messages of the caller are one question. The first step writes
a call. The messages of the second step are the question, the call and its result, and it
writes "It is four past twelve."
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.conversation import (
    CallResult,
    PictureAttachment,
    Turn,
    build_answer,
    build_asked,
)
from localspec.chat.settings import LoadedModel
from localspec.chat.tool_loop import (
    CallHost,
    CallProgress,
    CallRunner,
    ToolFrontEnd,
)
from localspec.chat.tool_results import cut_results
from localspec.errors import LocalspecError
from localspec.launch import Engine, sight
from localspec.models.pictures import accept_picture
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, GenerateCommand, ToolCall
from localspec.tools.approval import Approvals
from localspec.tools.tool_types import ResultPicture, StopSignal
from localspec.tools.toolbox import Toolbox


class ToolSteps:
    """The steps of one answer."""

    def __init__(
        self,
        toolbox: Toolbox,
        approvals: Approvals,
        front_end: ToolFrontEnd,
        *,
        max_calls: int,
        notify: Callable[[Notice], None],
    ) -> None:
        """After `max_calls` calls, no tools are offered: the model must answer.

        `notify` is called when a server has failed, and not only one call.
        """
        self._toolbox = toolbox
        self._approvals = approvals
        self._front_end = front_end
        self._max_calls = max_calls
        self._notify = notify
        self._answered: list[Turn] = []
        """The steps that have ended with calls."""
        self._step_answers: list[GeneratedAnswer] = []
        """The same steps, with their figures."""
        self._results: tuple[CallResult, ...] = ()
        """The results of the calls of the last of these steps."""
        self._picture_paths: dict[str, str] = {}
        """The files of the pictures in results, by the pictures' SHA-256."""
        self._n_calls = 0
        self._progress = CallProgress(toolbox, front_end)
        """The calls of the step that is being written."""
        self._sees = False
        """Whether the model reads pictures; `begin_answer` sets it."""
        self._markers: tuple[str, str] | None = None
        """The model's marks of thinking; `begin_answer` sets them."""

    @property
    def calls(self) -> list[tuple[ToolCall, CallResult]]:
        """All calls so far, with their results."""
        results: list[CallResult] = []
        for turn in self._answered[1:]:
            results += turn.results
        results += self._results
        calls: list[ToolCall] = []
        for turn in self._answered:
            calls += turn.calls
        return list(zip(calls, results, strict=True))

    @property
    def is_stopped(self) -> bool:
        """Whether a call was stopped, and with it the answer."""
        return any(result.verdict == "stopped" for result in self._results)

    @property
    def tools(self) -> str:
        """What the next step offers, as `GenerateCommand.tools`; empty for none."""
        if self._n_calls >= self._max_calls:
            return ""
        return self._toolbox.to_json()

    def begin_answer(self, n_messages: int, loaded: LoadedModel) -> GeneratedAnswer:
        """The answer of the next step, which takes calls out of its text.

        `n_messages` is the number of the caller's messages. It makes the ids of calls
        differ from those of the caller's earlier answers.
        """
        self._sees = loaded.sees
        self._markers = loaded.thinking_markers
        number = n_messages + len(self._answered)
        turn = Turn("", id=number, results=self._results)
        answer = GeneratedAnswer(turn, loaded.thinking_markers)
        answer.continue_from(self._step_answers)
        answer.offer_tools(loaded.tool_format, self._toolbox.schemas())
        self._progress = CallProgress(self._toolbox, self._front_end)
        return answer

    def show_progress(self, answer: GeneratedAnswer) -> None:
        """Show the calls that the model writes, after an event of the answer."""
        self._progress.show(answer)

    def all_messages(self, last: Turn) -> tuple[ChatMessage, ...]:
        """What the answer adds to the caller's messages; `last` is its last step."""
        messages = self._new_messages(self._results)
        return (*messages, build_answer(last, self._markers))

    def add_messages(
        self, engine: Engine, request: GenerateCommand, loaded: LoadedModel
    ) -> GenerateCommand:
        """The request for the caller's messages, with those of the steps so far.

        The last results are cut to what fits. Raises what the engine raises.
        """

        def add(results: tuple[CallResult, ...]) -> GenerateCommand:
            messages = (*request.messages, *self._new_messages(results))
            return replace(request, messages=messages)

        def count(results: tuple[CallResult, ...]) -> int:
            return engine.count(add(results).to_count()).tokens

        if self._answered:
            calls = self._answered[-1].calls
            self._results = cut_results(self._results, calls, loaded.n_ctx, count)
        return add(self._results)

    def _new_messages(self, last_results: tuple[CallResult, ...]) -> list[ChatMessage]:
        """The answers of the steps so far, each with the results of its calls."""
        messages: list[ChatMessage] = []
        results = [turn.results for turn in self._answered[1:]]
        results.append(last_results)
        for turn, of_its_calls in zip(self._answered, results, strict=False):
            messages.append(build_answer(turn, self._markers))
            answered = Turn("", results=of_its_calls)
            messages += build_asked(answered, self._picture_paths)
        return messages

    def run_calls(self, answer: GeneratedAnswer, stop: StopSignal) -> bool:
        """Run the calls with which a step has ended.

        Returns whether another step follows. With one call left and an answer of three,
        the first runs, and the others get a result that says why they do not.
        """
        calls = answer.calls
        n_left = self._max_calls - self._n_calls
        if not calls or n_left <= 0:
            return False
        runner = CallRunner(
            toolbox=self._toolbox,
            approvals=self._approvals,
            front_end=self._front_end,
            stop=stop,
            host=CallHost(self._keep_picture, self._notify),
        )
        self._results = runner.run(calls, n_most=n_left)
        self._n_calls += len(calls)
        self._answered.append(answer.turn)
        self._step_answers.append(answer)
        if stop.is_set() or self.is_stopped:
            return False
        self._front_end.begin_turn(Turn("", results=self._results))
        return True

    def _keep_picture(
        self, picture: ResultPicture, name: str
    ) -> PictureAttachment | None:
        """Put a picture into a file, if the model reads pictures; else only name it.

        Returns None if it cannot be read.
        """
        try:
            data = accept_picture(picture.data, name)
            header = data.picture
            if self._sees:
                self._picture_paths[header.sha256] = sight.put_picture(data).path
        except LocalspecError:
            return None
        width, height = header.shown_size
        return PictureAttachment(
            name=header.name,
            sha256=header.sha256,
            kind=header.kind,
            width=width,
            height=height,
        )
