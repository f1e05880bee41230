"""A session with a loaded pair: answers, replays and measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from msgspec.structs import replace

from localspec.engine import draft_scoring
from localspec.engine.answer_preparation import AnswerPreparer
from localspec.engine.draft_scoring import ScoredAnswer
from localspec.engine.drafter_factory import DrafterFactory
from localspec.engine.idle_profiler import PairProfiler
from localspec.engine.loaded_pair import LoadedPair
from localspec.engine.output_processor import OutputProcessor, to_alternatives
from localspec.engine.rescore import (
    CachedDecoder,
    IndependentDecoder,
    replay_passes,
    rescore,
)
from localspec.errors import UsageError
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.protocol import wire
from localspec.protocol.events import (
    Event,
    PictureReading,
    SpeculationPlan,
    TokenScore,
)
from localspec.spec import drafters
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.picture_ids import has_pictures
from localspec.spec.prefix_cache import (
    ClientPrompts,
    ConversationSnapshots,
    PrefixCache,
)
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import DecodeInterrupted
from localspec.spec.speculative_loop import LoopEnd, speculative_decode


class Session:
    """Runs one command at a time on a loaded target and its draft."""

    def __init__(self, load: wire.LoadCommand) -> None:
        """Raises LocalspecError, and then leaves nothing loaded."""
        with ExitStack() as opened:
            self._load(load, opened)
            # What `close` closes, the last opened first.
            self._opened = opened.pop_all()

    def _load(self, load: wire.LoadCommand, opened: ExitStack) -> None:
        began = time.perf_counter()
        cpu_load = OtherCpuLoad(os.getpid(), os.getppid())
        cpu_load.start()
        self._stop_requested = False
        self._pair = LoadedPair(load, self._is_cancelled)
        opened.callback(self._pair.close)
        self._target = self._pair.target
        self._draft = self._pair.draft
        self._earlier_picture_speed: wire.PictureSpeed | None = None
        if load.measured is not None:
            self._earlier_picture_speed = load.measured.pictures
        self._preparer = AnswerPreparer(self._pair, self._is_cancelled)
        self._drafters = DrafterFactory(self._pair, load, self._is_cancelled)
        opened.callback(self._drafters.close)

        if load.snapshot_bytes > 0 and self._target.model.n_swa > 0:
            self._target.saves_checkpoints = True
        save_checkpoint = None
        if self._target.saves_checkpoints:
            save_checkpoint = self._target.save_checkpoint
        self._target_cache = PrefixCache(
            self._target, save_checkpoint, self._target.rollback
        )
        caches = [self._target_cache, *self._drafters.caches]
        self._snapshots = ConversationSnapshots(caches, load.snapshot_bytes)

        self._client_prompts = ClientPrompts()

        has_exact_calls = self._pair.prompt_builder.has_exact_calls
        self._expects_tools = load.expects_tools and has_exact_calls
        self._max_width = load.draft_max + 1
        self._profiler = PairProfiler(
            load,
            self._target,
            self._draft,
            max_draft=self._pair.max_model_draft,
            cpu_load=cpu_load,
        )
        self.ready = self._pair.ready_event(load, (time.perf_counter() - began) * 1e3)

    def stop(self) -> None:
        """Stop the answer after the llama_decode in progress. Signal-safe."""
        self._stop_requested = True
        self._profiler.interrupt.raise_()

    def run(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        """The replies of any command but `load` and `stop`."""
        try:
            result = _HANDLERS[type(command)](self, command)
            if isinstance(result, Iterator):
                yield from result
            else:
                yield result
        except DecodeInterrupted:
            # Other commands end with what they have so far; this one has nothing.
            raise UsageError("It was stopped before its end.") from None
        if isinstance(command, wire.GenerateCommand | wire.ScoreDraftCommand):
            yield from self.measured_costs()

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        """Yield the events of an answer; may be closed at any yield.

        Raises LocalspecError.
        """
        self._stop_requested = False
        answer = self._preparer.prepare(self._drafters.choose_verifier(request))
        self._snapshots.switch_to(answer.prompt)
        drafting = self._drafters.make(answer)
        yield drafting.plan
        yield from answer.notices

        steps = speculative_decode(self._target_cache, answer, drafting)
        clients = self._client_prompts

        def count_known(n_reused: int) -> int:
            text = [*answer.prompt, *answer.resumed_tokens]
            return clients.count_known(request.client, text, n_reused)

        output = OutputProcessor(answer, drafting, self._target.vocabulary, count_known)
        self._profiler.adapt_threads(between_answers=True)
        try:
            yield from self._read_pictures(answer)
        except DecodeInterrupted:
            steps = iter((LoopEnd("cancelled"),))
        try:
            for event in output.process(steps):
                yield event
                self._profiler.adapt_threads()
        finally:
            clients.remember(request.client, self._target_cache.cached_tokens)
        self._profiler.record_answer(self._drafters.costs.plain_ms)

    def _read_pictures(self, answer: PreparedAnswer) -> Iterator[PictureReading]:
        """Compute the rows of the pictures that the target has to read.

        It would do so by itself, but nobody could tell why that takes so long.
        """
        reader = self._pair.pictures
        if reader is None:
            return
        tokens = [*answer.prompt, *answer.resumed_tokens]
        if has_pictures(tokens):
            yield from reader.encode(tokens, self._target_cache.count_shared(tokens))

    def count(self, command: wire.CountCommand) -> wire.CountResult:
        """The number of tokens of a text, or of a chat's prompt, and what it waits for."""
        tokens = self._preparer.list_unchecked_tokens(command)
        seconds: float | None = None
        reader = self._pair.pictures
        if reader is not None and has_pictures(tokens):
            seconds = reader.expect_seconds(tokens)
        return wire.CountResult(len(tokens), seconds)

    def tokenize(self, command: wire.TokenizeCommand) -> wire.TokenizeResult:
        vocabulary = self._target.vocabulary
        tokens = vocabulary.tokenize(
            command.text,
            add_special=command.add_special,
            parse_special=command.parse_special,
        )
        pieces: list[str] = []
        if command.pieces:
            for token in tokens:
                piece = vocabulary.piece(token) or vocabulary.token_text(token)
                pieces.append(piece.decode("latin-1"))
        return wire.TokenizeResult(tuple(tokens), tuple(pieces))

    def probe(
        self, command: wire.ProbeCommand
    ) -> Iterator[SpeculationPlan | wire.MeasuredCosts]:
        """Measure threads, and pass costs for about `command.seconds`.

        Empties the memories.
        """
        self._stop_requested = False
        self._profiler.empty_memories()
        last_step = ""
        for step in self._profiler.measure(command.seconds):
            if step != last_step:
                last_step = step
                yield SpeculationPlan("probing", step)
            if self._stop_requested:
                break
        self._profiler.empty_memories()
        self._drafters.set_costs(self._profiler.costs)
        yield from self.measured_costs()

    def measure_when_idle(self) -> Generator[None]:
        """Prepare calls of tools and measure the pair, if that is due, between commands.

        It may be closed at every yield. `stop` ends it at once, also if it has not begun.
        """
        self._stop_requested = False
        self._profiler.interrupt.lower()
        return self._measure_when_idle()

    def _measure_when_idle(self) -> Generator[None]:
        if self._expects_tools and not self._stop_requested:
            yield from self._preparer.prepare_calls()
        for costs in self._profiler.measure_when_idle():
            if costs is not None:
                self._drafters.set_costs(costs)
            yield

    def measured_costs(self) -> Iterator[wire.MeasuredCosts]:
        """The pair's costs so far; nothing if none were measured."""
        costs = self._drafters.costs
        if not costs.is_measured:
            return
        c = None
        if self._draft and costs.is_draft_measured:
            c = round(costs.c, 5)
        yield wire.MeasuredCosts(
            t1_ms=round(costs.plain_ms, 4),
            curve=costs.verify_curve(),
            c=c,
            threads=self._profiler.threads,
            threads_batch=self._profiler.threads_batch,
            survival=self._drafters.saved_beliefs(),
            pictures=self._picture_speed(),
        )

    def _picture_speed(self) -> wire.PictureSpeed | None:
        """That of this run, else that of earlier ones, which is to be kept."""
        reader = self._pair.pictures
        if reader is not None and reader.measured_speed is not None:
            return reader.measured_speed
        return self._earlier_picture_speed

    def replay(self, command: wire.ReplayCommand) -> wire.ReplayResult:
        """Decode an answer with the target alone, in passes of the given widths."""
        self._stop_requested = False
        prompt = self._preparer.prompt_tokens(
            wire.CountCommand(command.text, command.messages, tools=command.tools)
        )
        constraint: OutputConstraint | None = None
        if command.tools:
            request = wire.GenerateCommand(
                messages=command.messages,
                tools=command.tools,
                must_call=command.must_call,
            )
            constraint = self._preparer.prepare(request).constraint
        decoder: CachedDecoder | IndependentDecoder
        if self._target.needs_checkpoints or has_pictures(prompt):
            decoder = CachedDecoder(self._target_cache)
        else:
            decoder = IndependentDecoder(self._target)
        return replay_passes(
            decoder,
            self._target.n_vocab,
            prompt,
            command=command,
            constraint=constraint,
            cancelled=self._is_cancelled,
        )

    def score_draft(self, command: wire.ScoreDraftCommand) -> wire.DraftScore:
        """Compare a draft with a recorded answer, and count it.

        May empty the target's memory.
        """
        self._stop_requested = False
        request = command.request
        if request.verify == "auto":
            request = replace(request, verify="coupled")
        prepared = self._preparer.prepare(request)
        answer = ScoredAnswer(prepared, command.tokens, self._target.n_vocab)
        if command.drafter == "lookup":
            return draft_scoring.score_lookup(answer)
        draft = self._pair.loaded_draft
        if draft is None:
            raise UsageError("There is no draft to be judged.")
        if draft.kind == "model":
            score = draft_scoring.score_model(draft.load_for_scoring(), answer)
        else:
            inputs = self._drafters.inputs(prepared, draft)
            drafter = drafters.make(draft.kind, inputs)
            if inputs.head_runner is None:
                score = draft_scoring.score_drafter(drafter, answer)
            else:
                score = draft_scoring.score_head(
                    self._target, inputs.head_runner, drafter, answer
                )
        self._drafters.beliefs(prepared).record_score(score.accepted)
        return score

    def inspect(self, command: wire.InspectCommand) -> Iterator[wire.InspectResult]:
        """Score an answer's tokens; the memory ends as after generating the answer."""
        self._stop_requested = False
        vocabulary = self._target.vocabulary
        passes = rescore(
            self._target_cache,
            prompt=self._preparer.prompt_tokens(command),
            tokens=command.tokens,
            width=self._max_width,
            cancelled=self._is_cancelled,
        )
        for scores in passes:
            places: list[TokenScore] = []
            for score in scores:
                alternatives = to_alternatives(score, vocabulary)
                chosen = score.chosen
                places.append(TokenScore(chosen.p, chosen.rank, alternatives))
            yield wire.InspectResult(tuple(places))

    def _is_cancelled(self) -> bool:
        return self._stop_requested

    def close(self) -> None:
        self._opened.close()
        self._draft = None


_HANDLERS: Mapping[type[wire.EngineCommand], Callable[[Session, Any], Any]] = {
    wire.GenerateCommand: Session.generate,
    wire.ProbeCommand: Session.probe,
    wire.ReplayCommand: Session.replay,
    wire.CountCommand: Session.count,
    wire.TokenizeCommand: Session.tokenize,
    wire.InspectCommand: Session.inspect,
    wire.ScoreDraftCommand: Session.score_draft,
}
"""Each returns a reply, or an iterator of replies."""
