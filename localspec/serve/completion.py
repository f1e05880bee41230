"""One completion request, from its place in the queue to its last byte."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import check_answer
from localspec.errors import PromptTooLongError
from localspec.launch import Engine
from localspec.models.chat_template.thinking_tags import AnswerPart
from localspec.models.chat_template.tool_calls import (
    ThinkingCallFinder,
    ToolCallDelta,
    ToolDelta,
)
from localspec.protocol.events import (
    Event,
    FinishReason,
    GenerationFinished,
    Prefill,
    Round,
    Token,
)
from localspec.protocol.wire import DRAFT_MAX, GenerateCommand, TokenizeCommand
from localspec.serve import api_error
from localspec.serve.api_error import ApiError, ClientLeftError, shutting_down
from localspec.serve.engine_queue import Admission, AsyncJob, EngineQueue
from localspec.serve.json_bodies import to_event
from localspec.serve.prompts import OfferedTools, PromptInput
from localspec.serve.request_metrics import (
    RequestActivity,
    RequestState,
    ServerActivity,
)
from localspec.serve.request_options import CompletionOptions
from localspec.serve.served_model import ServedModel

PING_SECONDS = 10.0
_FIRST_EVENT_SECONDS = 0.5
"""How long headers wait for the engine to accept a prompt, where no request is before
it.
"""
_WAIT_SECONDS = 3600.0
_CLIENT_LEFT = 499  # Status in the log; the client does not see it.
PING = b":\n\n"
_FINISH_REASONS: dict[FinishReason, str] = {
    "eog": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
}


class AnswerText(Struct):
    """Text that was added to a choice, and its tokens."""

    content: str = ""
    reasoning: str = ""
    tokens: list[Token] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)

    def add_content(self, deltas: Sequence[ToolDelta]) -> None:
        self.content += "".join(delta for delta in deltas if isinstance(delta, str))
        self.calls += [delta for delta in deltas if not isinstance(delta, str)]

    def add(self, other: AnswerText) -> None:
        self.content += other.content
        self.reasoning += other.reasoning
        self.tokens += other.tokens
        self.calls += other.calls


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
        if tools is not None:
            self._thinking_calls = ThinkingCallFinder(tools.make_parser)
        self._max_calls = 1 if tools is not None and tools.is_single else None
        if self._tools is not None and tools is not None and tools.forced is not None:
            self._pending.add_content(self._tools.feed(tools.forced.prefix))
            self.text.add(self._pending)

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
            n_ctx = int(engine.ready.settings["target"]["n_ctx"])
            raise api_error.context_exceeded(
                count_prompt(engine, command), n_ctx
            ) from None

    def add(self, event: Event) -> None:
        delta = self.answer.add(event)
        added = AnswerText()
        for part in delta.parts:
            self._add_part(part, added)
        if self._tools is not None and isinstance(event, GenerationFinished):
            is_cut = event.reason not in ("eog", "stop")
            added.add_content(self._tools.finish(is_cut=is_cut))
            rest, calls = self._thinking_calls.finish(is_cut=is_cut)
            added.reasoning += rest
            added.add_content(calls)
        if not self.text.content and (self.text.reasoning or added.reasoning):
            # between the thinking and the answer
            added.content = added.content.lstrip()
        if isinstance(event, Round) and not delta.in_thinking:
            added.tokens += event.tokens
        if self._max_calls is not None:
            added.calls = [
                delta for delta in added.calls if delta.index < self._max_calls
            ]
        for text in (self.text, self._pending):
            text.add(added)
            if isinstance(event, GenerationFinished) and event.reason == "stop":
                while text.tokens and not text.tokens[-1].text:  # of the stop string
                    text.tokens.pop()

    def _add_part(self, part: AnswerPart, added: AnswerText) -> None:
        if self._tools is None:
            if part.is_thinking:
                added.reasoning += part.text
            else:
                added.content += part.text
        elif part.is_thinking:
            added.reasoning += self._thinking_calls.feed(part.text)
        else:
            added.reasoning += self._thinking_calls.close()
            added.add_content(self._tools.feed(part.text))

    def take_delta(self) -> AnswerText | None:
        """The new text; None without any.

        Tokens wait for the text that they are part of.
        """
        pending = self._pending
        if not pending.content and not pending.reasoning and not pending.calls:
            return None
        self._pending = AnswerText()
        n = len(pending.tokens)
        while (
            n
            and pending.tokens[n - 1].p_target is not None
            and not pending.tokens[n - 1].text
        ):
            n -= 1
        self._pending.tokens = pending.tokens[n:]
        del pending.tokens[n:]
        return pending

    @property
    def finish_reason(self) -> str | None:
        """None if the answer was stopped before its end."""
        finished = self.answer.finished
        if finished and self.text.calls and finished.reason in ("eog", "stop"):
            return "tool_calls"
        return _FINISH_REASONS.get(finished.reason) if finished else None


def count_prompt(engine: Engine, command: GenerateCommand) -> int:
    """The tokens of a prompt, with the beginning of the answer."""
    n = len(command.prompt_tokens) or engine.count(command.to_count())
    if command.prefill:
        n += len(engine.tokenize(TokenizeCommand(command.prefill)).tokens)
    return n


class Completion:
    """Answers one request, in one or several choices.

    Each API is a subclass, for its JSON. From `submit` on it holds a place in the
    queue. Its owner calls `close`, whatever happens: the route, until there is an
    answer to return, and then the response that streams it.
    """

    id_prefix: ClassVar[str] = ""

    def __init__(
        self,
        options: CompletionOptions,
        model: ServedModel,
        queue: EngineQueue,
        activity: ServerActivity,
    ) -> None:
        self._model = model
        self._queue = queue
        self._activity = activity
        self.options = options
        self._id = f"{self.id_prefix}{uuid4().hex}"
        self._created = int(time.time())
        self._choices: list[Choice] = []
        self._admission: Admission | None = None
        self._request: RequestActivity | None = None
        self._is_closed = False
        self._prompt_param = "prompt"

    # --- the JSON of an answer

    _whole: Any  # () -> the JSON
    _lines: Any  # () -> an AsyncGenerator of bytes: the stream but for its last line.
    _last_line: Any  # () -> bytes

    def _error_line(self, error: ApiError) -> bytes:
        return to_event(error.to_json())

    # --- the request

    def submit(self, prompts: Sequence[PromptInput], route: str) -> None:
        """Queue all choices.

        Raises ApiError if the queue is full or a prompt does not fit.
        """
        self._prompt_param = prompts[0].param
        for prompt in prompts:
            self._model.check_prompt(prompt)
        self._admission = self._queue.admit()
        self._request = self._activity.begin(route)
        markers = self._model.loaded(raw=not prompts[0].messages).thinking_markers
        for prompt in prompts:
            for index in range(self.options.n):
                build = partial(
                    self._model.build_command,
                    prompt=prompt,
                    options=self.options,
                    index=index,
                )
                self._choices.append(Choice(build, markers, self.options.tools))
                self._choices[-1].model = self._model.name
                self._queue.submit(self._choices[-1])

    @property
    def position(self) -> int:
        """Requests before this one when it was queued."""
        return self._admission.position if self._admission else 0

    async def wait_accepted(self) -> None:
        """Wait until the engine accepts the prompt, if that is soon.

        Raises ApiError.
        """
        if self.position == 0:
            await self._take_events(self._choices[0], _FIRST_EVENT_SECONDS)

    async def run(self) -> dict[str, Any]:
        """The whole answer. Raises ApiError."""
        for choice in self._choices:
            while not choice.has_ended:
                await self._take_events(choice, _WAIT_SECONDS)
            self._check_end(choice)
        whole: dict[str, Any] = self._whole()
        self.close()
        return whole

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the beginning is the last of them.

        It does not clean up for a client that leaves: if it was not started by then,
        Python runs no `finally` of it.
        """
        try:
            async for line in self._lines():
                yield line
            last = self._last_line()
            self.close()
            yield last
        except Exception as error:  # the client learns of it, whatever it is
            self.close(error)
            yield self._error_line(api_error.from_engine(error))

    async def _deltas(
        self, choice: Choice
    ) -> AsyncGenerator[tuple[list[Event], AnswerText | None], None]:
        """New events and their text, to the end of a choice.

        There is neither after ten silent seconds. Raises ApiError if the engine failed, or
        the server ends.
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
        if self.options.reads_only:  # nothing is left of the answer
            batch = [_drop_text(event) for event in batch if not _has_tokens(event)]
        for event in batch:
            choice.add(event)
            self._request.add(event)
            self._activity.add(event)
            is_end = (
                isinstance(event, GenerationFinished) and choice is self._choices[-1]
            )
            if is_end and self._admission is not None:
                self._admission.release()
        self._request.answer = choice.answer
        return batch

    def _record_failure(self, error: Exception) -> ApiError:
        """The error for the client, with the field that it is about."""
        failure = self._queue.record_failure(error)
        if failure.name == "invalid_grammar":
            failure.param = self.options.constraint.param
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

    def close(self, error: BaseException | None = None) -> None:
        """Leave the queue, and stop what is not done. Does nothing the second time.

        `error` is what ended the request; a request that was answered ends without one.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._admission is not None:
            self._admission.release()
        for choice in self._choices:
            if not choice.is_done:
                self._queue.host.stop(choice)
        if self._request is not None:
            state, status = _end_state(error)
            self._activity.end(self._request, state, status)

    # --- parts of the JSON

    def _chunk_extras(self, choice: Choice, text: AnswerText) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self.options.timings_per_token:
            extras["timings"] = timings(choice.answer)
        return extras | self._token_details(text.tokens)

    def _token_details(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """Where each token came from, if the request asks for it."""
        if not self.options.show_tokens:
            return {}
        details = [
            {
                "id": token.id,
                "text": token.text,
                "class": token.kind,
                "p": token.p_target,
            }
            for token in tokens
        ]
        return {"localspec": {"tokens": details}}

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
            if isinstance(event, Prefill) and self.options.return_progress
        ]

    def _usage(self) -> dict[str, Any]:
        """OpenAI's `usage`; a prompt counts once, whatever the number of its choices."""
        answers = [choice.answer for choice in self._choices]
        totals = [
            answer.finished.totals if answer.finished else {} for answer in answers
        ]
        by_prompt = totals[:: self.options.n]
        prompt = sum(total.get("prompt_tokens", 0) for total in by_prompt)
        reused = sum(total.get("reused_tokens", 0) for total in by_prompt)
        completion = sum(answer.totals.tokens for answer in answers)
        details = {
            "reasoning_tokens": sum(
                t.get("thinking", {}).get("tokens", 0) for t in totals
            )
        }
        if self.options.prediction:
            sources = [
                each for answer in answers for each in answer.totals.by_source.items()
            ]
            copied = [
                counts for source, counts in sources if source.startswith("lookup")
            ]
            accepted = sum(counts.accepted for counts in copied)
            drafted = sum(counts.drafted for counts in copied)
            details["accepted_prediction_tokens"] = accepted
            details["rejected_prediction_tokens"] = drafted - accepted
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": reused},
            "completion_tokens_details": details,
        }

    def _numbers(self) -> dict[str, Any]:
        """The numbers of the last choice: llama.cpp's `timings`, and vLLM's `metrics`.

        The metrics also say why drafts were on or off at the end.
        """
        answer = self._choices[-1].answer
        totals = answer.totals
        plan = answer.plan
        draft_length = self.options.settings.draft_length
        if draft_length is None:
            draft_length = DRAFT_MAX
        speculation: dict[str, Any] = {
            "mean_acceptance_length": totals.mean_accepted_length,
            "draft_acceptance_rate": totals.acceptance_rate,
            "acceptance_histogram": list(totals.histogram),
            "num_spec_steps": totals.rounds,
            "num_accepted_draft_tokens": totals.accepted,
            "num_draft_tokens": totals.drafted,
            "num_spec_tokens": draft_length,
            "num_plain_steps": totals.plain_rounds,
            "by_source": totals.sources_to_json(),
        }
        if plan is not None:
            speculation |= {
                "state": plan.state,
                "why": plan.why,
                "speedup": plan.speedup,
            }
        return {
            "timings": timings(answer),
            "metrics": {"speculative_decoding": speculation},
        }


def _has_tokens(event: Event) -> bool:
    return isinstance(event, Round)


def _drop_text(event: Event) -> Event:
    if isinstance(event, GenerationFinished):
        return replace(event, tail="")
    return event


def _end_state(error: BaseException | None) -> tuple[RequestState, int]:
    """The state and the status that the log has of a request which this error ended."""
    if error is None:
        return "done", 200
    if isinstance(error, Exception) and not isinstance(error, ClientLeftError):
        return "failed", api_error.from_engine(error).status
    return "cancelled", _CLIENT_LEFT


def timings(answer: GeneratedAnswer) -> dict[str, Any]:
    """llama.cpp's `timings`. Before the end they are those of the rounds so far."""
    totals = answer.finished.totals if answer.finished else {}
    times = totals.get("timings", {})
    rounds = answer.rounds
    prefill = answer.prefill or Prefill(0, 0, 0)
    first_ms = rounds[0].ms.verify if rounds else 0.0
    prompt_ms = times.get("prefill_ms", first_ms)
    decode_ms = times.get("decode_ms", sum(each.ms.total for each in rounds[1:]))
    total = totals.get("prompt_tokens", prefill.total)
    reused = totals.get("reused_tokens", prefill.reused)
    values: dict[str, Any] = {
        "cache_n": reused,
        **_rates("prompt", total - reused, total - reused, prompt_ms),
        **_rates(
            "predicted", answer.totals.tokens, answer.totals.tokens - 1, decode_ms
        ),
    }
    if answer.totals.drafted:
        values |= {
            "draft_n": answer.totals.drafted,
            "draft_n_accepted": answer.totals.accepted,
        }
    return values


def _rates(name: str, n: int, n_timed: int, ms: float) -> dict[str, Any]:
    """`n_timed` of the n tokens took `ms`: the first one comes with the prompt."""
    ms = round(ms, 3)
    per_token_ms = 0.0
    per_second = 0.0
    if n_timed > 0 and ms > 0:
        per_token_ms = ms / n_timed
        per_second = n_timed * 1e3 / ms
    return {
        f"{name}_n": n,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": per_token_ms,
        f"{name}_per_second": per_second,
    }
