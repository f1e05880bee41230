"""One completion request, from its place in the queue to its last byte."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
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
    ToolCallParser,
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
from localspec.protocol.round_totals import DraftTotals
from localspec.protocol.wire import (
    DRAFT_MAX,
    GenerateCommand,
    TokenizeCommand,
    ToolCall,
)
from localspec.serve import api_error
from localspec.serve.api_error import ApiError, ClientLeftError, shutting_down
from localspec.serve.engine_queue import Admission, AsyncJob, EngineQueue
from localspec.serve.json_bodies import encode_json, to_event
from localspec.serve.prompts import OfferedTools, PromptInput
from localspec.serve.request_metrics import (
    RequestActivity,
    RequestState,
    ServerActivity,
)
from localspec.serve.request_options import CompletionOptions
from localspec.serve.served_model import ServedModel

PING_SECONDS = 9.0
"""A stream that has nothing to send sends a comment this often, so within ten."""
_FIRST_EVENT_SECONDS = 0.5
"""How long the headers of a stream wait for the engine to accept the prompt.

They do not wait if other requests are before this one.
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
    """Text that was added to a choice, its tokens, and its calls of tools.

    Texts are kept in pieces that are not empty. If each token's text were added to one
    string, the string would be copied for each token: two minutes for an answer of
    200,000 tokens.
    """

    content_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.content_pieces)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_pieces)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show; there may be tokens."""
        return not (self.content_pieces or self.reasoning_pieces or self.calls)

    def add_content(self, text: str) -> None:
        if text:
            self.content_pieces.append(text)

    def add_reasoning(self, text: str) -> None:
        if text:
            self.reasoning_pieces.append(text)

    def add_deltas(self, deltas: Sequence[ToolDelta]) -> None:
        for delta in deltas:
            if isinstance(delta, str):
                self.add_content(delta)
            else:
                self.calls.append(delta)

    def join_calls(self) -> list[ToolCall]:
        """The calls without their ids."""
        names: list[str] = []
        arguments: list[list[str]] = []
        for delta in self.calls:
            if delta.name:
                names.append(delta.name)
                arguments.append([])
            arguments[-1].append(delta.arguments)
        return [
            ToolCall("", name, "".join(pieces))
            for name, pieces in zip(names, arguments, strict=True)
        ]

    def add(self, other: AnswerText) -> None:
        self.content_pieces += other.content_pieces
        self.reasoning_pieces += other.reasoning_pieces
        self.tokens += other.tokens
        self.calls += other.calls

    def strip_start(self) -> None:
        """Remove white space before the content."""
        content = self.content.lstrip()
        self.content_pieces = []
        self.add_content(content)

    def drop_last_tokens_without_text(self) -> None:
        while self.tokens and not self.tokens[-1].text:
            self.tokens.pop()


class ParsedEvent(Struct, frozen=True):
    """An event of an answer, and what it adds to the text."""

    event: Event
    text: AnswerText


class Choice(AsyncJob[None]):
    """One answer of a request: a job that puts out its events, and what they add up to.

    The engine's thread changes `answer` and `text`; the event loop reads the latter
    when the answer has ended.
    """

    def __init__(
        self,
        build: Callable[[Engine], GenerateCommand],
        markers: tuple[str, str] | None,
        tools: OfferedTools | None = None,
        *,
        reads_only: bool = False,
    ) -> None:
        """`reads_only`: read the prompt and drop the answer."""
        super().__init__(self._generate)
        self._build = build
        self._reads_only = reads_only
        self.answer = GeneratedAnswer(thinking_markers=markers)
        self.place: bytes | None = None
        """Where in a chat it is the answer (`AnswerTokens`); None without a chat."""
        self.text = AnswerText()  # All of it so far.
        self._pending = AnswerText()  # Since the last `take_delta`.
        self._calls: ToolCallParser | None = None
        self._is_single_call = False
        if tools is not None:
            self._calls = tools.make_parser()
            self._thinking_calls = ThinkingCallFinder(tools.make_parser)
            self._is_single_call = tools.is_single
            if tools.forced is not None:
                # The answer continues this text, so the engine does not repeat it.
                self._pending.add_deltas(self._calls.feed(tools.forced.prefix))
                self.text.add(self._pending)

    def _generate(self, engine: Engine) -> None:
        """In the engine's thread, with all parsing: the event loop has other clients."""
        if self.stop_requested:
            return
        command = self._build(engine)
        try:
            for event in engine.generate(command):
                self.add(event)
                check_answer(engine, event, lambda: self.stop_requested)
        except PromptTooLongError:
            n_prompt = count_prompt(engine, command)
            n_ctx = int(engine.ready.settings["target"]["n_ctx"])
            raise api_error.context_exceeded(n_prompt, n_ctx) from None

    def add(self, event: Event) -> None:
        """Parse an event, and put it out with what it adds."""
        if self._reads_only:
            if isinstance(event, Round):
                return
            if isinstance(event, GenerationFinished):
                event = replace(event, tail="")
        delta = self.answer.add(event)
        added = AnswerText()
        for part in delta.parts:
            self._add_part(part, added)
        if isinstance(event, GenerationFinished):
            self._finish_calls(event, added)
        has_reasoning = self.text.reasoning_pieces or added.reasoning_pieces
        if has_reasoning and not self.text.content_pieces:
            # It separates the thinking from the answer.
            added.strip_start()
        if isinstance(event, Round) and not delta.in_thinking:
            added.tokens += event.tokens
        if self._is_single_call:
            added.calls = [call for call in added.calls if call.index == 0]
        self.text.add(added)
        if isinstance(event, GenerationFinished) and event.reason == "stop":
            # They are the tokens of the stop string.
            self.text.drop_last_tokens_without_text()
        self.put(ParsedEvent(event, added))

    async def next_events(self, timeout: float) -> list[Event]:
        """As `next_batch`; their text is added to the next delta."""
        events = []
        parsed: ParsedEvent
        for parsed in await self.next_batch(timeout):
            event = parsed.event
            self._pending.add(parsed.text)
            if isinstance(event, GenerationFinished) and event.reason == "stop":
                self._pending.drop_last_tokens_without_text()
            events.append(event)
        return events

    def _add_part(self, part: AnswerPart, added: AnswerText) -> None:
        """With tools, calls are taken out of the text; also out of the thinking."""
        if self._calls is None:
            if part.is_thinking:
                added.add_reasoning(part.text)
            else:
                added.add_content(part.text)
        elif part.is_thinking:
            added.add_reasoning(self._thinking_calls.feed(part.text))
        else:
            added.add_reasoning(self._thinking_calls.close())
            added.add_deltas(self._calls.feed(part.text))

    def _finish_calls(self, event: GenerationFinished, added: AnswerText) -> None:
        """Add what was held back because a call might begin with it."""
        if self._calls is None:
            return
        is_cut = event.reason not in ("eog", "stop")
        added.add_deltas(self._calls.finish(is_cut=is_cut))
        reasoning, calls = self._thinking_calls.finish(is_cut=is_cut)
        added.add_reasoning(reasoning)
        added.add_deltas(calls)

    def take_delta(self) -> AnswerText | None:
        """The new text; None without any.

        The last tokens may be the beginning of a text that is still to come. If they
        have probabilities, they wait for it: `é` of two tokens has its text with the
        second one.
        """
        delta = self._pending
        if delta.is_empty:
            return None
        n_complete = len(delta.tokens)
        while n_complete and _awaits_text(delta.tokens[n_complete - 1]):
            n_complete -= 1
        self._pending = AnswerText(tokens=delta.tokens[n_complete:])
        del delta.tokens[n_complete:]
        return delta

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's; None if the answer was stopped before its end."""
        finished = self.answer.finished
        if finished is None:
            return None
        if self.text.calls and self._can_call(finished.reason):
            return "tool_calls"
        return _FINISH_REASONS.get(finished.reason)

    def _can_call(self, reason: FinishReason) -> bool:
        """Whether the client may run the calls: none of them was cut.

        An answer of a weak model may go on behind them, up to `max_tokens`. As in vLLM,
        these are calls nevertheless.
        """
        if reason in ("eog", "stop"):
            return True
        if reason != "length" or self._calls is None:
            return False
        is_sent_whole = self._is_single_call and self._calls.n_calls > 1
        return is_sent_whole or not self._calls.is_last_cut


def _awaits_text(token: Token) -> bool:
    return token.p_target is not None and not token.text


def count_prompt(engine: Engine, command: GenerateCommand) -> int:
    """The tokens of a prompt, with the beginning of the answer."""
    n_tokens = len(command.prompt_tokens)
    if not n_tokens:
        n_tokens = engine.count(command.to_count()).tokens
    if command.prefill:
        n_tokens += len(engine.tokenize(TokenizeCommand(command.prefill)).tokens)
    return n_tokens


class Completion(ABC):
    """Answers one request, in one or several choices.

    Each API is a subclass, for its JSON. From `submit` on it holds a place in the
    queue. Who calls `submit` calls `close`, whatever happens. An answer that is complete
    has closed itself before: its client may send the next request at once.
    """

    id_prefix: ClassVar[str] = ""

    def __init__(
        self,
        options: CompletionOptions,
        model: ServedModel,
        queue: EngineQueue,
        activity: ServerActivity,
        *,
        client: str,
    ) -> None:
        """`client`: whose request it is. Answers' tokens are kept for each alone."""
        self._model = model
        self._queue = queue
        self._activity = activity
        self.options = options
        self._id = f"{self.id_prefix}{uuid4().hex}"
        self._created = int(time.time())
        self._choices: list[Choice] = []
        self._admission: Admission | None = None
        self._request: RequestActivity | None = None
        self._open_prompt: Prefill | None = None
        """What was reported last of a prompt that is being read."""
        self._is_closed = False
        self._client = client
        self._prompts: Sequence[PromptInput] = ()

    # --- the JSON of an answer

    @abstractmethod
    def _whole(self) -> dict[str, Any]: ...

    @abstractmethod
    def _lines(self) -> AsyncGenerator[bytes, None]:
        """The stream without its last line."""

    @abstractmethod
    def _last_line(self) -> bytes: ...

    def _error_line(self, error: ApiError) -> bytes:
        return to_event(error.to_json())

    # --- the request

    def submit(self, prompts: Sequence[PromptInput], route: str) -> None:
        """Queue all choices.

        Raises ApiError if the queue is full or a prompt does not fit.
        """
        self._prompts = prompts
        for prompt in prompts:
            self._model.check_prompt(prompt, self.options)
        self._admission = self._queue.admit()
        self._request = self._activity.begin(route)
        markers = self._model.loaded(raw=not prompts[0].messages).thinking_markers
        for prompt in prompts:
            place = None
            if prompt.messages:
                *_, place = self._model.answer_places(
                    prompt.messages, self.options, self._client
                )
            for index in range(self.options.n):
                build = partial(
                    self._model.build_command,
                    prompt=prompt,
                    options=self.options,
                    index=index,
                    client=self._client,
                )
                choice = Choice(
                    build,
                    markers,
                    self.options.tools,
                    reads_only=self.options.reads_only,
                )
                choice.place = place
                choice.model = self._model.name
                self._choices.append(choice)
                self._queue.submit(choice)

    @property
    def position(self) -> int:
        """Requests before this one when it was queued."""
        return self._admission.position if self._admission else 0

    async def wait_accepted(self) -> None:
        """Wait until the engine accepts the prompt, if that is soon.

        Raises ApiError.
        """
        if self.position == 0:
            try:
                await self._choices[0].wait_for_output(_FIRST_EVENT_SECONDS)
            except Exception as error:
                raise self._record_failure(error) from None

    async def run(self) -> bytes:
        """The whole answer as JSON. Raises ApiError."""
        for choice in self._choices:
            while not choice.has_ended:
                await self._take_events(choice, _WAIT_SECONDS)
            self._check_end(choice)
        # With the probabilities of all tokens, this can take a second.
        whole = await asyncio.to_thread(lambda: encode_json(self._whole()).encode())
        self.close()
        return whole

    def ping(self) -> bytes:
        """What a stream sends while it has nothing to send."""
        return PING

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the beginning is the last of them.

        The generator does not clean up for a client that leaves: if it was not started
        by then, Python runs no `finally` in it.
        """
        try:
            async for line in self._lines():
                yield line
            last = await asyncio.to_thread(self._last_line)
            self.close()
            yield last
        except Exception as error:  # the client learns of it, whatever it is
            self.close(error)
            yield self._error_line(api_error.from_engine(error))

    async def _deltas(
        self, choice: Choice
    ) -> AsyncGenerator[tuple[list[Event], AnswerText | None], None]:
        """New events and their text, to the end of a choice.

        Raises ApiError if the engine failed, or the server ends.
        """
        has_ended = False
        while not has_ended:
            batch = await self._take_events(choice, _WAIT_SECONDS)
            has_ended = choice.has_ended
            text = choice.take_delta()
            if batch or text is not None:
                yield batch, text
        self._check_end(choice)

    async def _take_events(self, choice: Choice, timeout: float) -> list[Event]:
        """Raises ApiError if the engine failed."""
        try:
            batch = await choice.next_events(timeout)
        except Exception as error:
            raise self._record_failure(error) from None
        assert self._request is not None
        assert self._admission is not None
        for event in batch:
            self._request.add(event)
            self._activity.add(event)
            is_last_choice = choice is self._choices[-1]
            if isinstance(event, GenerationFinished) and is_last_choice:
                self._admission.release()
        return batch

    def _record_failure(self, error: Exception) -> ApiError:
        """The error for the client, with the field that it is about."""
        failure = self._queue.record_failure(error)
        if failure.name == "invalid_grammar":
            failure.param = self.options.constraint.param
        elif failure.name == "context_length_exceeded":
            failure.param = self._prompts[0].param
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
        if choice.place is not None:
            text = choice.text
            calls = text.join_calls()
            tokens: Sequence[Token] = text.tokens
            if calls:
                # With those of the thinking, which comes back beside the calls.
                tokens = choice.answer.tokens
            self._model.answer_tokens.remember(
                choice.place, text.content, tokens, calls
            )

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
        details = []
        for token in tokens:
            details.append(
                {
                    "id": token.id,
                    "text": token.text,
                    "class": token.kind,
                    "p": token.p_target,
                }
            )
        return {"localspec": {"tokens": details}}

    def _progress(self, batch: Sequence[Event]) -> Iterator[dict[str, Any]]:
        """llama.cpp's `prompt_progress`, if the request asks for it.

        The engine reads the last batch together with the first token, and reports only
        that; here it is the end of the prompt.
        """
        if not self.options.return_progress:
            return
        for event in batch:
            if isinstance(event, Prefill):
                self._open_prompt = event
                yield self._describe_progress(event)
            elif isinstance(event, Round) and self._open_prompt is not None:
                prompt = self._open_prompt
                self._open_prompt = None
                if prompt.done < prompt.total:
                    yield self._describe_progress(replace(prompt, done=prompt.total))

    def _describe_progress(self, prompt: Prefill) -> dict[str, Any]:
        assert self._request is not None
        progress = {
            "total": prompt.total,
            "cache": prompt.reused,
            "processed": prompt.done,
            "time_ms": round(self._request.seconds * 1e3),
        }
        return {"prompt_progress": progress}

    def _usage(self) -> dict[str, Any]:
        """OpenAI's `usage`; a prompt counts once, whatever the number of its choices."""
        n_prompt = 0
        n_reused = 0
        n_completion = 0
        n_reasoning = 0
        copied = DraftTotals()
        for index, choice in enumerate(self._choices):
            answer = choice.answer
            totals = answer.final_totals
            is_first_of_prompt = index % self.options.n == 0
            if is_first_of_prompt:
                n_prompt += totals.get("prompt_tokens", 0)
                n_reused += totals.get("reused_tokens", 0)
            n_completion += answer.totals.tokens
            n_reasoning += totals.get("thinking", {}).get("tokens", 0)
            for source, counts in answer.totals.by_source.items():
                if source.startswith("lookup"):
                    copied.count(counts.drafted, counts.accepted)
        details = {"reasoning_tokens": n_reasoning}
        if self.options.prediction:
            details["accepted_prediction_tokens"] = copied.accepted
            details["rejected_prediction_tokens"] = copied.drafted - copied.accepted
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
            "prompt_tokens_details": {"cached_tokens": n_reused},
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


def _end_state(error: BaseException | None) -> tuple[RequestState, int]:
    """The state and the status in the log of a request that this error ended."""
    if error is None:
        return "done", 200
    if isinstance(error, Exception) and not isinstance(error, ClientLeftError):
        return "failed", api_error.from_engine(error).status
    return "cancelled", _CLIENT_LEFT


def timings(answer: GeneratedAnswer) -> dict[str, Any]:
    """llama.cpp's `timings`. Before the end they are those of the rounds so far."""
    totals = answer.final_totals
    times = totals.get("timings", {})
    prefill = answer.prefill or Prefill(done=0, total=0, reused=0)
    n_reused = totals.get("reused_tokens", prefill.reused)
    n_read = totals.get("prompt_tokens", prefill.total) - n_reused
    n_answered = answer.totals.tokens
    prompt_ms = times.get("prefill_ms")
    if prompt_ms is None:
        prompt_ms = answer.rounds[0].ms.verify if answer.rounds else 0.0
    decode_ms = times.get("decode_ms")
    if decode_ms is None:
        decode_ms = answer.decode_ms
    values: dict[str, Any] = {
        "cache_n": n_reused,
        **_rates("prompt", n_read, n_timed=n_read, ms=prompt_ms),
        **_rates("predicted", n_answered, n_timed=n_answered - 1, ms=decode_ms),
    }
    if answer.totals.drafted:
        values |= {
            "draft_n": answer.totals.drafted,
            "draft_n_accepted": answer.totals.accepted,
        }
    return values


def _rates(name: str, n: int, *, n_timed: int, ms: float) -> dict[str, Any]:
    """`n_timed` of the n tokens took `ms`.

    The first token of an answer comes with the prompt: of 5 tokens, 4 are timed.
    """
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
