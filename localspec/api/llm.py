"""A model that answers, for scripts and notebooks: `from localspec import LLM`."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Literal, Unpack, overload

from localspec.api import arguments
from localspec.api.answer import Answer, Piece
from localspec.api.arguments import (
    AnswerOptions,
    AnswerRequest,
    ChatMessages,
    GenerationOptions,
    MachineOptions,
    expand_signature,
    parse_answer_options,
)
from localspec.api.engine_thread import AnswerJob, EngineJob, EngineThread
from localspec.api.stream import Stream
from localspec.protocol.events import EngineReady, Notice
from localspec.speculation import Spec


class LLM:
    """A model and its draft, loaded in a process of their own.

        with LLM("demo") as llm:
            print(llm.generate("def fibonacci(n):"))

    `model` and `draft` are what `localspec run` takes: `demo`, a pair or model of the catalogue,
    `user/repo:QUANT`, the path of a .gguf file; `draft` also `auto` or `none`.  Nothing is
    downloaded unless `pull` is true, and nothing asks the network afterwards.

    May be used from any thread, and in a notebook while its loop runs: answers are written one
    after another, in the order in which they were asked for.  Several objects are several engines,
    each with memory of its own.  An engine that dies fails the call that it was busy with; the
    next one loads it again.

    `spec` says what guesses; with `off` or `lookup` no draft is loaded.  `seed` is that of every
    answer that is not given one; without, each draws its own.  `template` is a chat template to use
    instead of the model's.  The rest is how to load the pair (`MachineOptions`).

    Raises LocalspecError: NotFoundError where a model is unknown or not here, DoesNotFitError,
    IncompatiblePairError, ModelFileError, EngineError, …; `message` and `hint` say what and how on.
    """

    @expand_signature(MachineOptions)
    def __init__(
        self,
        model: str = "demo",
        draft: str = "auto",
        *,
        spec: Spec = "auto",
        seed: int | None = None,
        template: str | None = None,
        pull: bool = False,
        **machine: Unpack[MachineOptions],
    ) -> None:
        self._name, self._spec, self._seed, self._template = model, spec, seed, template
        arguments.check_pair_arguments(spec, seed, template)
        self._pair = arguments.resolve_files(model, draft, pull=pull)
        arguments.check_drafter(self._pair, spec)
        wanted = arguments.build_load_request(self._pair, spec, machine)
        self._engine_thread = EngineThread(
            arguments.PairEngineFactory(wanted, probe=spec == self._pair.spec == "auto")
        )
        loading = EngineJob(lambda engine: engine.ready)
        try:
            self._engine_thread.submit(loading)
            self._initial_ready = loading.result()
        except BaseException:
            self._engine_thread.close()
            raise
        self.notices: tuple[Notice, ...] = (*loading.notices, *self._initial_ready.notices)
        """What was to be told when the pair was loaded: `message` and `hint`."""
        weakref.finalize(self, self._engine_thread.end).atexit = False  # then the desk sees to it

    # --- answers --------------------------------------------------------------------------

    @expand_signature(AnswerOptions)
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """The answer to a prompt: what `localspec run -p` prints, for the same seed the same.

        A model with a chat template is asked in it; `raw=True` continues the text as it is.
        Ctrl+C ends the answer.  Raises LocalspecError, with the text that came before as `said`.
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
        """The next turn of a chat: [{"role": "user", "content": …}, …]; a text is one question.

        The answer may fill the context unless `max_tokens` is given.  What a chat shares with the
        last call is not read again.  Raises as `generate`, UsageError where the model has no chat
        template.
        """
        question = self._chat_request(messages, options)
        return self._start_stream(question) if stream else self._run_answer(question)

    @expand_signature(AnswerOptions)
    def stream(self, prompt: str | ChatMessages, **options: Unpack[AnswerOptions]) -> Stream:
        """As `generate` of a text, or `chat` of messages, piece by piece while it is written."""
        return self._start_stream(self._build_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """As `generate`, in an event loop; a task that is cancelled ends the answer."""
        return await self._await_answer(self._prompt_request(prompt, options))

    @expand_signature(AnswerOptions)
    async def achat(self, messages: str | ChatMessages, **options: Unpack[AnswerOptions]) -> Answer:
        """As `chat`, in an event loop."""
        return await self._await_answer(self._chat_request(messages, options))

    @expand_signature(AnswerOptions)
    async def astream(
        self, prompt: str | ChatMessages, **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[Piece, None]:
        """As `stream`, in an event loop: `async for piece in llm.astream(…)`."""
        from localspec.api import async_answers  # noqa: PLC0415  late: asyncio is slow to import

        job = AnswerJob(self._build_request(prompt, options))
        async with aclosing(async_answers.stream_pieces(self._engine_thread, job)) as pieces:
            async for piece in pieces:
                yield piece

    def count(self, prompt: str | ChatMessages, *, raw: bool = False) -> int:
        """Tokens of the prompt that this text or chat would be."""
        question = self._build_request(prompt, {"raw": raw})
        job = EngineJob(lambda engine: engine.worker.count(question.build_count(engine.ready)))
        self._engine_thread.submit(job)
        return job.result()

    def stop(self) -> None:
        """End the answer that is being written; its caller gets what came.  From any thread."""
        self._engine_thread.stop()

    # --- the pair -------------------------------------------------------------------------

    @property
    def ready(self) -> EngineReady:
        """What is loaded, and how: files, devices, settings as really used, memory."""
        return self._engine_thread.ready or self._initial_ready

    @property
    def closed(self) -> bool:
        """Whether `close` was called; what is asked then raises."""
        return self._engine_thread.closed

    def close(self) -> None:
        """End the engine, and the answer that is being written.  Answers that wait are refused."""
        self._engine_thread.close()

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

    # --- within ---------------------------------------------------------------------------

    def _prompt_request(self, prompt: str, options: AnswerOptions) -> AnswerRequest:
        text = arguments.check_prompt(prompt)
        return AnswerRequest(
            self._pair, self._parse_options(options), text, template=self._template
        )

    def _chat_request(self, messages: str | ChatMessages, options: AnswerOptions) -> AnswerRequest:
        turns = arguments.to_messages(messages)
        return AnswerRequest(
            self._pair, self._parse_options(options), messages=turns, template=self._template
        )

    def _build_request(self, prompt: str | ChatMessages, options: AnswerOptions) -> AnswerRequest:
        if isinstance(prompt, str):
            return self._prompt_request(prompt, options)
        return self._chat_request(prompt, options)

    def _parse_options(self, options: AnswerOptions) -> GenerationOptions:
        return parse_answer_options(options, self._pair.suggested_settings, self._spec, self._seed)

    def _run_answer(self, request: AnswerRequest) -> Answer:
        job = AnswerJob(request)
        try:
            self._engine_thread.submit(job)
            return job.result()
        except BaseException:
            self._engine_thread.stop(job)
            raise

    def _start_stream(self, request: AnswerRequest) -> Stream:
        job = AnswerJob(request)
        self._engine_thread.submit(job)
        return Stream(self._engine_thread, job, self)

    async def _await_answer(self, request: AnswerRequest) -> Answer:
        from localspec.api import async_answers  # noqa: PLC0415  late: asyncio is slow to import

        return await async_answers.await_answer(self._engine_thread, AnswerJob(request))
