"""Memory of a pair on each device before it is loaded.

Two sources.  Weights, KV caches and recurrent states follow from the shape of a model,
by layer, and are exact if the shape was read from a header; without data llama.cpp does
not say how they are shared between devices.  Compute buffers are counted by llama.cpp
where a header is at hand (`replace_counted`).  Else, and while settings are searched,
they follow from one rule, and every text says "about":

    A device's compute buffer holds the attention mask of a full batch, and beside it
    the larger of two: the logits, or the activations of the widest layer that the
    device computes.  A layer in RAM is computed by the CPU for single tokens and by the
    first GPU for a batch, which takes a copy of the layer's largest matrix.

Example: Llama 3.1 8B, a batch of 512, a context of 8,192, 9 rows of logits, on a GPU.
The mask has 8,192 cells × 512 rows × 2 bytes = 8 MiB, and the rows of a batch 512 ×
4,096 × 4 bytes = 8 MiB.  The feed-forward part is 3 × 14,336 + 4,096 wide: 512 × 47,104
× 4 bytes = 92 MiB, beside two more rows of 8 MiB; the logits are 9 × 128,256 × 4 bytes
= 4 MiB.  Together 8 + 8 + 92 + 16 + 1 = 125 MiB, where llama.cpp reserves 116.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.fit import placement
from localspec.fit.placement import (
    ALL_ON_CPU,
    ContextParams,
    LayerPlacement,
    Placements,
)
from localspec.fit.shape import LayerShape, ModelShape
from localspec.machine import llama_params
from localspec.machine.device import HOST, Device, DeviceMemory
from localspec.machine.memory_probe import ModelBuffers, PairBuffers
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import LoadCommand

VERIFIED_ARCHITECTURES = frozenset({
    "llama", "mistral3", "smollm3", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "gemma4",
    "gpt-oss", "phi3", "deepseek2", "mamba2", "qwen35", "qwen35moe", "granite", "granitehybrid",
    "lfm2", "lfm2moe", "eagle3", "dflash",
})  # fmt: skip
"""Architectures compared with llama.cpp itself by tests/fit/test_memory.py."""
_MIB = 1024 * 1024
_ALIGNMENT_SLACK = _MIB
"""Bytes of each compute buffer for alignment, norms of a few rows and indices."""
_BASE_ERROR = 32 * _MIB
_UNVERIFIED_BASE_ERROR = 64 * _MIB
_COMPUTE_ERROR = 0.25
"""By this share of the largest compute buffer the rule may be off."""
_LOOSE_COMPUTE_ERROR = 0.6
"""The same with recurrent layers, compressed caches and heads.

They compute more kinds of tensors.
"""
_SHARED_COMPUTE_ERROR = 0.8
"""The same if several devices compute: the rule does not know which does what."""
_F16 = 1
_OFFLOAD_MIN_BATCH = 32
"""From this batch size, the first GPU computes with weights in RAM (`op_offload`)."""
_ACTIVATION_COPIES = 4
"""GGML_SCHED_MAX_COPIES.

Without data llama.cpp miscounts a batch where it crosses devices.
"""


class MemoryByDevice(Struct, frozen=True):
    """Bytes of one model on all devices."""

    on: Mapping[str, DeviceMemory]  # By device name; unused devices may be missing.
    output: int = 0
    """Output buffer (logits, hidden states) in RAM, beside the others."""
    placement: LayerPlacement = ALL_ON_CPU

    def of(self, device: str) -> DeviceMemory:
        return self.on.get(device, DeviceMemory())


class MemoryEstimate(Struct, frozen=True):
    """Memory of a pair before it is loaded."""

    target: MemoryByDevice
    draft: MemoryByDevice | None
    method: Literal["exact", "analytic"]
    """exact: llama.cpp counted the buffers.  analytic: they follow from the rule."""
    error: int = 0  # Bytes by which the real memory of a device may differ.
    note: str = ""  # A remark for the user, such as why it is not exact.
    scratch: Mapping[str, int] = field(default_factory=dict)
    """What backends allocate at the first prompt, by device.

    llama.cpp does not count it.
    """

    @property
    def is_coarse(self) -> bool:
        return self.method == "analytic"

    def of(self, device: str) -> DeviceMemory:
        target = self.target.of(device)
        if self.draft is None:
            return target
        return target + self.draft.of(device)

    @property
    def output(self) -> int:
        if self.draft is None:
            return self.target.output
        return self.target.output + self.draft.output

    @property
    def placements(self) -> Placements:
        draft = self.draft.placement if self.draft is not None else None
        return self.target.placement, draft

    @property
    def devices(self) -> set[str]:
        names = set(self.target.on)
        if self.draft is not None:
            names |= set(self.draft.on)
        return names

    @property
    def total_by_device(self) -> dict[str, int]:
        """With the output buffer in RAM."""
        totals = {name: self.of(name).total for name in {HOST, *self.devices}}
        totals[HOST] += self.output
        return totals


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
    placed = placement.place_layers(target, load.target_settings, devices, {})
    target_memory = estimate_model(target, params, placed)
    scratch = _vulkan_scratch(target, params, target_memory, devices)
    if load.draft_max > params.n_rs_seq > 0:
        # The checkpoint before a long copy stays beside the states.
        for name, part in target_memory.on.items():
            checkpoint = part.states // (1 + params.n_rs_seq)
            scratch[name] = scratch.get(name, 0) + checkpoint
    draft_memory: MemoryByDevice | None = None
    if draft is not None and draft_params is not None:
        used_bytes = {name: part.total for name, part in target_memory.on.items()}
        draft_settings = load.draft_settings
        if not draft.head_kind:
            draft_settings = llama_params.draft_model_settings(draft_settings)
        placed = placement.place_layers(draft, draft_settings, devices, used_bytes)
        draft_memory = estimate_model(draft, draft_params, placed)
        more = _vulkan_scratch(draft, draft_params, draft_memory, devices)
        for name, size in more.items():
            scratch[name] = scratch.get(name, 0) + size
    estimate = MemoryEstimate(
        target_memory, draft_memory, method="analytic", scratch=scratch
    )
    shapes = [target] if draft is None else [target, draft]
    return replace(estimate, error=_error_bound(estimate, shapes, load))


def estimate_model(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> MemoryByDevice:
    weights = _weights(shape, params, placed)
    caches = _caches(shape, params, placed)
    on = {}
    for backend, name in enumerate(placed.backend_names):
        cache = caches[backend]
        on[name] = replace(
            cache,
            weights=weights[backend],
            compute=_compute_bytes(shape, params, placed, backend),
        )
    if placed.tensor_shares:
        on = _share_tensors(on, placed)
    n_vocab = params.n_vocab or shape.n_vocab
    logits = 4 * params.n_outputs_max * n_vocab
    output = logits + params.hidden_state_bytes(shape)
    return MemoryByDevice(on, output, placed)


def _share_tensors(
    on: Mapping[str, DeviceMemory], placed: LayerPlacement
) -> dict[str, DeviceMemory]:
    """What each GPU has of tensors that are split between them.

    Every layer was placed on the first one.  Weights and KV cache are divided.  The
    compute buffers are not: each GPU has the activations of a whole layer.
    """
    shared = dict(on)
    whole = on[placed.backend_names[0]]
    for name, share in zip(placed.backend_names, placed.tensor_shares, strict=False):
        shared[name] = replace(
            whole,
            weights=round(whole.weights * share),
            kv=round(whole.kv * share),
            states=round(whole.states * share),
            window=round(whole.window * share),
        )
    return shared


def _weights(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> list[int]:
    """Bytes by backend."""
    sums = [0] * len(placed.backend_names)
    if shape.has_target_weights:
        return sums
    cpu = placed.cpu_backend
    output = placed.output_backend
    layers = shape.layers
    if not params.load_mtp and not shape.head_kind:
        layers = layers[: shape.n_layer]
    for il, layer in enumerate(layers):
        sums[placed.layer_backends[il]] += layer.weights
        sums[placed.expert_backends[il]] += layer.experts
    sums[cpu] += shape.input_bytes
    sums[output] += shape.output_bytes
    if shape.is_tied:
        is_copied = output != cpu or shape.traits.always_copies_tied_table
        is_repacked = placed.repacks and shape.is_table_repacked
        if is_copied or is_repacked:
            sums[output] += shape.output_matrix
    return sums


def layer_cache_bytes(
    shape: ModelShape, layer: LayerShape, params: ContextParams
) -> int:
    """K and V of one layer; 0 for a layer without a cache."""
    if not layer.has_kv:
        return 0
    v_width = layer.v_width
    if not params.v_token_major:  # transposed: all layers get the width of the widest
        v_width = max(each.v_width for each in shape.layers)
    if shape.is_mla:
        v_width = 0
    k_type, v_type = params.kv_types
    k_bytes = GGML_TYPES[k_type].row_bytes(layer.k_width)
    v_bytes = GGML_TYPES[v_type].row_bytes(v_width)
    return params.cells(layer) * (k_bytes + v_bytes)


def _caches(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement
) -> list[DeviceMemory]:
    """KV caches and recurrent states by backend.

    An MTP layer's belong to the draft.
    """
    state_bytes = 4 * (shape.n_embd_r + shape.n_embd_s) * (1 + params.n_rs_seq)
    is_cut_to_window = params.n_ctx_swa < params.n_ctx
    n_backends = len(placed.backend_names)
    kv = [0] * n_backends
    states = [0] * n_backends
    windows = [0] * n_backends
    sizes: dict[int, int] = {}  # By kind of layer.
    for il in shape.own_layers:
        layer = shape.layers[il]
        home = placed.layer_backends[il]
        kind = shape.layer_kinds[il]
        if kind not in sizes:
            sizes[kind] = layer_cache_bytes(shape, layer, params)
        kv[home] += sizes[kind]
        if layer.is_recurrent:
            kv[home] += state_bytes
            states[home] += state_bytes
        if layer.is_swa and is_cut_to_window:
            windows[home] += sizes[kind]
    return [
        DeviceMemory(kv=kv[i], states=states[i], window=windows[i])
        for i in range(n_backends)
    ]


def _compute_bytes(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement, backend: int
) -> int:
    """The compute buffer of a backend, by the rule; 0 for a GPU without layers."""
    if placed.is_partial and params.flash_attn_auto and shape.has_recurrent_state:
        # llama.cpp turns flash attention off where it would not run on its layer's
        # device: some models with short convolutions or Mamba layers.
        stays_on = params.flash_attn and shape.traits.has_gated_attention
        params = replace(params, flash_attn=stays_on)
    is_cpu = backend == placed.cpu_backend
    is_first_gpu = backend == 0 and placed.has_gpu
    row = 4 * params.n_ubatch * shape.n_embd  # Hidden states of a batch.
    widest = 0
    largest_copy = 0
    mask_bytes: dict[bool, int] = {}
    seen: set[tuple[int, int, int]] = set()
    for il in shape.own_layers:
        home = placed.layer_backends[il]
        expert_home = placed.expert_backends[il]
        key = (shape.layer_kinds[il], home, expert_home)
        if key in seen:
            continue
        seen.add(key)
        layer = shape.layers[il]
        is_in_ram = home == placed.cpu_backend
        are_experts_in_ram = layer.experts > 0 and expert_home == placed.cpu_backend
        is_copied = is_first_gpu and (is_in_ram or are_experts_in_ram)
        is_here = home == backend or is_copied
        if is_cpu and placed.has_gpu and is_in_ram:
            # The first GPU cannot read repacked weights.  Many operations of recurrent
            # layers have no weights, and stay.
            is_here = placed.repacks or shape.has_recurrent_state
        if layer.n_head and (is_here or is_cpu):
            mask_bytes[layer.is_swa] = _mask_bytes(layer, params)
        if is_copied and is_in_ram:
            copied = max(layer.matrix, 2 * layer.expert_matrix)
            source = shape.layers[shape.kv_source(il)]
            copied += layer_cache_bytes(shape, source, params)
            largest_copy = max(largest_copy, copied)
        elif is_copied:
            largest_copy = max(largest_copy, 2 * layer.expert_matrix)
        if is_here:
            activations = _activation_bytes(shape, layer, params)
            if not is_cpu and placed.f16_copies[backend]:
                activations += _f16_copy_bytes(shape, layer, params)
            widest = max(widest, 2 * row + activations)
    size = max(widest + largest_copy, _output_bytes(shape, params, placed, backend))
    if not size and not is_cpu:
        return 0
    inputs = sum(mask_bytes.values()) + row
    if placed.cpu_backend > 1 or placed.is_partial:
        inputs += row + 4 * params.n_ubatch * shape.ssm_inner  # From another device.
    per_layer = 4 * params.n_ubatch * shape.n_embd_per_layer * shape.n_layer
    size += placed.n_copies * (inputs + per_layer)
    size += params.n_hidden_states * row  # For a head: never overwritten.
    return size + _ALIGNMENT_SLACK


def _output_bytes(
    shape: ModelShape, params: ContextParams, placed: LayerPlacement, backend: int
) -> int:
    """Logits, and the rows they are computed from.  A head computes all rows."""
    n_rows = params.n_ubatch if shape.head_kind else params.n_outputs_max
    is_in_ram = placed.output_backend == placed.cpu_backend
    copied = 0
    if backend == 0 and placed.has_gpu and is_in_ram and n_rows >= _OFFLOAD_MIN_BATCH:
        copied = shape.output_matrix or params.target_output_matrix
    elif backend != placed.output_backend:
        return 0
    n_logits = 3 if shape.has_reduced_vocab else 1  # Spread over the whole vocabulary.
    n_vocab = params.n_vocab or shape.n_vocab
    return copied + 4 * n_rows * (n_logits * n_vocab + 2 * shape.n_embd)


def _mask_bytes(layer: LayerShape, params: ContextParams) -> int:
    bytes_per_number = 2 if params.flash_attn else 4
    return params.cells(layer) * params.n_ubatch * bytes_per_number


def _activation_bytes(
    shape: ModelShape, layer: LayerShape, params: ContextParams
) -> int:
    """What a batch computes in one layer, at its widest."""
    column = 4 * params.n_ubatch
    if layer.is_recurrent:
        width = 3 * (shape.ssm_channels + shape.ssm_inner) or 7 * shape.n_embd
        # The states after each token of a draft are part of the result.
        snapshots = 4 * (1 + params.n_rs_seq) * (shape.n_embd_s + shape.n_embd_r)
        return max(column * width + snapshots, column * layer.ff)
    if not layer.n_head:
        return column * layer.ff
    result = shape.mla_result or layer.n_head * layer.n_embd_head_v
    width = layer.qkv + layer.n_head * layer.n_embd_head_k + 2 * result
    if not params.flash_attn:  # The scores, and the result once more: permuted.
        width += result + layer.n_head * params.cells(layer)
    return column * max(width, layer.ff)


def _f16_copy_bytes(shape: ModelShape, layer: LayerShape, params: ContextParams) -> int:
    """A GPU's attention copies a cache in another type to f16, one layer at a time."""
    if all(GGML_TYPES[kv_type].block_size == 1 for kv_type in params.kv_types):
        return 0
    in_f16 = replace(params, kv_types=(_F16, _F16))
    return layer_cache_bytes(shape, layer, in_f16)


def _vulkan_scratch(
    shape: ModelShape,
    params: ContextParams,
    memory: MemoryByDevice,
    devices: Sequence[Device],
) -> dict[str, int]:
    """The same copy on Vulkan, which is no part of its compute buffer."""
    scratch = {}
    for device in devices:
        if device.backend == "Vulkan":
            size = 0
            if memory.of(device.name).kv:
                kinds = set(shape.layers)
                size = max(_f16_copy_bytes(shape, each, params) for each in kinds)
            scratch[device.name] = size
    return scratch


def _error_bound(
    estimate: MemoryEstimate, shapes: Sequence[ModelShape], load: LoadCommand
) -> int:
    """Bytes by which the real memory of any device may differ from the estimate."""
    largest = max((estimate.of(name).compute for name in estimate.devices), default=0)
    if not VERIFIED_ARCHITECTURES.issuperset(each.architecture for each in shapes):
        return _UNVERIFIED_BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    gpus = estimate.devices - {HOST}
    is_cpu_used = estimate.of(HOST).kv > 0 or load.target_settings.cpu_moe
    if len(gpus) > 1 or (gpus and is_cpu_used):
        return _BASE_ERROR + int(_SHARED_COMPUTE_ERROR * largest)
    is_loose = any(
        each.head_kind or each.has_recurrent_state or each.is_mla for each in shapes
    )
    share = _LOOSE_COMPUTE_ERROR if is_loose else _COMPUTE_ERROR
    return _BASE_ERROR + int(share * largest)


def replace_counted(
    estimate: MemoryEstimate,
    load: LoadCommand,
    shapes: tuple[ModelShape, ModelShape | None],
    counted: PairBuffers,
) -> MemoryEstimate:
    """The estimate with the compute buffers that llama.cpp counted.

    Its total of the KV cache takes precedence too if it is larger: then the
    architecture has a cache that is unknown here.
    """
    target_shape, draft_shape = shapes
    if estimate.draft is None:
        draft_shape = None
    params, _ = placement.context_params(load, target_shape, draft_shape)
    target = _replace_model(estimate.target, counted.target)
    draft = None
    error = 0
    if estimate.draft is not None and counted.draft is not None:
        draft = _replace_model(estimate.draft, counted.draft)
        if not counted.has_hidden_states:
            states = params.hidden_state_bytes(target_shape)
            target = _add_compute(target, states)
            error += states
    if len(estimate.devices - {HOST}) > 1:
        error += _ACTIVATION_COPIES * 4 * params.n_ubatch * target_shape.n_embd
    return replace(estimate, target=target, draft=draft, method="exact", error=error)


def _add_compute(memory: MemoryByDevice, n_bytes: int) -> MemoryByDevice:
    """`n_bytes` more on each device that computes."""
    on = dict(memory.on)
    for name, part in memory.on.items():
        if part.compute:
            on[name] = replace(part, compute=part.compute + n_bytes)
    return replace(memory, on=on)


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
