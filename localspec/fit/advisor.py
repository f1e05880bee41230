"""Chooses the settings of a pair: the fastest ones that fit into memory."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import Hint, UsageError
from localspec.fit import machine_profile, placement
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.plan import DeviceFit, Plan, estimate_plan
from localspec.fit.shape import ModelShape
from localspec.fit.speed import UseCase
from localspec.machine import remote_devices
from localspec.machine.device import HOST, reserve_bytes
from localspec.machine.llama_params import CTX_STEP, DEFAULT_CTX
from localspec.protocol.wire import ALL_LAYERS, KvType, LoadCommand
from localspec.units import gib, token_rate

_RECURRENT_DRAFT_MAX = (6, 4, 2)
"""Draft lengths for a target with recurrent state: each token takes a copy of the state, 150 MiB
for a 27B, and MTP layers are used with 2 to 4.  Without a draft the search also tries 0.
"""
_COMFORTABLE_CTX = 16384  # Taken for a GPU with room for it.
CONTEXT_SIZES = (32768, 16384, DEFAULT_CTX, 4096, 2048)  # Sizes the search tries.
_LONG_CTX_FREE_SHARE = 0.1
"""A context longer than `_COMFORTABLE_CTX` needs this share of usable memory to stay
free.
"""
_KV_TYPE_SCORES = {"q8_0/f16": 0.99, "q8_0": 0.98, "q4_0": 0.92}
"""Quality of answers by KV cache type, relative to f16."""
_TIGHT_SCORE = 0.7
_LONG_CTX_SCORE = 1.05
# Without swa_full a rollback may change the last bits of later logits.
_SWA_CUT_SCORE = 0.985
_EXACT_KV: KvType = "q8_0/f16"
"""Of the types with which a CPU's attention computes every width alike the fastest."""
_EXACT_NOTE = (
    "Exact mode: the KV cache is {}, so that this CPU's attention computes passes of every width "
    "alike. Products with weights may still differ by width: localspec verify --exact shows it."
)
_TYPICAL_DRAFT_SPEEDUP = 1.25  # Speed-up by a draft if the speed is unknown.
_GPU_BYTES_PER_S = 400e9
_CPU_BYTES_PER_S = 40e9
"""Bandwidths that rank settings if the real ones are unknown."""
_MIN_REMOTE_GAIN = 1.25
"""Speed-up by other computers, as estimated, that is worth sending them the model at each load.
"""
# Of the draft model: it reads prompts slower, with a quarter of the buffers.
_SMALL_UBATCH = 128


class SettingsRequest(Struct, frozen=True):
    """Settings requested by the user; None means automatic."""

    load: LoadCommand
    ctx: int | None = None
    kv: KvType | None = None  # None: f16, or what fits.
    n_gpu_layers: int | None = None
    cpu_moe: int | None = None
    draft_n_gpu_layers: int | None = None
    default_draft: str = ""
    """What the draft is if nobody named it, such as "the model's own MTP layer": then
    it is left out unless `pair suggest` would rank it before prompt lookup.
    """
    draft_note: str = ""  # A remark to show about the draft.
    exact: bool = False
    skip_memory_check: bool = False  # Load even if the estimate exceeds the memory.
    can_skip_remote: bool = False
    """Use other computers only if they can be reached, and if the pair does not fit here or is
    slower.
    """


class MemorySaving(Struct, frozen=True):
    """A single settings change that saves memory."""

    change: str  # For people, such as "context 4,096".
    flags: str  # For the command line, such as "--ctx 4096".
    saved_bytes: int  # On the tightest device.
    drawback: str
    fit: Plan


class SettingsAdvisor:
    def __init__(
        self,
        target: ModelShape,
        draft: ModelShape | None,
        machine: MachineProfile,
        use: UseCase | None = None,
    ) -> None:
        self.target, self.draft, self.machine, self.use = target, draft, machine, use

    def estimate(self, load: LoadCommand, *, with_speed: bool = True) -> Plan:
        return estimate_plan(
            load,
            self.target,
            self.draft,
            self.machine,
            self.use,
            with_speed=with_speed,
        )

    def advise(self, request: SettingsRequest) -> Plan:
        """The best settings that fit; if none do, the default ones.

        Raises UsageError.
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
        explanation = _explain_choice(best, first, len(self.target.layers))
        return replace(best, explanation=explanation, exact_note=note)

    def _improve(self, request: SettingsRequest, first: Plan) -> Plan:
        """The best of the settings that were left open; `first` has the default ones."""
        if first.verdict == "fits":
            return self._extend_context(request, first)
        if first.verdict == "unknown":
            return first
        candidates = [*self._candidates(request)]
        if first.verdict == "tight":
            candidates.insert(0, first)
        return max(candidates, key=self._score, default=first)

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
        elif rank[:3] > plain_rank[:3]:
            reason = "it leaves too little memory"
        else:
            rate = token_rate(estimate_tokens_per_second(drafting))
            plain_rate = token_rate(estimate_tokens_per_second(plain))
            reason = f"about {rate} with it, {plain_rate} without"
        skipped = f"Not drafting with {request.default_draft}: {reason}."
        return replace(plain, skipped_draft=skipped)

    def _make_attention_exact(self, request: SettingsRequest, fit: Plan) -> LoadCommand:
        """Keys of the target in q8_0, if they are in f16. Raises UsageError where that
        cannot be, or does not suffice.
        """
        load, target = fit.load, self.target
        used = fit.memory.target.on.items()
        others = [
            name for name, part in used if part.weights + part.kv and name != HOST
        ]
        # With some attention llama.cpp refuses two types.
        has_one_type = target.is_mla or target.architecture == "deepseek4"
        widths = {layer.n_embd_head_k for layer in target.layers if layer.has_kv}
        if others:
            message = (
                f"Exact mode is for CPUs: {others[0]} computes passes by their width."
            )
            remote = remote_devices.option_name()
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
        alone = machine_profile.without_remote(self.machine)
        advisor = SettingsAdvisor(self.target, self.draft, alone, self.use)
        yield (
            advisor,
            replace(request, load=with_settings(request.load, remote_hosts=())),
        )
        if self.machine.remote_hosts:
            yield self, request

    def find_longest_context(self, fit: Plan) -> int | None:
        """The largest context up to the current one that fits; None if not even
        CTX_STEP fits.
        """

        def is_too_long(steps: int) -> bool:
            shorter = self.estimate(
                with_both_settings(fit.load, n_ctx=steps * CTX_STEP)
            )
            return shorter.verdict not in ("fits", "unknown")

        n_ctx = fit.load.target_settings.n_ctx or DEFAULT_CTX
        most_steps = -(-n_ctx // CTX_STEP)
        steps = bisect(range(1, most_steps + 1), False, key=is_too_long)
        if not steps:
            return None
        return steps * CTX_STEP

    def list_memory_savings(self, fit: Plan) -> tuple[MemorySaving, ...]:
        """Single changes that save memory: those that fit first, then the fastest."""
        has_gpu = bool(self.machine.devices)
        tightest = fit.tightest
        savings = []
        for change, flags, drawback, load in _list_changes(fit.load, has_gpu):
            changed = self.estimate(load)
            needed = {each.device.name: each.needed for each in changed.all_fits}
            saved = tightest.needed - needed.get(tightest.device.name, 0)
            if saved > 0:
                savings.append(MemorySaving(change, flags, saved, drawback, changed))
        savings.sort(
            key=lambda saving: (saving.fit.verdict == "no", -self._score(saving.fit))
        )
        return tuple(savings)

    def default_settings(self, request: SettingsRequest) -> LoadCommand:
        """Both models fully offloaded, the default context, an f16 KV cache."""
        ctx = request.ctx or min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        load = with_both_settings(request.load, n_ctx=ctx, kv_type=request.kv or "f16")
        if self.target.has_recurrent_state:
            load = replace(load, draft_max=min(load.draft_max, _RECURRENT_DRAFT_MAX[0]))
        n_target = request.n_gpu_layers
        if n_target is None:
            n_target = ALL_LAYERS
        n_draft = request.draft_n_gpu_layers
        if n_draft is None:
            n_draft = ALL_LAYERS
        load = with_settings(load, n_gpu_layers=n_target)
        return with_settings(load, "draft", n_gpu_layers=n_draft)

    def can_avoid_layers_in_ram(self, request: SettingsRequest) -> bool:
        """Whether the leanest settings with the draft fit without layers, except
        experts, in RAM.

        A fast bound for long lists.
        """
        load = self.default_settings(request)
        kv: KvType = request.kv or "q8_0"
        lean = with_both_settings(
            load, n_ctx=request.ctx or CONTEXT_SIZES[-1], kv_type=kv
        )
        lean = with_settings(lean, swa_full=False)
        if self.target.can_rollback:
            lean = replace(
                lean, draft_max=min(load.draft_max, _RECURRENT_DRAFT_MAX[-1])
            )
        if self.draft and not self.draft.head_kind:
            lean = with_settings(lean, "draft", n_ubatch=_SMALL_UBATCH)
        if self.target.is_moe and request.cpu_moe is None:
            lean = self._fewest_experts_in_ram(lean) or lean
        return self.estimate(lean, with_speed=False).verdict != "no"

    def _extend_context(self, request: SettingsRequest, first: Plan) -> Plan:
        """A longer context if a GPU has memory to spare; a CPU is too slow to fill it."""
        if request.ctx is not None or not self.machine.devices:
            return first
        longer = [ctx for ctx in CONTEXT_SIZES if _n_ctx(first.load) < ctx]
        sizes = [(ctx, True) for ctx in longer]
        if longer and self.target.n_swa > 0:
            # The shortest of them once more, with its cache cut to the window.
            sizes.append((longer[-1], False))
        for ctx, swa_full in sizes:
            if ctx > self.target.n_ctx_train:
                continue
            load = with_settings(first.load, n_ctx=ctx, swa_full=swa_full)
            plan = self.estimate(load)
            if plan.verdict == "fits" and _leaves_enough(plan):
                return plan
        return first

    def _candidates(self, request: SettingsRequest) -> Iterator[Plan]:
        """What fits, by draft variant, KV cache type, sliding-window cache and context
        size.
        """
        defaults = self.default_settings(request)
        settings = defaults.target_settings
        kv_types: list[KvType] = [request.kv] if request.kv else ["f16", "q8_0"]
        if settings.flash_attn == "off":
            kv_types = [kv for kv in kv_types if not kv.startswith("q")]
        sizes = [settings.n_ctx or DEFAULT_CTX]
        if not request.ctx:
            longest = sizes[0]
            if self.machine.devices:
                trained = self.target.n_ctx_train
                longest = max(longest, min(_COMFORTABLE_CTX, trained))
            others = [n for n in CONTEXT_SIZES if n <= longest]
            sizes = sorted({*sizes, *others}, reverse=True)
        # With swa_full, sliding-window layers keep all tokens, which makes rollback
        # exact.
        swa_variants = (True, False) if self.target.n_swa else (True,)
        caches = list(product(kv_types, swa_variants))
        # In RAM a shorter context than usual frees too little to be worth it.
        shared = [n for n in sizes if n >= _n_ctx(defaults)]
        for draft in self._draft_variants(defaults, request):
            for kv, swa_full in caches:
                load = with_settings(
                    with_both_settings(draft, kv_type=kv), swa_full=swa_full
                )
                whole = list(self._whole(load, sizes))
                yield from whole
                if whole:
                    last = whole[-1]
                    if last.verdict == "fits" and _n_ctx(last.load) == sizes[0]:
                        break  # What costs quality gains nothing.
                if self.machine.devices and request.n_gpu_layers is None:
                    for ctx in shared:
                        yield from self._partly_in_ram(
                            with_both_settings(load, n_ctx=ctx), request
                        )

    def _whole(self, load: LoadCommand, sizes: Sequence[int]) -> Iterator[Plan]:
        """As placed, down to the first context that fits: a shorter one is no faster."""
        for ctx in sizes:
            sized = with_both_settings(load, n_ctx=ctx)
            fit = self.estimate(sized, with_speed=False)
            if fit.verdict != "no":
                yield self.estimate(sized)
            if fit.verdict == "fits":
                return

    def _draft_variants(
        self, defaults: LoadCommand, request: SettingsRequest
    ) -> Iterator[LoadCommand]:
        """As requested, with smaller buffers, on the CPU, and none; with fewer rollback
        states.
        """
        lengths = []
        if defaults.draft:
            lengths.append(defaults.draft_max)
            if self.target.can_rollback:
                shorter = (n for n in _RECURRENT_DRAFT_MAX if n < defaults.draft_max)
                lengths += shorter
        for n in lengths:
            load = replace(defaults, draft_max=n)
            yield load
            if self.draft and not self.draft.head_kind:
                yield with_settings(load, "draft", n_ubatch=_SMALL_UBATCH)
                if request.draft_n_gpu_layers is None and self.machine.devices:
                    yield with_settings(load, "draft", n_gpu_layers=0)
        plain = replace(defaults, draft=None)
        yield plain
        if self.target.can_rollback:
            yield replace(plain, draft_max=0)

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
        if plan.verdict != "no":
            yield plan

    def _fewest_experts_in_ram(self, load: LoadCommand) -> LoadCommand | None:
        n_layers = range(self.target.n_layer, -1, -1)
        return self._fullest(
            n_layers, lambda n: self._balance(with_settings(load, cpu_moe=n))
        )

    def _balance(self, load: LoadCommand) -> LoadCommand:
        """With the layers shared by several GPUs by their bytes: without experts they
        are small.
        """
        settings, shape = load.target_settings, self.target
        devices = placement.offload_devices(settings, self.machine.devices)
        if len(devices) < 2 or settings.tensor_split or settings.split_mode != "layer":
            return load
        free = [*accumulate(max(1, (d.free or 0) - reserve_bytes(d)) for d in devices)]
        sizes = []
        for il, layer in enumerate(shape.layers):
            are_experts_here = il >= settings.cpu_moe
            sizes.append(layer.weights + (layer.experts if are_experts_here else 0))
        sizes.append(shape.output_matrix)
        sums = [*accumulate(sizes)]
        ends = (bisect(sums, sums[-1] * each / free[-1]) for each in free)
        shares = tuple(float(end - start) for start, end in pairwise((0, *ends)))
        return with_settings(load, tensor_split=shares)

    def _fullest(
        self, numbers: Sequence[int], make_load: Callable[[int], LoadCommand]
    ) -> LoadCommand | None:
        """The last that fits into the devices, if any; `numbers`: by growing need of
        them.
        """

        def is_too_large(number: int) -> bool:
            fits = self.estimate(make_load(number), with_speed=False).device_fits
            return any(each.verdict != "fits" for each in fits)

        n = bisect(numbers, False, key=is_too_large)
        return make_load(numbers[n - 1]) if n else None

    def _score(self, fit: Plan) -> float:
        """Tokens per second, reduced for a short context, a quantised KV cache and
        tight memory.
        """
        settings = fit.load.target_settings
        wanted_ctx = min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        n_ctx = settings.n_ctx or wanted_ctx
        score: float = estimate_tokens_per_second(fit)
        score *= _KV_TYPE_SCORES.get(settings.kv_type, 1.0)
        score *= min(1.0, n_ctx / wanted_ctx) ** 0.25
        if n_ctx > wanted_ctx:
            score *= _LONG_CTX_SCORE
        if fit.verdict == "tight":
            score *= _TIGHT_SCORE
        if not settings.swa_full:
            score *= _SWA_CUT_SCORE
        return score


def _leaves_enough(plan: Plan) -> bool:
    """Whether a long context leaves its share of the memory free; a shorter one may fill
    it.
    """
    share = 0.0
    if _n_ctx(plan.load) > _COMFORTABLE_CTX:
        share = _LONG_CTX_FREE_SHARE
    used = [each for each in plan.all_fits if each.needed]
    spare = min(((each.headroom or 0) / each.needed for each in used), default=1.0)
    return spare >= share / (1 - share)


def estimate_tokens_per_second(fit: Plan) -> float:
    """The middle of the estimated range; if the speed is unknown, a rank by bytes read."""
    speed = fit.speed.speculative or fit.speed.plain
    if speed is not None:
        return (speed[0] + speed[1]) / 2
    gpu_bytes = sum(device_fit.target.weights for device_fit in fit.device_fits)
    plain = 1 / (
        1e-3 + gpu_bytes / _GPU_BYTES_PER_S + fit.host.target.weights / _CPU_BYTES_PER_S
    )
    return plain * (_TYPICAL_DRAFT_SPEEDUP if fit.load.draft else 1.0)


def rank_draft(fit: Plan) -> tuple[bool, bool, bool, bool, float]:
    """Of the drafts of one target, prompt lookup among them, the least comes first: the shortest
    time, unless it costs the long context or the last memory.  An unknown time is infinite.
    """
    speed, is_short = fit.speed.speculative, not fit.has_long_context
    seconds = 1 / sum(speed) if speed else math.inf
    return fit.verdict == "no", is_short, fit.is_full, fit.loses, seconds


def _rank_with_remote(plan: Plan) -> tuple[bool, float]:
    """What fits, then the fastest; without other computers unless they gain enough."""
    gain = _MIN_REMOTE_GAIN if plan.load.target_settings.remote_hosts else 1.0
    return plan.verdict != "no", estimate_tokens_per_second(plan) / gain


def _n_ctx(load: LoadCommand) -> int:
    return load.target_settings.n_ctx or 0


def with_settings(
    load: LoadCommand, model: Literal["target", "draft"] = "target", **changes: Any
) -> LoadCommand:
    name = f"{model}_settings"
    return replace(load, **{name: replace(getattr(load, name), **changes)})


def with_both_settings(load: LoadCommand, **changes: Any) -> LoadCommand:
    """Changes both models; the draft keeps its own n_ctx."""
    load = with_settings(load, **changes)
    changes.pop("n_ctx", None)
    return with_settings(load, "draft", **changes)


def _list_changes(
    load: LoadCommand, has_gpu: bool
) -> Iterator[tuple[str, str, str, LoadCommand]]:
    """Single changes: in words, as flags, its drawback, and the changed load command."""
    settings, draft = load.target_settings, load.draft_settings if load.draft else None
    both = partial(with_both_settings, load)
    if settings.kv_type == "f16" and settings.flash_attn != "off":
        loss = "almost no loss of quality"
        yield "KV cache in q8_0", "--kv q8_0", loss, both(kv_type="q8_0")
    for n in [size for size in CONTEXT_SIZES if size < (settings.n_ctx or DEFAULT_CTX)][
        :2
    ]:
        yield f"context {n:,}", f"--ctx {n}", "room for fewer messages", both(n_ctx=n)
    if draft and has_gpu and draft.n_gpu_layers:
        on_cpu = with_settings(load, "draft", n_gpu_layers=0)
        yield "draft on the CPU", "--draft-gpu-layers 0", "drafting is slower", on_cpu
    if draft:
        yield (
            "no draft model",
            "--draft none",
            "prompt lookup only",
            replace(load, draft=None),
        )


def _explain_choice(fit: Plan, default_fit: Plan, n_layer: int) -> str:
    """One line: the settings chosen and the reason.

    `default_fit`: with default settings.
    """
    settings, draft = fit.load.target_settings, fit.load.draft_settings
    has_lost_draft = bool(default_fit.load.draft and not fit.load.draft)
    on_cpu = default_fit.load.draft_settings.n_gpu_layers and not draft.n_gpu_layers
    parts = {
        f"context {settings.n_ctx or 0:,} tokens": True,
        f"KV cache in {settings.kv_type}": settings.kv_type != "f16",
        f"{settings.n_gpu_layers} of {n_layer + 1} layers on the GPU": fit.device_fits
        and settings.n_gpu_layers != -1,
        "KV cache limited to the sliding window": not settings.swa_full,
        f"experts of {settings.cpu_moe} layers in RAM": settings.cpu_moe > 0,
        "experts in RAM": settings.cpu_moe == ALL_LAYERS,
        "no draft model": has_lost_draft,
        "the draft on the CPU": on_cpu and not has_lost_draft,
    }
    described = ", ".join(part for part, applies in parts.items() if applies)
    return f"{described}: {_describe_outcome(fit, default_fit, has_lost_draft)}"


def _describe_outcome(fit: Plan, default_fit: Plan, has_lost_draft: bool) -> str:
    for each in fit.device_fits:
        if each.verdict == "unknown":
            return f"free memory of {_describe_device(each)} is unknown"
    tightest, default = fit.tightest, default_fit.tightest
    device = _describe_device(tightest)
    if fit.verdict == "no":
        free = gib(tightest.device.free or 0)
        return f"needs {gib(tightest.needed)} of {device}, which has {free} free"
    if fit is default_fit or default_fit.verdict == "fits":
        spare = tightest.headroom or 0
        return f"{gib(spare)} of {device} stay free" if spare > 0 else f"fills {device}"
    needs = f"{gib(default.needed)} of {_describe_device(default)}, more than available"
    subject = (
        "with a draft model it needs" if has_lost_draft else "the default settings need"
    )
    return f"{subject} {needs}"


def _describe_device(device_fit: DeviceFit) -> str:
    if device_fit.device.kind == "cpu":
        return "this computer's memory"
    return device_fit.device.description or device_fit.device.name
