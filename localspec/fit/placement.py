"""How llama.cpp loads a model: context parameters, and the devices of its layers."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from localspec.fit.shape import LayerShape, ModelShape
from localspec.machine import llama_params
from localspec.machine.device import HOST, Device
from localspec.machine.llama_params import CTX_STEP, MIN_BATCH, ModelRole
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import ALL_LAYERS, ContextSettings, LoadCommand


class ContextParams(Struct, frozen=True):
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
    """The V cache is stored token by token, as flash attention needs it; else
    transposed.
    """
    n_vocab: int = 0  # Of a head, whose file may not contain a vocabulary.
    target_output_matrix: int = 0  # Of a head that borrows it: its bytes.
    # Of a target: layers whose hidden states are extracted for a head.
    n_hidden_states: int = 0
    load_mtp: bool = False

    def cells(self, layer: LayerShape) -> int:
        return self.n_ctx_swa if layer.is_swa else self.n_ctx

    def hidden_state_bytes(self, shape: ModelShape) -> int:
        """Bytes of hidden states in the output buffer, beside the logits."""
        states = 1 if shape.head_kind else self.n_hidden_states
        return 4 * states * self.n_ubatch * shape.n_embd


def context_params(
    load: LoadCommand, target: ModelShape, draft: ModelShape | None
) -> tuple[ContextParams, ContextParams | None]:
    """For target and draft, by the rules of the engine.  Raises UsageError."""
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
        n_states = 1 if is_mtp else draft.n_target_layers
        params = replace(params, n_hidden_states=n_states, load_mtp=is_mtp)
        return params, replace(
            head, n_vocab=target.n_vocab, target_output_matrix=target.output_matrix
        )
    role = llama_params.draft_role(load, params.n_ctx)
    n_ctx = min(role.settings.n_ctx or n_ctx_target, draft.n_ctx_train or n_ctx_target)
    return params, _resolve_params(draft, role, n_ctx)


def _resolve_params(
    shape: ModelShape, role: ModelRole, n_ctx_requested: int
) -> ContextParams:
    settings = role.settings
    n_ctx = _round_up(n_ctx_requested)
    n_ubatch = min(max(settings.n_ubatch, role.n_outputs_max, MIN_BATCH), n_ctx)
    is_full = settings.swa_full and role.n_outputs_max > 1
    kv_types = llama_params.KV_TYPES[settings.kv_type]
    flash = settings.flash_attn != "off" and shape.architecture != "grok"
    return ContextParams(
        n_ctx=n_ctx,
        n_ctx_swa=n_ctx if is_full else _round_up(min(n_ctx, shape.n_swa + n_ubatch)),
        n_ubatch=n_ubatch,
        n_outputs_max=role.n_outputs_max,
        n_rs_seq=role.n_rs_seq if shape.can_rollback else 0,
        kv_types=kv_types,
        flash_attn=flash,
        flash_attn_auto=settings.flash_attn == "auto"
        and GGML_TYPES[kv_types[1]][1] == 1,
        v_token_major=flash,
    )


def _round_up(n: int) -> int:
    return -(-n // CTX_STEP) * CTX_STEP


# Copies of every input with pipeline parallelism (GGML_SCHED_MAX_COPIES).
_MAX_COPIES = 4


class LayerPlacement(Struct, frozen=True):
    """Backends are numbered: GPUs first, the CPU last."""

    backend_names: tuple[str, ...]
    # A backend for each layer, then one for the output.
    layer_backends: tuple[int, ...]
    f16_copies: tuple[bool, ...]
    """For each backend: attention over a cache in another type keeps f16 copies of it.
    """
    repacks: bool
    """llama.cpp repacks weights on the CPU, unless a GPU offers pinned host memory for
    them.
    """
    expert_backends: tuple[int, ...]  # Of the experts of each layer.
    n_copies: int  # Of every input.

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
    local = [d for d in devices if d.link is None]
    gpus = [d for d in local if d.kind == "gpu"] or [
        d for d in local if d.kind == "igpu"
    ]
    hosts = settings.remote_hosts
    gpus = [*(d for d in devices if d.link and d.link.host in hosts), *gpus]
    if settings.split_mode == "none" and gpus:
        gpus = gpus[settings.main_gpu :][:1] if settings.main_gpu >= 0 else []
    return tuple(gpus)


def place_layers(
    shape: ModelShape,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> LayerPlacement:
    """`used_bytes`: memory already in use on each device."""
    chosen = offload_devices(settings, devices)
    backends = [device.backend for device in chosen]
    layers = _assign_layers(len(shape.layers), settings, chosen, used_bytes)
    if chosen and chosen[-1].link and settings.output_layer == "local":
        layers = (*layers[:-1], len(chosen))
    is_pipelined = (
        len(chosen) > 1 and len(chosen) not in layers and "Metal" not in backends
    )
    is_pipelined = (
        is_pipelined and settings.split_mode == "layer" and not settings.cpu_moe
    )
    n_in_ram = len(shape.layers) if settings.cpu_moe == ALL_LAYERS else settings.cpu_moe
    return LayerPlacement(
        (*(device.name for device in chosen), HOST),
        layers,
        # Most other backends share CUDA's rules and code.
        (*(backend not in ("Vulkan", "Metal") for backend in backends), False),
        all(backend == "Metal" for backend in backends),
        tuple(
            len(chosen) if il < n_in_ram else home
            for il, home in enumerate(layers[:-1])
        ),
        _MAX_COPIES if is_pipelined else 1,
    )


def _assign_layers(
    n_layer: int,
    settings: ContextSettings,
    devices: Sequence[Device],
    used_bytes: Mapping[str, int],
) -> tuple[int, ...]:
    """Offloads from the back: the output first, then the last layer, and so on."""
    n_all = n_layer + 1
    n = n_all if settings.n_gpu_layers < 0 else min(settings.n_gpu_layers, n_all)
    if not devices or not n:
        return (len(devices),) * n_all
    if len(devices) == 1:
        return *[1] * (n_all - n), *[0] * n
    ends = _cumulative_split(settings, devices, used_bytes)
    places = (bisect_right(ends, _to_float32(i / n)) for i in range(n))
    return *[len(devices)] * (n_all - n), *(
        min(place, len(devices) - 1) for place in places
    )


def _cumulative_split(
    settings: ContextSettings, devices: Sequence[Device], used_bytes: Mapping[str, int]
) -> list[float]:
    """The end of each device's share of the layers, from 0 to 1, in the precision of
    llama.cpp.
    """
    parts = [*settings.tensor_split, *[0.0] * len(devices)][: len(devices)]
    if not any(parts):
        # the same rule as memory_probe_child uses for the draft
        least = 1 if used_bytes else 0
        parts = [
            float(max(least, (d.free or 0) - used_bytes.get(d.name, 0)))
            for d in devices
        ]
    if not any(parts):
        parts = [1.0] * len(devices)
    sums = list(accumulate(map(_to_float32, parts), lambda a, b: _to_float32(a + b)))
    return [_to_float32(part / sums[-1]) for part in sums]


def _to_float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
