"""One completion request, from its place in the queue to the last byte of its answer."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import check_answer
from localspec.errors import PromptTooLongError
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolDelta
from localspec.protocol.events import Event, GenerationFinished, Prefill, Round, Token
from localspec.protocol.wire import CountCommand, GenerateCommand
from localspec.serve import api_error, usage_and_timings
from localspec.serve.api_error import ApiError, shutting_down
from localspec.serve.chat_requests import OfferedTools
from localspec.serve.engine_queue import Admission, AsyncJob, EngineQueue
from localspec.serve.request_metrics import RequestActivity, RequestState, ServerActivity
from localspec.serve.request_options import CompletionOptions
from localspec.serve.served_model import PromptInput, ServedModel

PING_SECONDS = 10.0
_FIRST_EVENT_SECONDS = 0.5
"""How long headers wait for the engine to accept a prompt, where no request is before it."""
_WAIT_SECONDS = 3600.0
PING = b":\n\n"


@dataclass(slots=True)
class AnswerText:
    """Text that was added to a choice, and its tokens."""

    content: str = ""
    reasoning: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)

    def add_calls(self, deltas: Sequence[ToolDelta]) -> None:
        for delta in deltas:
            if isinstance(delta, str):
                self.content += delta
            else:
                self.calls.append(delta)


class Choice(AsyncJob[None]):
    """One answer of a request: a job that puts out its events, and what they add up to."""

    def __init__(
        self,
        build: Callable[[Engine], GenerateCommand],
        markers: tuple[str, str] | None,
        tools: OfferedTools | None = None,
    ) -> None:
        super().__init__(self._generate)
        self._build = build
        self.answer = GeneratedAnswer(thinking_markers=markers)
        self.text = AnswerText()  # All of it so far.
        self._pending = AnswerText()  # Since the last `take_delta`.
        self._tools = tools.make_parser() if tools is not None else None
        if self._tools is not None and tools is not None and tools.forced is not None:
            self._add_calls(self._tools.feed(tools.forced.prefix))

    def _generate(self, engine: Engine) -> None:
        """In the engine's thread."""
        if self.stop_requested:
            return
        command = self._build(engine)
        try:
            for event in engine.generate(command):
                self.put(event)
                check_answer(engine, event, lambda: self.stop_requested)
        except PromptTooLongError:
            count = CountCommand(command.text, command.messages, command.template, command.think)
            n_prompt = len(command.prompt_tokens) or engine.count(count)
            n_ctx = int(engine.ready.settings["target"]["n_ctx"])
            n_prompt += len(command.resumed_tokens)
            raise api_error.context_exceeded(n_prompt, n_ctx) from None

    def add(self, event: Event) -> None:
        delta = self.answer.add(event)
        tokens = list(event.tokens) if isinstance(event, Round) else []
        for part in delta.parts:
            if part.is_thinking:
                self.text.reasoning += part.text
                self._pending.reasoning += part.text
            else:
                self._add_calls(self._tools.feed(part.text) if self._tools else [part.text])
        if self._tools is not None and isinstance(event, GenerationFinished):
            self._add_calls(self._tools.finish())
        for text in (self.text, self._pending):
            if self.text.reasoning and text.content == self.text.content:
                text.content = text.content.lstrip()  # between the thinking and the answer
            if not delta.in_thinking:
                text.tokens += tokens

    def _add_calls(self, deltas: Sequence[ToolDelta]) -> None:
        self.text.add_calls(deltas)
        self._pending.add_calls(deltas)

    def take_delta(self) -> AnswerText | None:
        """The new text; None without any. Tokens wait for the text that they are part of."""
        pending = self._pending
        if not pending.content and not pending.reasoning and not pending.calls:
            return None
        self._pending = AnswerText()
        return pending

    @property
    def finish_reason(self) -> str | None:
        """None if the answer was stopped before its end."""
        finished = self.answer.finished
        if finished and self.text.calls and finished.reason in ("eog", "stop"):
            return "tool_calls"
        return usage_and_timings.FINISH_REASONS.get(finished.reason) if finished else None


class Completion:
    """Answers one request, in one or several choices. Each API is a subclass, for its JSON."""

    id_prefix: ClassVar[str] = ""

    def __init__(
        self,
        model: ServedModel,
        queue: EngineQueue,
        activity: ServerActivity,
        options: CompletionOptions,
    ) -> None:
        self._model, self._queue, self._activity = model, queue, activity
        self._options = options
        self._id = f"{self.id_prefix}{uuid4().hex}"
        self._created = int(time.time())
        self._choices: list[Choice] = []
        self._admission: Admission | None = None
        self._request: RequestActivity | None = None
        self._prompt_param = "prompt"

    # --- the JSON of an answer --------------------------------------------------------------

    def _whole(self) -> dict[str, Any]:
        raise NotImplementedError

    def _lines(self) -> AsyncGenerator[bytes, None]:
        """The stream but for its last line."""
        raise NotImplementedError

    def _last_line(self) -> bytes:
        raise NotImplementedError

    def _error_line(self, error: ApiError) -> bytes:
        return to_event(error.to_json())

    # --- the request ------------------------------------------------------------------------

    def submit(self, prompts: Sequence[PromptInput], route: str) -> None:
        """Queue all choices. Raises ApiError if the queue is full or a prompt does not fit."""
        self._prompt_param = prompts[0].param
        for prompt in prompts:
            self._model.check_prompt(prompt)
        self._admission = self._queue.admit()
        self._request = self._activity.begin(route)
        markers = self._model.loaded(raw=not prompts[0].messages).thinking_markers
        for prompt in prompts:
            for index in range(self._options.n):
                build = partial(
                    self._model.build_command, prompt=prompt, options=self._options, index=index
                )
                self._choices.append(Choice(build, markers, self._options.tools))
                self._queue.submit(self._choices[-1])

    @property
    def position(self) -> int:
        """Requests before this one when it was queued."""
        return self._admission.position if self._admission else 0

    async def wait_accepted(self) -> None:
        """Wait until the engine accepts the prompt, if that is soon. Raises ApiError."""
        if self.position == 0:
            await self._take_events(self._choices[0], _FIRST_EVENT_SECONDS)

    async def run(self) -> dict[str, Any]:
        """The whole answer. Raises ApiError."""
        try:
            for choice in self._choices:
                while not choice.has_ended:
                    await self._take_events(choice, _WAIT_SECONDS)
                self._check_end(choice)
            self._end("done", 200)
        except ApiError as error:
            self._end("failed", error.status)
            raise
        finally:
            self.close()
        return self._whole()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the beginning is the last of them."""
        try:
            async for line in self._lines():
                yield line
            self._end("done", 200)
            yield self._last_line()
        except ApiError as error:
            self._end("failed", error.status)
            yield self._error_line(error)
        finally:
            self.close()

    async def _deltas(
        self, choice: Choice
    ) -> AsyncGenerator[tuple[list[Event], AnswerText | None], None]:
        """New events and their text, to the end of a choice; neither after ten silent seconds.

        Raises ApiError if the engine failed, or the server ends.
        """
        has_ended = False
        while not has_ended:
            batch = await self._take_events(choice, PING_SECONDS)
            has_ended = choice.has_ended
            text = choice.take_delta()
            if batch or text is not None or not has_ended:
                yield batch, text
        self._check_end(choice)

    async def _take_events(self, choice: Choice, timeout: float) -> list[Event]:
        """Raises ApiError if the engine failed."""
        try:
            batch = await choice.next_batch(timeout)
        except Exception as error:
            raise self._record_failure(error) from None
        assert self._request is not None
        if self._options.reads_only:
            batch = _without_answer(batch)
        for event in batch:
            choice.add(event)
            self._request.add(event)
            self._activity.add(event)
            is_end = isinstance(event, GenerationFinished) and choice is self._choices[-1]
            if is_end and self._admission is not None:
                self._admission.release()
        self._request.answer = choice.answer
        return batch

    def _record_failure(self, error: Exception) -> ApiError:
        """The error for the client, with the field that it is about."""
        failure = self._queue.record_failure(error)
        if failure.name == "invalid_grammar":
            failure.param = self._options.constraint_param
        elif failure.name == "context_length_exceeded":
            failure.param = self._prompt_param
        return failure

    def _check_end(self, choice: Choice) -> None:
        """Raises ApiError if the engine failed, or the server ends."""
        try:
            choice.result()
        except Exception as error:
            raise self._record_failure(error) from None
        if choice.finish_reason is None:
            raise shutting_down()
        self._queue.record_success()
        self._model.answer_tokens.remember(choice.text.content, choice.text.tokens)

    def close(self) -> None:
        """Stop what is not done, and leave the queue. After the end it does nothing."""
        for choice in self._choices:
            if not choice.is_done:
                self._queue.host.stop(choice)
        if self._admission is not None:
            self._admission.release()
        self._end("cancelled", 499)

    def fail(self, error: ApiError) -> None:
        self._end("failed", error.status)
        self.close()

    def _end(self, state: RequestState, status: int) -> None:
        if self._request is not None:
            self._activity.end(self._request, state, status)

    # --- parts of the JSON ------------------------------------------------------------------

    def _chunk_extras(self, choice: Choice, text: AnswerText) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._options.timings_per_token:
            extras["timings"] = usage_and_timings.timings(choice.answer)
        if self._options.show_tokens:
            extras["localspec"] = {"tokens": usage_and_timings.token_details(text.tokens)}
        return extras

    def _progress(self, batch: Sequence[Event]) -> list[dict[str, Any]]:
        """llama.cpp's `prompt_progress`, if the request asks for it."""
        assert self._request is not None
        return [
            {
                "prompt_progress": {
                    "total": event.total,
                    "cache": event.reused,
                    "processed": event.done,
                    "time_ms": round(self._request.seconds * 1e3),
                }
            }
            for event in batch
            if isinstance(event, Prefill) and self._options.return_progress
        ]

    def _scored(self, tokens: Sequence[Token]) -> list[Token]:
        return [token for token in tokens if token.p_target is not None and token.text]

    def _usage(self) -> dict[str, Any]:
        answers = [choice.answer for choice in self._choices]
        return usage_and_timings.usage(answers, has_prediction=bool(self._options.prediction))

    def _numbers(self) -> dict[str, Any]:
        """Of the last choice."""
        answer = self._choices[-1].answer
        return {
            "timings": usage_and_timings.timings(answer),
            "metrics": usage_and_timings.metrics(answer, self._options.settings.draft_length),
        }


def _without_answer(events: Sequence[Event]) -> list[Event]:
    """What is left of an answer whose request only wants its prompt read."""
    return [
        replace(event, tail="") if isinstance(event, GenerationFinished) else event
        for event in events
        if not isinstance(event, Round)
    ]


def to_event(body: dict[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )
