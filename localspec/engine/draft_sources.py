"""The draft sources of a session: prompt lookup, and drafts with their costs and statistics."""

from __future__ import annotations

from dataclasses import replace

from localspec import speculation_methods
from localspec.engine import drafters
from localspec.engine.control.acceptance_stats import PairStats, stats_key
from localspec.engine.control.controller import Controller, DraftInput
from localspec.engine.control.draft_choice import DraftChoice
from localspec.engine.control.overlapped_drafter import DraftOverlap, OverlappedDrafter
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.drafters import DrafterInputs
from localspec.engine.drafters.autoregressive_head import HeadRunner
from localspec.engine.drafters.lookup import LookupDrafter
from localspec.engine.llama import LlamaContext
from localspec.engine.loaded_draft import LoadedDraft
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
    controller: Controller | DraftChoice | None
    """If it chooses source and length."""
    overlapped: OverlappedDrafter | None


class DraftSources:
    """Makes the drafter of each answer, and keeps what drafting learns."""

    def __init__(self, pair: LoadedPair, load: LoadCommand) -> None:
        self._pair, self._drafts = pair, pair.drafts
        self._lookup_drafter: LookupDrafter | None = None
        survival = load.measured.survival if load.measured else {}
        self._stats = {name: PairStats.from_saved(saved) for name, saved in survival.items()}
        self._caches = [
            BranchCache(draft.context) if isinstance(draft.context, LlamaContext) else None
            for draft in self._drafts
        ]
        can_overlap = len(self._drafts) == 1 and self._drafts[0].can_overlap
        self._overlap = DraftOverlap(
            self._caches[0] if can_overlap else None,
            load.overlap,
            across_devices=pair.uses_two_devices,
        )
        self._costs: list[PassCosts] = []
        self.set_costs(load.measured)

    @property
    def caches(self) -> list[BranchCache]:
        """The KV caches of the draft models."""
        return [cache for cache in self._caches if cache is not None]

    @property
    def costs(self) -> PassCosts:
        """Those of the first draft."""
        return self._costs[0]

    def set_costs(self, measured: MeasuredCosts | None) -> None:
        """Replace the costs, but for a second draft's unless `measured` has them."""
        second_c = measured.second_c if measured else None
        if measured and second_c is None and len(self._costs) > 1:
            second_c = self._second_c()
        first = self._make_costs(measured, self._drafts[0] if self._drafts else None)
        self._costs = [first]
        for draft in self._drafts[1:]:
            costs = replace(measured, c=second_c) if measured else None
            self._costs.append(self._make_costs(costs, draft))

    def _make_costs(self, measured: MeasuredCosts | None, draft: LoadedDraft | None) -> PassCosts:
        return PassCosts(
            measured,
            drafts_blocks=draft is not None and _DRAFT_INPUTS.get(draft.kind) == "blocks",
            prices_changes=self._pair.has_workers,
            drafts_on_gpu=draft is not None and draft.is_on_gpu,
        )

    def _second_c(self) -> float | None:
        second = self._costs[1] if len(self._costs) > 1 else None
        return round(second.c, 5) if second and second.is_draft_measured else None

    def add_measured(self, measured: MeasuredCosts) -> MeasuredCosts:
        """`measured` with what is known of the drafts."""
        costs = self.costs
        return replace(
            measured,
            c=round(costs.c, 5) if self._drafts and costs.is_draft_measured else None,
            second_c=self._second_c(),
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
            sources = f"{self._pair.draft_description} and " if self._drafts else ""
            return name, SpeculationPlan("probing", f"{sources}prompt lookup, when it helps")
        speculation_methods.check(name, [draft.kind for draft in self._drafts])
        if name not in drafters.DRAFT_FREE and (draft := self._pair.draft_of_kind(name)):
            name = draft.kind  # `model` also selects a head
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
            draft = self._pair.draft_of_kind(name)
            assert draft is not None
            inputs = self.add_draft(inputs, draft, request)
            if isinstance(draft.head_runner, HeadRunner):
                draft.head_runner.reads_along = True
            overlapped = self._overlap.make_drafter(inputs, request, self.costs)
            drafter = overlapped or drafters.make(draft.kind, inputs)
            return AnswerDrafter(drafter, None, overlapped)
        return self._make_controller(request, inputs, prompt)

    def _make_controller(
        self, request: GenerateCommand, inputs: DrafterInputs, prompt: list[int]
    ) -> AnswerDrafter:
        """A controller for each draft; one without a draft model if there is none."""
        stats, lookup = self.stats(request), self._lookup(inputs)
        overlapped = None
        if not self._drafts:
            controller = Controller(None, lookup, self.costs, stats, draft_input="states")
            return AnswerDrafter(controller, controller, None)
        controllers: list[Controller] = []
        for i, draft in enumerate(self._drafts):
            own = self.add_draft(inputs, draft, request)
            if i == 0:
                overlapped = self._overlap.make_drafter(own, request, self.costs)
            drafter = (overlapped if i == 0 else None) or drafters.make(draft.kind, own)
            draft_stats = self.stats(request, i)
            draft_stats.acceptance.lookup = stats.acceptance.lookup
            controllers.append(
                Controller(
                    drafter,
                    lookup,
                    self._costs[i],
                    draft_stats,
                    draft_input=_DRAFT_INPUTS.get(draft.kind, "states"),
                    n_draft_read=self._n_read(i, own, prompt),
                )
            )
            controllers[-1].max_tokens_left = request.max_tokens
            if isinstance(runner := draft.head_runner, HeadRunner):
                is_worthwhile = controllers[-1].is_worthwhile(self.length(request))
                runner.reads_along = draft.is_on_gpu or is_worthwhile
                controllers[-1].max_unread = runner.max_pending
        controller_of_all = controllers[0] if len(controllers) == 1 else DraftChoice(controllers)
        return AnswerDrafter(controller_of_all, controller_of_all, overlapped)

    def _n_read(self, index: int, inputs: DrafterInputs, prompt: list[int]) -> int:
        """Tokens of the prompt that a draft model has read already."""
        cache = self._caches[index]
        if cache is None:
            return 0
        draft_prompt = prompt if inputs.draft_prompt is None else inputs.draft_prompt
        unread = len(draft_prompt) - cache.count_shared(draft_prompt)
        return max(0, len(prompt) - unread)

    def add_draft(
        self, inputs: DrafterInputs, draft: LoadedDraft, request: GenerateCommand
    ) -> DrafterInputs:
        """`inputs` with those of a draft."""
        return replace(
            inputs,
            draft_cache=self._caches[self._drafts.index(draft)],
            head_runner=draft.head_runner,
            vocabularies=draft.vocabularies,
            draft_prompt=draft.prompt(request),
        )

    def stats(self, request: GenerateCommand, index: int = 0) -> PairStats:
        """Those of a draft under the request's verification method and temperature."""
        key = stats_key(request.sampling, request.verify)
        return self._stats.setdefault(f"second draft, {key}" if index else key, PairStats())

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
