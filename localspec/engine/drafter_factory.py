"""Chooses what drafts for each answer, and keeps a pair's costs and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from msgspec.structs import replace

from localspec import draft_kinds, extras
from localspec.engine.loaded_pair import LoadedDraft, LoadedPair
from localspec.llama.context import LlamaContext
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import (
    DEFAULT_DRAFT_LENGTH,
    DRAFT_MAX,
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    VerifyMode,
)
from localspec.spec import drafters
from localspec.spec.control.controller import SpeculationController
from localspec.spec.control.pair_beliefs import (
    SIBLING_PRIOR,
    STRANGER_PRIOR,
    PairBeliefs,
    temperature_class,
)
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.autoregressive_head import HeadRunner
from localspec.spec.drafters.lookup import LookupDrafter
from localspec.spec.drafters.text_only import TextOnlyDrafter, leave_out_pictures
from localspec.spec.picture_ids import has_pictures, without_pictures
from localspec.spec.prefix_cache import BranchCache
from localspec.spec.prepared_answer import DraftRequest, PreparedAnswer
from localspec.spec.protocols import Drafter
from localspec.spec.speculative_loop import Drafting


class OverlappingDrafter(Drafter, Protocol):
    """A drafter that works while the target verifies."""

    def join(self, drafting: Drafting) -> Drafting:
        """The drafting of an answer, with its target passes overlapped."""
        ...


class OverlapSource(Protocol):
    """What a folder of `extras/` keeps across the answers of a pair."""

    def may_overlap(self, method: str, overlap: bool | None) -> bool:
        """Whether drafting overlaps an answer if its verifier is `coupled`.

        `method` and `overlap` are those of the request.
        """
        ...

    def make_drafter(
        self, inputs: DrafterInputs, request: DraftRequest, costs: PassCosts
    ) -> OverlappingDrafter | None:
        """None if drafting does not overlap this answer. Raises UsageError."""
        ...

    def close(self) -> None: ...


class DrafterFactory:
    """Makes the drafter of each answer, and keeps what drafting learns."""

    def __init__(
        self, pair: LoadedPair, load: LoadCommand, is_cancelled: Callable[[], bool]
    ) -> None:
        self._pair = pair
        self._draft = pair.loaded_draft
        self._is_cancelled = is_cancelled
        self._lookup = LookupDrafter()
        """Prompt lookup is kept, because it has indexed the chat so far."""
        self._beliefs: dict[str, PairBeliefs] = {}
        """The beliefs by temperature class."""
        if load.measured is not None:
            for name, saved in load.measured.survival.items():
                self._beliefs[name] = PairBeliefs.from_saved(saved, self._prior)

        context = pair.draft
        self._cache: BranchCache | None = None
        """The KV cache of the draft model, if the draft is one."""
        branch_cache: BranchCache | None = None
        if isinstance(context, LlamaContext) and self._draft:
            saves = context.save_checkpoint if context.is_recurrent else None
            self._cache = BranchCache(context, saves)
            if self._draft.kind == "model" and not context.needs_checkpoints:
                branch_cache = self._cache
        self.set_costs(load.measured)
        self._overlaps: list[OverlapSource] = []
        try:
            for make_overlap in extras.load("DRAFT_OVERLAPS"):
                overlap = make_overlap(
                    branch_cache, load.overlap, across_devices=pair.uses_two_devices
                )
                self._overlaps.append(overlap)
        except BaseException:
            self.close()
            raise

    @property
    def caches(self) -> list[BranchCache]:
        """The KV cache of the draft model, if there is one."""
        return [] if self._cache is None else [self._cache]

    def set_costs(self, measured: MeasuredCosts | None) -> None:
        drafts_blocks = False
        drafts_on_gpu = False
        if self._draft is not None:
            drafts_blocks = draft_kinds.kinds()[self._draft.kind].drafts_blocks
            drafts_on_gpu = self._draft.is_on_gpu
        settling = self._pair.target.captured_after
        if self._pair.has_remote_layers:
            settling = 1
        self.costs = PassCosts(
            measured,
            drafts_blocks=drafts_blocks,
            settling=settling,
            drafts_on_gpu=drafts_on_gpu,
            max_rollback=self._pair.target.rollback,
            usual=self._pair.usual_costs,
        )

    @property
    def _prior(self) -> tuple[float, ...]:
        """Acceptance by confidence, before any draft token was judged."""
        if self._draft is None:
            return SIBLING_PRIOR
        kind = draft_kinds.kinds()[self._draft.kind]
        is_foreign = kind.needs == "other-vocabulary" or bool(kind.package)
        return STRANGER_PRIOR if is_foreign else SIBLING_PRIOR

    def saved_beliefs(self) -> dict[str, Any]:
        return {name: beliefs.saved() for name, beliefs in self._beliefs.items()}

    def choose_verifier(self, request: GenerateCommand) -> GenerateCommand:
        """The request, with a verifier in place of `auto`.

        `block` accepts the most draft tokens, but its text depends on what is drafted.
        With `coupled` a seed gives one text. So `coupled` is chosen where `block` gains
        nothing: at temperature 0, at which all mass is on one token, and where nothing
        is drafted. Overlapped drafting works with `coupled` only.
        """
        if request.verify != "auto":
            return request
        verify: VerifyMode = "block"
        if (
            request.sampling.temperature <= 0
            or request.spec in ("off", "none")
            or request.draft_length == 0
            or self._may_overlap(request)
        ):
            verify = "coupled"
        return replace(request, verify=verify)

    def _may_overlap(self, request: GenerateCommand) -> bool:
        """Whether drafting may overlap the verification of this answer."""
        if self._draft is None:
            return False
        return any(
            source.may_overlap(request.spec, request.overlap)
            for source in self._overlaps
        )

    def make(self, answer: PreparedAnswer) -> Drafting:
        """The drafting of one answer. Raises UsageError for a method that the pair lacks.

        It drafts with the drafter of the loaded draft or, in its place, an overlapped
        one. With `auto`, a controller chooses in each round between that and prompt
        lookup.
        """
        name, plan = self._choose(answer)
        draft = None
        if name != "none" and not draft_kinds.needs_no_draft(name):
            draft = self._draft
        inputs = self.inputs(answer, draft)
        self._lookup.begin_answer(inputs.prediction, answer.drafting.owner)
        overlapped = self._make_overlapped(answer, inputs, draft)
        source = overlapped or self._make_source(name, draft, inputs)
        text_only = None
        reads_pictures = source is None or source is self._lookup
        if not reads_pictures and has_pictures(answer.prompt):
            assert source is not None
            text_only = TextOnlyDrafter(source)
            source = text_only
        runner = None
        if isinstance(inputs.head_runner, HeadRunner):
            runner = inputs.head_runner

        if name == "auto":
            controller = self._make_controller(
                answer, inputs=inputs, source=source, runner=runner
            )
            drafting = Drafting(
                controller,
                self._length(answer, DRAFT_MAX, most=self._pair.max_draft),
                plan,
                plan_change=controller.plan_change,
                on_round=controller.record_round,
            )
        else:
            if runner is not None:
                runner.reads_along = True
            assert source is not None
            most = self._pair.max_model_draft
            if name == "lookup":
                most = self._pair.max_draft
            max_length = 0
            if name != "none":
                max_length = self._length(answer, DEFAULT_DRAFT_LENGTH, most=most)
            drafting = Drafting(source, max_length, plan)
        if overlapped is not None:
            drafting = overlapped.join(drafting)
            if text_only is not None:
                overlap = text_only.leave_out_pictures_of(drafting.overlap)
                drafting = replace(drafting, overlap=overlap)
        return drafting

    def _make_overlapped(
        self, answer: PreparedAnswer, inputs: DrafterInputs, draft: LoadedDraft | None
    ) -> OverlappingDrafter | None:
        """The first that overlaps this answer, if the draft is used. Raises UsageError."""
        if draft is None:
            return None
        for overlap in self._overlaps:
            drafter = overlap.make_drafter(inputs, answer.drafting, self.costs)
            if drafter is not None:
                return drafter
        return None

    def _make_source(
        self, name: str, draft: LoadedDraft | None, inputs: DrafterInputs
    ) -> Drafter | None:
        """The drafter of a method; that of `auto` is the loaded draft's, or None."""
        if name == "lookup":
            return self._lookup
        if name != "auto":
            return drafters.make(name, inputs)
        if draft is None:
            return None
        return drafters.make(draft.kind, inputs)

    def _choose(self, answer: PreparedAnswer) -> tuple[str, SpeculationPlan]:
        """The drafter's name (or `auto`, `none`), and the plan that is reported.

        Raises UsageError.
        """
        name = answer.drafting.method
        length = self._length(answer, DEFAULT_DRAFT_LENGTH, most=self._pair.max_draft)
        if name in ("off", "none") or length < 1:
            why = "turned off"
            if not self._pair.max_draft:
                why = "the model cannot roll back rejected tokens"
            return "none", SpeculationPlan("off", why)
        if name == "auto":
            why = "prompt lookup, when it helps"
            if self._draft:
                why = f"{self._draft.description} and {why}"
            return name, SpeculationPlan("probing", why)
        loaded_kind = None if self._draft is None else self._draft.kind
        draft_kinds.check(name, loaded_kind)
        if name == "model" and loaded_kind is not None:
            name = loaded_kind  # `model` also selects a head.
        title = draft_kinds.head_title(name) or name
        why = answer.drafting.why or f"max draft tokens {length}, {title}"
        return name, SpeculationPlan("on", why)

    def _make_controller(
        self,
        answer: PreparedAnswer,
        *,
        inputs: DrafterInputs,
        source: Drafter | None,
        runner: HeadRunner | None,
    ) -> SpeculationController:
        prompt = answer.prompt
        controller = SpeculationController(
            source,
            self._lookup,
            self.costs,
            self.beliefs(answer),
            n_draft_read=self._n_read(inputs, prompt),
        )
        controller.max_tokens_left = answer.max_tokens
        controller.max_drafted = self._pair.max_model_draft
        if runner is not None:
            n_new = runner.count_new(without_pictures(prompt))
            runner.reads_along = controller.pays_to_read(n_new)
            controller.max_unread = runner.max_pending
        return controller

    def inputs(
        self, answer: PreparedAnswer, draft: LoadedDraft | None
    ) -> DrafterInputs:
        """The inputs of a drafter that uses `draft`, or of one that needs none."""
        vocabulary = self._pair.target.vocabulary
        inputs = DrafterInputs(
            draft_cache=None,
            verifier=answer.verifier,
            sampling=answer.sampling,
            prompt_length=len(answer.prompt),
            n_vocab=vocabulary.n_tokens,
            is_eog=vocabulary.is_eog,
            cancelled=self._is_cancelled,
            constraint=answer.constraint,
            prediction=answer.drafting.prediction,
            keep_logits=answer.n_alternatives is not None,
        )
        if has_pictures(answer.prompt):
            inputs = leave_out_pictures(inputs, answer.prompt)
        if draft is None:
            return inputs
        return replace(
            inputs,
            draft_cache=self._cache,
            head_runner=draft.head_runner,
            prepared=draft.prepared,
            draft_prompt=answer.drafting.draft_prompt,
        )

    def _n_read(self, inputs: DrafterInputs, prompt: list[int]) -> int:
        """About how many tokens of the prompt the draft model has read already.

        If it reads a prompt of its own, the same number of tokens counts as unread.
        """
        if self._cache is None:
            return 0
        draft_prompt = inputs.draft_prompt
        if draft_prompt is None:
            draft_prompt = without_pictures(prompt)
        unread = len(draft_prompt) - self._cache.count_shared(draft_prompt)
        return max(0, len(prompt) - unread)

    def beliefs(self, answer: PreparedAnswer) -> PairBeliefs:
        """What is believed of the pair at the answer's temperature."""
        name = temperature_class(answer.sampling)
        return self._beliefs.setdefault(name, PairBeliefs(self._prior))

    def _length(self, answer: PreparedAnswer, default: int, *, most: int) -> int:
        """The most draft tokens of a round."""
        length = answer.drafting.max_length
        if length is None:
            length = default
        return min(length, most)

    def close(self) -> None:
        for overlap in self._overlaps:
            overlap.close()
