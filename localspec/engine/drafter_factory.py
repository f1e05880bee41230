"""Makes the drafters of answers: prompt lookup, and a draft with its costs and
statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from localspec import speculation_methods
from localspec.engine.loaded_pair import LoadedDraft, LoadedPair
from localspec.llama.context import LlamaContext
from localspec.models.draft_heads import KIND_TITLES
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import (
    DEFAULT_DRAFT_LENGTH,
    DRAFT_MAX,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
)
from localspec.spec import drafters
from localspec.spec.constraints.output_constraint import (
    ConstrainedDrafter,
    OutputConstraint,
)
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.overlapped_drafter import DraftOverlap, OverlappedDrafter
from localspec.spec.control.pair_stats import PairStats, stats_key
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.autoregressive_head import HeadRunner
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.prefix_cache import BranchCache
from localspec.spec.protocols import Drafter, Verifier

_BLOCK_HEADS = ("dspark", "dflash")


class AnswerDrafter(Struct, frozen=True):
    drafter: Drafter
    controller: SpeculationController | None  # If it chooses source and length.
    overlapped: OverlappedDrafter | None
    max_length: int  # The most draft tokens of a round.


class DrafterFactory:
    """Makes the drafter of each answer, and keeps what drafting learns."""

    def __init__(
        self, pair: LoadedPair, load: LoadCommand, is_cancelled: Callable[[], bool]
    ) -> None:
        self._pair, self._draft = pair, pair.loaded_draft
        self._is_cancelled = is_cancelled
        self._lookup = LookupDrafter()  # Kept, because it has indexed the chat so far.
        survival = load.measured.survival if load.measured else {}
        self._stats = {
            name: PairStats.from_saved(saved) for name, saved in survival.items()
        }
        context = pair.draft
        self._cache, can_overlap = None, False
        if isinstance(context, LlamaContext) and self._draft:
            saves = context.save_checkpoint if context.is_recurrent else None
            self._cache = BranchCache(context, saves)
            can_overlap = self._draft.kind == "model" and not context.needs_checkpoints
        self._overlap = DraftOverlap(
            self._cache if can_overlap else None,
            load.overlap,
            across_devices=pair.uses_two_devices,
        )
        self.set_costs(load.measured)

    @property
    def caches(self) -> list[BranchCache]:
        """The KV cache of the draft model, if there is one."""
        return [] if self._cache is None else [self._cache]

    def set_costs(self, measured: MeasuredCosts | None) -> None:
        draft = self._draft
        self.costs = PassCosts(
            measured,
            drafts_blocks=draft is not None and draft.kind in _BLOCK_HEADS,
            settling=1 if self._pair.has_workers else self._pair.target.captured_after,
            drafts_on_gpu=draft is not None and draft.is_on_gpu,
        )

    def saved_stats(self) -> dict[str, Any]:
        return {name: stats.saved() for name, stats in self._stats.items()}

    def choose(self, request: GenerateCommand) -> tuple[str, SpeculationPlan]:
        """The drafter's name.  Raises UsageError."""
        name, length = request.spec, self.length(request)
        if name in ("off", "none") or length < 1:
            stuck = (
                ""
                if self._pair.max_draft
                else "the model cannot roll back rejected tokens"
            )
            return "none", SpeculationPlan("off", stuck or "turned off")
        if name == "auto":
            sources = f"{self._draft.description} and " if self._draft else ""
            return name, SpeculationPlan(
                "probing", f"{sources}prompt lookup, when it helps"
            )
        speculation_methods.check(name, self._draft.kind if self._draft else None)
        if name not in drafters.DRAFT_FREE and self._draft:
            name = self._draft.kind  # `model` also selects a head
        title = KIND_TITLES.get(name, name)
        return name, SpeculationPlan(
            "on", request.why or f"max draft tokens {length}, {title}"
        )

    def make(
        self,
        name: str,
        request: GenerateCommand,
        verifier: Verifier,
        prompt: list[int],
        constraint: OutputConstraint | None,
    ) -> AnswerDrafter:
        draft = self._draft if name not in drafters.DRAFT_FREE else None
        overlapped, drafter = None, None
        inputs = self.inputs(request, verifier, len(prompt), draft, constraint)
        if draft is not None:
            overlapped = self._overlap.make_drafter(inputs, request, self.costs)
            drafter = overlapped or drafters.make(draft.kind, inputs)
        lookup = self._lookup
        lookup.set_prediction(inputs.prediction)
        runner = (
            inputs.head_runner if isinstance(inputs.head_runner, HeadRunner) else None
        )
        if name != "auto":
            if runner is not None:
                runner.reads_along = True
            drafter = drafter or (
                lookup if name == "lookup" else drafters.make(name, inputs)
            )
            if constraint is not None and name != "none":
                drafter = ConstrainedDrafter(drafter, constraint)
            return AnswerDrafter(drafter, None, overlapped, self.length(request))
        controller = SpeculationController(
            drafter,
            lookup,
            self.costs,
            self.stats(request),
            n_prompt=len(prompt),
            n_draft_read=self._n_read(inputs, prompt),
        )
        controller.max_tokens_left = request.max_tokens
        if runner is not None:
            n_new = runner.count_new(prompt)
            runner.reads_along = controller.pays_to_read(n_new, self.length(request))
            controller.max_unread = runner.max_pending
        whole = (
            controller
            if constraint is None
            else ConstrainedDrafter(controller, constraint)
        )
        return AnswerDrafter(
            whole, controller, overlapped, self.length(request, DRAFT_MAX)
        )

    def inputs(
        self,
        request: GenerateCommand,
        verifier: Verifier,
        prompt_length: int,
        draft: LoadedDraft | None,
        constraint: OutputConstraint | None = None,
    ) -> DrafterInputs:
        vocabulary, text = self._pair.target.vocabulary, request.prediction
        prediction = vocabulary.tokenize(text, add_special=False, parse_special=False)
        return DrafterInputs(
            draft_cache=self._cache if draft else None,
            verifier=verifier,
            sampling=request.sampling,
            prompt_length=prompt_length,
            n_vocab=vocabulary.n_tokens,
            is_eog=vocabulary.is_eog,
            cancelled=self._is_cancelled,
            head_runner=draft.head_runner if draft else None,
            constraint=constraint,
            prediction=tuple(prediction) if text else (),
            keep_logits=request.probabilities,
            vocabularies=draft.vocabularies if draft else None,
            draft_prompt=draft.prompt(request) if draft else None,
        )

    def _n_read(self, inputs: DrafterInputs, prompt: list[int]) -> int:
        """Tokens of the prompt that the draft model has read already."""
        if self._cache is None:
            return 0
        draft_prompt = prompt if inputs.draft_prompt is None else inputs.draft_prompt
        unread = len(draft_prompt) - self._cache.count_shared(draft_prompt)
        return max(0, len(prompt) - unread)

    def stats(self, request: GenerateCommand) -> PairStats:
        """Those under the request's verification method and temperature."""
        key = stats_key(request.sampling, request.verify)
        return self._stats.setdefault(key, PairStats())

    def length(
        self, request: GenerateCommand, default: int = DEFAULT_DRAFT_LENGTH
    ) -> int:
        """The most draft tokens of a round."""
        requested = request.draft_length
        return min(default if requested is None else requested, self._pair.max_draft)

    def close(self) -> None:
        self._overlap.close()
