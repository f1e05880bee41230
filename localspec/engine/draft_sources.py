"""The draft sources of a session: prompt lookup, and a draft with its costs and statistics."""

from __future__ import annotations

from dataclasses import replace

from localspec import speculation_methods
from localspec.engine import drafters
from localspec.engine.control.controller import DraftInput, SpeculationController
from localspec.engine.control.overlapped_drafter import DraftOverlap, OverlappedDrafter
from localspec.engine.control.pair_stats import PairStats, stats_key
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.autoregressive_head import HeadRunner
from localspec.engine.drafters.lookup import LookupDrafter
from localspec.engine.llama import LlamaContext
from localspec.engine.loaded_pair import LoadedPair
from localspec.engine.prefix_cache import BranchCache
from localspec.engine.protocols import Drafter
from localspec.lazy_dataclass import dataclass
from localspec.models.draft_heads import KIND_TITLES
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import (
    DEFAULT_DRAFT_LENGTH,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
)

_DRAFT_INPUTS: dict[str, DraftInput] = {"model": "tokens", "dspark": "blocks", "dflash": "blocks"}


@dataclass(frozen=True, slots=True)
class AnswerDrafter:
    """What drafts one answer."""

    drafter: Drafter
    controller: SpeculationController | None
    """If it chooses source and length."""
    overlapped: OverlappedDrafter | None


class DraftSources:
    """Makes the drafter of each answer, and keeps what drafting learns."""

    def __init__(self, pair: LoadedPair, load: LoadCommand) -> None:
        self._pair, self._draft = pair, pair.loaded_draft
        self._lookup_drafter: LookupDrafter | None = None
        survival = load.measured.survival if load.measured else {}
        self._stats = {
            name: PairStats.from_saved(saved)
            for name, saved in survival.items()
            if not name.startswith("second draft")  # of an earlier version
        }
        context = pair.draft
        self._cache = BranchCache(context) if isinstance(context, LlamaContext) else None
        can_overlap = self._draft is not None and self._draft.can_overlap
        self._overlap = DraftOverlap(
            self._cache if can_overlap else None, load.overlap, across_devices=pair.uses_two_devices
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
            drafts_blocks=draft is not None and _DRAFT_INPUTS.get(draft.kind) == "blocks",
            prices_changes=self._pair.has_workers,
            drafts_on_gpu=draft is not None and draft.is_on_gpu,
        )

    def add_measured(self, measured: MeasuredCosts) -> MeasuredCosts:
        """`measured` with what is known of the draft."""
        costs = self.costs
        return replace(
            measured,
            c=round(costs.c, 5) if self._draft and costs.is_draft_measured else None,
            survival={name: stats.saved() for name, stats in self._stats.items()},
        )

    def choose(self, request: GenerateCommand, length: int) -> tuple[str, SpeculationPlan]:
        """The drafter's name; `length` is that of its drafts.  Raises UsageError."""
        name = request.spec
        if name in ("off", "none") or length < 1:
            stuck = "the model cannot roll back rejected tokens"
            is_possible = self._pair.max_draft >= 1
            return "none", SpeculationPlan("off", "turned off" if is_possible else stuck)
        if name == "auto":
            sources = f"{self._draft.description} and " if self._draft else ""
            return name, SpeculationPlan("probing", f"{sources}prompt lookup, when it helps")
        speculation_methods.check(name, self._draft.kind if self._draft else None)
        if name not in drafters.DRAFT_FREE and self._draft:
            name = self._draft.kind  # `model` also selects a head
        title = KIND_TITLES.get(name, name)
        return name, SpeculationPlan("on", request.why or f"max draft tokens {length}, {title}")

    def make(
        self, name: str, request: GenerateCommand, inputs: DrafterInputs, prompt: list[int]
    ) -> AnswerDrafter:
        """`inputs` without those of a draft."""
        if name in ("none", "lookup"):
            drafter = self._lookup(inputs) if name == "lookup" else drafters.make(name, inputs)
            return AnswerDrafter(drafter, None, None)
        if name != "auto":
            inputs = self.add_draft(inputs, request)
            if isinstance(inputs.head_runner, HeadRunner):
                inputs.head_runner.reads_along = True
            overlapped = self._overlap.make_drafter(inputs, request, self.costs)
            drafter = overlapped or drafters.make(name, inputs)
            return AnswerDrafter(drafter, None, overlapped)
        return self._make_controller(request, inputs, prompt)

    def _make_controller(
        self, request: GenerateCommand, inputs: DrafterInputs, prompt: list[int]
    ) -> AnswerDrafter:
        stats, lookup, draft = self.stats(request), self._lookup(inputs), self._draft
        if draft is None:
            controller = SpeculationController(
                None, lookup, self.costs, stats, draft_input="states"
            )
            return AnswerDrafter(controller, controller, None)
        inputs = self.add_draft(inputs, request)
        overlapped = self._overlap.make_drafter(inputs, request, self.costs)
        controller = SpeculationController(
            overlapped or drafters.make(draft.kind, inputs),
            lookup,
            self.costs,
            stats,
            draft_input=_DRAFT_INPUTS.get(draft.kind, "states"),
            n_draft_read=self._n_read(inputs, prompt),
        )
        controller.max_tokens_left = request.max_tokens
        if isinstance(runner := draft.head_runner, HeadRunner):
            is_worthwhile = controller.is_worthwhile(self.length(request))
            runner.reads_along = draft.is_on_gpu or is_worthwhile
            controller.max_unread = runner.max_pending
        return AnswerDrafter(controller, controller, overlapped)

    def _n_read(self, inputs: DrafterInputs, prompt: list[int]) -> int:
        """Tokens of the prompt that the draft model has read already."""
        if self._cache is None:
            return 0
        draft_prompt = prompt if inputs.draft_prompt is None else inputs.draft_prompt
        unread = len(draft_prompt) - self._cache.count_shared(draft_prompt)
        return max(0, len(prompt) - unread)

    def add_draft(self, inputs: DrafterInputs, request: GenerateCommand) -> DrafterInputs:
        """`inputs` with those of the draft."""
        assert self._draft is not None
        return replace(
            inputs,
            draft_cache=self._cache,
            head_runner=self._draft.head_runner,
            vocabularies=self._draft.vocabularies,
            draft_prompt=self._draft.prompt(request),
        )

    def stats(self, request: GenerateCommand) -> PairStats:
        """Those under the request's verification method and temperature."""
        key = stats_key(request.sampling, request.verify)
        return self._stats.setdefault(key, PairStats())

    def _lookup(self, inputs: DrafterInputs) -> LookupDrafter:
        if self._lookup_drafter is None:  # kept, because it has indexed the chat so far
            self._lookup_drafter = LookupDrafter()
        self._lookup_drafter.set_prediction(inputs.prediction)
        return self._lookup_drafter

    def length(self, request: GenerateCommand, default: int = DEFAULT_DRAFT_LENGTH) -> int:
        """The most draft tokens of a round."""
        requested = request.draft_length
        return min(default if requested is None else requested, self._pair.max_draft)

    def close(self) -> None:
        self._overlap.close()
