"""A session with a loaded pair: answers, replays and measurements."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from localspec.engine import draft_scoring
from localspec.engine.chat_prompt import Prompt
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
from localspec.errors import Hint, UsageError
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.protocol import wire
from localspec.protocol.events import Event, SpeculationPlan, TokenScore
from localspec.spec import drafters
from localspec.spec.constraints.answer_start import AnswerStart, HeaderTokens
from localspec.spec.constraints.grammars import Grammars
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.prefix_cache import ConversationSnapshots, PrefixCache
from localspec.spec.protocols import DecodeInterrupted
from localspec.spec.sampling import bind_vocabulary
from localspec.spec.speculative_loop import GenerationJob, speculative_decode
from localspec.spec.token_probabilities import score_tokens
from localspec.spec.verifiers import make_verifier


class Session:
    """Runs one command at a time on a loaded target and its draft."""

    def __init__(self, load: wire.LoadCommand) -> None:
        began = time.perf_counter()
        cpu_load = OtherCpuLoad(os.getpid(), os.getppid())
        cpu_load.start()
        self._stop_requested = False
        self._pair = LoadedPair(load, self._is_cancelled)
        self._target, self._draft = self._pair.target, self._pair.draft
        self._drafters = DrafterFactory(self._pair, load, self._is_cancelled)
        self._prompt_builder = self._pair.prompt_builder
        self._grammars = Grammars(self._target.vocabulary)
        vocabulary = self._target.vocabulary
        self._header_tokens = HeaderTokens(
            vocabulary.n_tokens, vocabulary.piece, vocabulary.token_text
        )
        self._target.saves_checkpoints |= (
            load.snapshot_bytes > 0 and self._target.model.n_swa > 0
        )
        save_checkpoint = (
            self._target.save_checkpoint if self._target.saves_checkpoints else None
        )
        self._target_cache = PrefixCache(self._target, save_checkpoint)
        caches = [self._target_cache, *self._drafters.caches]
        self._snapshots = ConversationSnapshots(caches, load.snapshot_bytes)
        self._max_width = load.draft_max + 1
        max_draft = self._pair.max_draft
        self._profiler = PairProfiler(
            load, self._target, self._draft, max_draft, cpu_load
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
            yield from result if isinstance(result, Iterator) else (result,)
        except DecodeInterrupted:  # of a command that has no result before its end
            raise UsageError("It was stopped before its end.") from None
        if isinstance(command, wire.GenerateCommand | wire.ScoreDraftCommand):
            yield from self.measured_costs()

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        """Yield the events of an answer; may be closed at any yield.

        Raises LocalspecError.
        """
        self._stop_requested = False
        prompt = self._prompt_builder.build_prompt(request)
        prompt_tokens = self._pair.checked_prompt_tokens(prompt)
        self._snapshots.switch_to(prompt_tokens)
        _check_request(request, self._target.n_vocab)
        request = self._complete_request(request, prompt)
        name, plan = self._drafters.choose(request)
        thinking = self._prompt_builder.make_thinking_budget(prompt, request)
        thinking.restore_tokens(request.resumed_tokens)
        verifier = make_verifier(request.verify, request.sampling.seed)
        constraint = self._make_constraint(request, prompt, prompt_tokens)
        drafting = self._drafters.make(
            name, request, verifier, prompt_tokens, constraint
        )
        controller = drafting.controller
        scorer = partial(score_tokens, n_alternatives=request.n_alternatives)
        job = GenerationJob(
            prompt_tokens,
            request.sampling,
            request.max_tokens,
            drafting.max_length,
            self._target.vocabulary.is_eog,
            self._is_cancelled,
            on_round=controller.record_round if controller else lambda _: None,
            score_tokens=scorer if request.probabilities else None,
            resumed_tokens=request.resumed_tokens,
            thinking=thinking,
            constraint=constraint,
        )
        job = drafting.overlapped.join_job(job) if drafting.overlapped else job
        yield plan
        yield from prompt.notices
        loop = speculative_decode(self._target_cache, drafting.drafter, verifier, job)
        plan_change = controller.plan_change if controller else lambda: None
        output = OutputProcessor(
            request, self._target.vocabulary, plan.why, plan_change, thinking
        )
        self._profiler.adapt_threads(between_answers=True)
        for event in output.process(loop):
            yield event
            self._profiler.adapt_threads()
        self._profiler.record_answer(self._drafters.costs.plain_ms)

    def _complete_request(
        self, request: wire.GenerateCommand, prompt: Prompt
    ) -> wire.GenerateCommand:
        """The request with what its prompt and the vocabulary add."""
        begun, n_tokens = request.resumed_tokens, request.max_tokens
        if request.prefill:
            vocabulary, text = self._target.vocabulary, prompt.prefill
            if b"".join(map(vocabulary.piece, begun)) != text.encode(
                "utf-8", "replace"
            ):
                begun = tuple(vocabulary.tokenize_continuation(text))
            n_tokens += len(begun)
        stop, sampling = (*request.stop, *prompt.stop), self._bind(request)
        return replace(
            request,
            stop=stop,
            sampling=sampling,
            resumed_tokens=begun,
            max_tokens=n_tokens,
        )

    def _bind(self, request: wire.GenerateCommand) -> wire.SamplingParams:
        return bind_vocabulary(request.sampling, self._target.vocabulary.piece)

    def _make_constraint(
        self, request: wire.GenerateCommand, prompt: Prompt, prompt_tokens: list[int]
    ) -> OutputConstraint | None:
        if not (request.grammar or request.json_schema):
            return None
        start = self._grammars.start(request.grammar, request.json_schema)
        parser = self._prompt_builder.make_answer_parser(prompt, request)
        if parser is not None:
            has_tools = bool(request.tools)
            start = AnswerStart(start, parser, self._header_tokens, has_tools=has_tools)
        constraint = OutputConstraint(start, len(prompt_tokens))
        constraint.commit([*prompt_tokens, *request.resumed_tokens])
        return constraint

    def count(self, command: wire.CountCommand) -> wire.CountResult:
        """The number of tokens of a text, or of a chat's prompt."""
        return wire.CountResult(
            len(self._pair.tokenize_prompt(self._prompt_builder.build_prompt(command)))
        )

    def tokenize(self, command: wire.TokenizeCommand) -> wire.TokenizeResult:
        vocabulary = self._target.vocabulary
        tokens = vocabulary.tokenize(
            command.text,
            add_special=command.add_special,
            parse_special=command.parse_special,
        )
        pieces = [
            (vocabulary.piece(token) or vocabulary.token_text(token)).decode("latin-1")
            for token in (tokens if command.pieces else ())
        ]
        return wire.TokenizeResult(tuple(tokens), tuple(pieces))

    def probe(
        self, command: wire.ProbeCommand
    ) -> Iterator[SpeculationPlan | wire.MeasuredCosts]:
        """Measure threads, and pass costs for about `command.seconds`; empties the
        memories.
        """
        self._stop_requested = False
        self._profiler.empty_memories()
        shown = ""
        for step in self._profiler.measure(command.seconds):
            if step != shown:
                shown = step
                yield SpeculationPlan("probing", step)
            if self._stop_requested:
                break
        self._profiler.empty_memories()
        self._drafters.set_costs(self._profiler.costs)
        yield from self.measured_costs()

    def measure_when_idle(self) -> Generator[None]:
        """Measure the pair if that is due, between commands; may be closed at every
        yield.

        `stop` ends it at once, also if it has not begun.
        """
        self._stop_requested = False
        self._profiler.interrupt.lower()
        return self._measure_when_idle()

    def _measure_when_idle(self) -> Generator[None]:
        for costs in self._profiler.measure_when_idle():
            if costs is not None:
                self._drafters.set_costs(costs)
            yield

    def measured_costs(self) -> Iterator[wire.MeasuredCosts]:
        """The pair's costs so far; nothing if none were measured."""
        costs = self._drafters.costs
        if not costs.is_measured:
            return
        yield wire.MeasuredCosts(
            t1_ms=round(costs.plain_ms, 4),
            curve=costs.verify_curve(),
            c=round(costs.c, 5) if self._draft and costs.is_draft_measured else None,
            threads=self._profiler.threads,
            threads_batch=self._profiler.threads_batch,
            survival=self._drafters.saved_stats(),
        )

    def replay(self, command: wire.ReplayCommand) -> wire.ReplayResult:
        """Decode an answer with the target alone, in passes of the given widths."""
        self._stop_requested = False
        needs_cache = self._target.needs_checkpoints
        return replay_passes(
            CachedDecoder(self._target_cache)
            if needs_cache
            else IndependentDecoder(self._target),
            self._target.n_vocab,
            self._pair.checked_prompt_tokens(Prompt(command.text)),
            command,
            self._is_cancelled,
        )

    def score_draft(self, command: wire.ScoreDraftCommand) -> wire.DraftScore:
        """Compare a draft with a recorded answer, and count it; may empty the target's
        memory.
        """
        self._stop_requested = False
        request = replace(command.request, sampling=self._bind(command.request))
        verifier = make_verifier(request.verify, request.sampling.seed)
        answer = ScoredAnswer(
            self._pair.checked_prompt_tokens(
                self._prompt_builder.build_prompt(request)
            ),
            command.tokens,
            request.sampling,
            verifier,
            self._target.n_vocab,
        )
        if command.drafter == "lookup":
            return draft_scoring.score_lookup(answer)
        draft = self._pair.loaded_draft
        if draft is None:
            raise UsageError("There is no draft to be judged.")
        inputs = self._drafters.inputs(request, verifier, len(answer.prompt), draft)
        if draft.kind == "model":
            score = draft_scoring.score_model(draft.open_scored(), answer)
        else:
            drafter, runner = drafters.make(draft.kind, inputs), inputs.head_runner
            score = (
                draft_scoring.score_drafter(drafter, answer)
                if runner is None
                else draft_scoring.score_head(self._target, runner, drafter, answer)
            )
        self._drafters.stats(request).record_score(score.accepted)
        return score

    def inspect(self, command: wire.InspectCommand) -> Iterator[wire.InspectResult]:
        """Score an answer's tokens; the memory ends as after generating the answer."""
        self._stop_requested = False
        vocabulary = self._target.vocabulary
        prompt = self._pair.checked_prompt_tokens(
            self._prompt_builder.build_prompt(command)
        )
        for scores in rescore(
            self._target_cache,
            prompt,
            command.tokens,
            self._max_width,
            self._is_cancelled,
        ):
            yield wire.InspectResult(
                tuple(
                    TokenScore(
                        s.chosen.p, s.chosen.rank, to_alternatives(s, vocabulary)
                    )
                    for s in scores
                )
            )

    def _is_cancelled(self) -> bool:
        return self._stop_requested

    def close(self) -> None:
        self._drafters.close()
        self._pair.close()
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


def _check_request(request: wire.GenerateCommand, n_vocab: int) -> None:
    sampling = request.sampling
    error: UsageError | None = None
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        error = UsageError(
            f"A temperature of {sampling.temperature} is not valid.", "Use 0 to 2."
        )
    elif (
        not 0 < sampling.top_p <= 1
        or not (0 <= sampling.min_p <= 1 and 0 <= sampling.xtc_probability <= 1)
        or sampling.top_k < 0
    ):
        what = "top-p must be in (0, 1], min-p and XTC's probability in [0, 1], top-k 0 or more."
        error = UsageError(what, "The defaults are 0.95, 0.05, 0 and 40.")
    elif not (math.isfinite(sampling.repeat_penalty) and sampling.repeat_penalty > 0):
        error = UsageError(
            "The repeat penalty must be above 0.", "1 is off; 1.1 is common."
        )
    elif not all(
        math.isfinite(penalty)
        for penalty in (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.dry_multiplier,
            sampling.dry_base,
        )
    ):
        error = UsageError(
            "A penalty must be a number.", "0 is off; -2 to 2 is common."
        )
    elif not all(
        0 <= id_ < n_vocab and math.isfinite(b) for id_, b in sampling.logit_bias
    ):
        error = UsageError("The logit bias names tokens that this model does not have.")
    elif request.max_tokens < 1:
        error = UsageError(
            "Max tokens must be at least 1.", Hint("Use {max_tokens=1} or more.")
        )
    elif not all(0 <= token < n_vocab for token in request.resumed_tokens):
        error = UsageError(
            "The begun answer contains tokens that this model does not have."
        )
    elif request.grammar and request.json_schema:
        error = UsageError(
            "A grammar and a JSON Schema cannot be used together.", "Give one."
        )
    if error is not None:
        raise error
