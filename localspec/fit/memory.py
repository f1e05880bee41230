"""Memory of a pair on each device, estimated from its headers without llama.cpp."""

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
from localspec.fit.hparams import ModelHparams, word_set
from localspec.machine.device import Device
from localspec.machine.memory_by_device import (
    DRAFT_DROPPED_NOTE,
    HOST,
    DeviceMemory,
    MemoryByDevice,
    MemoryEstimate,
)
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand

VERIFIED_ARCHITECTURES = word_set(
    "llama mistral3 smollm3 qwen2 qwen3 qwen3moe gemma2 gemma3 gemma4 gpt-oss phi3 deepseek2 "
    "mamba2 qwen35 qwen35moe granite granitehybrid lfm2 lfm2moe eagle3 dflash"
)
"""Architectures compared with llama.cpp itself by scripts/measure_estimate.py."""
_MIB = 1024 * 1024
_BASE_ERROR = 4 * _MIB
_COMPUTE_ERROR = 0.02
"""Relative error of compute buffers: a real GPU differs from llama.cpp's own dry run by this."""
_UNVERIFIED_BASE_ERROR = 64 * _MIB
_UNVERIFIED_COMPUTE_ERROR = 0.3
_ACTIVATION_COPIES = 4
"""Copies of an activation row where a batch crosses from one device to the next."""


def estimate_pair(
    load: LoadCommand, target: Header, draft: Header | None, devices: Sequence[Device]
) -> MemoryEstimate:
    """Works for any devices, simulated ones too.  Raises UsageError for an impossible context."""
    head_kind = ""
    if draft is not None:
        head_kind = draft_heads.draft_kind_for_target(target, draft).replace("model", "")
    is_mtp = head_kind == "mtp"
    target_hparams = hparams.from_header(target, load_mtp=is_mtp)
    draft_hparams, note = None, ""
    if draft is not None:
        draft_hparams = target_hparams if is_mtp else hparams.from_header(draft)
        if draft_hparams.has_recurrent_state and not head_kind:
            draft_hparams, note = None, DRAFT_DROPPED_NOTE
    params, draft_params = context_params.for_pair(load, target_hparams, draft_hparams, head_kind)
    settings = load.target_settings
    target_memory = estimate_model(target_hparams, params, settings, devices, {})
    models = [(target_hparams, params)]
    draft_memory: MemoryByDevice | None = None
    if draft_hparams is not None and draft_params is not None:
        used = target_memory
        if params.hidden_state_layers and len(devices) > 1:
            # llama.cpp splits the draft before the target allocates its hidden-state outputs.
            without_outputs = replace(params, hidden_state_layers=frozenset())
            used = estimate_model(target_hparams, without_outputs, settings, devices, {})
        if head_kind:
            matrix = _locate_output_matrix(target_hparams, settings, devices)
            draft_params = replace(draft_params, target_output_matrix=matrix)
        used_bytes = {name: part.total for name, part in used.on.items()}
        draft_memory = estimate_model(
            draft_hparams, draft_params, load.draft_settings, devices, used_bytes
        )
        models.append((draft_hparams, draft_params))
    estimate = MemoryEstimate(target_memory, draft_memory, "analytic", note=note)
    cpu_moe = settings.cpu_moe or load.draft_settings.cpu_moe
    return replace(estimate, error=error_bound(estimate, models, cpu_moe))


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
    if (
        params.flash_attn_auto
        and params.flash_attn
        and not compute_buffers.is_flash_attn_on_layer_device(model, params, placement)
    ):
        params = replace(params, flash_attn=False)
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


def error_bound(
    memory_estimate: MemoryEstimate,
    models: Sequence[tuple[ModelHparams, ContextParams]],
    experts_on_cpu: bool = False,
) -> int:
    """Bytes by which the real memory of any device may differ from the estimate."""
    devices = _device_names(memory_estimate)
    largest = max((memory_estimate.of(name).compute for name in devices), default=0)
    verified = all(model.arch in VERIFIED_ARCHITECTURES for model, _ in models)
    error = int((_COMPUTE_ERROR if verified else _UNVERIFIED_COMPUTE_ERROR) * largest)
    error += _BASE_ERROR if verified else _UNVERIFIED_BASE_ERROR
    for model, params in models:
        activations = 4 * params.n_ubatch * model.n_embd
        if model.has_recurrent_state:
            error += _BASE_ERROR
        if params.keeps_last_hidden_state:
            error += activations
        if len(devices - {HOST}) > 1 or _is_partially_offloaded(memory_estimate):
            error += _ACTIVATION_COPIES * activations
    if experts_on_cpu and devices != {HOST}:
        error += max(_largest_tensor_bytes(model) for model, _ in models)
    return error


def _largest_tensor_bytes(model: ModelHparams) -> int:
    """The largest tensor of a layer: two of them may be on a GPU at a time."""
    layer = model.layer_tensors.get(model.n_layer - 1, {})
    return max((tensor.n_bytes for tensor in layer.values()), default=0)


def _device_names(memory_estimate: MemoryEstimate) -> set[str]:
    names = set(memory_estimate.target.on)
    return names | set(memory_estimate.draft.on) if memory_estimate.draft else names


def _is_partially_offloaded(memory_estimate: MemoryEstimate) -> bool:
    """Some layers are on a GPU and some on the CPU."""
    models = [model for model in (memory_estimate.target, memory_estimate.draft) if model]
    gpus = _device_names(memory_estimate) - {HOST}
    return bool(gpus) and any(model.of(HOST).kv > 0 for model in models)
