"""A model that answers, for scripts and notebooks: `from localspec import LLM`."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Literal, Unpack, overload

from localspec.api import asking, opening
from localspec.api.answer import Answer, Piece
from localspec.api.asking import Messages, Question
from localspec.api.desk import Desk
from localspec.api.jobs import Answering, Job
from localspec.api.options import AnswerOptions, MachineOptions, Way, spelled, way
from localspec.api.stream import Stream
from localspec.protocol.events import Notice, Ready
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

    @spelled(MachineOptions)
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
        opening.check(spec, seed, template)
        self._choice = opening.files(model, draft, pull=pull)
        opening.check_drafter(self._choice, spec)
        wanted = opening.wish(self._choice, spec, machine)
        self._desk = Desk(opening.Opening(wanted, probe=spec == self._choice.spec == "auto"))
        loading = Job(lambda engine: engine.ready)
        try:
            self._desk.submit(loading)
            self._first = loading.result()
        except BaseException:
            self._desk.close()
            raise
        self.notices: tuple[Notice, ...] = (*loading.told, *self._first.notices)
        """What was to be told when the pair was loaded: `message` and `hint`."""
        weakref.finalize(self, self._desk.end).atexit = False  # then the desk sees to it

    # --- answers --------------------------------------------------------------------------

    @spelled(AnswerOptions)
    def generate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """The answer to a prompt: what `localspec run -p` prints, for the same seed the same.

        A model with a chat template is asked in it; `raw=True` continues the text as it is.
        Ctrl+C ends the answer.  Raises LocalspecError, with the text that came before as `said`.
        """
        return self._whole(self._text(prompt, options))

    @overload
    def chat(
        self,
        messages: str | Messages,
        *,
        stream: Literal[False] = False,
        **options: Unpack[AnswerOptions],
    ) -> Answer: ...

    @overload
    def chat(
        self, messages: str | Messages, *, stream: Literal[True], **options: Unpack[AnswerOptions]
    ) -> Stream: ...

    @spelled(AnswerOptions)
    def chat(
        self, messages: str | Messages, *, stream: bool = False, **options: Unpack[AnswerOptions]
    ) -> Answer | Stream:
        """The next turn of a chat: [{"role": "user", "content": …}, …]; a text is one question.

        The answer may fill the context unless `max_tokens` is given.  What a chat shares with the
        last call is not read again.  Raises as `generate`, UsageError where the model has no chat
        template.
        """
        question = self._chat(messages, options)
        return self._stream(question) if stream else self._whole(question)

    @spelled(AnswerOptions)
    def stream(self, prompt: str | Messages, **options: Unpack[AnswerOptions]) -> Stream:
        """As `generate` of a text, or `chat` of messages, piece by piece while it is written."""
        return self._stream(self._either(prompt, options))

    @spelled(AnswerOptions)
    async def agenerate(self, prompt: str, **options: Unpack[AnswerOptions]) -> Answer:
        """As `generate`, in an event loop; a task that is cancelled ends the answer."""
        return await self._awaited(self._text(prompt, options))

    @spelled(AnswerOptions)
    async def achat(self, messages: str | Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """As `chat`, in an event loop."""
        return await self._awaited(self._chat(messages, options))

    @spelled(AnswerOptions)
    async def astream(
        self, prompt: str | Messages, **options: Unpack[AnswerOptions]
    ) -> AsyncGenerator[Piece, None]:
        """As `stream`, in an event loop: `async for piece in llm.astream(…)`."""
        from localspec.api import awaiting  # noqa: PLC0415  late: asyncio is slow to import

        job = Answering(self._either(prompt, options))
        async with aclosing(awaiting.pieces(self._desk, job)) as pieces:
            async for piece in pieces:
                yield piece

    def count(self, prompt: str | Messages, *, raw: bool = False) -> int:
        """Tokens of the prompt that this text or chat would be."""
        question = self._either(prompt, {"raw": raw})
        job = Job(lambda engine: engine.worker.count(question.count(engine.ready)))
        self._desk.submit(job)
        return job.result()

    def stop(self) -> None:
        """End the answer that is being written; its caller gets what came.  From any thread."""
        self._desk.stop()

    # --- the pair -------------------------------------------------------------------------

    @property
    def ready(self) -> Ready:
        """What is loaded, and how: files, devices, settings as really used, memory."""
        return self._desk.ready or self._first

    @property
    def closed(self) -> bool:
        """Whether `close` was called; what is asked then raises."""
        return self._desk.closed

    def close(self) -> None:
        """End the engine, and the answer that is being written.  Answers that wait are refused."""
        self._desk.close()

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

    def _text(self, prompt: str, options: AnswerOptions) -> Question:
        text = asking.words(prompt)
        return Question(self._choice, self._way(options), text, template=self._template)

    def _chat(self, messages: str | Messages, options: AnswerOptions) -> Question:
        turns = asking.turns(messages)
        return Question(self._choice, self._way(options), messages=turns, template=self._template)

    def _either(self, prompt: str | Messages, options: AnswerOptions) -> Question:
        if isinstance(prompt, str):
            return self._text(prompt, options)
        return self._chat(prompt, options)

    def _way(self, options: AnswerOptions) -> Way:
        return way(options, self._choice.suggested, self._spec, self._seed)

    def _whole(self, question: Question) -> Answer:
        job = Answering(question)
        try:
            self._desk.submit(job)
            return job.result()
        except BaseException:
            self._desk.stop(job)
            raise

    def _stream(self, question: Question) -> Stream:
        job = Answering(question)
        self._desk.submit(job)
        return Stream(self._desk, job, self)

    async def _awaited(self, question: Question) -> Answer:
        from localspec.api import awaiting  # noqa: PLC0415  late: asyncio is slow to import

        return await awaiting.answer(self._desk, Answering(question))
