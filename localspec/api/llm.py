"""The `LLM` class for scripts and notebooks, and the streams of its answers."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Literal, TypeVar, Unpack, overload

from msgspec.structs import replace

from localspec import launch
from localspec.api import arguments, tool_use
from localspec.api.answer import (
    Answer,
    Piece,
    build_answer,
    join_steps,
    make_call,
    python_hint,
    python_hints,
    split_pieces,
    split_said,
)
from localspec.api.arguments import (
    AnswerOptions,
    AnswerRequest,
    ChatMessages,
    MachineOptions,
    expand_signature,
)
from localspec.api.tool_use import (
    DEFAULT_MAX_CALLS,
    ConnectedServers,
    OnCall,
    Tool,
    ToolUse,
)
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import check_answer
from localspec.chat.tool_steps import ToolSteps
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
        self._servers = ConnectedServers()
        weakref.finalize(self, self._servers.close)
        self._tool_uses: weakref.WeakSet[ToolUse] = weakref.WeakSet()
        """The tools of the answers that have not ended, for `stop`."""

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
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...

    @overload
    def chat(
        self,
        messages: str | ChatMessages,
        *,
        stream: Literal[True],
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> Stream: ...

    @expand_signature(AnswerOptions)
    def chat(
        self,
        messages: str | ChatMessages,
        *,
        stream: bool = False,
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> Answer | Stream:
        """Answer the messages of a chat, or one question.

        Messages are [{"role": "user", "content": …}, …]. A message may have pictures:
        "images": [a path, bytes, or a picture of Pillow], and "audio": [a path, or
        bytes]. The answer may fill the context unless `max_tokens` is given. Tokens
        shared with the last call are reused.

        The model may call `tools`: functions of yours, `FolderTools`, and servers by
        their names. They run in the thread that waits for the answer, and
        `Answer.calls` has them. `on_call` is asked before each call; without it
        functions and folders run, and tools of servers do not. After `max_calls` calls
        the model must answer.

        Raises as `generate`, UsageError if the model has no chat template, PictureError
        if it does not see, or a picture cannot be used, and AudioError likewise.
        """
        request = self._chat_request(messages, options)
        use = self._use_tools(
            request, tools=tools, on_call=on_call, max_calls=max_calls
        )
        if stream:
            return self._start_stream(request, use)
        return self._run_answer(request, use)

    @expand_signature(AnswerOptions)
    def stream(
        self,
        prompt: str | ChatMessages,
        *,
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> Stream:
        """Stream the answer of `generate` (for a text) or `chat` (for messages).

        With `tools` a text is one message of a chat.
        """
        request = self._build_request(prompt, options, is_chat=bool(tools))
        use = self._use_tools(
            request, tools=tools, on_call=on_call, max_calls=max_calls
        )
        return self._start_stream(request, use)

    @expand_signature(AnswerOptions)
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """Like `generate`, for asyncio. Cancelling the task stops the answer."""
        return await self._await_answer(self._prompt_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def achat(
        self,
        messages: str | ChatMessages,
        *,
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Like `chat`, for asyncio. Tools run in a thread of their own."""
        import asyncio  # noqa: PLC0415  slow to import

        request = self._chat_request(messages, options)
        use = await asyncio.to_thread(
            self._use_tools,
            request,
            tools=tools,
            on_call=on_call,
            max_calls=max_calls,
        )
        return await self._await_answer(request, use)

    @expand_signature(AnswerOptions)
    async def astream(
        self,
        prompt: str | ChatMessages,
        *,
        tools: Iterable[Tool] = (),
        on_call: OnCall | None = None,
        max_calls: int = DEFAULT_MAX_CALLS,
        **options: Unpack[AnswerOptions],
    ) -> AsyncGenerator[Piece, None]:
        """Like `stream`, for asyncio: `async for piece in llm.astream(…)`."""
        import asyncio  # noqa: PLC0415  slow to import

        request = self._build_request(prompt, options, is_chat=bool(tools))
        use = None
        if tools:
            use = await asyncio.to_thread(
                self._use_tools,
                request,
                tools=tools,
                on_call=on_call,
                max_calls=max_calls,
            )
        run = AnswerRun(self._engine_host, request, use)
        async with aclosing(stream_pieces(run)) as pieces:
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

        Its caller receives the text so far. A function that runs is not interrupted.
        """
        self._engine_host.stop()
        for use in list(self._tool_uses):
            if use.is_calling:
                use.stop.set()

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
        """Stop the current answer and end the engine process. Waiting requests fail.

        Connections to servers of tools end, too.
        """
        self._engine_host.close()
        self._servers.close()

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
        self,
        prompt: str | ChatMessages,
        options: AnswerOptions,
        *,
        is_chat: bool = False,
    ) -> AnswerRequest:
        """`is_chat`: a text is a message, too."""
        if isinstance(prompt, str) and not is_chat:
            return self._prompt_request(prompt, options)
        return self._chat_request(prompt, options)

    def _use_tools(
        self,
        request: AnswerRequest,
        *,
        tools: Iterable[Tool],
        on_call: OnCall | None,
        max_calls: int,
    ) -> ToolUse | None:
        """The tools of one answer; None without any.

        Raises UsageError, and what a connection raises.
        """
        providers = tool_use.make_providers(tools, self._servers)
        if not providers:
            return None
        request.check_tools()
        use = ToolUse(providers, on_call, max_calls)
        self._tool_uses.add(use)
        return use

    def _start_stream(
        self, request: AnswerRequest, use: ToolUse | None = None
    ) -> Stream:
        return Stream(AnswerRun(self._engine_host, request, use), self)

    def _run_answer(self, request: AnswerRequest, use: ToolUse | None = None) -> Answer:
        with self._start_stream(request, use) as stream:  # Ctrl+C stops the answer
            return stream.answer

    async def _await_answer(
        self, request: AnswerRequest, use: ToolUse | None = None
    ) -> Answer:
        run = AnswerRun(self._engine_host, request, use)
        async for _ in stream_pieces(run):
            pass
        return run.build_answer()


# --- answers as jobs


class PythonJob(EngineJob[_T]):
    """A job whose error names the arguments of Python in its hint."""

    def finish(self, error: BaseException | None = None) -> None:
        """End the job, as `EngineJob.finish` does."""
        if isinstance(error, LocalspecError):
            error.hint = python_hint(error.hint)
        super().finish(error)


class AnswerJob(PythonJob[Answer]):
    """Generates an answer, or a step of it, and puts out its pieces."""

    def __init__(self, request: AnswerRequest, use: ToolUse | None = None) -> None:
        super().__init__(self._generate_answer)
        self._request = request
        self._use = use
        self.generated = GeneratedAnswer()

    def _generate_answer(self, engine: Engine) -> Answer:
        steps: ToolSteps | None = None
        tools = ""
        if self._use is not None:
            steps = self._use.steps
            tools = steps.tools
        request, loaded = self._request.build(engine.ready, tools)
        generated = self.generated
        if steps is not None:
            generated = steps.begin_answer(len(request.messages), loaded)
            request = steps.add_messages(engine, request, loaded)
        self.generated = generated
        if not self.stop_requested:
            try:
                for event in engine.generate(request):
                    delta = generated.add(event)
                    pieces = split_pieces(event)
                    if steps is not None:
                        pieces = split_said(delta)
                    for piece in pieces:
                        self.put(piece)
                    check_answer(engine, event, lambda: self.stop_requested)
            except LocalspecError as error:
                error.said = generated.text
                raise
        return build_answer(
            generated, request, engine.ready, loaded, load_notices=self.notices
        )


class AnswerRun:
    """An answer as jobs of the engine: one, or with tools one for each step."""

    def __init__(
        self, host: EngineHost, request: AnswerRequest, use: ToolUse | None = None
    ) -> None:
        self._host = host
        self._request = request
        self._use = use
        self._lock = threading.Lock()
        """Held while calls run, so that two threads do not run them twice."""
        self._ended: list[AnswerJob] = []
        self.job = AnswerJob(request, use)

    @property
    def has_tools(self) -> bool:
        """Whether other jobs may follow the first one."""
        return self._use is not None

    def submit(self) -> None:
        """Give the current job to the engine."""
        self._host.submit(self.job)

    def stop(self) -> None:
        """Stop the answer, from any thread."""
        if self._use is not None:
            self._use.stop.set()
        self._host.stop(self.job)

    def run_calls(self, job: AnswerJob) -> bool:
        """Run the calls with which a job has ended; whether another job follows it.

        The next job is not submitted yet. Raises what the job raised.
        """
        job.result()
        if self._use is None:
            return False
        with self._lock:
            if job is not self.job:  # Another thread has run them.
                return True
            if self._use.stop.is_set() or not self._use.run_calls(job.generated):
                return False
            self._ended.append(job)
            self.job = AnswerJob(self._request, self._use)
        return True

    def build_answer(self) -> Answer:
        """The whole answer, when its last job has ended."""
        jobs = [*self._ended, self.job]
        answer = join_steps([job.result() for job in jobs])
        if self._use is None:
            return answer
        calls = self._use.steps.calls
        if self._use.stop.is_set():
            answer = replace(answer, finish_reason="cancelled")
        return replace(
            answer,
            calls=tuple(make_call(call, result) for call, result in calls),
            notices=(*answer.notices, *self._use.notices),
            messages=self._use.steps.all_messages(self.job.generated.turn),
        )


class Stream:
    """The pieces of an answer, in order.

    The engine continues even if the stream is not read; with tools, it waits after a
    call until the stream is read on. Leaving a `with` block, `close()` or deleting the
    stream stops the answer; so does Ctrl+C while waiting for a piece.
    """

    def __init__(self, run: AnswerRun, owner: object) -> None:
        self._run = run
        self._owner = owner  # Keeps the LLM alive as long as its stream.
        self._pieces: deque[Piece] = deque()
        self._updated = threading.Event()
        self._closed = False
        self._submit()

    def _submit(self) -> None:
        self._run.job.on_update = self._updated.set
        self._run.submit()

    @property
    def answer(self) -> Answer:
        """Wait for the end and return the whole answer.

        For a closed stream, it is the part so far. Calls of tools run in this thread.
        """
        while not self._closed:
            job = self._run.job
            job.result()
            self._pieces += job.take()
            if not self._go_on(job):
                break
        return self._run.build_answer()

    def _go_on(self, job: AnswerJob) -> bool:
        """Run the calls with which a job has ended; whether the answer goes on."""
        if not self._run.run_calls(job):
            return False
        self._submit()
        return True

    def stop(self) -> None:
        """Stop the answer, from any thread.

        Pieces already written are still returned.
        """
        self._run.stop()

    def close(self) -> None:
        """Stop the answer and return no more pieces. From any thread; does not wait."""
        self._closed = True
        self._run.stop()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Raises as `LLM.generate`."""
        try:
            while not self._closed:
                job = self._run.job
                self._pieces += job.take()
                if self._pieces:
                    return self._pieces.popleft()
                if job.has_ended:
                    if self._go_on(job):
                        continue
                    break
                self._updated.wait(POLL_SECONDS)
                self._updated.clear()
        except BaseException:
            self._run.stop()
            raise
        raise StopIteration

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._run.stop()


async def stream_pieces(run: AnswerRun) -> AsyncGenerator[Piece, None]:
    """Yield the pieces.

    Closing the generator stops the answer. Raises as `LLM.generate`.
    """
    import asyncio  # noqa: PLC0415  slow to import

    try:
        has_more = True
        while has_more:
            job = run.job
            updated = job.make_update_event()
            run.submit()
            while not job.has_ended:
                await updated.wait()
                updated.clear()
                for piece in job.take():
                    yield piece
            job.result()  # raises the job's error
            if not run.has_tools:
                return
            has_more = await asyncio.to_thread(run.run_calls, job)
    finally:
        run.stop()  # no effect after the end
