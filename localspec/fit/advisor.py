"""Chooses the settings of a pair: the fastest ones that fit into memory."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import Hint, UsageError
from localspec.fit import machine_profile, placement
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.plan import (
    FitVerdict,
    Plan,
    confirm_plan,
    estimate_plan,
    place_projector,
)
from localspec.fit.shape import ModelShape
from localspec.fit.speed import LONG_CONTEXT, UseCase
from localspec.machine import remote_devices
from localspec.machine.device import HOST, reserve_bytes
from localspec.machine.llama_params import (
    CTX_STEP,
    DEFAULT_CTX,
    is_quantized,
    round_up_to_step,
)
from localspec.models.projector_shape import ProjectorShape
from localspec.protocol.wire import (
    ALL_LAYERS,
    MODEL_DRAFT_MAX,
    KvType,
    LoadCommand,
)
from localspec.units import gib, token_rate

_SNAPSHOTS = (6, 4, 2)
"""Snapshots of a recurrent state, the most first: so many tokens a head may draft.

Each takes a copy of the state, 150 MiB for a 27B, and MTP layers are used with 2 to 4.
Without a draft the search also tries 0.
"""

CONTEXT_SIZES = (32768, 16384, DEFAULT_CTX, 4096, 2048)  # Sizes the search tries.
_LONG_CTX_FREE_SHARE = 0.1
"""Of the usable memory, that a context longer than the use wants leaves free."""
_KV_TYPE_SCORES: dict[KvType, float] = {
    "f32": 1.0,
    "bf16": 1.0,
    "f16": 1.0,
    "q8_0/f16": 0.99,
    "q8_0": 0.98,
    "q4_0": 0.92,
}
"""Quality of answers by KV cache type, relative to f16."""
_SEARCHED_KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0")
"""KV cache types of the search.

Others cost quality or memory: a user asks for them.
"""
_TIGHT_SCORE = 0.7
"""What is left of settings that use a reserve, beside others that do not."""
_LONG_CTX_SCORE = 1.05
# Without swa_full a rollback may change the last bits of later logits.
_SWA_CUT_SCORE = 0.985
_EXACT_KV: KvType = "q8_0/f16"
"""The fastest type with which a CPU's attention computes every width alike."""
_EXACT_NOTE = (
    "Exact mode: the KV cache is {}, so that this CPU's attention computes passes of every width "
    "alike. Products with weights may still differ by width: localspec verify --exact shows it."
)
_TYPICAL_DRAFT_SPEEDUP = 1.25  # Speed-up by a draft if the speed is unknown.
_GPU_BYTES_PER_S = 400e9
_CPU_BYTES_PER_S = 40e9
"""Bandwidths that rank settings if the real ones are unknown."""
_MIN_REMOTE_GAIN = 1.25
"""The speed-up that is worth sending other computers the model at each load."""
_SMALL_UBATCH = 128
"""Batch size of a draft model that is short of memory.

It reads prompts slower, with a quarter of the buffers.
"""
_MAX_NEW_SEARCHES = 3
"""Searches for other settings after llama.cpp has counted more than was estimated."""


class SettingsRequest(Struct, frozen=True):
    """Settings requested by the user; None means automatic."""

    load: LoadCommand
    ctx: int | None = None
    kv: KvType | None = None  # None: f16, or what fits.
    n_gpu_layers: int | None = None
    cpu_moe: int | None = None
    draft_n_gpu_layers: int | None = None
    default_draft: str = ""
    """What the draft is if nobody named it, such as "the model's own MTP layer".

    Then it is left out unless `pair suggest` would rank it before prompt lookup.
    """
    draft_note: str = ""  # A remark to show about the draft.
    draft_length: int | None = None
    """The most draft tokens of a round that were asked for; None: what is usual.

    On a hybrid it is the longest copy: one of more than 6 tokens needs a checkpoint
    and rows of logits.
    """
    exact: bool = False
    skip_memory_check: bool = False  # Load even if the estimate exceeds the memory.
    keeps_file: bool = False
    """Load the target's own file, although there may be a faster copy of it.

    A conversation that it has begun does not go on with another file.
    """
    can_skip_remote: bool = False
    """Use other computers only if they can be reached and are worth it.

    They are if the pair does not fit here, or is slower.
    """


class SettingsChange(Struct, frozen=True):
    """One setting that could be another."""

    change: str  # For people, such as "context 4,096".
    flags: str  # For the command line, such as "--ctx 4096".
    drawback: str
    load: LoadCommand  # With the change.


class MemorySaving(Struct, frozen=True):
    """A single settings change that saves memory."""

    change: str  # As in SettingsChange.
    flags: str
    saved_bytes: int  # On the tightest device.
    drawback: str
    plan: Plan  # With the change.


class DraftRank(NamedTuple):
    """Ranks the drafts of one target, prompt lookup among them: the least is the best.

    The shortest time wins, unless it costs the long context or the last memory.
    """

    does_not_fit: bool
    is_tight: bool  # Though whole, it leaves less than the reserve.
    is_short: bool  # There is no room for a long context.
    is_full: bool
    loses: bool
    seconds: float  # For a token; infinite if unknown.

    @property
    def memory(self) -> tuple[bool, bool, bool, bool]:
        """The part that depends on memory alone."""
        return self.does_not_fit, self.is_tight, self.is_short, self.is_full


class SettingsAdvisor:
    """Chooses settings of one pair on one machine."""

    def __init__(
        self,
        target: ModelShape,
        draft: ModelShape | None,
        machine: MachineProfile,
        use: UseCase | None = None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.machine = machine
        self.use = use or UseCase()

    def estimate(self, load: LoadCommand, *, with_speed: bool = True) -> Plan:
        return estimate_plan(
            load,
            self.target,
            self.draft,
            machine=self.machine,
            use=self.use,
            with_speed=with_speed,
        )

    def advise(self, request: SettingsRequest) -> Plan:
        """The best settings that fit; if none do, the default ones.

        A request that leaves the draft or other computers open is answered by the
        better of two requests that do not.  Raises UsageError.
        """
        if request.default_draft and request.load.draft:
            return self._with_or_without_draft(request)
        if request.can_skip_remote:
            variants = self._with_and_without_remote(request)
            plans = [advisor.advise(variant) for advisor, variant in variants]
            return max(plans, key=_rank_with_remote)
        first = self.estimate(self.default_settings(request))
        best = self._improve(request, first)
        note = ""
        if request.exact:
            load = self._make_attention_exact(request, best)
            best = self.estimate(load)
            note = _EXACT_NOTE.format(load.target_settings.kv_type)
        chosen = _describe_settings(best, first)
        if request.draft_length is not None:
            # On a hybrid it takes memory; elsewhere only a lack of it is worth saying.
            longest = min(best.load.draft_max, request.draft_length)
            if self.target.can_rollback or longest < request.draft_length:
                chosen += f", drafts of up to {longest} tokens"
        return replace(
            best,
            chosen=chosen,
            shortage=_describe_shortage(best, first),
            exact_note=note,
        )

    def advise_counted(
        self, request: SettingsRequest, pair: PairShapes, *, only_if_close: bool = False
    ) -> Plan:
        """As `advise`, with the memory that llama.cpp counts for these settings.

        If it counts so much more than the estimate that the pair does not fit, the
        search begins again, with as much less free memory.  Example: of 8 GiB, 7.9 are
        estimated and 8.1 counted; so settings are sought that are estimated at 7.8 GiB
        at most. `only_if_close`: counts only where the estimate's error could change
        the verdict.
        """
        plan = self.advise(request)
        counted = self._count(plan, pair, only_if_close=only_if_close)
        advisor = self
        for _ in range(_MAX_NEW_SEARCHES):
            if counted.verdict.can_load or not plan.verdict.can_load:
                break
            # What earlier rounds took stays taken: with as much memory as before, the
            # search would find the same settings.
            advisor = advisor._with_less_memory(plan, counted)
            found = advisor.advise(request)
            if not found.verdict.can_load:
                break
            # It is judged by the memory that is really free.
            plan = replace(
                self._for_devices_of(found).estimate(found.load),
                chosen=found.chosen,
                shortage=found.shortage,
                exact_note=found.exact_note,
                skipped_draft=found.skipped_draft,
            )
            counted = self._count(plan, pair, only_if_close=only_if_close)
        return counted

    def with_projector(
        self,
        plan: Plan,
        projector: ProjectorShape,
        request: SettingsRequest,
        pair: PairShapes | None = None,
        *,
        on_gpu: bool = True,
        max_rows: int | None = None,
    ) -> Plan:
        """The plan with the target's projector, by `place_projector`.

        If a context that nobody asked for takes its room on the GPU, a shorter one is
        taken, down to the one that counts as long: a picture that a CPU reads takes half
        a minute. `pair`: to count that again, if the plan was counted.
        """
        place = partial(
            place_projector, shape=projector, on_gpu=on_gpu, max_rows=max_rows
        )
        placed = place(plan)
        is_on_gpu = placed.projector is not None and placed.projector.on_gpu
        if is_on_gpu or not on_gpu or request.ctx is not None or not plan.device_fits:
            return placed
        for ctx in CONTEXT_SIZES:
            if LONG_CONTEXT <= ctx < _n_ctx(plan.load):
                shorter = self.estimate(with_both_settings(plan.load, n_ctx=ctx))
                if pair is not None and not plan.memory.is_coarse:
                    shorter = self._count(shorter, pair, only_if_close=False)
                chosen = _describe_settings(shorter, shorter)
                shorter = replace(
                    shorter,
                    chosen=chosen,
                    exact_note=plan.exact_note,
                    skipped_draft=plan.skipped_draft,
                )
                found = place(shorter)
                if found.projector is not None and found.projector.on_gpu:
                    return found
        return placed

    def _count(self, plan: Plan, pair: PairShapes, *, only_if_close: bool) -> Plan:
        if only_if_close and not plan.is_too_close:
            return plan
        if not plan.load.draft:
            pair = PairShapes(pair.target)
        return confirm_plan(plan, pair, self._for_devices_of(plan).machine)

    def _with_less_memory(self, plan: Plan, counted: Plan) -> SettingsAdvisor:
        """For a machine that lacks what the count has found beyond the estimate."""
        estimated = {each.device.name: each.needed for each in plan.all_fits}
        excess: dict[str, int] = {}
        for each in counted.all_fits:
            name = each.device.name
            excess[name] = each.needed - estimated[name]
        machine = machine_profile.take_memory(self.machine, excess)
        return SettingsAdvisor(self.target, self.draft, machine, self.use)

    def _for_devices_of(self, plan: Plan) -> SettingsAdvisor:
        """For the same machine, without other computers if the plan uses none."""
        if plan.load.target_settings.remote_hosts:
            return self
        return self._without_remote()

    def _without_remote(self) -> SettingsAdvisor:
        alone = machine_profile.without_remote(self.machine)
        return SettingsAdvisor(self.target, self.draft, alone, self.use)

    def _improve(self, request: SettingsRequest, first: Plan) -> Plan:
        """The best of the settings left open; `first` has the default ones.

        What is tight counts less, so the best may be one with layers or experts in RAM.
        It is not taken if a plan that is whole on the GPU is better but for that, and
        leaves other programs what they need. Example: Qwen3.8 27B in IQ4_XS reaches 23
        tokens per second on a card of 16 GB, tight, and 19 with one layer in RAM.
        """
        if first.verdict is FitVerdict.FITS:
            return self._extend_context(request, first)
        if first.has_room:  # The free memory of a GPU is unknown; the rest has room.
            return first
        candidates = [*self._candidates(request)]
        if first.verdict.can_load:
            candidates.insert(0, first)
        best = max(candidates, key=self._score, default=first)
        if best.is_partly_in_ram:
            whole = [plan for plan in candidates if plan.is_safely_whole]
            return max([best, *whole], key=self._score_without_reserve)
        return best

    def _with_or_without_draft(self, request: SettingsRequest) -> Plan:
        named = replace(request, default_draft="")
        drafting = self.advise(named)
        plain = self.advise(replace(named, load=replace(named.load, draft=None)))
        rank = rank_draft(drafting)
        plain_rank = rank_draft(plain)
        if not drafting.load.draft:
            reason = "there is no room for it"
        elif rank <= plain_rank:
            return drafting
        elif rank.memory > plain_rank.memory:
            reason = "it leaves too little memory"
        else:
            rate = token_rate(estimate_tokens_per_second(drafting))
            plain_rate = token_rate(estimate_tokens_per_second(plain))
            reason = f"about {rate} with it, {plain_rate} without"
        skipped = f"Not drafting with {request.default_draft}: {reason}."
        return replace(plain, skipped_draft=skipped)

    def _make_attention_exact(
        self, request: SettingsRequest, plan: Plan
    ) -> LoadCommand:
        """Keys of the target in q8_0, if they are in f16.

        Raises UsageError where that cannot be, or does not suffice.
        """
        load = plan.load
        target = self.target
        others = []
        for name, part in plan.memory.target.on.items():
            if name != HOST and part.weights + part.kv:
                others.append(name)
        # With some attention llama.cpp refuses two types.
        has_one_type = target.is_mla or target.traits.needs_one_kv_type
        widths = {layer.n_embd_head_k for layer in target.layers if layer.has_kv}
        if others:
            message = (
                f"Exact mode is for CPUs: {others[0]} computes passes by their width."
            )
            remote = remote_devices.option_name()
            # A Hint writes options in braces: the text is "and no {rpc}", for example.
            no_remote = f" and no {{{remote}}}" if remote else ""
            hint = f"Use {{gpu_layers=0}}{no_remote}, or no exact mode."
        elif load.target_settings.flash_attn == "off":
            message = "Exact mode needs flash attention."
            hint = "Use {flash_attn=auto}, or no exact mode."
        elif request.kv in ("f16", "bf16", "f32"):
            message = f"Exact mode does not work with a KV cache in {request.kv}."
            hint = f"Use {{kv={_EXACT_KV}}}, or no exact mode."
        elif load.target_settings.kv_type != "f16":
            return load
        elif has_one_type or any(width % 32 for width in widths):  # blocks of q8_0
            message = "Exact mode needs keys in q8_0, which this model cannot have."
            hint = "Use no exact mode."
        else:
            return with_settings(load, kv_type=_EXACT_KV)
        raise UsageError(message, Hint(hint))

    def _with_and_without_remote(
        self, request: SettingsRequest
    ) -> Iterator[tuple[SettingsAdvisor, SettingsRequest]]:
        request = replace(request, can_skip_remote=False)
        load = with_settings(request.load, remote_hosts=())
        yield self._without_remote(), replace(request, load=load)
        if self.machine.remote_hosts:
            yield self, request

    def find_longest_context(self, plan: Plan) -> int | None:
        """The largest context up to the current one that fits.

        None if not even CTX_STEP fits.
        """

        def is_too_long(steps: int) -> bool:
            load = with_both_settings(plan.load, n_ctx=steps * CTX_STEP)
            return not self.estimate(load).has_room

        n_ctx = plan.load.target_settings.n_ctx or DEFAULT_CTX
        most_steps = round_up_to_step(n_ctx) // CTX_STEP
        # False sorts before True, so this counts the sizes that are not too long.
        steps = bisect(range(1, most_steps + 1), False, key=is_too_long)
        if not steps:
            return None
        return steps * CTX_STEP

    def count_window_saving(self, plan: Plan) -> int:
        """Bytes that a cache cut to the sliding window would save; 0 without a window.

        It is cut only where memory is short: whole, it makes going back exact.
        """
        if not self.target.n_swa or not plan.load.target_settings.swa_full:
            return 0
        cut = self.estimate(with_settings(plan.load, swa_full=False), with_speed=False)
        return plan.total - cut.total

    def list_memory_savings(self, plan: Plan) -> tuple[MemorySaving, ...]:
        """Single changes that save memory: those that fit first, then the fastest."""
        has_gpu = bool(self.machine.devices)
        tightest = plan.tightest
        savings = []
        for change in _list_changes(plan.load, has_gpu=has_gpu):
            changed = self.estimate(change.load)
            needed = {each.device.name: each.needed for each in changed.all_fits}
            saved = tightest.needed - needed.get(tightest.device.name, 0)
            if saved > 0:
                saving = MemorySaving(
                    change=change.change,
                    flags=change.flags,
                    saved_bytes=saved,
                    drawback=change.drawback,
                    plan=changed,
                )
                savings.append(saving)

        def sort_key(saving: MemorySaving) -> tuple[bool, float]:
            return not saving.plan.verdict.can_load, -self._score(saving.plan)

        return tuple(sorted(savings, key=sort_key))

    def default_settings(self, request: SettingsRequest) -> LoadCommand:
        """Both models fully offloaded, the default context, an f16 KV cache."""
        ctx = request.ctx or min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        load = with_both_settings(request.load, n_ctx=ctx, kv_type=request.kv or "f16")
        if self.target.has_recurrent_state:
            load = replace(load, snapshots=min(load.snapshots, _SNAPSHOTS[0]))
        if self.target.can_rollback:
            # A longer copy takes a checkpoint of 50 to 150 MiB, which may cost a
            # quantisation: on 12 GB a 9B in Q8_0. So only a request has longer ones.
            longest = max(load.snapshots, request.draft_length or 0)
            load = replace(load, draft_max=min(load.draft_max, longest))
        n_target = request.n_gpu_layers
        if n_target is None:
            n_target = ALL_LAYERS
        n_draft = request.draft_n_gpu_layers
        if n_draft is None:
            n_draft = ALL_LAYERS
        load = with_settings(load, n_gpu_layers=n_target)
        return with_settings(load, "draft", n_gpu_layers=n_draft)

    def can_avoid_layers_in_ram(self, request: SettingsRequest) -> bool:
        """Whether the leanest settings with the draft keep no layers in RAM.

        Experts may be there.  It is a fast bound for long lists.
        """
        load = self.default_settings(request)
        kv: KvType = request.kv or "q8_0"
        n_ctx = request.ctx or CONTEXT_SIZES[-1]
        lean = with_both_settings(load, n_ctx=n_ctx, kv_type=kv)
        lean = with_settings(lean, swa_full=False)
        if self.target.can_rollback:
            lean = replace(lean, snapshots=min(load.snapshots, _SNAPSHOTS[-1]))
        lean = self._with_short_copies(lean)
        if self.draft and not self.draft.head_kind:
            lean = with_settings(lean, "draft", n_ubatch=_SMALL_UBATCH)
        if self.target.is_moe and request.cpu_moe is None:
            lean = self._fewest_experts_in_ram(lean) or lean
        return self.estimate(lean, with_speed=False).verdict.can_load

    def _extend_context(self, request: SettingsRequest, first: Plan) -> Plan:
        """A longer context if a GPU has room; a CPU is too slow to fill it."""
        if request.ctx is not None or not self.machine.devices:
            return first
        for longer in self._longer_contexts(request, first.load):
            if _n_ctx(longer) > self.target.n_ctx_train:
                continue
            plan = self.estimate(longer)
            if plan.verdict is FitVerdict.FITS and _leaves_enough(plan):
                return plan
        return first

    def _longer_contexts(
        self, request: SettingsRequest, load: LoadCommand
    ) -> Iterator[LoadCommand]:
        """Longer contexts, the best first.

        For the context that the use wants, the cache is cut to the window, too.  Where
        that is more than usual, as for code, it may also be quantised.
        """
        wanted = self.use.long_context
        kv_types: list[KvType] = [load.target_settings.kv_type]
        can_quantize = request.kv is None and load.target_settings.flash_attn != "off"
        if wanted > LONG_CONTEXT and can_quantize:
            kv_types.append("q8_0")
        windows = [True]
        if self.target.n_swa > 0:
            windows.append(False)
        for ctx in CONTEXT_SIZES:
            if ctx <= _n_ctx(load):
                continue
            longer = with_settings(load, n_ctx=ctx)
            if ctx > wanted:
                yield longer
                continue
            for kv, swa_full in product(kv_types, windows):
                yield with_settings(longer, kv_type=kv, swa_full=swa_full)
            # For a shorter context than is wanted, quality counts for more.
            kv_types = kv_types[:1]

    def _candidates(self, request: SettingsRequest) -> Iterator[Plan]:
        """The plans that fit.

        They differ by draft variant, KV cache type, sliding-window cache and context
        size.
        """
        defaults = self.default_settings(request)
        settings = defaults.target_settings
        kv_types = list(_SEARCHED_KV_TYPES)
        if request.kv:
            kv_types = [request.kv]
        if settings.flash_attn == "off":
            # Without flash attention llama.cpp has no cache in blocks.
            kv_types = [kv for kv in kv_types if not is_quantized(kv)]
        sizes = [settings.n_ctx or DEFAULT_CTX]
        if not request.ctx:
            longest = sizes[0]
            if self.machine.devices:
                trained = self.target.n_ctx_train
                longest = max(longest, min(self.use.long_context, trained))
            others = [n for n in CONTEXT_SIZES if n <= longest]
            sizes = sorted({*sizes, *others}, reverse=True)
        # With swa_full, sliding-window layers keep all tokens, which makes rollback
        # exact.
        swa_variants = [True]
        if self.target.n_swa:
            swa_variants.append(False)
        caches = list(product(kv_types, swa_variants))
        # In RAM a shorter context than usual frees too little to be worth it.
        sizes_with_ram = [n for n in sizes if n >= _n_ctx(defaults)]
        for draft in self._draft_variants(defaults, request):
            for kv, swa_full in caches:
                load = with_both_settings(draft, kv_type=kv)
                load = with_settings(load, swa_full=swa_full)
                plans = list(self._try_sizes(load, sizes))
                yield from plans
                if plans:
                    last = plans[-1]
                    is_longest = _n_ctx(last.load) == sizes[0]
                    if last.has_room and is_longest:
                        # The longest context fits with this cache: the ones after it,
                        # which cost quality, would gain nothing for this draft.
                        break
                if self.machine.devices and request.n_gpu_layers is None:
                    for ctx in sizes_with_ram:
                        sized = with_both_settings(load, n_ctx=ctx)
                        yield from self._partly_in_ram(sized, request)

    def _try_sizes(self, load: LoadCommand, sizes: Sequence[int]) -> Iterator[Plan]:
        """The layers as placed, down to the first context that fits.

        A shorter one is no faster.
        """
        for ctx in sizes:
            sized = with_both_settings(load, n_ctx=ctx)
            plan = self.estimate(sized, with_speed=False)
            if plan.verdict.can_load:
                yield self.estimate(sized)
            if plan.has_room:
                return

    def _draft_variants(
        self, defaults: LoadCommand, request: SettingsRequest
    ) -> Iterator[LoadCommand]:
        """The draft as requested, with smaller buffers, on the CPU, and none.

        Each with copies of 62 tokens and with short ones, and with fewer states where a
        draft token takes one.
        """
        loads = []
        if defaults.draft:
            loads.append(defaults)
            short = self._with_short_copies(defaults)
            if short != defaults:
                loads.append(short)
            if self.target.can_rollback:
                for n in _SNAPSHOTS:
                    if n < defaults.snapshots:
                        fewer = replace(defaults, snapshots=n)
                        loads.append(self._with_short_copies(fewer))
        for load in loads:
            yield load
            if self.draft and not self.draft.head_kind:
                yield with_settings(load, "draft", n_ubatch=_SMALL_UBATCH)
                if request.draft_n_gpu_layers is None and self.machine.devices:
                    yield with_settings(load, "draft", n_gpu_layers=0)
        plain = replace(defaults, draft=None)
        yield plain
        short = self._with_short_copies(plain)
        if short != plain:
            yield short
        if self.target.can_rollback:
            yield replace(plain, draft_max=0, snapshots=0)

    def _with_short_copies(self, load: LoadCommand) -> LoadCommand:
        """Copies as long as a draft, which take fewer rows of logits and no checkpoint."""
        length = MODEL_DRAFT_MAX
        if self.target.can_rollback:
            length = load.snapshots
        return replace(load, draft_max=min(load.draft_max, length))

    def _partly_in_ram(
        self, load: LoadCommand, request: SettingsRequest
    ) -> Iterator[Plan]:
        """With as few experts in RAM, else with as many layers on the GPU, as fit."""
        fullest = None
        if self.target.is_moe and request.cpu_moe is None:
            fullest = self._fewest_experts_in_ram(load)
            load = with_settings(load, cpu_moe=ALL_LAYERS)
        if fullest is None:
            n_layers = range(len(self.target.layers) + 1)
            fullest = self._fullest(
                n_layers, lambda n: with_settings(load, n_gpu_layers=n)
            )
        if fullest is None:
            return
        plan = self.estimate(fullest)
        if plan.verdict.can_load:
            yield plan

    def _fewest_experts_in_ram(self, load: LoadCommand) -> LoadCommand | None:
        n_layers = range(self.target.n_layer, -1, -1)
        return self._fullest(
            n_layers, lambda n: self._balance(with_settings(load, cpu_moe=n))
        )

    def _balance(self, load: LoadCommand) -> LoadCommand:
        """Shares the layers between several GPUs by their bytes, not by their number.

        Layers whose experts are in RAM are small.  Example: two GPUs with equal room,
        and bytes of 1, 1, 1, 3 and 3 for four layers and the output.  Half of the 9
        bytes ends within the fourth, so the shares are 3 and 2.
        """
        settings = load.target_settings
        devices = placement.offload_devices(settings, self.machine.devices)
        if len(devices) < 2 or settings.tensor_split or settings.split_mode != "layer":
            return load

        layers = self.target.layers
        n_in_ram = placement.n_layers_with_experts_in_ram(settings, len(layers))
        sizes = []
        for il, layer in enumerate(layers):
            size = layer.weights
            if il >= n_in_ram:
                size += layer.experts
            sizes.append(size)
        sizes.append(self.target.output_matrix)
        bytes_up_to = list(accumulate(sizes))

        room = []
        for device in devices:
            free = device.free or 0
            room.append(max(1, free - reserve_bytes(device)))
        room_up_to = list(accumulate(room))

        ends = [0]
        for each in room_up_to:
            share = bytes_up_to[-1] * each / room_up_to[-1]
            ends.append(bisect(bytes_up_to, share))
        shares = tuple(float(end - start) for start, end in pairwise(ends))
        return with_settings(load, tensor_split=shares)

    def _fullest(
        self, numbers: Sequence[int], make_load: Callable[[int], LoadCommand]
    ) -> LoadCommand | None:
        """The load of the last number that fits into the devices, if any does.

        `numbers` are in the order of growing need.
        """

        def is_too_large(number: int) -> bool:
            plan = self.estimate(make_load(number), with_speed=False)
            verdicts = {each.verdict for each in plan.device_fits}
            return bool(verdicts - {FitVerdict.FITS})

        # False sorts before True, so this counts the numbers that are not too large.
        n_fitting = bisect(numbers, False, key=is_too_large)
        if n_fitting == 0:
            return None
        return make_load(numbers[n_fitting - 1])

    def _score(self, plan: Plan) -> float:
        """As `_score_without_reserve`, reduced for tight memory, too."""
        score = self._score_without_reserve(plan)
        if not plan.has_room:
            score *= _TIGHT_SCORE
        return score

    def _score_without_reserve(self, plan: Plan) -> float:
        """Tokens per second, reduced for what the settings cost.

        That is a short context and a quantised KV cache.
        """
        settings = plan.load.target_settings
        wanted_ctx = min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        n_ctx = settings.n_ctx or wanted_ctx
        score: float = estimate_tokens_per_second(plan)
        score *= _KV_TYPE_SCORES[settings.kv_type]
        score *= min(1.0, n_ctx / wanted_ctx) ** 0.25
        if n_ctx > wanted_ctx:
            score *= _LONG_CTX_SCORE
        if n_ctx >= self.use.long_context > LONG_CONTEXT:
            score *= _LONG_CTX_SCORE
        if not settings.swa_full:
            score *= _SWA_CUT_SCORE
        return score


def _leaves_enough(plan: Plan) -> bool:
    """Whether a long context leaves its share of the memory free.

    A shorter one may fill it.  Example: a share of 0.1 leaves 1 byte of 10 free, which
    is 1/9 of the 9 that are needed.
    """
    share = 0.0
    if _n_ctx(plan.load) > plan.long_context:
        share = _LONG_CTX_FREE_SHARE
    for each in plan.all_fits:
        if not each.needed:
            continue
        headroom = each.headroom or 0
        if headroom / each.needed < share / (1 - share):
            return False
    return True


def estimate_tokens_per_second(plan: Plan) -> float:
    """The middle of the estimate; if there is none, a rank by bytes read."""
    speed = plan.speed.speculative or plan.speed.plain
    if speed is not None:
        return (speed[0] + speed[1]) / 2
    gpu_bytes = sum(each.target.weights for each in plan.device_fits)
    cpu_bytes = plan.host.target.weights
    seconds = 1e-3 + gpu_bytes / _GPU_BYTES_PER_S + cpu_bytes / _CPU_BYTES_PER_S
    rate = 1 / seconds
    if plan.load.draft:
        rate *= _TYPICAL_DRAFT_SPEEDUP
    return rate


def rank_draft(plan: Plan) -> DraftRank:
    seconds = math.inf
    if plan.speed.speculative is not None:
        seconds = 1 / sum(plan.speed.speculative)
    return DraftRank(
        does_not_fit=not plan.verdict.can_load,
        is_tight=plan.verdict is FitVerdict.TIGHT,
        is_short=not plan.has_long_context,
        is_full=plan.is_full,
        loses=plan.loses,
        seconds=seconds,
    )


def _rank_with_remote(plan: Plan) -> tuple[bool, float]:
    """What fits, then the fastest; without other computers unless they gain enough."""
    rate = estimate_tokens_per_second(plan)
    if plan.load.target_settings.remote_hosts:
        rate /= _MIN_REMOTE_GAIN
    return plan.verdict.can_load, rate


def _n_ctx(load: LoadCommand) -> int:
    return load.target_settings.n_ctx or 0


def with_settings(
    load: LoadCommand, model: Literal["target", "draft"] = "target", **changes: Any
) -> LoadCommand:
    name = f"{model}_settings"
    return replace(load, **{name: replace(getattr(load, name), **changes)})


def with_both_settings(load: LoadCommand, **changes: Any) -> LoadCommand:
    """Changes both models; the draft keeps its own n_ctx and cache type."""
    load = with_settings(load, **changes)
    changes.pop("n_ctx", None)
    changes.pop("kv_type", None)
    return with_settings(load, "draft", **changes)


def _list_changes(load: LoadCommand, *, has_gpu: bool) -> Iterator[SettingsChange]:
    """Single changes that may save memory."""
    settings = load.target_settings
    if settings.kv_type == "f16" and settings.flash_attn != "off":
        yield SettingsChange(
            change="KV cache in q8_0",
            flags="--kv q8_0",
            drawback="almost no loss of quality",
            load=with_both_settings(load, kv_type="q8_0"),
        )
    n_ctx = settings.n_ctx or DEFAULT_CTX
    shorter = [size for size in CONTEXT_SIZES if size < n_ctx]
    for size in shorter[:2]:
        yield SettingsChange(
            change=f"context {size:,}",
            flags=f"--ctx {size}",
            drawback="room for fewer messages",
            load=with_both_settings(load, n_ctx=size),
        )
    if not load.draft:
        return
    if has_gpu and load.draft_settings.n_gpu_layers:
        yield SettingsChange(
            change="draft on the CPU",
            flags="--draft-gpu-layers 0",
            drawback="drafting is slower",
            load=with_settings(load, "draft", n_gpu_layers=0),
        )
    yield SettingsChange(
        change="no draft model",
        flags="--draft none",
        drawback="prompt lookup only",
        load=replace(load, draft=None),
    )


def _describe_settings(plan: Plan, default_plan: Plan) -> str:
    """The settings to mention; `default_plan` has the default ones."""
    settings = plan.load.target_settings
    parts = [f"context {settings.n_ctx or 0:,} tokens"]
    if settings.kv_type != "f16":
        parts.append(f"KV cache in {settings.kv_type}")
    if plan.has_layers_in_ram:
        n_layers = len(plan.memory.target.placement.layer_backends)
        parts.append(f"{settings.n_gpu_layers} of {n_layers} layers on the GPU")
    if not settings.swa_full:
        parts.append("KV cache of the sliding window only")
    if settings.cpu_moe == ALL_LAYERS:
        parts.append("experts in RAM")
    elif settings.cpu_moe > 0:
        parts.append(f"experts of {settings.cpu_moe} layers in RAM")
    if _has_lost_draft(plan, default_plan):
        parts.append("no draft model")
    elif _moved_draft_to_cpu(plan, default_plan):
        parts.append("the draft on the CPU")
    return ", ".join(parts)


def _describe_shortage(plan: Plan, default_plan: Plan) -> str:
    """What the default settings need, if they do not fit and others are taken."""
    if plan is default_plan or default_plan.verdict is FitVerdict.FITS:
        return ""
    tightest = default_plan.tightest
    about = "about " if tightest.is_coarse else ""
    needed = f"{about}{gib(tightest.needed)}"
    if _has_lost_draft(plan, default_plan):
        return f"with a draft model it would need {needed}"
    return f"the usual settings would need {needed}"


def _has_lost_draft(plan: Plan, default_plan: Plan) -> bool:
    return bool(default_plan.load.draft and not plan.load.draft)


def _moved_draft_to_cpu(plan: Plan, default_plan: Plan) -> bool:
    was_on_gpu = default_plan.load.draft_settings.n_gpu_layers != 0
    return was_on_gpu and plan.load.draft_settings.n_gpu_layers == 0
