"""Memory of a pair on each device, from its headers and, where they run, llama.cpp's own counts.

Weights (by tensor) and KV caches and recurrent states (by layer) are exact.  Compute buffers are an
upper bound with an error, or llama.cpp's count of a load without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec.fit import (
    compute_buffers,
    context_params,
    hparams,
    kv_buffers,
    layer_placement,
    model_buffers,
)
from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import ModelHparams
from localspec.lazy_dataclass import dataclass
from localspec.machine.device import Device
from localspec.machine.memory_by_device import (
    DRAFT_DROPPED_NOTE,
    HOST,
    DeviceMemory,
    MemoryByDevice,
    MemoryEstimate,
)
from localspec.machine.probe import ModelBuffers, PairBuffers
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand

VERIFIED_ARCHITECTURES = frozenset({
    "llama", "mistral3", "smollm3", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma4",
    "gpt-oss", "phi3", "deepseek2", "mamba2", "qwen35", "qwen35moe", "granite", "granitehybrid",
    "lfm2", "lfm2moe", "eagle3", "dflash",
})  # fmt: skip
"""Architectures compared with llama.cpp itself by scripts/measure_estimate.py."""
_MIB = 1024 * 1024
_BASE_ERROR = 16 * _MIB
_COMPUTE_ERROR = 0.25
"""The bound exceeds the real compute buffers of one device by at most this share."""
_LOOSE_COMPUTE_ERROR = 0.5
"""The same for recurrent layers, compressed caches, and targets of heads: more terms are upper
bounds that do not occur at the same time."""
_SHARED_COMPUTE_ERROR = 0.8
"""The same for several devices: which of them computes an operation is not modelled."""
_UNVERIFIED_BASE_ERROR = 64 * _MIB
_ACTIVATION_COPIES = 4
"""GGML_SCHED_MAX_COPIES: llama.cpp without data miscounts a batch where it crosses devices."""


@dataclass(frozen=True, slots=True)
class _PairModels:
    """Both models with their context parameters."""

    target: ModelHparams
    params: ContextParams
    draft: ModelHparams | None
    draft_params: ContextParams | None
    is_draft_dropped: bool

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(model.arch for model in (self.target, self.draft) if model is not None)


def _resolve_models(load: LoadCommand, target: Header, draft: Header | None) -> _PairModels:
    """Raises UsageError for an impossible context."""
    head_kind = ""
    if draft is not None:
        head_kind = draft_heads.draft_kind_for_target(target, draft).replace("model", "")
    is_mtp = head_kind == "mtp"
    target_hparams = hparams.from_header(target, load_mtp=is_mtp)
    draft_hparams = None
    if draft is not None:
        draft_hparams = target_hparams if is_mtp else hparams.from_header(draft)
    is_dropped = draft_hparams is not None and draft_hparams.has_recurrent_state and not head_kind
    if is_dropped:
        draft_hparams = None
    params, draft_params = context_params.for_pair(load, target_hparams, draft_hparams, head_kind)
    return _PairModels(target_hparams, params, draft_hparams, draft_params, is_dropped)


def estimate_pair(
    load: LoadCommand, target: Header, draft: Header | None, devices: Sequence[Device]
) -> MemoryEstimate:
    """Works for any devices, absent ones too.  Raises UsageError for an impossible context."""
    models = _resolve_models(load, target, draft)
    settings, params = load.target_settings, models.params
    target_memory = estimate_model(models.target, params, settings, devices, {})
    draft_memory: MemoryByDevice | None = None
    if models.draft is not None and models.draft_params is not None:
        used = target_memory
        if params.hidden_state_layers and len(devices) > 1:
            # llama.cpp splits the draft before the target allocates its hidden-state outputs.
            without_outputs = replace(params, hidden_state_layers=frozenset())
            used = estimate_model(models.target, without_outputs, settings, devices, {})
        draft_params = models.draft_params
        if draft_params.head_kind:
            matrix = _locate_output_matrix(models.target, settings, devices)
            draft_params = replace(draft_params, target_output_matrix=matrix)
        used_bytes = {name: part.total for name, part in used.on.items()}
        draft_memory = estimate_model(
            models.draft, draft_params, load.draft_settings, devices, used_bytes
        )
    note = DRAFT_DROPPED_NOTE if models.is_draft_dropped else ""
    estimate = MemoryEstimate(
        target_memory,
        draft_memory,
        "analytic",
        note=note,
        architectures=models.architectures,
        scratch=_scratch_by_device(models, (target_memory, draft_memory), devices),
    )
    return replace(estimate, error=_error_bound(estimate, models, load))


def _scratch_by_device(
    models: _PairModels,
    memory: tuple[MemoryByDevice, MemoryByDevice | None],
    devices: Sequence[Device],
) -> dict[str, int]:
    """Vulkan copies a quantised cache to f16, layer by layer, for batches of 64 rows and more."""
    parts = [(models.target, models.params, memory[0])]
    if models.draft is not None and models.draft_params is not None and memory[1] is not None:
        parts.append((models.draft, models.draft_params, memory[1]))
    return {
        device.name: sum(
            kv_buffers.f16_copy_bytes(model, params)
            for model, params, on in parts
            if on.of(device.name).kv
        )
        for device in devices
        if device.backend == "Vulkan"
    }


def replace_counted(
    estimate: MemoryEstimate,
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    counted: PairBuffers,
) -> MemoryEstimate:
    """The estimate with the compute buffers that llama.cpp counted on this machine.

    Its total of the KV cache takes precedence too, if it is larger: of an architecture with a cache
    that is unknown here.
    """
    models = _resolve_models(load, headers[0], headers[1] if load.draft else None)
    target = _replace_model(estimate.target, counted.target)
    draft, states = None, models.params.hidden_state_bytes(models.target.n_embd)
    if estimate.draft is not None and counted.draft is not None:
        draft = _replace_model(estimate.draft, counted.draft)
    else:
        states = 0
    if states:  # requested, and reserved, only when the engine adds the head
        on = {
            name: replace(part, compute=part.compute + states * (part.compute > 0))
            for name, part in target.on.items()
        }
        target = replace(target, on=on)
    error = states
    if len(_device_names(estimate) - {HOST}) > 1:
        error += _ACTIVATION_COPIES * 4 * models.params.n_ubatch * models.target.n_embd
    return replace(estimate, target=target, draft=draft, method="exact", error=error)


def _replace_model(memory: MemoryByDevice, counted: ModelBuffers) -> MemoryByDevice:
    on = {
        name: replace(memory.of(name), compute=counted.compute.get(name, 0))
        for name in {**memory.on, **counted.compute}
    }
    missing = counted.kv - sum(part.kv for part in on.values())
    if missing > _MIB:
        largest = max(on, key=lambda name: on[name].kv)
        on[largest] += DeviceMemory(kv=missing)
    return replace(memory, on=on)


def _locate_output_matrix(
    target: ModelHparams, settings: ContextSettings, devices: Sequence[Device]
) -> tuple[str, int]:
    """Device and bytes of the output matrix."""
    placement = layer_placement.place_layers(target, settings, devices, {})
    tensors = target.global_tensors
    matrix = tensors.get("output.weight") or tensors.get("token_embd.weight")
    return placement.backend_names[placement.output_backend], matrix.n_bytes if matrix else 0


def estimate_model(
    model: ModelHparams,
    params: ContextParams,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> MemoryByDevice:
    """Memory of one model; `used_bytes` are already in use on each device."""
    placement = layer_placement.place_layers(model, settings, devices, used_bytes)
    sums = zip(
        placement.backend_names,
        (0,) * len(placement.backend_names)
        if params.head_kind == "mtp"
        else model_buffers.estimate(model, placement),
        kv_buffers.estimate(model, params, placement),
        compute_buffers.estimate(model, params, placement),
        strict=True,
    )
    on = {name: DeviceMemory(*parts) for name, *parts in sums}
    logits = 4 * params.n_outputs_max * (params.n_vocab or model.n_vocab)
    return MemoryByDevice(on, output=logits + params.hidden_state_bytes(model.n_embd))


def _error_bound(estimate: MemoryEstimate, models: _PairModels, load: LoadCommand) -> int:
    """Bytes by which the real memory of any device may differ from the estimate."""
    names = _device_names(estimate)
    largest = max((estimate.of(name).compute for name in names), default=0)
    if not VERIFIED_ARCHITECTURES.issuperset(models.architectures):
        return _UNVERIFIED_BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    gpus = names - {HOST}
    on_cpu = estimate.of(HOST).kv > 0 or load.target_settings.cpu_moe or load.draft_settings.cpu_moe
    if len(gpus) > 1 or (gpus and on_cpu):
        return _BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    is_loose = models.params.hidden_state_layers or any(
        model.has_recurrent_state or model.is_mla
        for model in (models.target, models.draft)
        if model is not None
    )
    share = _LOOSE_COMPUTE_ERROR if is_loose else _COMPUTE_ERROR
    return _BASE_ERROR + int(share * largest)


def _device_names(memory_estimate: MemoryEstimate) -> set[str]:
    names = set(memory_estimate.target.on)
    return names | set(memory_estimate.draft.on) if memory_estimate.draft else names
