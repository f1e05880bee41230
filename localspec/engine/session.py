"""A session with a loaded pair: answers, replays and measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from localspec import speculation
from localspec.engine import drafters, pass_timing
from localspec.engine.chat_prompt import Prompt
from localspec.engine.control.acceptance_stats import AcceptanceStats, PairStats
from localspec.engine.control.controller import Controller, DraftInput
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.llama import LlamaContext
from localspec.engine.loaded_pair import LoadedPair
from localspec.engine.near_ties import NearTieCheck
from localspec.engine.output_processor import OutputProcessor, to_alternatives
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import Drafter, Verifier
from localspec.engine.rescore import replay_passes, rescore
from localspec.engine.speculative_loop import GenerationJob, speculative_decode
from localspec.engine.token_probabilities import score_tokens
from localspec.engine.verifiers import make_verifier
from localspec.errors import LocalspecError, UsageError
from localspec.protocol.events import Event, SpeculationPlan, TokenScore
from localspec.protocol.wire import (
    DEFAULT_DRAFT_LENGTH,
    DRAFT_MAX,
    CountCommand,
    CountResult,
    GenerateCommand,
    InspectCommand,
    InspectResult,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    RenderCommand,
    RenderResult,
    ReplayCommand,
    ReplayResult,
)

_DRAFT_INPUTS: dict[str, DraftInput] = {"model": "tokens", "dspark": "blocks", "dflash": "blocks"}


class Session:
    """Runs one command at a time on a loaded target and its draft."""

    def __init__(self, load: LoadCommand) -> None:
        began = time.perf_counter()
        self._stop_requested = False
        self._lookup_drafter: Drafter | None = None
        survival = load.measured.survival if load.measured else {}
        self._pair_stats = {
            name: PairStats(AcceptanceStats(counts)) for name, counts in survival.items()
        }
        self._logit_difference = load.measured.difference if load.measured else None
        self._pair = LoadedPair(load, self._is_cancelled)
        self._target, self._draft = self._pair.target, self._pair.draft
        self._costs = self._make_costs(load.measured)
        self._prompt_builder = self._pair.prompt_builder
        save_checkpoint = self._target.save_checkpoint if self._target.needs_checkpoints else None
        self._target_cache = PrefixCache(self._target, save_checkpoint)
        self._draft_cache = (
            PrefixCache(self._draft) if isinstance(self._draft, LlamaContext) else None
        )
        self._max_draft = self._pair.max_draft
        self._max_width = load.draft_max + 1
        self._may_choose_threads = load.target_settings.n_threads is None
        if self._may_choose_threads and load.measured and load.measured.threads:
            self._pair.set_n_threads(load.measured.threads)
        self.ready = self._pair.ready_event(load, (time.perf_counter() - began) * 1e3)

    def stop(self) -> None:
        """Stop the answer after the llama_decode in progress. Signal-safe."""
        self._stop_requested = True

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        """Yield the events of an answer; the generator may be closed at any yield.

        Raises PromptTooLongError, UsageError, or EngineError if llama.cpp fails.
        """
        self._stop_requested = False
        prompt = self._prompt_builder.build_prompt(request)
        prompt_tokens = self._pair.checked_prompt_tokens(prompt)
        request = replace(request, stop=(*request.stop, *prompt.stop))
        _check_request(request, self._target.n_vocab)
        name, plan = self._choose_drafter(request)
        vocabulary = self._target.vocabulary
        thinking = self._prompt_builder.make_thinking_budget(prompt, request.think_budget)
        thinking.restore_tokens(request.begun)
        verifier = make_verifier(request.verify, request.sampling.seed)
        inputs = self._drafter_inputs(request, verifier, len(prompt_tokens))
        controller = self._make_controller(request, inputs) if name == "auto" else None
        drafter = controller or self._get_drafter(name, inputs)
        job = GenerationJob(
            prompt_tokens,
            request.sampling,
            request.max_tokens,
            self._draft_length(request, DRAFT_MAX if controller else DEFAULT_DRAFT_LENGTH),
            vocabulary.is_eog,
            self._is_cancelled,
            controller.record_round if controller else lambda _: None,
            self._make_near_tie_check(request) if request.exact else None,
            score_tokens if request.probabilities else None,
            request.begun,
            thinking,
        )
        yield plan
        yield from self._prompt_builder.new_notices(prompt.notices)
        loop = speculative_decode(self._target_cache, drafter, verifier, job)
        plan_change = controller.plan_change if controller else lambda: None
        output = OutputProcessor(request, vocabulary, plan.why, plan_change, thinking)
        yield from prompt.mark_thinking(output.process(loop))

    def _drafter_inputs(
        self, request: GenerateCommand, verifier: Verifier, prompt_length: int
    ) -> drafters.DrafterInputs:
        return drafters.DrafterInputs(
            draft_cache=self._draft_cache,
            head_runner=self._pair.head_runner,
            verifier=verifier,
            sampling=request.sampling,
            prompt_length=prompt_length,
            n_vocab=self._target.n_vocab,
            is_eog=self._target.vocabulary.is_eog,
            cancelled=self._is_cancelled,
            keep_logits=request.probabilities,
        )

    def render(self, command: RenderCommand) -> RenderResult:
        """A chat as the prompt text that `generate` would use."""
        return self._prompt_builder.render(command.messages, command.template, command.think)

    def count(self, command: CountCommand) -> CountResult:
        """The number of tokens of a text, or of a chat's prompt."""
        return CountResult(
            len(self._pair.tokenize_prompt(self._prompt_builder.build_prompt(command)))
        )

    def probe(self, command: ProbeCommand) -> Iterator[SpeculationPlan | MeasuredCosts]:
        """Measure pass costs for about `command.seconds`; the memories are empty afterwards."""
        self._stop_requested = False
        times: pass_timing.PassTimes | None = None
        shown = 0
        if self._may_choose_threads:
            yield SpeculationPlan("probing", "comparing thread counts")
            self._pair.set_n_threads(pass_timing.choose_n_threads(self._target, self._draft))
        for times in pass_timing.measure_passes(
            self._target, self._draft, self._max_draft, command.seconds
        ):
            if len(times.verify) != shown:
                shown = len(times.verify)
                yield SpeculationPlan("probing", f"timing passes, width {max(times.verify)}")
            if self._stop_requested:
                break
        assert times is not None
        if command.difference:
            yield SpeculationPlan("probing", "comparing logits across pass widths")
            self._logit_difference = pass_timing.measure_logit_difference(
                self._target, self._max_draft
            )
        self._costs = self._make_costs(MeasuredCosts(times.t1(), times.verify_curve(), times.c()))
        yield from self.measured_costs()

    def measured_costs(self) -> Iterator[MeasuredCosts]:
        """The pair's costs so far; nothing if none were measured."""
        if not self._costs.is_measured:
            return
        plain = self._costs.plain_ms
        yield MeasuredCosts(
            t1_ms=round(plain, 4),
            curve=self._costs.verify_curve(),
            c=round(self._costs.c, 5) if self._draft else None,
            threads=self._target.n_threads,
            difference=self._logit_difference,
            survival={name: stats.acceptance.counts() for name, stats in self._pair_stats.items()},
        )

    def replay(self, command: ReplayCommand) -> ReplayResult:
        """Decode an answer with the target alone, in passes of the given widths."""
        self._stop_requested = False
        return replay_passes(
            self._target_cache,
            self._pair.checked_prompt_tokens(Prompt(command.text)),
            command,
            self._is_cancelled,
        )

    def inspect(self, command: InspectCommand) -> Iterator[InspectResult]:
        """Score an answer's tokens; the memory ends as after generating the answer."""
        self._stop_requested = False
        vocabulary = self._target.vocabulary
        prompt = self._pair.checked_prompt_tokens(self._prompt_builder.build_prompt(command))
        for scores in rescore(
            self._target_cache, prompt, command.tokens, self._max_width, self._is_cancelled
        ):
            yield InspectResult(
                tuple(
                    TokenScore(s.chosen.p, s.chosen.rank, to_alternatives(s, vocabulary))
                    for s in scores
                )
            )

    def _make_costs(self, measured: MeasuredCosts | None) -> PassCosts:
        return PassCosts(
            measured, drafts_blocks=_DRAFT_INPUTS.get(self._pair.draft_kind) == "blocks"
        )

    def _choose_drafter(self, request: GenerateCommand) -> tuple[str, SpeculationPlan]:
        name = request.spec
        length = self._draft_length(request, DEFAULT_DRAFT_LENGTH)
        if name in ("off", "none") or length < 1:
            why = (
                "turned off"
                if self._max_draft >= 1
                else "the model cannot roll back rejected tokens"
            )
            return "none", SpeculationPlan("off", why)
        if name == "auto":
            draft = f"{self._pair.draft_description} and " if self._draft else ""
            return name, SpeculationPlan("probing", f"{draft}prompt lookup, when it helps")
        speculation.check(name, self._pair.draft_kind if self._draft else None)
        if name not in drafters.DRAFT_FREE:  # `model` also selects a head
            name = self._pair.draft_kind
        return name, SpeculationPlan("on", request.why or f"max draft tokens {length}, {name}")

    def _make_near_tie_check(self, request: GenerateCommand) -> NearTieCheck:
        """The near-tie check of exact mode; the first call measures, which empties the memory."""
        if request.sampling.temperature > 0 and request.verify != "coupled":
            raise UsageError(
                f"Exact mode does not work with --verify {request.verify} above temperature 0.",
                "Use --verify coupled with --exact.",
            )
        if self._logit_difference is None:
            self._logit_difference = pass_timing.measure_logit_difference(
                self._target, self._max_draft
            )
        return NearTieCheck(request.sampling, 2 * self._logit_difference)

    def _draft_length(self, request: GenerateCommand, default: int) -> int:
        requested = request.draft_length
        return min(default if requested is None else requested, self._max_draft)

    def _make_controller(
        self, request: GenerateCommand, inputs: drafters.DrafterInputs
    ) -> Controller:
        """The controller, with the statistics of this verification method."""
        method = "greedy" if request.sampling.temperature <= 0 else request.verify
        stats = self._pair_stats.setdefault(method, PairStats())
        kind = self._pair.draft_kind
        draft = drafters.make(kind, inputs) if self._draft else None
        lookup = self._get_drafter("lookup", inputs)
        draft_input = _DRAFT_INPUTS.get(kind, "states")
        return Controller(draft, lookup, self._costs, stats, draft_input=draft_input)

    def _get_drafter(self, name: str, inputs: drafters.DrafterInputs) -> Drafter:
        if name != "lookup":
            return drafters.make(name, inputs)
        if self._lookup_drafter is None:  # kept, because it has indexed the chat so far
            self._lookup_drafter = drafters.make(name, inputs)
        return self._lookup_drafter

    def _is_cancelled(self) -> bool:
        return self._stop_requested

    def close(self) -> None:
        self._pair.close()
        self._draft = None


def _check_request(request: GenerateCommand, n_vocab: int) -> None:
    sampling = request.sampling
    error: LocalspecError | None = None
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        error = UsageError(f"A temperature of {sampling.temperature} is not valid.", "Use 0 to 2.")
    elif not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1 or sampling.top_k < 0:
        what = "top-p must be in (0, 1], min-p in [0, 1], top-k 0 or more."
        error = UsageError(what, "The defaults are 0.95, 0.05 and 40.")
    elif not (math.isfinite(sampling.repeat_penalty) and sampling.repeat_penalty > 0):
        error = UsageError("The repeat penalty must be above 0.", "1 is off; 1.1 is common.")
    elif request.max_tokens < 1:
        error = UsageError("Max tokens must be at least 1.", "Use --max-tokens 1 or more.")
    elif not all(0 <= token < n_vocab for token in request.begun):
        error = UsageError("The begun answer contains tokens that this model does not have.")
    if error is not None:
        raise error
