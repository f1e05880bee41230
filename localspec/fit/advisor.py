"""With what settings a pair runs best here: what fits, ranked by tokens a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from localspec.fit import report
from localspec.fit.report import DeviceFit, FitReport, MachineProfile
from localspec.fit.speed_estimate import UseCase
from localspec.machine.llama_params import DEFAULT_CTX
from localspec.models.gguf.header import Header
from localspec.protocol.wire import KvType, LoadCommand
from localspec.units import gib

_LONG_CTX_FREE_SHARE = 0.25
"""Of what may be used: a longer context than usual is taken where so much stays free."""
_KV_TYPE_SCORES = {"f16": 1.0, "bf16": 1.0, "f32": 1.0, "q8_0": 0.98, "q4_0": 0.92}
"""What an answer is worth with keys and values of this type."""
_TIGHT_SCORE = 0.9
_SWA_CUT_SCORE = 0.97
"""Sliding windows that keep only what they see: a guess taken back may change the last bits."""
_CTX_STEP = 256
"""Contexts are multiples of it."""
_TYPICAL_DRAFT_SPEEDUP = 1.25
"""What a draft gains where nobody can say."""
_GPU_BYTES_PER_S, _CPU_BYTES_PER_S = 400e9, 40e9
"""Bytes a second where nothing is known, to tell what is faster than what."""


@dataclass(frozen=True, slots=True)
class SettingsRequest:
    """What a person asked for; None is open."""

    load: LoadCommand
    ctx: int | None = None
    kv: KvType | None = None
    n_gpu_layers: int | None = None
    draft_n_gpu_layers: int | None = None
    draft_note: str = ""
    """What a person should know of a draft that they did not name."""
    skip_memory_check: bool = False
    """Whether to load what does not fit by our reckoning."""


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """One thing to change."""

    change: str
    """In words: context 4,096."""
    flags: str
    """As typed: --ctx 4096."""
    saved_bytes: int
    """Bytes, where the least is to spare."""
    drawback: str
    fit: FitReport


@dataclass(frozen=True, slots=True)
class SettingsAdvice:
    """What was chosen, why, and what else there is."""

    fit: FitReport
    explanation: str

    @property
    def fits(self) -> bool:
        """As far as anybody can tell."""
        return self.fit.verdict != "no"


class SettingsAdvisor:
    """One pair on one place."""

    def __init__(
        self,
        target: Header,
        draft: Header | None,
        machine: MachineProfile,
        use: UseCase | None = None,
    ) -> None:
        self.target, self.draft, self.machine = target, draft, machine
        self.use = use

    def estimate_fit(self, load: LoadCommand) -> FitReport:
        return report.estimate_fit(load, self.target, self.draft, self.machine, self.use)

    def advise(self, request: SettingsRequest) -> SettingsAdvice:
        """The best that fits, or, where nothing does, what comes nearest.  Raises UsageError."""
        first = self.estimate_fit(self._default_settings(request))
        if first.verdict in ("fits", "unknown"):
            fit = self._extend_context(request, first) if first.verdict == "fits" else first
            return SettingsAdvice(fit, explain_choice(fit, first, self.target.n_layer))
        found = max(self._candidates(request), key=self._score, default=first)
        if first.verdict == "tight" and self._score(first) >= self._score(found):
            found = first
        return SettingsAdvice(found, explain_choice(found, first, self.target.n_layer))

    def quick_fit(self, request: SettingsRequest) -> FitReport:
        """Of a few usual settings the first that fits, else the last: for long lists."""
        usual = self._default_settings(request)
        tries = [usual]
        if not request.kv and usual.target_settings.flash_attn != "off":
            tries.append(with_both_settings(usual, kv_type="q8_0"))
        if not request.ctx:
            tries.append(with_both_settings(tries[-1], n_ctx=CONTEXT_SIZES[-2]))
        fits = [self.estimate_fit(tries[0])]
        while fits[-1].verdict not in ("fits", "unknown") and len(fits) < len(tries):
            fits.append(self.estimate_fit(tries[len(fits)]))
        good = [fit for fit in fits if fit.verdict in ("fits", "unknown")]
        tight = [fit for fit in fits if fit.verdict == "tight"]
        return (good or tight or fits)[0]

    def find_longest_context(self, fit: FitReport) -> int | None:
        """The largest context that fits with these settings otherwise; None: not even a small."""
        best, low, high = None, 1, -(-(fit.load.target_settings.n_ctx or DEFAULT_CTX) // _CTX_STEP)
        while low <= high:
            middle = (low + high) // 2
            found = self.estimate_fit(with_both_settings(fit.load, n_ctx=middle * _CTX_STEP))
            if found.verdict in ("fits", "unknown"):
                best, low = middle * _CTX_STEP, middle + 1
            else:
                high = middle - 1
        return best

    def list_memory_savings(self, fit: FitReport) -> tuple[MemorySaving, ...]:
        """Single changes to these settings that save memory; what fits first, then the fastest."""
        devices = bool(self.machine.devices)
        found = [
            MemorySaving(words, flags, _saved_bytes(fit, other), costs, other)
            for words, flags, costs, load in list_single_changes(fit.load, self.target, devices)
            if (other := self.estimate_fit(load)) and _saved_bytes(fit, other) > 0
        ]
        return tuple(
            sorted(found, key=lambda one: (one.fit.verdict == "no", -self._score(one.fit)))
        )

    # --- the search -----------------------------------------------------------------------

    def _default_settings(self, request: SettingsRequest) -> LoadCommand:
        """All of both models on the devices, a usual context, the best keys and values."""
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
        """A longer context on a card that has much to spare; a CPU reads too slowly to fill it."""
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
        """What fits, by each context, type of keys and values, and with or without the draft."""
        usual = self._default_settings(request)
        for load in list_draft_variants(usual):
            for kv in (request.kv,) if request.kv else ("f16", "q8_0"):
                if kv.startswith("q") and usual.target_settings.flash_attn == "off":
                    continue
                for ctx, whole in product(
                    self._context_sizes(request, usual), self._swa_full_options()
                ):
                    one = with_both_settings(load, n_ctx=ctx, kv_type=kv)
                    yield from self._offload_variants(
                        with_target_settings(one, swa_full=whole), request
                    )

    def _swa_full_options(self) -> tuple[bool, ...]:
        """Whether layers with a sliding window keep everything, which makes going back exact."""
        return (True, False) if self.target.hparam("attention.sliding_window") else (True,)

    def _context_sizes(self, request: SettingsRequest, defaults: LoadCommand) -> tuple[int, ...]:
        most = defaults.target_settings.n_ctx or DEFAULT_CTX
        return (most,) if request.ctx else (most, *(one for one in CONTEXT_SIZES if one < most))

    def _offload_variants(self, load: LoadCommand, request: SettingsRequest) -> Iterator[FitReport]:
        """As it is; else with experts in the computer's memory, or with fewer layers on devices."""
        whole = self.estimate_fit(load)
        if whole.verdict in ("fits", "tight"):
            yield whole
        if whole.verdict == "fits" or not self.machine.devices or request.n_gpu_layers is not None:
            return
        if self.target.is_moe:
            apart = self.estimate_fit(with_target_settings(load, cpu_moe=True))
            if apart.verdict in ("fits", "tight"):
                yield apart
                return
        fewer = self._max_gpu_layers(load)
        if fewer is not None and fewer.verdict in ("fits", "tight"):
            yield fewer

    def _max_gpu_layers(self, load: LoadCommand) -> FitReport | None:
        """By halves: memory grows with layers."""
        best, low, high = None, 0, self.target.n_layer
        while low <= high:
            middle = (low + high) // 2
            fit = self.estimate_fit(with_target_settings(load, n_gpu_layers=middle))
            if all(room.verdict == "fits" for room in fit.device_fits):
                best, low = fit, middle + 1
            else:
                high = middle - 1
        return best

    def _score(self, fit: FitReport) -> float:
        """Tokens a second, less what a short context and coarse keys and values take from them."""
        settings = fit.load.target_settings
        goal = min(DEFAULT_CTX, self.target.n_ctx_train or DEFAULT_CTX)
        length: float = min(1.0, (settings.n_ctx or goal) / goal) ** 0.25
        squeezed = _TIGHT_SCORE if fit.verdict == "tight" else 1.0
        cut = 1.0 if settings.swa_full else _SWA_CUT_SCORE
        return (
            estimate_tokens_per_second(fit)
            * length
            * _KV_TYPE_SCORES[settings.kv_type]
            * squeezed
            * cut
        )


def estimate_tokens_per_second(fit: FitReport) -> float:
    """Tokens a second, about; where nobody knows, by what is read from where."""
    known = fit.speed.speculative or fit.speed.plain
    if known is not None:
        return (known[0] + known[1]) / 2
    device = sum(room.target.weights for room in fit.device_fits)
    alone = 1 / (1e-3 + device / _GPU_BYTES_PER_S + fit.host.target.weights / _CPU_BYTES_PER_S)
    return alone * (_TYPICAL_DRAFT_SPEEDUP if fit.load.draft else 1.0)


def _min_free_share(fit: FitReport) -> float:
    """The share of what may be used that stays free, where it is least."""
    shares = [
        (room.headroom or 0) / max(1, (room.device.free or 0) - room.reserve)
        for room in (*fit.device_fits, fit.host)
        if room.total
    ]
    return min(shares, default=0.0)


def _saved_bytes(before: FitReport, after: FitReport) -> int:
    name = before.tightest.device.name
    rooms = {room.device.name: room.total for room in (*after.device_fits, after.host)}
    return before.tightest.total - rooms.get(name, 0)


# --- The settings that can be changed to save memory: in words, as typed, and what each costs.

CONTEXT_SIZES = (32768, 16384, DEFAULT_CTX, 4096, 2048)
"""Contexts that are tried."""
_SMALL_UBATCH = 128
"""Of the draft: it reads a prompt in smaller steps, and takes a quarter of the buffers."""

SettingsChange = tuple[str, str, str, LoadCommand]
"""In words, as typed, what it costs, and the settings then."""


def with_both_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    """Both contexts with the same."""
    target = replace(load.target_settings, **changes)  # type: ignore[arg-type]
    rest = {name: value for name, value in changes.items() if name != "n_ctx"}
    draft = replace(load.draft_settings, **rest)  # type: ignore[arg-type]
    return replace(load, target_settings=target, draft_settings=draft)


def with_target_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    return replace(load, target_settings=replace(load.target_settings, **changes))  # type: ignore[arg-type]


def with_draft_settings(load: LoadCommand, **changes: object) -> LoadCommand:
    return replace(load, draft_settings=replace(load.draft_settings, **changes))  # type: ignore[arg-type]


def list_draft_variants(load: LoadCommand) -> tuple[LoadCommand, ...]:
    """With the draft, with it reading in small steps, and without it."""
    if load.draft is None:
        return (load,)
    return load, with_draft_settings(load, n_ubatch=_SMALL_UBATCH), replace(load, draft=None)


def list_single_changes(
    load: LoadCommand, target: Header, has_gpu: bool
) -> Iterator[SettingsChange]:
    """In words, as typed, and what it costs."""
    settings = load.target_settings
    ctx = settings.n_ctx or DEFAULT_CTX
    if load.draft and load.draft_settings.n_ubatch > _SMALL_UBATCH:
        yield (
            "draft reads prompts in steps of 128", "", "prompts are read a little slower",
            with_draft_settings(load, n_ubatch=_SMALL_UBATCH),
        )  # fmt: skip
    if settings.kv_type == "f16" and settings.flash_attn != "off":
        yield (
            "keys and values in q8_0", "--kv q8_0", "hardly any quality",
            with_both_settings(load, kv_type="q8_0"),
        )  # fmt: skip
    if settings.swa_full and target.hparam("attention.sliding_window"):
        costs = "the last bits after a guess is taken back"
        less_kept = with_target_settings(load, swa_full=False)
        yield "sliding windows keep only what they see", "", costs, less_kept
    for less in [one for one in CONTEXT_SIZES if one < ctx][:2]:
        costs = "a shorter memory of the chat"
        yield f"context {less:,}", f"--ctx {less}", costs, with_both_settings(load, n_ctx=less)
    if load.draft:
        if has_gpu and load.draft_settings.n_gpu_layers:
            yield (
                "draft on the CPU", "--draft-gpu-layers 0", "guesses cost more",
                with_draft_settings(load, n_gpu_layers=0),
            )  # fmt: skip
        yield "no draft", "--draft none", "copies only what repeats", replace(load, draft=None)
    if has_gpu and target.is_moe and not settings.cpu_moe:
        yield (
            "experts in the computer's memory", "--cpu-moe", "every token waits for slower memory",
            with_target_settings(load, cpu_moe=True),
        )  # fmt: skip
    if has_gpu:
        half = (target.n_layer + 1) // 2
        yield (
            f"{half} of {target.n_layer + 1} layers on the GPU", f"--gpu-layers {half}",
            "the others are read from slower memory", with_target_settings(load, n_gpu_layers=half),
        )  # fmt: skip


# --- In one line: what settings were chosen, and why.

_HEAD_DESCRIPTIONS = {
    "eagle3": "EAGLE-3 head: a layer trained on this very model's hidden states, so its guesses "
    "are kept more often than a small model's, and cost less",
    "mtp": "MTP: a layer of the model's own, trained with it to predict one token more; better "
    "guesses than a small model's, and nothing else to load",
    "dflash": "DFlash head: trained on this very model's hidden states; guesses several tokens in "
    "one pass, where a small model needs one for each",
    "dspark": "DSpark head: trained on this very model's hidden states; guesses several tokens in "
    "one pass, and knows how sure it is of each",
}


def describe_head(kind: str) -> str:
    """What a head is, and why it is better here than a small draft; nothing for a model."""
    return _HEAD_DESCRIPTIONS.get(kind, "")


def explain_choice(fit: FitReport, default_fit: FitReport, n_layer: int) -> str:
    """`first`: with the usual settings; where it fits, it was taken, perhaps with more context."""
    return (
        f"{', '.join(_describe_settings(fit, default_fit, n_layer))}: "
        f"{_describe_outcome(fit, default_fit)}"
    )


def _describe_settings(fit: FitReport, default_fit: FitReport, n_layer: int) -> Iterator[str]:
    settings, draft = fit.load.target_settings, fit.load.draft_settings
    yield f"context {settings.n_ctx or 0:,}"
    if settings.kv_type != "f16":
        yield f"keys and values in {settings.kv_type}"
    if fit.device_fits and settings.n_gpu_layers != -1:
        yield f"{settings.n_gpu_layers} of {n_layer + 1} layers on the GPU"
    if not settings.swa_full:
        yield "sliding windows that keep only what they see"
    if settings.cpu_moe:
        yield "experts in the computer's memory"
    if default_fit.load.draft and not fit.load.draft:
        yield "no draft"
    elif default_fit.load.draft_settings.n_gpu_layers and not draft.n_gpu_layers:
        yield "the draft on the CPU"


def _describe_outcome(fit: FitReport, default_fit: FitReport) -> str:
    unknown = [room for room in fit.device_fits if room.verdict == "unknown"]
    if unknown:
        return f"how much memory is free on {describe_device(unknown[0])} is unknown"
    room = fit.tightest
    if fit.verdict == "no":
        free = gib(room.device.free or 0)
        return f"needs {gib(room.total)} of {describe_device(room)}, which has {free} free"
    if fit is default_fit or default_fit.verdict == "fits":
        spare = room.headroom or 0
        return (
            f"fits {describe_device(room)}, {gib(spare)} to spare"
            if spare > 0
            else f"fills {describe_device(room)}"
        )
    needs = (
        f"{gib(default_fit.tightest.total)} of "
        f"{describe_device(default_fit.tightest)}, more than there is"
    )
    if default_fit.load.draft and not fit.load.draft:
        return f"with a draft it takes {needs}"
    return f"the usual settings take {needs}"


def describe_device(device_fit: DeviceFit) -> str:
    """A device in words."""
    if device_fit.device.kind == "cpu":
        return "this computer's memory"
    return device_fit.device.description or device_fit.device.name
