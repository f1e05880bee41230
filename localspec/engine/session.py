"""A loaded pair that answers: tokens in and out of the loop become text and events."""

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
    """One target and perhaps one draft model, loaded; one answer at a time."""

    def __init__(self, load: LoadCommand) -> None:
        began = time.perf_counter()
        self._stop_requested = False
        self._lookup_drafter: Drafter | None = None
        survival = load.measured.survival if load.measured else {}
        self._pair_stats = {
            name: PairStats(AcceptanceStats(kept)) for name, kept in survival.items()
        }
        self._logit_difference = load.measured.difference if load.measured else None
        self._pair = LoadedPair(load, self._is_cancelled)
        self._target, self._draft = self._pair.target, self._pair.draft
        self._costs = self._make_costs(load.measured)
        self._prompt_builder = self._pair.prompt_builder
        marked = self._target.save_checkpoint if self._target.needs_checkpoints else None
        self._target_cache = PrefixCache(self._target, marked)
        self._draft_cache = (
            PrefixCache(self._draft) if isinstance(self._draft, LlamaContext) else None
        )
        self._max_draft = self._pair.max_draft
        self._max_width = load.draft_max + 1
        self._may_choose_threads = load.target_settings.n_threads is None
        if self._may_choose_threads and load.measured and load.measured.threads:
            self._pair.set_n_threads(load.measured.threads)
        self.ready = self._pair.ready_event(load, (time.perf_counter() - began) * 1e3)

    # --- answering ----------------------------------------------------------------------

    def stop(self) -> None:
        """End the answer after the llama_decode in progress.  Safe from a signal handler."""
        self._stop_requested = True

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        """Answer; the generator may be closed at any yield.

        Raises PromptTooLongError, UsageError, or EngineError where the model fails on the way.
        """
        self._stop_requested = False
        asked = self._prompt_builder.build_prompt(request)
        prompt = self._pair.checked_prompt_tokens(asked)
        request = replace(request, stop=(*request.stop, *asked.stop))
        _check_request(request, self._target.n_vocab)
        name, plan = self._choose_drafter(request)
        words = self._target.vocabulary
        thought = self._prompt_builder.make_thinking_budget(asked, request.think_budget)
        thought.restore_tokens(request.begun)
        judge = make_verifier(request.verify, request.sampling.seed)
        needs = self._drafter_inputs(request, judge, len(prompt))
        controller = self._make_controller(request, needs) if name == "auto" else None
        drafter = controller or self._get_drafter(name, needs)
        job = GenerationJob(
            prompt,
            request.sampling,
            request.max_tokens,
            self._draft_length(request, DRAFT_MAX if controller else DEFAULT_DRAFT_LENGTH),
            words.is_eog,
            self._is_cancelled,
            controller.record_round if controller else lambda _: None,
            self._make_near_tie_check(request) if request.exact else None,
            score_tokens if request.probabilities else None,
            request.begun,
            thought,
        )
        yield plan
        yield from self._prompt_builder.new_notices(asked.notices)
        loop = speculative_decode(self._target_cache, drafter, judge, job)
        news = controller.plan_change if controller else lambda: None
        yield from asked.mark_thinking(
            OutputProcessor(request, words, plan.why, news, thought).process(loop)
        )

    def _drafter_inputs(
        self, request: GenerateCommand, verifier: Verifier, prompt_length: int
    ) -> drafters.DrafterInputs:
        """What a drafter of this answer may use."""
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
        """A chat as the text that `generate` would read."""
        return self._prompt_builder.render(command.messages, command.template, command.think)

    def count(self, command: CountCommand) -> CountResult:
        """The tokens of a text, or of a chat's prompt."""
        return CountResult(
            len(self._pair.tokenize_prompt(self._prompt_builder.build_prompt(command)))
        )

    # --- measuring ----------------------------------------------------------------------

    def probe(self, command: ProbeCommand) -> Iterator[SpeculationPlan | MeasuredCosts]:
        """Measure what passes cost, in about so many seconds; the memories end empty."""
        self._stop_requested = False
        times: pass_timing.PassTimes | None = None
        shown = 0
        if self._may_choose_threads:
            yield SpeculationPlan("probing", "finding the better number of threads")
            self._pair.set_n_threads(pass_timing.choose_n_threads(self._target, self._draft))
        for times in pass_timing.measure_passes(
            self._target, self._draft, self._max_draft, command.seconds
        ):
            if len(times.verify) != shown:
                shown = len(times.verify)
                yield SpeculationPlan("probing", f"measuring passes of {max(times.verify)} tokens")
            if self._stop_requested:
                break
        assert times is not None
        if command.difference:
            yield SpeculationPlan("probing", "comparing passes of different widths")
            self._logit_difference = pass_timing.measure_logit_difference(
                self._target, self._max_draft
            )
        self._costs = self._make_costs(MeasuredCosts(times.t1(), times.verify_curve(), times.c()))
        yield from self.measured_costs()

    def measured_costs(self) -> Iterator[MeasuredCosts]:
        """What is known of the pair's costs, if anything is."""
        if not self._costs.is_measured:
            return
        plain = self._costs.plain_ms
        yield MeasuredCosts(
            t1_ms=round(plain, 4),
            curve=self._costs.verify_curve(),
            c=round(self._costs.c, 5) if self._draft else None,
            threads=self._target.n_threads,
            difference=self._logit_difference,
            survival={name: known.acceptance.counts() for name, known in self._pair_stats.items()},
        )

    def replay(self, command: ReplayCommand) -> ReplayResult:
        """What the target alone says of an answer's tokens, in passes of the widths asked for."""
        self._stop_requested = False
        return replay_passes(
            self._target_cache,
            self._pair.checked_prompt_tokens(Prompt(command.text)),
            command,
            self._is_cancelled,
        )

    def inspect(self, command: InspectCommand) -> Iterator[InspectResult]:
        """What the target gives to an answer's tokens; the memory ends as after writing it."""
        self._stop_requested = False
        words, prompt = (
            self._target.vocabulary,
            self._pair.checked_prompt_tokens(self._prompt_builder.build_prompt(command)),
        )
        tokens, stop = command.tokens, self._is_cancelled
        for seen in rescore(self._target_cache, prompt, tokens, self._max_width, stop):
            yield InspectResult(
                tuple(
                    TokenScore(i.chosen.p, i.chosen.rank, to_alternatives(i, words)) for i in seen
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
                "asked for" if self._max_draft >= 1 else "the model cannot take back a wrong guess"
            )
            return "none", SpeculationPlan("off", why)
        if name == "auto":
            sources = f"{self._pair.draft_description} and copying" if self._draft else "copying"
            return name, SpeculationPlan("probing", f"{sources}, as far as they pay")
        speculation.check(name, self._pair.draft_kind if self._draft else None)
        if name not in drafters.DRAFT_FREE:  # `model` is the draft, whatever it is
            name = self._pair.draft_kind
        return name, SpeculationPlan("on", request.why or f"{length} guesses a round, {name}")

    def _make_near_tie_check(self, request: GenerateCommand) -> NearTieCheck:
        """Measures how far widths disagree, when first asked; that empties the memory."""
        if request.sampling.temperature > 0 and request.verify != "coupled":
            raise UsageError(
                f"Exact decisions cannot be told with --verify {request.verify} "
                "above temperature 0.",
                "Use --verify coupled with --exact.",
            )
        if self._logit_difference is None:
            self._logit_difference = pass_timing.measure_logit_difference(
                self._target, self._max_draft
            )
        return NearTieCheck(request.sampling, 2 * self._logit_difference)

    def _draft_length(self, request: GenerateCommand, default: int) -> int:
        asked = request.draft_length
        return min(default if asked is None else asked, self._max_draft)

    def _make_controller(
        self, request: GenerateCommand, inputs: drafters.DrafterInputs
    ) -> Controller:
        """Chooses by what was seen under the same way of verifying."""
        way = "greedy" if request.sampling.temperature <= 0 else request.verify
        known = self._pair_stats.setdefault(way, PairStats())
        kind, drafts = self._pair.draft_kind, _DRAFT_INPUTS.get(self._pair.draft_kind, "states")
        draft = drafters.make(kind, inputs) if self._draft else None
        lookup = self._get_drafter("lookup", inputs)
        return Controller(draft, lookup, self._costs, known, draft_input=drafts)

    def _get_drafter(self, name: str, inputs: drafters.DrafterInputs) -> Drafter:
        if name != "lookup":
            return drafters.make(name, inputs)
        if self._lookup_drafter is None:  # kept: it knows the chat so far
            self._lookup_drafter = drafters.make(name, inputs)
        return self._lookup_drafter

    def _is_cancelled(self) -> bool:
        return self._stop_requested

    def close(self) -> None:
        self._pair.close()
        self._draft = None


def _check_request(request: GenerateCommand, n_vocab: int) -> None:
    sampling = request.sampling
    wrong: LocalspecError | None = None
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        wrong = UsageError(
            f"A temperature of {sampling.temperature} makes no sense.", "Use 0 to 2."
        )
    elif not 0 < sampling.top_p <= 1 or not 0 <= sampling.min_p <= 1 or sampling.top_k < 0:
        what = "top-p must be in (0, 1], min-p in [0, 1], top-k 0 or more."
        wrong = UsageError(what, "Leave them out to get 0.95, 0.05 and 40.")
    elif not (math.isfinite(sampling.repeat_penalty) and sampling.repeat_penalty > 0):
        wrong = UsageError("The repeat penalty must be above 0.", "1 is off; 1.1 is common.")
    elif request.max_tokens < 1:
        wrong = UsageError("At least one token must be asked for.", "Use --max-tokens 1 or more.")
    elif not all(0 <= token < n_vocab for token in request.begun):
        wrong = UsageError("The answer's beginning is not made of this model's tokens.")
    if wrong is not None:
        raise wrong
