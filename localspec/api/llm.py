"""The `LLM` class for scripts and notebooks, and the streams of its answers."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, TypeVar, Unpack, overload

from localspec import launch
from localspec.api import arguments
from localspec.api.answer import (
    Answer,
    Piece,
    build_answer,
    python_hint,
    python_hints,
    split_pieces,
)
from localspec.api.arguments import (
    AnswerOptions,
    AnswerRequest,
    ChatMessages,
    MachineOptions,
    expand_signature,
)
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import check_answer
from localspec.config.options import OPTIONS
from localspec.errors import LocalspecError
from localspec.launch import Engine, LoadOptions, recent_pairs
from localspec.launch.engine_host import POLL_SECONDS, EngineHost, EngineJob
from localspec.protocol.events import EngineReady, Notice

_T = TypeVar("_T")


class LLM:
    """A model and its draft, loaded in a separate process.

        with LLM("demo") as llm:
            print(llm.generate("def fibonacci(n):"))

    `model` and `draft` take the same values as `localspec run`: `demo`, a pair or model
    of the catalogue, `user/repo:QUANT`, or the path of a .gguf file; `draft` also
    `auto` or `none`. Without `model`, it is the one that `localspec run` takes; a
    notice names it. Nothing is downloaded unless `pull` is true. After loading, the
    network is not used.

    An LLM can be used from any thread, and in a notebook with a running event loop. It
    answers one request at a time, in order. Each LLM has its own engine process and its
    own memory. If the engine crashes, the current call fails and the next call loads
    the pair again.

    `spec` selects the drafter; with `off` or `lookup` no draft is loaded. `seed` is the
    default seed of all answers; without it each answer has a random seed. `template`
    replaces the model's chat template. All other arguments are load settings
    (`MachineOptions`).

    Raises LocalspecError with `message` and `hint`: NotFoundError if a model is unknown
    or not downloaded, DoesNotFitError, IncompatiblePairError, ModelFileError,
    EngineError, …
    """

    @expand_signature(MachineOptions)
    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        draft: str | os.PathLike[str] = "auto",
        *,
        spec: str = "auto",
        seed: int | None = None,
        template: str | None = None,
        pull: bool = False,
        **machine: Unpack[MachineOptions],
    ) -> None:
        given = None if model is None else arguments.to_reference("model", model)
        self._spec = spec
        self._seed = seed
        self._template = template
        arguments.check_pair_arguments(spec, seed, template)
        draft = arguments.to_reference("draft", draft)
        with python_hints():
            self._name, draft, why = recent_pairs.resolve_default(given, draft)
            self._pair = arguments.resolve_files(self._name, draft, pull=pull)
            launch.check_drafter(self._pair, spec)
        checked = arguments.check_options(machine, MachineOptions)
        fields = {OPTIONS[name].attribute: value for name, value in checked.items()}
        load_request = LoadOptions(**fields).to_request(self._pair, spec)
        # `auto` measures the pair first, unless the catalogue names a drafter.
        probe = spec == "auto" and self._pair.spec == "auto"
        self._engine_host = EngineHost(load_request, probe=probe)
        loading = PythonJob(lambda engine: engine.ready)
        try:
            self._engine_host.submit(loading)
            self._initial_ready = loading.result()
        except BaseException:
            self._engine_host.close()
            raise
        notices = [*loading.notices, *self._initial_ready.notices]
        if why:
            message = f"Answering with {self._name}, {why}."
            notices.insert(0, Notice("info", "default-model", message))
        self.notices: tuple[Notice, ...] = tuple(notices)
        """Notices of loading, with `message` and `hint`."""
        # At exit, engine_host closes all engines itself.
        weakref.finalize(self, self._engine_host.end).atexit = False

    # --- answers

    @expand_signature(AnswerOptions)
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Answer a prompt. The same seed gives the same text as `localspec run -p`.

        The prompt is formatted with the model's chat template, if it has one;
        `raw=True` completes the text as it is. Ctrl+C stops the answer. Raises
        LocalspecError; its `said` is the text so far.
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
        """Answer the messages of a chat, or one question.

        Messages are [{"role": "user", "content": …}, …]. A message may have pictures:
        "images": [a path, bytes, or a picture of Pillow], and "audio": [a path, or
        bytes]. The answer may fill the context unless `max_tokens` is given. Tokens
        shared with the last call are reused. Raises as `generate`, UsageError if the
        model has no chat template, PictureError if it does not see, or a picture cannot
        be used, and AudioError likewise.
        """
        request = self._chat_request(messages, options)
        if stream:
            return self._start_stream(request)
        return self._run_answer(request)

    @expand_signature(AnswerOptions)
    def stream(
        self, prompt: str | ChatMessages, **options: Unpack[AnswerOptions]
    ) -> Stream:
        """Stream the answer of `generate` (for a text) or `chat` (for messages)."""
        return self._start_stream(self._build_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Like `generate`, for asyncio. Cancelling the task stops the answer."""
        return await self._await_answer(self._prompt_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def achat(
        self, messages: str | ChatMessages, **options: Unpack[AnswerOptions]
    ) -> Answer:
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

        def count(engine: Engine) -> int:
            command, _ = request.build(engine.ready)
            return engine.count(command.to_count()).tokens

        job = PythonJob(count)
        self._engine_host.submit(job)
        return job.result()

    def stop(self) -> None:
        """Stop the current answer, from any thread.

        Its caller receives the text so far.
        """
        self._engine_host.stop()

    # --- the pair

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ready = self.ready
        ctx = (ready.settings.get("target") or {}).get("n_ctx")
        state = ", closed" if self.closed else ""
        files = f"model={ready.model!r}, draft={ready.draft!r}"
        return f"LLM({self._name!r}, {files}, ctx={ctx}{state})"

    # --- requests

    def _request(self, options: AnswerOptions, **prompt: Any) -> AnswerRequest:
        parsed = arguments.parse_answer_options(
            options, self._pair, self._spec, self._seed
        )
        return AnswerRequest(self._pair, template=self._template, **parsed, **prompt)

    def _prompt_request(self, prompt: str, options: AnswerOptions) -> AnswerRequest:
        return self._request(options, text=arguments.check_prompt(prompt))

    def _chat_request(
        self, messages: str | ChatMessages, options: AnswerOptions
    ) -> AnswerRequest:
        return self._request(options, messages=arguments.to_messages(messages))

    def _build_request(
        self, prompt: str | ChatMessages, options: AnswerOptions
    ) -> AnswerRequest:
        if isinstance(prompt, str):
            return self._prompt_request(prompt, options)
        return self._chat_request(prompt, options)

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


# --- answers as jobs


class PythonJob(EngineJob[_T]):
    """A job whose error names the arguments of Python in its hint."""

    def finish(self, error: BaseException | None = None) -> None:
        """End the job, as `EngineJob.finish` does."""
        if isinstance(error, LocalspecError):
            error.hint = python_hint(error.hint)
        super().finish(error)


class AnswerJob(PythonJob[Answer]):
    """Generates an answer and puts out its pieces."""

    def __init__(self, request: AnswerRequest) -> None:
        super().__init__(self._generate_answer)
        self._request = request

    def _generate_answer(self, engine: Engine) -> Answer:
        request, loaded = self._request.build(engine.ready)
        generated = GeneratedAnswer()
        if not self.stop_requested:
            try:
                for event in engine.generate(request):
                    generated.add(event)
                    for piece in split_pieces(event):
                        self.put(piece)
                    check_answer(engine, event, lambda: self.stop_requested)
            except LocalspecError as error:
                error.said = generated.text
                raise
        return build_answer(
            generated, request, engine.ready, loaded, load_notices=self.notices
        )


class Stream:
    """The pieces of an answer, in order.

    The engine continues even if the stream is not read. Leaving a `with` block,
    `close()` or deleting the stream stops the answer; so does Ctrl+C while waiting for
    a piece.
    """

    def __init__(self, host: EngineHost, job: AnswerJob, owner: object) -> None:
        self._host = host
        self._job = job
        self._owner = owner  # Keeps the LLM alive as long as its stream.
        self._pieces: deque[Piece] = deque()
        self._updated = threading.Event()
        self._closed = False
        job.on_update = self._updated.set
        host.submit(job)

    @property
    def answer(self) -> Answer:
        """Wait for the end and return the whole answer.

        For a closed stream, it is the part so far.
        """
        return self._job.result()

    def stop(self) -> None:
        """Stop the answer, from any thread.

        Pieces already written are still returned.
        """
        self._host.stop(self._job)

    def close(self) -> None:
        """Stop the answer and return no more pieces. From any thread; does not wait."""
        self._closed = True
        self._host.stop(self._job)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Raises as `LLM.generate`."""
        try:
            while not self._closed:
                self._pieces += self._job.take()
                if self._pieces:
                    return self._pieces.popleft()
                if self._job.has_ended:
                    self._job.result()  # raises the job's error
                    break
                self._updated.wait(POLL_SECONDS)
                self._updated.clear()
        except BaseException:
            self._host.stop(self._job)
            raise
        raise StopIteration

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._host.stop(self._job)


async def stream_pieces(
    host: EngineHost, job: AnswerJob
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces.

    Closing the generator stops the answer. Raises as `LLM.generate`.
    """
    updated = job.make_update_event()
    host.submit(job)
    try:
        while not job.has_ended:
            await updated.wait()
            updated.clear()
            for piece in job.take():
                yield piece
        job.result()  # raises the job's error
    finally:
        host.stop(job)  # no effect after the end
