"""Chooses the settings of a pair: the fastest ones that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from localspec.errors import UsageError
from localspec.fit import machine_profile, verdict
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.shape import ModelShape
from localspec.fit.speed_estimate import UseCase
from localspec.fit.verdict import DeviceFit, FitReport
from localspec.lazy_dataclass import dataclass
from localspec.machine.llama_params import CTX_STEP, DEFAULT_CTX
from localspec.machine.memory_by_device import HOST
from localspec.protocol.wire import KvType, LoadCommand
from localspec.units import gib

_LONG_CTX_FREE_SHARE = 0.25
"""A context longer than the default is chosen only if this share of usable memory stays free."""
_KV_TYPE_SCORES = {
    "f16": 1.0,
    "bf16": 1.0,
    "f32": 1.0,
    "q8_0/f16": 0.99,
    "q8_0": 0.98,
    "q4_0": 0.92,
}
"""Quality of answers by KV cache type, relative to f16."""
_Q8_0_BLOCK = 32
"""Heads that are no multiple of it cannot have keys in q8_0."""
_EXACT_KV: KvType = "q8_0/f16"
"""Of the types with which a CPU's attention computes every width alike the fastest."""
_EXACT_NOTE = (
    "Exact mode: the KV cache is {}, so that this CPU's attention computes passes of every width "
    "alike. Products with weights may still differ by width: localspec verify --exact shows it."
)
_TIGHT_SCORE = 0.9
_SWA_CUT_SCORE = 0.97
"""Without swa_full a rollback may change the last bits of later logits."""
_TYPICAL_DRAFT_SPEEDUP = 1.25
"""Speed-up by a draft if the speed is unknown."""
_GPU_BYTES_PER_S, _CPU_BYTES_PER_S = 400e9, 40e9
"""Bandwidths that rank settings if the real ones are unknown."""
CONTEXT_SIZES = (32768, 16384, DEFAULT_CTX, 4096, 2048)
"""Sizes the search tries."""
_MIN_WORKER_GAIN = 1.25
"""Speed-up by workers, as estimated, that is worth sending them the model at each load."""
_SMALL_UBATCH = 128
"""Of the draft model: it reads prompts in smaller steps and needs a quarter of the buffers."""
_HEAD_DESCRIPTIONS = {
    "eagle3": "EAGLE-3 head: one layer trained on the hidden states of this model. "
    "Higher acceptance rate than a small draft model, at a lower cost",
    "mtp": "MTP: an extra layer of the model itself, trained to predict the token after next. "
    "Higher acceptance rate than a small draft model, and no second file",
    "dflash": "DFlash head: trained on the hidden states of this model. "
    "Drafts several tokens in one pass; a draft model needs one pass per token",
    "dspark": "DSpark head: trained on the hidden states of this model. "
    "Drafts several tokens in one pass, with a confidence for each",
}

SettingsChange = tuple[str, str, str, LoadCommand]
"""The change in words, its flags, its drawback, and the changed load command."""


@dataclass(frozen=True, slots=True)
class SettingsRequest:
    """Settings requested by the user; None means automatic."""

    load: LoadCommand
    ctx: int | None = None
    kv: KvType | None = None
    """None: f16, or what fits."""
    n_gpu_layers: int | None = None
    draft_n_gpu_layers: int | None = None
    draft_note: str = ""
    """A remark to show about a draft that was chosen automatically."""
    exact: bool = False
    skip_memory_check: bool = False
    """Load even if the estimate exceeds the memory."""
    can_skip_workers: bool = False
    """Use workers only if they can be reached, and if the pair does not fit here or is slower."""


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """A single settings change that saves memory."""

    change: str
    """For people, such as "context 4,096"."""
    flags: str
    """For the command line, such as "--ctx 4096"."""
    saved_bytes: int
    """On the tightest device."""
    drawback: str
    fit: FitReport


@dataclass(frozen=True, slots=True)
class SettingsAdvice:
    fit: FitReport
    explanation: str
    exact_note: str = ""
    """What exact mode does, if it was asked for."""

    @property
    def fits(self) -> bool:
        """Also true if free memory is unknown."""
        return self.fit.verdict != "no"


class SettingsAdvisor:
    def __init__(
        self,
        target: ModelShape,
        draft: ModelShape | None,
        machine: MachineProfile,
        use: UseCase | None = None,
    ) -> None:
        self.target, self.draft, self.machine = target, draft, machine
        self.use = use

    def estimate_fit(self, load: LoadCommand) -> FitReport:
        return verdict.estimate_fit(load, self.target, self.draft, self.machine, self.use)

    def advise(self, request: SettingsRequest) -> SettingsAdvice:
        """The best settings that fit; if none do, the default ones.  Raises UsageError."""
        if request.can_skip_workers:
            variants = self._with_and_without_workers(request)
            advices = [advisor.advise(variant) for advisor, variant in variants]
            return max(advices, key=lambda advice: _rank_with_workers(advice.fit))
        advice = self._choose(request)
        return self._make_attention_exact(request, advice) if request.exact else advice

    def _choose(self, request: SettingsRequest) -> SettingsAdvice:
        first = self.estimate_fit(self._default_settings(request))
        if first.verdict in ("fits", "unknown"):
            fit = self._extend_context(request, first) if first.verdict == "fits" else first
            return SettingsAdvice(fit, explain_choice(fit, first, len(self.target.layers)))
        best = max(self._candidates(request), key=self._score, default=first)
        if first.verdict == "tight" and self._score(first) >= self._score(best):
            best = first
        return SettingsAdvice(best, explain_choice(best, first, len(self.target.layers)))

    def _make_attention_exact(
        self, request: SettingsRequest, advice: SettingsAdvice
    ) -> SettingsAdvice:
        """Keys of the target in q8_0, if they are in f16. Raises UsageError where that cannot be,
        or does not suffice.
        """
        load, used = advice.fit.load, advice.fit.memory_estimate.target.on
        others = [name for name, part in used.items() if part.weights + part.kv and name != HOST]
        if others:
            message = f"Exact mode is for CPUs: {others[0]} computes passes by their width."
            raise UsageError(message, "Use --gpu-layers 0 and no --workers, or no exact mode.")
        if load.target_settings.flash_attn == "off":
            hint = "Use --flash-attn auto, or no exact mode."
            raise UsageError("Exact mode needs flash attention.", hint)
        if request.kv in ("f16", "bf16", "f32"):
            message = f"Exact mode does not work with a KV cache in {request.kv}."
            raise UsageError(message, f"Use --kv {_EXACT_KV}, or no exact mode.")
        if load.target_settings.kv_type == "f16":
            target = self.target
            widths = {layer.n_embd_head_k for layer in target.layers if layer.has_kv}
            # With some attention llama.cpp refuses two types.
            has_one_type = target.is_mla or target.architecture == "deepseek4"
            if has_one_type or any(width % _Q8_0_BLOCK for width in widths):
                message = "Exact mode needs keys in q8_0, which this model cannot have."
                raise UsageError(message, "Use no exact mode.")
            load = with_target_settings(load, kv_type=_EXACT_KV)
        fit, first = self.estimate_fit(load), self.estimate_fit(self._default_settings(request))
        note = _EXACT_NOTE.format(load.target_settings.kv_type)
        return SettingsAdvice(fit, explain_choice(fit, first, len(self.target.layers)), note)

    def _with_and_without_workers(
        self, request: SettingsRequest
    ) -> Iterator[tuple[SettingsAdvisor, SettingsRequest]]:
        request = replace(request, can_skip_workers=False)
        alone = machine_profile.without_workers(self.machine)
        local_load = with_target_settings(request.load, workers=())
        yield (
            SettingsAdvisor(self.target, self.draft, alone, self.use),
            replace(request, load=local_load),
        )
        if self.machine.workers:
            yield self, request

    def quick_fit(self, request: SettingsRequest) -> FitReport:
        """The first of a few common settings that fits, or else is tight: for long lists."""
        if request.can_skip_workers:
            variants = self._with_and_without_workers(request)
            return max((a.quick_fit(variant) for a, variant in variants), key=_rank_with_workers)
        defaults = self._default_settings(request)
        tries = [defaults]
        if not request.kv and defaults.target_settings.flash_attn != "off":
            tries.append(with_both_settings(defaults, kv_type="q8_0"))
        if not request.ctx:
            tries.append(with_both_settings(tries[-1], n_ctx=CONTEXT_SIZES[-2]))
        fits = [self.estimate_fit(tries[0])]
        while fits[-1].verdict not in ("fits", "unknown") and len(fits) < len(tries):
            fits.append(self.estimate_fit(tries[len(fits)]))
        fitting = [fit for fit in fits if fit.verdict in ("fits", "unknown")]
        tight = [fit for fit in fits if fit.verdict == "tight"]
        return (fitting or tight or fits)[0]

    def find_longest_context(self, fit: FitReport) -> int | None:
        """The largest context up to the current one that fits; None if not even CTX_STEP fits."""
        best, low, high = None, 1, -(-(fit.load.target_settings.n_ctx or DEFAULT_CTX) // CTX_STEP)
        while low <= high:
            middle = (low + high) // 2
            shorter = self.estimate_fit(with_both_settings(fit.load, n_ctx=middle * CTX_STEP))
            if shorter.verdict in ("fits", "unknown"):
                best, low = middle * CTX_STEP, middle + 1
            else:
                high = middle - 1
        return best

    def list_memory_savings(self, fit: FitReport) -> tuple[MemorySaving, ...]:
        """Single changes that save memory: those that fit first, then the fastest."""
        has_gpu = bool(self.machine.devices)
        savings = [
            MemorySaving(change, flags, _saved_bytes(fit, changed), drawback, changed)
            for change, flags, drawback, load in list_single_changes(fit.load, self.target, has_gpu)
            if (changed := self.estimate_fit(load)) and _saved_bytes(fit, changed) > 0
        ]
        return tuple(
            sorted(
                savings, key=lambda saving: (saving.fit.verdict == "no", -self._score(saving.fit))
            )
        )

    def _default_settings(self, request: SettingsRequest) -> LoadCommand:
        """Both models fully offloaded, the default context, an f16 KV cache."""
        ctx = request.ctx or min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        target = replace(
            request.load.target_settings,
            n_ctx=ctx,
            kv_type=request.kv or "f16",
            n_gpu_layers=-1 if request.n_gpu_layers is None else request.n_gpu_layers,
        )
        draft = replace(
            request.load.draft_settings,
            kv_type=request.kv or "f16",
            n_gpu_layers=-1 if request.draft_n_gpu_layers is None else request.draft_n_gpu_layers,
        )
        return replace(request.load, target_settings=target, draft_settings=draft)

    def _extend_context(self, request: SettingsRequest, first: FitReport) -> FitReport:
        """A longer context if a GPU has memory to spare; a CPU is too slow to fill it."""
        if request.ctx is not None or not self.machine.devices:
            return first
        for ctx in CONTEXT_SIZES:
            if ctx <= (first.load.target_settings.n_ctx or 0):
                break
            if ctx > self.target.n_ctx_train:
                continue
            fit = self.estimate_fit(with_both_settings(first.load, n_ctx=ctx))
            if fit.verdict == "fits" and _min_free_share(fit) >= _LONG_CTX_FREE_SHARE:
                return fit
        return first

    def _candidates(self, request: SettingsRequest) -> Iterator[FitReport]:
        """What fits, by draft variant, KV cache type, context size and sliding-window cache."""
        defaults = self._default_settings(request)
        for load in list_draft_variants(defaults):
            for kv in (request.kv,) if request.kv else ("f16", "q8_0"):
                if kv.startswith("q") and defaults.target_settings.flash_attn == "off":
                    continue
                for ctx, swa_full in product(
                    self._context_sizes(request, defaults), self._swa_full_options()
                ):
                    sized = with_both_settings(load, n_ctx=ctx, kv_type=kv)
                    yield from self._offload_variants(
                        with_target_settings(sized, swa_full=swa_full), request
                    )

    def _swa_full_options(self) -> tuple[bool, ...]:
        """With swa_full, sliding-window layers keep all tokens, which makes rollback exact."""
        return (True, False) if self.target.n_swa else (True,)

    def _context_sizes(self, request: SettingsRequest, defaults: LoadCommand) -> tuple[int, ...]:
        largest = defaults.target_settings.n_ctx or DEFAULT_CTX
        if request.ctx:
            return (largest,)
        return (largest, *(size for size in CONTEXT_SIZES if size < largest))

    def _offload_variants(self, load: LoadCommand, request: SettingsRequest) -> Iterator[FitReport]:
        """Fully offloaded; if that does not fit, experts on the CPU, or fewer layers on the GPU."""
        full = self.estimate_fit(load)
        if full.verdict in ("fits", "tight"):
            yield full
        if full.verdict == "fits" or not self.machine.devices or request.n_gpu_layers is not None:
            return
        if self.target.is_moe:
            cpu_moe = self.estimate_fit(with_target_settings(load, cpu_moe=True))
            if cpu_moe.verdict in ("fits", "tight"):
                yield cpu_moe
                return
        partial = self._max_gpu_layers(load)
        if partial is not None and partial.verdict in ("fits", "tight"):
            yield partial

    def _max_gpu_layers(self, load: LoadCommand) -> FitReport | None:
        """Binary search: device memory grows with the number of layers."""
        best, low, high = None, 0, len(self.target.layers)
        while low <= high:
            middle = (low + high) // 2
            fit = self.estimate_fit(with_target_settings(load, n_gpu_layers=middle))
            if all(device_fit.verdict == "fits" for device_fit in fit.device_fits):
                best, low = fit, middle + 1
            else:
                high = middle - 1
        return best

    def _score(self, fit: FitReport) -> float:
        """Tokens per second, reduced for a short context, a quantised KV cache and tight memory."""
        settings = fit.load.target_settings
        wanted_ctx = min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        score: float = estimate_tokens_per_second(fit) * _KV_TYPE_SCORES[settings.kv_type]
        score *= min(1.0, (settings.n_ctx or wanted_ctx) / wanted_ctx) ** 0.25
        score *= _TIGHT_SCORE if fit.verdict == "tight" else 1.0
        return score * (1.0 if settings.swa_full else _SWA_CUT_SCORE)


def estimate_tokens_per_second(fit: FitReport) -> float:
    """The middle of the estimated range; if the speed is unknown, a rank by bytes read."""
    speed = fit.speed.speculative or fit.speed.plain
    if speed is not None:
        return (speed[0] + speed[1]) / 2
    gpu_bytes = sum(device_fit.target.weights for device_fit in fit.device_fits)
    plain = 1 / (1e-3 + gpu_bytes / _GPU_BYTES_PER_S + fit.host.target.weights / _CPU_BYTES_PER_S)
    return plain * (_TYPICAL_DRAFT_SPEEDUP if fit.load.draft else 1.0)


def _rank_with_workers(fit: FitReport) -> tuple[bool, float]:
    """What fits, then the fastest; without workers unless they gain enough."""
    weight = 1 / _MIN_WORKER_GAIN if fit.load.target_settings.workers else 1.0
    return fit.verdict != "no", weight * estimate_tokens_per_second(fit)


def _min_free_share(fit: FitReport) -> float:
    """The smallest share of usable memory that stays free on any device."""
    shares = [
        (device_fit.headroom or 0) / max(1, (device_fit.device.free or 0) - device_fit.reserve)
        for device_fit in fit.all_fits
        if device_fit.needed
    ]
    return min(shares, default=0.0)


def _saved_bytes(before: FitReport, after: FitReport) -> int:
    name = before.tightest.device.name
    needed = {device_fit.device.name: device_fit.needed for device_fit in after.all_fits}
    return before.tightest.needed - needed.get(name, 0)


def with_both_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    """Changes both models; the draft keeps its own n_ctx."""
    target = replace(load.target_settings, **changes)  # type: ignore[arg-type]
    rest = {name: value for name, value in changes.items() if name != "n_ctx"}
    draft = replace(load.draft_settings, **rest)  # type: ignore[arg-type]
    return replace(load, target_settings=target, draft_settings=draft)


def with_target_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    return replace(load, target_settings=replace(load.target_settings, **changes))  # type: ignore[arg-type]


def with_draft_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    return replace(load, draft_settings=replace(load.draft_settings, **changes))  # type: ignore[arg-type]


def list_draft_variants(load: LoadCommand) -> tuple[LoadCommand, ...]:
    if load.draft is None:
        return (load,)
    return (
        load,
        with_draft_settings(load, n_ubatch=_SMALL_UBATCH),
        replace(load, draft=None),
    )


def list_single_changes(
    load: LoadCommand, target: ModelShape, has_gpu: bool
) -> Iterator[SettingsChange]:
    settings = load.target_settings
    ctx = settings.n_ctx or DEFAULT_CTX
    if load.draft and load.draft_settings.n_ubatch > _SMALL_UBATCH:
        yield (
            f"draft batch {_SMALL_UBATCH}", "", "the draft reads prompts a little slower",
            with_draft_settings(load, n_ubatch=_SMALL_UBATCH),
        )  # fmt: skip
    if settings.kv_type == "f16" and settings.flash_attn != "off":
        yield (
            "KV cache in q8_0", "--kv q8_0", "almost no loss of quality",
            with_both_settings(load, kv_type="q8_0"),
        )  # fmt: skip
    if settings.swa_full and target.n_swa:
        yield (
            "KV cache limited to the sliding window", "", "a rollback may change the last bits",
            with_target_settings(load, swa_full=False),
        )  # fmt: skip
    for n_ctx in [size for size in CONTEXT_SIZES if size < ctx][:2]:
        yield (
            f"context {n_ctx:,}", f"--ctx {n_ctx}", "room for fewer messages",
            with_both_settings(load, n_ctx=n_ctx),
        )  # fmt: skip
    if load.draft:
        if has_gpu and load.draft_settings.n_gpu_layers:
            yield (
                "draft on the CPU", "--draft-gpu-layers 0", "drafting is slower",
                with_draft_settings(load, n_gpu_layers=0),
            )  # fmt: skip
        yield (
            "no draft model",
            "--draft none",
            "prompt lookup only",
            replace(load, draft=None),
        )
    if has_gpu:
        yield from _list_offload_changes(load, target)


def _list_offload_changes(load: LoadCommand, target: ModelShape) -> Iterator[SettingsChange]:
    if target.is_moe and not load.target_settings.cpu_moe:
        yield (
            "experts in RAM", "--cpu-moe", "experts are read from slower memory",
            with_target_settings(load, cpu_moe=True),
        )  # fmt: skip
    half = (len(target.layers) + 1) // 2
    yield (
        f"{half} of {len(target.layers) + 1} layers on the GPU", f"--gpu-layers {half}",
        "the other layers are read from slower memory",
        with_target_settings(load, n_gpu_layers=half),
    )  # fmt: skip


def describe_head(kind: str) -> str:
    """One line about a kind of head; empty for a draft model."""
    return _HEAD_DESCRIPTIONS.get(kind, "")


def explain_choice(fit: FitReport, default_fit: FitReport, n_layer: int) -> str:
    """One line: the settings chosen and the reason.  `default_fit`: with default settings."""
    return (
        f"{', '.join(_describe_settings(fit, default_fit, n_layer))}: "
        f"{_describe_outcome(fit, default_fit)}"
    )


def _describe_settings(fit: FitReport, default_fit: FitReport, n_layer: int) -> Iterator[str]:
    settings, draft = fit.load.target_settings, fit.load.draft_settings
    yield f"context {settings.n_ctx or 0:,}"
    if settings.kv_type != "f16":
        yield f"KV cache in {settings.kv_type}"
    if fit.device_fits and settings.n_gpu_layers != -1:
        yield f"{settings.n_gpu_layers} of {n_layer + 1} layers on the GPU"
    if not settings.swa_full:
        yield "KV cache limited to the sliding window"
    if settings.cpu_moe:
        yield "experts in RAM"
    if default_fit.load.draft and not fit.load.draft:
        yield "no draft model"
    elif default_fit.load.draft_settings.n_gpu_layers and not draft.n_gpu_layers:
        yield "the draft on the CPU"


def _describe_outcome(fit: FitReport, default_fit: FitReport) -> str:
    unknown = [each for each in fit.device_fits if each.verdict == "unknown"]
    if unknown:
        return f"free memory of {describe_device(unknown[0])} is unknown"
    tightest = fit.tightest
    device = describe_device(tightest)
    if fit.verdict == "no":
        free = gib(tightest.device.free or 0)
        return f"needs {gib(tightest.needed)} of {device}, which has {free} free"
    if fit is default_fit or default_fit.verdict == "fits":
        spare = tightest.headroom or 0
        return f"fits {device}, {gib(spare)} to spare" if spare > 0 else f"fills {device}"
    device = describe_device(default_fit.tightest)
    needs = f"{gib(default_fit.tightest.needed)} of {device}, more than available"
    if default_fit.load.draft and not fit.load.draft:
        return f"with a draft model it needs {needs}"
    return f"the default settings need {needs}"


def describe_device(device_fit: DeviceFit) -> str:
    if device_fit.device.kind == "cpu":
        return "this computer's memory"
    return device_fit.device.description or device_fit.device.name
