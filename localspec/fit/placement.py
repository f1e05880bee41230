"""How llama.cpp loads a model: context parameters, and the devices of its layers.

llama.cpp's count places the layers too, but in 25 to 50 ms a setting, and only if there
is a header.  The search for settings tries hundreds of them, in a few milliseconds each
(`advisor.py`), and the speed of a pair follows from the same placement (`speed.py`).
So its rules are repeated here, and `plan.py` refuses a count that uses other devices.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from localspec import draft_kinds
from localspec.errors import Hint, UsageError
from localspec.fit.shape import LayerShape, ModelShape
from localspec.machine import llama_params
from localspec.machine.device import HOST, Device
from localspec.machine.llama_params import ModelRole, round_up_to_step
from localspec.models.gguf.architectures import WITHOUT_TENSOR_SPLIT
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import ALL_LAYERS, ContextSettings, LoadCommand


class ContextParams(Struct, frozen=True):
    """Parameters of llama.cpp's context that its memory depends on."""

    n_ctx: int
    n_ctx_swa: int  # KV cells of sliding-window layers.
    n_ubatch: int
    n_outputs_max: int
    n_rs_seq: int  # Snapshots of the recurrent state for rollback.
    kv_types: tuple[int, int]  # ggml_type of keys and of values.
    flash_attn: bool
    flash_attn_auto: bool = False
    """Turn flash attention off if it would not run on the layer's device."""
    v_token_major: bool = True
    """The V cache is stored by token, as flash attention needs it, not transposed."""
    n_vocab: int = 0  # Of a head, whose file may not contain a vocabulary.
    target_output_matrix: int = 0  # Of a head that borrows it: its bytes.
    n_hidden_states: int = 0
    """Of a target: layers whose hidden states are extracted for a head."""
    load_mtp: bool = False

    def cells(self, layer: LayerShape) -> int:
        if layer.is_swa:
            return self.n_ctx_swa
        return self.n_ctx

    def hidden_state_bytes(self, shape: ModelShape) -> int:
        """Bytes of hidden states in the output buffer, beside the logits.

        A head returns its own, for the next token that it drafts.
        """
        n_states = self.n_hidden_states
        if shape.head_kind:
            n_states = 1
        return 4 * n_states * self.n_ubatch * shape.n_embd


def context_params(
    load: LoadCommand, target: ModelShape, draft: ModelShape | None
) -> tuple[ContextParams, ContextParams | None]:
    """For target and draft, by the rules of the engine.  Raises UsageError."""
    if load.target_settings.split_mode == "tensor":
        _refuse_tensor_split(load.target_settings, target, draft)
    role = llama_params.target_role(load)
    n_ctx_target = llama_params.resolve_n_ctx(
        role.settings, target.n_ctx_train, "the target"
    )
    params = _resolve_params(target, role, n_ctx_target)
    if draft is None:
        return params, None
    if draft.head_kind:
        head = _resolve_params(
            draft, llama_params.head_role(load, params.n_ctx), params.n_ctx
        )
        is_mtp = draft.head_kind == "mtp"
        n_states = draft.n_target_layers
        if is_mtp:
            n_states = 1
        params = replace(params, n_hidden_states=n_states, load_mtp=is_mtp)
        head = replace(
            head, n_vocab=target.n_vocab, target_output_matrix=target.output_matrix
        )
        return params, head
    role = llama_params.draft_role(load, params.n_ctx)
    n_ctx = min(role.settings.n_ctx or n_ctx_target, draft.n_ctx_train or n_ctx_target)
    return params, _resolve_params(draft, role, n_ctx)


def _refuse_tensor_split(
    settings: ContextSettings, target: ModelShape, draft: ModelShape | None
) -> None:
    """Raises UsageError where llama.cpp cannot split tensors between GPUs.

    It can do so with a quantised KV cache since June 2026.
    """
    by_layers = Hint("Use {split=layer}.")
    if target.architecture in WITHOUT_TENSOR_SPLIT:
        message = (
            "llama.cpp cannot split the tensors of this architecture "
            f"({target.architecture})."
        )
        raise UsageError(message, by_layers)
    if settings.flash_attn == "off":
        message = "Splitting tensors needs flash attention."
        raise UsageError(message, Hint("Use {flash_attn=auto} or {split=layer}."))
    if draft is not None and draft.head_block:
        title = draft_kinds.head_title(draft.head_kind)
        message = f"llama.cpp cannot load {title} heads beside tensors that are split."
        raise UsageError(message, Hint("Use {draft=none} or {split=layer}."))


def _resolve_params(
    shape: ModelShape, role: ModelRole, n_ctx_requested: int
) -> ContextParams:
    settings = role.settings
    n_ctx = round_up_to_step(n_ctx_requested)
    n_ubatch = role.n_batch(n_ctx)

    # A window's cache has room for the window and a full pass beside it.
    n_ctx_swa = n_ctx
    if not role.keeps_all_tokens:
        n_ctx_swa = round_up_to_step(min(n_ctx, shape.n_swa + n_ubatch))

    n_rs_seq = 0
    if shape.can_rollback:
        n_rs_seq = role.n_rs_seq

    kv_types = llama_params.KV_TYPES[settings.kv_type]
    flash = settings.flash_attn != "off" and shape.traits.supports_flash_attention
    # A V cache in blocks needs flash attention, so llama.cpp keeps it on.
    _, v_type = kv_types
    has_blocks = GGML_TYPES[v_type].block_size > 1
    return ContextParams(
        n_ctx=n_ctx,
        n_ctx_swa=n_ctx_swa,
        n_ubatch=n_ubatch,
        n_outputs_max=role.n_outputs_max,
        n_rs_seq=n_rs_seq,
        kv_types=kv_types,
        flash_attn=flash,
        flash_attn_auto=settings.flash_attn == "auto" and not has_blocks,
        v_token_major=flash,
    )


# Copies of every input with pipeline parallelism (GGML_SCHED_MAX_COPIES).
_MAX_COPIES = 4


class LayerPlacement(Struct, frozen=True):
    """The backend of each layer of a model.

    Backends are numbered: GPUs first, the CPU last.  Example: with one GPU (0) and the
    CPU (1), a model of four layers and `n_gpu_layers` 3 has the output and the last two
    layers on the GPU: `layer_backends` is (1, 1, 0, 0, 0).
    """

    backend_names: tuple[str, ...]
    layer_backends: tuple[int, ...]
    """One for each layer, then one for the output."""
    expert_backends: tuple[int, ...]
    """One for the experts of each layer."""
    f16_copies: tuple[bool, ...]
    """By backend: attention over a cache in another type keeps f16 copies."""
    repacks: bool
    """The CPU's weights are repacked: no GPU offers pinned host memory for them."""
    n_copies: int
    """Of every input: several with pipeline parallelism."""
    tensor_shares: tuple[float, ...] = ()
    """Each GPU's share of every tensor, if these are split (`--split tensor`).

    Their layers are then assigned to the first GPU.
    """

    @property
    def cpu_backend(self) -> int:
        return len(self.backend_names) - 1

    @property
    def output_backend(self) -> int:
        return self.layer_backends[-1]

    @property
    def has_gpu(self) -> bool:
        return self.cpu_backend > 0

    @property
    def is_partial(self) -> bool:
        """Some layers, or the output, are on the CPU although there is a GPU."""
        return self.has_gpu and self.cpu_backend in self.layer_backends


Placements = tuple[LayerPlacement, LayerPlacement | None]
"""Of the layers of target and draft."""
ALL_ON_CPU = LayerPlacement(
    backend_names=(HOST,),
    layer_backends=(0,),
    f16_copies=(False,),
    repacks=True,
    expert_backends=(),
    n_copies=1,
)


def offload_devices(
    settings: ContextSettings, devices: Sequence[Device]
) -> tuple[Device, ...]:
    """The devices llama.cpp offloads to; integrated GPUs only if there is no other.

    Remote ones come first (machine/llama_params.py), if the model is to use their host.
    """
    remote = [
        device
        for device in devices
        if device.link and device.link.host in settings.remote_hosts
    ]
    local = [device for device in devices if device.link is None]
    gpus = [device for device in local if device.kind == "gpu"]
    if not gpus:
        gpus = [device for device in local if device.kind == "igpu"]
    chosen = [*remote, *gpus]
    if settings.split_mode == "none" and chosen:
        if settings.main_gpu < 0:
            return ()
        chosen = chosen[settings.main_gpu : settings.main_gpu + 1]
    return tuple(chosen)


def place_layers(
    shape: ModelShape,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> LayerPlacement:
    """`used_bytes`: memory already in use on each device."""
    chosen = offload_devices(settings, devices)
    cpu = len(chosen)
    tensor_shares = _share_tensors(settings, chosen)
    if tensor_shares:
        layers = _assign_layers(len(shape.layers), settings, chosen[:1], used_bytes)
        layers = tuple(cpu if backend else 0 for backend in layers)
    else:
        layers = _assign_layers(len(shape.layers), settings, chosen, used_bytes)
    are_all_remote = bool(chosen) and all(device.link for device in chosen)
    if are_all_remote and settings.output_layer == "local":
        layers = (*layers[:-1], cpu)
    experts = list(layers[:-1])
    for il in range(n_layers_with_experts_in_ram(settings, len(experts))):
        experts[il] = cpu
    backends = [device.backend for device in chosen]
    # Most other backends share CUDA's rules and code.
    f16_copies = [backend not in ("Vulkan", "Metal") for backend in backends]
    n_copies = 1
    if _is_pipelined(settings, backends) and cpu not in layers:
        n_copies = _MAX_COPIES
    return LayerPlacement(
        backend_names=(*(device.name for device in chosen), HOST),
        layer_backends=layers,
        expert_backends=tuple(experts),
        f16_copies=(*f16_copies, False),
        repacks=all(backend == "Metal" for backend in backends),
        n_copies=n_copies,
        tensor_shares=tensor_shares,
    )


def _share_tensors(
    settings: ContextSettings, devices: Sequence[Device]
) -> tuple[float, ...]:
    """The devices' shares of every tensor: equal ones, as llama.cpp has it.

    Empty if tensors are not split.
    """
    if settings.split_mode != "tensor" or len(devices) < 2:
        return ()
    return (1 / len(devices),) * len(devices)


def n_layers_with_experts_in_ram(settings: ContextSettings, n_layer: int) -> int:
    """The first so many of `n_layer` layers keep their experts in RAM."""
    if settings.cpu_moe == ALL_LAYERS:
        return n_layer
    return min(settings.cpu_moe, n_layer)


def _is_pipelined(settings: ContextSettings, backends: Sequence[str]) -> bool:
    """Whether several GPUs compute parts of a batch at the same time."""
    if len(backends) < 2 or "Metal" in backends:
        return False
    return settings.split_mode == "layer" and not settings.cpu_moe


def _assign_layers(
    n_layer: int,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> tuple[int, ...]:
    """Offloads from the back: the output first, then the last layer, and so on."""
    n_all = n_layer + 1  # With the output.
    n_offloaded = settings.n_gpu_layers
    if n_offloaded < 0 or n_offloaded > n_all:
        n_offloaded = n_all
    cpu = len(devices)
    if not devices:
        n_offloaded = 0
    backends = [cpu] * (n_all - n_offloaded)
    if len(devices) == 1:
        backends += [0] * n_offloaded
    elif n_offloaded:
        ends = _cumulative_split(settings, devices, used_bytes)
        for i in range(n_offloaded):
            backend = bisect_right(ends, _to_float32(i / n_offloaded))
            backends.append(min(backend, len(devices) - 1))
    return tuple(backends)


def _cumulative_split(
    settings: ContextSettings, devices: Sequence[Device], used_bytes: Mapping[str, int]
) -> list[float]:
    """The end of each device's share of the layers, from 0 to 1.

    In the precision of llama.cpp, whose comparisons decide where a layer goes.
    Example: free memory of 24 and 8 GiB gives [0.75, 1.0].
    """
    parts = [0.0] * len(devices)
    for i, share in enumerate(settings.tensor_split[: len(devices)]):
        parts[i] = share
    if not any(parts):
        # A device that the target fills gets a small share of the draft, too.
        least = 0
        if used_bytes:
            least = 1
        for i, device in enumerate(devices):
            free = device.free or 0
            left = free - used_bytes.get(device.name, 0)
            parts[i] = float(max(least, left))
    if not any(parts):
        parts = [1.0] * len(devices)
    sums = list(accumulate(map(_to_float32, parts), lambda a, b: _to_float32(a + b)))
    return [_to_float32(part / sums[-1]) for part in sums]


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
