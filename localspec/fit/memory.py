"""Memory of a pair on each device, from its shapes and, where it runs, llama.cpp's own
counts.

Weights and KV caches and recurrent states (by layer) are exact.  Compute buffers are an upper bound
with an error, or llama.cpp's count of a load without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.fit import compute, placement
from localspec.fit.placement import ContextParams, LayerPlacement
from localspec.fit.shape import ModelShape
from localspec.machine.device import HOST, Device, DeviceMemory
from localspec.machine.memory_probe import ModelBuffers, PairBuffers
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import ContextSettings, LoadCommand

VERIFIED_ARCHITECTURES = frozenset({
    "llama", "mistral3", "smollm3", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma4",
    "gpt-oss", "phi3", "deepseek2", "mamba2", "qwen35", "qwen35moe", "granite", "granitehybrid",
    "lfm2", "lfm2moe", "eagle3", "dflash",
})  # fmt: skip
"""Architectures compared with llama.cpp itself by tests/fit/test_memory.py."""
_MIB = 1024 * 1024
_BASE_ERROR, _UNVERIFIED_BASE_ERROR = 16 * _MIB, 64 * _MIB
_COMPUTE_ERROR = 0.25
"""The bound exceeds the real compute buffers of one device by at most this share."""
_LOOSE_COMPUTE_ERROR = 0.5
"""The same for recurrent layers, compressed caches, and targets of heads: more terms
are upper bounds that do not occur at the same time.
"""
_SHARED_COMPUTE_ERROR = 0.8
"""The same for several devices: which of them computes an operation is not modelled."""
_F16 = 1
_ACTIVATION_COPIES = 4
"""GGML_SCHED_MAX_COPIES: llama.cpp without data miscounts a batch where it crosses
devices.
"""


class MemoryByDevice(Struct, frozen=True):
    """Bytes of one model on all devices."""

    on: Mapping[str, DeviceMemory]  # By device name; unused devices may be missing.
    output: int = 0
    """Output buffer (logits, hidden states) in system memory; not part of the other
    categories.
    """

    def of(self, device: str) -> DeviceMemory:
        return self.on.get(device, DeviceMemory())


class MemoryEstimate(Struct, frozen=True):
    """Memory of a pair before it is loaded."""

    target: MemoryByDevice
    draft: MemoryByDevice | None
    method: Literal["exact", "analytic"]
    """exact: llama.cpp's sums for a load without data; analytic: formulas in
    localspec.fit.
    """
    error: int = 0  # Bytes by which the real memory of a device may differ.
    note: str = ""  # A remark for the user, such as why it is not exact.
    scratch: Mapping[str, int] = field(default_factory=dict)
    """What backends allocate at the first prompt, by device; llama.cpp does not count
    it.
    """

    def of(self, device: str) -> DeviceMemory:
        return self.target.of(device) + (
            self.draft.of(device) if self.draft else DeviceMemory()
        )

    @property
    def output(self) -> int:
        return self.target.output + (self.draft.output if self.draft else 0)

    @property
    def devices(self) -> set[str]:
        return {*self.target.on, *(self.draft.on if self.draft else ())}

    @property
    def total_by_device(self) -> dict[str, int]:
        """With the output buffer in system memory."""
        return {
            name: self.of(name).total + self.output * (name == HOST)
            for name in {HOST, *self.devices}
        }


def estimate_pair(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    devices: Sequence[Device],
) -> MemoryEstimate:
    """Works for any devices, absent ones too.

    Raises UsageError for an impossible context.
    """
    params, draft_params = placement.context_params(load, target, draft)
    settings = load.target_settings
    target_memory = estimate_model(target, params, settings, devices)
    parts = [(target, params, target_memory)]
    draft_memory: MemoryByDevice | None = None
    if draft is not None and draft_params is not None:
        if draft.head_kind:
            placed = placement.place_layers(target, settings, devices, {})
            matrix = placed.backend_names[placed.output_backend], target.output_matrix
            draft_params = replace(draft_params, target_output_matrix=matrix)
        used_bytes = {name: part.total for name, part in target_memory.on.items()}
        draft_memory = estimate_model(
            draft, draft_params, load.draft_settings, devices, used_bytes
        )
        parts.append((draft, draft_params, draft_memory))
    vulkan = [device.name for device in devices if device.backend == "Vulkan"]
    scratch = {
        name: sum(
            _f16_copy_bytes(shape, each) for shape, each, on in parts if on.of(name).kv
        )
        for name in vulkan
    }
    estimate = MemoryEstimate(target_memory, draft_memory, "analytic", 0, "", scratch)
    return replace(
        estimate, error=_error_bound(estimate, [part[0] for part in parts], load)
    )


def _f16_copy_bytes(shape: ModelShape, params: ContextParams) -> int:
    """Vulkan copies a quantised cache to f16, layer by layer, for batches of 64 rows
    and more.
    """
    if all(GGML_TYPES[kv_type][1] == 1 for kv_type in params.kv_types):
        return 0
    in_f16 = replace(params, kv_types=(_F16, _F16))
    return max(
        compute.layer_cache_bytes(shape, layer, in_f16) for layer in set(shape.layers)
    )


def replace_counted(
    estimate: MemoryEstimate,
    load: LoadCommand,
    shapes: tuple[ModelShape, ModelShape | None],
    counted: PairBuffers,
) -> MemoryEstimate:
    """The estimate with the compute buffers that llama.cpp counted on this machine.

    Its total of the KV cache takes precedence too, if it is larger: of an architecture
    with a cache that is unknown here.
    """
    target_shape, draft_shape = shapes[0], shapes[1] if estimate.draft else None
    params, _ = placement.context_params(load, target_shape, draft_shape)
    target = _replace_model(estimate.target, counted.target)
    draft, states = None, 0
    if estimate.draft is not None and counted.draft is not None:
        draft = _replace_model(estimate.draft, counted.draft)
        states = params.hidden_state_bytes(target_shape)
    # Requested, and reserved, only when the engine adds the head.
    on = {
        name: replace(part, compute=part.compute + states * (part.compute > 0))
        for name, part in target.on.items()
    }
    error = states
    if len(estimate.devices - {HOST}) > 1:
        error += _ACTIVATION_COPIES * 4 * params.n_ubatch * target_shape.n_embd
    return replace(
        estimate,
        target=replace(target, on=on),
        draft=draft,
        method="exact",
        error=error,
    )


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


def estimate_model(
    shape: ModelShape,
    params: ContextParams,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int] | None = None,
) -> MemoryByDevice:
    """Memory of one model; `used_bytes` are already in use on each device."""
    placed = placement.place_layers(shape, settings, devices, used_bytes or {})
    caches, states, windows = _caches(shape, params, placed)
    sizes = zip(
        placed.backend_names,
        _weights(shape, params, placed),
        caches,
        compute.estimate(shape, params, placed),
        states,
        windows,
        strict=True,
    )
    on = {name: DeviceMemory(*parts) for name, *parts in sizes}
    logits = 4 * params.n_outputs_max * (params.n_vocab or shape.n_vocab)
    return MemoryByDevice(on, output=logits + params.hidden_state_bytes(shape))


def _weights(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> list[int]:
    """Bytes by backend."""
    sums = [0] * len(placed.backend_names)
    if shape.has_target_weights:
        return sums
    cpu, output = placed.cpu_backend, placed.output_backend
    has_mtp = params.load_mtp or shape.head_kind
    for il, layer in enumerate(shape.layers[: None if has_mtp else shape.n_layer]):
        sums[placed.layer_backends[il]] += layer.weights
        sums[placed.expert_backends[il]] += layer.experts
    sums[cpu] += shape.input_bytes
    sums[output] += shape.output_bytes
    # llama.cpp loads gemma4's tied embeddings twice, also on the CPU.
    is_twice = shape.architecture == "gemma4" or output != cpu
    if shape.is_tied and (is_twice or (placed.repacks and shape.is_table_repacked)):
        sums[output] += shape.output_matrix
    return sums


def _caches(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> list[list[int]]:
    """Bytes of caches by backend: all, recurrent states, those of windows.

    An MTP layer's belong to the draft.
    """
    sums, states, windows = ([0] * len(placed.backend_names) for _ in range(3))
    state = 4 * (shape.n_embd_r + shape.n_embd_s) * (1 + params.n_rs_seq)
    kinds, sizes = shape.layer_kinds, dict[int, int]()
    for il in shape.own_layers:
        layer, home = shape.layers[il], placed.layer_backends[il]
        if kinds[il] not in sizes:
            sizes[kinds[il]] = compute.layer_cache_bytes(shape, layer, params)
        size = sizes[kinds[il]]
        sums[home] += size + state * layer.is_recurrent
        states[home] += state * layer.is_recurrent
        windows[home] += size * (layer.is_swa and params.n_ctx_swa < params.n_ctx)
    return [sums, states, windows]


def _error_bound(
    estimate: MemoryEstimate, shapes: Sequence[ModelShape], load: LoadCommand
) -> int:
    """Bytes by which the real memory of any device may differ from the estimate."""
    largest = max((estimate.of(name).compute for name in estimate.devices), default=0)
    if not VERIFIED_ARCHITECTURES.issuperset(shape.architecture for shape in shapes):
        return _UNVERIFIED_BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    gpus = estimate.devices - {HOST}
    on_cpu = estimate.of(HOST).kv > 0 or load.target_settings.cpu_moe
    if len(gpus) > 1 or (gpus and on_cpu):
        return _BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    is_loose = any(
        each.head_kind or each.has_recurrent_state or each.is_mla for each in shapes
    )
    share = _LOOSE_COMPUTE_ERROR if is_loose else _COMPUTE_ERROR
    return _BASE_ERROR + int(share * largest)
