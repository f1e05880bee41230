"""The `LLM` class for scripts and notebooks."""

from __future__ import annotations

import os
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Unpack, overload

from localspec import launch
from localspec.api import arguments
from localspec.api.answer import Answer, Piece, python_hints
from localspec.api.arguments import (
    AnswerOptions,
    AnswerRequest,
    ChatMessages,
    MachineOptions,
    expand_signature,
    parse_answer_options,
)
from localspec.api.stream import AnswerJob, PythonJob, Stream, stream_pieces
from localspec.launch.engine_host import EngineHost
from localspec.protocol.events import EngineReady, Notice
from localspec.speculation_methods import Spec


class LLM:
    """A model and its draft, loaded in a separate process.

        with LLM("demo") as llm:
            print(llm.generate("def fibonacci(n):"))

    `model` and `draft` take the same values as `localspec run`: `demo`, a pair or model of the
    catalogue, `user/repo:QUANT`, or the path of a .gguf file; `draft` also `auto` or `none`.
    Nothing is downloaded unless `pull` is true. After loading, the network is not used.

    An LLM can be used from any thread, and in a notebook with a running event loop. It answers one
    request at a time, in order. Each LLM has its own engine process and its own memory. If the
    engine crashes, the current call fails and the next call loads the pair again.

    `spec` selects the drafter; with `off` or `lookup` no draft is loaded. `seed` is the default
    seed of all answers; without it each answer has a random seed. `template` replaces the model's
    chat template. All other arguments are load settings (`MachineOptions`).

    Raises LocalspecError with `message` and `hint`: NotFoundError if a model is unknown or not
    downloaded, DoesNotFitError, IncompatiblePairError, ModelFileError, EngineError, …
    """

    @expand_signature(MachineOptions)
    def __init__(
        self,
        model: str | os.PathLike[str] = "demo",
        draft: str | os.PathLike[str] = "auto",
        *,
        spec: Spec = "auto",
        seed: int | None = None,
        template: str | None = None,
        pull: bool = False,
        **machine: Unpack[MachineOptions],
    ) -> None:
        self._name = arguments.to_reference("model", model)
        self._spec, self._seed, self._template = spec, seed, template
        arguments.check_pair_arguments(spec, seed, template)
        draft = arguments.to_reference("draft", draft)
        with python_hints():
            self._pair = arguments.resolve_files(self._name, draft, pull=pull)
            launch.check_drafter(self._pair, spec)
        load_request = arguments.build_load_request(self._pair, spec, machine)
        self._engine_host = EngineHost(load_request, probe=spec == self._pair.spec == "auto")
        loading = PythonJob(lambda engine: engine.ready)
        try:
            self._engine_host.submit(loading)
            self._initial_ready = loading.result()
        except BaseException:
            self._engine_host.close()
            raise
        self.notices: tuple[Notice, ...] = (*loading.notices, *self._initial_ready.notices)
        """Notices of loading, with `message` and `hint`."""
        # At exit, engine_host closes all engines itself.
        weakref.finalize(self, self._engine_host.end).atexit = False

    # --- answers --------------------------------------------------------------------------

    @expand_signature(AnswerOptions)
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer a prompt. The same seed gives the same text as `localspec run -p`.

        The prompt is formatted with the model's chat template, if it has one; `raw=True` completes
        the text as it is. Ctrl+C stops the answer. Raises LocalspecError; its `said` is the text
        so far.
        """
        return self._run_answer(self._prompt_request(prompt, options))

    @overload
    def chat(
        self,
        messages: str | ChatMessages,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...

    @overload
    def chat(
        self,
        messages: str | ChatMessages,
        *,
        stream: Literal[True],
        **options: Unpack[AnswerOptions],
    ) -> Stream: ...

    @expand_signature(AnswerOptions)
    def chat(
        self,
        messages: str | ChatMessages,
        *,
        stream: bool = False,
        **options: Unpack[AnswerOptions],
    ) -> Answer | Stream:
        """Answer the messages of a chat: [{"role": "user", "content": …}, …], or one question.

        The answer may fill the context unless `max_tokens` is given. Tokens shared with the last
        call are reused. Raises as `generate`, and UsageError if the model has no chat template.
        """
        request = self._chat_request(messages, options)
        return self._start_stream(request) if stream else self._run_answer(request)

    @expand_signature(AnswerOptions)
    def stream(self, prompt: str | ChatMessages, **options: Unpack[AnswerOptions]) -> Stream:
        """Stream the answer of `generate` (for a text) or `chat` (for messages)."""
        return self._start_stream(self._build_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Like `generate`, for asyncio. Cancelling the task stops the answer."""
        return await self._await_answer(self._prompt_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def achat(self, messages: str | ChatMessages, **options: Unpack[AnswerOptions]) -> Answer:
        """Like `chat`, for asyncio."""
        return await self._await_answer(self._chat_request(messages, options))

    @expand_signature(AnswerOptions)
    async def astream(
        self, prompt: str | ChatMessages, **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[Piece, None]:
        """Like `stream`, for asyncio: `async for piece in llm.astream(…)`."""
        job = AnswerJob(self._build_request(prompt, options))
        async with aclosing(stream_pieces(self._engine_host, job)) as pieces:
            async for piece in pieces:
                yield piece

    def count(self, prompt: str | ChatMessages, *, raw: bool = False) -> int:
        """Count the prompt tokens of a text or chat."""
        request = self._build_request(prompt, {"raw": raw})
        job = PythonJob(lambda engine: engine.count(request.build_count(engine.ready)))
        self._engine_host.submit(job)
        return job.result()

    def stop(self) -> None:
        """Stop the current answer, from any thread. Its caller receives the text so far."""
        self._engine_host.stop()

    # --- the pair -------------------------------------------------------------------------

    @property
    def ready(self) -> EngineReady:
        """The loaded files, devices, effective settings and memory."""
        return self._engine_host.ready or self._initial_ready

    @property
    def closed(self) -> bool:
        """Whether `close` was called. Later requests raise UsageError."""
        return self._engine_host.closed

    def close(self) -> None:
        """Stop the current answer and end the engine process. Waiting requests fail."""
        self._engine_host.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        ready = self.ready
        ctx = (ready.settings.get("target") or {}).get("n_ctx")
        state = ", closed" if self.closed else ""
        return (
            f"LLM({self._name!r}, model={ready.model!r}, draft={ready.draft!r}, ctx={ctx}{state})"
        )

    # --- requests -------------------------------------------------------------------------

    def _request(self, options: AnswerOptions, **prompt: Any) -> AnswerRequest:
        parsed = parse_answer_options(
            options, self._pair.suggested_settings, self._spec, self._seed
        )
        return AnswerRequest(self._pair, parsed, template=self._template, **prompt)

    def _prompt_request(self, prompt: str, options: AnswerOptions) -> AnswerRequest:
        return self._request(options, text=arguments.check_prompt(prompt))

    def _chat_request(self, messages: str | ChatMessages, options: AnswerOptions) -> AnswerRequest:
        return self._request(options, messages=arguments.to_messages(messages))

    def _build_request(self, prompt: str | ChatMessages, options: AnswerOptions) -> AnswerRequest:
        build = self._prompt_request if isinstance(prompt, str) else self._chat_request
        return build(prompt, options)  # type: ignore[arg-type]

    def _start_stream(self, request: AnswerRequest) -> Stream:
        return Stream(self._engine_host, AnswerJob(request), self)

    def _run_answer(self, request: AnswerRequest) -> Answer:
        with self._start_stream(request) as stream:  # Ctrl+C stops the answer
            return stream.answer

    async def _await_answer(self, request: AnswerRequest) -> Answer:
        job = AnswerJob(request)
        async for _ in stream_pieces(self._engine_host, job):
            pass
        return job.result()
