"""Parameters of llama.cpp models and contexts, for the engine and the memory probe.

`c` is the module llama_cpp.llama_cpp. Callers pass it because only child processes
import it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec import extras
from localspec.errors import Hint, UsageError
from localspec.machine import remote_devices
from localspec.machine.cpu_and_ram import choose_n_threads
from localspec.machine.ggml import GgmlLibrary
from localspec.models.gguf.parser import GGML_TYPES
from localspec.protocol.wire import (
    ALL_LAYERS,
    MODEL_DRAFT_MAX,
    ContextSettings,
    KvType,
    LoadCommand,
)

KV_TYPES: dict[KvType, tuple[int, int]] = {
    "f32": (0, 0),
    "f16": (1, 1),
    "bf16": (30, 30),
    "q8_0/f16": (8, 1),
    "q8_0": (8, 8),
    "q4_0": (2, 2),
}
"""ggml_type of keys and of values."""


def is_quantized(kv_type: KvType) -> bool:
    """Whether keys or values are stored in blocks, with fewer bits than they have."""
    return any(GGML_TYPES[number].block_size > 1 for number in KV_TYPES[kv_type])


FLASH_ATTN_TYPES = {"auto": -1, "on": 1, "off": 0}  # llama_flash_attn_type.
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # llama_split_mode.

DEFAULT_CTX = 8192
CTX_STEP = 256  # llama.cpp rounds context sizes up to multiples of it.
MIN_BATCH = 32
HEAD_BATCH = 64  # Batch size of a head: llama.cpp computes logits for every row of it.
_MAX_CTX_FACTOR = 8
"""A context larger than this many trained contexts is a mistake.

llama.cpp would allocate it.
"""
_EXPERT_PATTERN = r"blk\.({})\.ffn_(up|down|gate_up|gate)_(ch|)exps"
"""Weights of the experts of some layers, as llama.cpp's --n-cpu-moe has them."""
_OUTPUT_PATTERN = rb"^(output|token_embd)\.weight$"


class _TensorBuftOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, missing in llama_cpp."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


class ModelRole(Struct, frozen=True):
    """How to load one model of a pair."""

    settings: ContextSettings
    n_outputs_max: int  # Maximum rows of logits per pass.
    n_rs_seq: int
    """Tokens of the last pass that can be rolled back if the model is recurrent."""
    limit_to_trained_ctx: bool = False
    load_mtp: bool = False
    n_branches: int = 0  # Sequences beside the text.

    @property
    def keeps_all_tokens(self) -> bool:
        """Whether sliding-window layers keep the tokens outside their window.

        A rollback needs them, and only a model that verifies or drafts several tokens
        in a pass is rolled back.
        """
        return self.settings.swa_full and self.n_outputs_max > 1

    def n_batch(self, n_ctx: int) -> int:
        """Tokens of a full pass, in a context of `n_ctx`."""
        return min(n_ctx, max(self.settings.n_ubatch, self.n_outputs_max, MIN_BATCH))


def round_up_to_step(n_ctx: int) -> int:
    """The next context size that llama.cpp allocates."""
    return -(-n_ctx // CTX_STEP) * CTX_STEP


def target_role(load: LoadCommand, *, load_mtp: bool = False) -> ModelRole:
    """A pass is no wider than the batch that was asked for, but for a model's drafts."""
    widest = max(load.target_settings.n_ubatch, MODEL_DRAFT_MAX + 1)
    return ModelRole(
        load.target_settings,
        n_outputs_max=min(load.draft_max + 1, widest),
        n_rs_seq=load.snapshots,
        load_mtp=load_mtp,
    )


def draft_role(load: LoadCommand, n_ctx: int, n_outputs: int = 1) -> ModelRole:
    """A draft model for a target with `n_ctx` tokens.

    Its context may be shorter than the target's: drafting then ends earlier.
    """
    settings = draft_model_settings(load.draft_settings)
    settings = replace(settings, n_ctx=settings.n_ctx or n_ctx)
    # A draft is decoded token by token, so snapshots of the last pass could not roll it
    # back.
    role = ModelRole(
        settings, n_outputs_max=n_outputs, n_rs_seq=0, limit_to_trained_ctx=True
    )
    for adapt in extras.load("DRAFT_ROLES"):
        role = adapt(role, load)
    return role


def draft_model_settings(settings: ContextSettings) -> ContextSettings:
    """Those of a draft that is a model of its own.

    Its tensors are never split: it is so small that the GPUs would wait for each other
    in every layer.  A head is split as its target is, whose tensors it reads.
    """
    if settings.split_mode == "tensor":
        return replace(settings, split_mode="layer")
    return settings


def head_role(load: LoadCommand, n_ctx: int) -> ModelRole:
    """A head for a target with `n_ctx` tokens."""
    settings = replace(load.draft_settings, n_ctx=n_ctx, n_ubatch=HEAD_BATCH)
    return ModelRole(settings, n_outputs_max=HEAD_BATCH, n_rs_seq=0)


class LlamaModelParams(Struct, frozen=True):
    params: Any  # llama_model_params.
    keep_alive: tuple[Any, ...]
    """Arrays that `params` points to; keep them until the model is loaded."""


def model_params(c: Any, settings: ContextSettings) -> LlamaModelParams:
    """Raises UsageError."""
    params = c.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.main_gpu = settings.main_gpu
    params.use_extra_bufts = not has_amx()
    params.split_mode = SPLIT_MODES[settings.split_mode]
    keep_alive: list[Any] = []
    if settings.tensor_split:
        split = _tensor_split_array(c, settings.tensor_split)
        keep_alive.append(split)
        params.tensor_split = split

    on_cpu = []  # Patterns of the weights that stay in system memory.
    if settings.cpu_moe == ALL_LAYERS:
        on_cpu.append(_EXPERT_PATTERN.format(r"\d+").encode())
    elif settings.cpu_moe:
        layers = "|".join(map(str, range(settings.cpu_moe)))
        on_cpu.append(_EXPERT_PATTERN.format(layers).encode())

    chosen = _choose_devices(c._lib, settings.remote_hosts)
    if chosen is not None:
        devices = _null_terminated(ctypes.c_void_p, [*chosen.remote, *chosen.local])
        keep_alive.append(devices)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        # The last device gets the output layer.
        is_last_remote = bool(chosen.remote) and not chosen.local
        if is_last_remote and settings.output_layer == "local":
            on_cpu.append(_OUTPUT_PATTERN)

    if on_cpu:
        cpu = GgmlLibrary(c._lib).backend_cpu_buffer_type()
        overrides = [_TensorBuftOverride(pattern, cpu) for pattern in on_cpu]
        array = _null_terminated(_TensorBuftOverride, overrides)
        keep_alive.append(array)
        params.tensor_buft_overrides = ctypes.cast(array, ctypes.c_void_p)
    return LlamaModelParams(params, tuple(keep_alive))


def _null_terminated(item_type: Any, items: Sequence[Any]) -> Any:
    """An array of C whose last item is all zero, by which llama.cpp finds its end."""
    return (item_type * (len(items) + 1))(*items)


# Devices of other computers by address, in the order of registration.
_registered: dict[str, list[int]] = {}


class _ChosenDevices(Struct, frozen=True):
    """Addresses of ggml devices, in the order in which they get layers."""

    remote: list[int]
    local: list[int]


def _choose_devices(library: Any, hosts: tuple[str, ...]) -> _ChosenDevices | None:
    """The devices of these computers and this computer's GPUs.

    None where llama.cpp's own choice is right: no other computer was ever registered.
    Otherwise the list is always explicit, because llama.cpp would put every model on
    remote devices first. Raises EngineError.
    """
    ggml = GgmlLibrary(library)
    for host in hosts:
        if host not in _registered:
            _registered[host] = remote_devices.source().register(ggml, host)
    if not _registered:
        return None
    of_any_host = set(chain.from_iterable(_registered.values()))
    by_kind: dict[str, list[int]] = {"gpu": [], "igpu": []}
    for device in ggml.devices():
        if device not in of_any_host:
            by_kind.setdefault(ggml.kind(device), []).append(device)
    remote: list[int] = []
    for host in hosts:
        remote += _registered[host]
    return _ChosenDevices(remote, local=by_kind["gpu"] or by_kind["igpu"])


def _tensor_split_array(c: Any, split: tuple[float, ...]) -> Any:
    """tensor_split with llama_max_devices entries: llama.cpp reads all.

    Raises UsageError.
    """
    n_devices = int(c.llama_max_devices())
    if len(split) > n_devices or not sum(split) > 0 or min(split) < 0:
        raise UsageError(
            f"Invalid tensor split for at most {n_devices} devices.",
            "Give one share for each device, such as 3,1.",
        )
    return (ctypes.c_float * n_devices)(*split)


def limit_to_trained(c: Any, model: Any, role: ModelRole) -> ModelRole:
    n_ctx_train = int(c.llama_model_n_ctx_train(model))
    n_ctx = role.settings.n_ctx
    if not role.limit_to_trained_ctx or not n_ctx or not n_ctx_train:
        return role
    settings = replace(role.settings, n_ctx=min(n_ctx, n_ctx_train))
    return replace(role, settings=settings)


def resolve_n_ctx(settings: ContextSettings, trained: int, name: str) -> int:
    """The context size; by default that of training, up to DEFAULT_CTX.

    Raises UsageError.
    """
    trained = trained or DEFAULT_CTX
    n_ctx = settings.n_ctx or min(DEFAULT_CTX, trained)
    if not 0 < n_ctx <= _MAX_CTX_FACTOR * trained:
        raise UsageError(
            f"A context of {n_ctx:,} tokens is out of range for {name}, "
            f"which was trained with {trained:,}.",
            Hint(f"Use {{ctx={trained}}} or less."),
        )
    return n_ctx


def is_recurrent(c: Any, model: Any) -> bool:
    return bool(c.llama_model_is_recurrent(model) or c.llama_model_is_hybrid(model))


def context_params(c: Any, model: Any, role: ModelRole, n_ctx: int) -> Any:
    """llama_context_params for a loaded model. Raises UsageError."""
    settings = role.settings
    params = c.llama_context_default_params()
    # llama.cpp rounds up too, but limits the batch to the size before rounding.
    params.n_ctx = round_up_to_step(n_ctx)
    params.n_batch = role.n_batch(params.n_ctx)
    params.n_ubatch = params.n_batch
    params.n_seq_max = 1 + role.n_branches
    # Otherwise each sequence would get a share of the context.
    params.kv_unified = role.n_branches > 0
    params.n_outputs_max = role.n_outputs_max
    params.n_outputs_max_per_seq = role.n_outputs_max
    params.n_rs_seq = 0
    if is_recurrent(c, model):
        params.n_rs_seq = role.n_rs_seq
    params.type_k, params.type_v = KV_TYPES[settings.kv_type]
    params.flash_attn_type = FLASH_ATTN_TYPES[settings.flash_attn]
    params.swa_full = role.keeps_all_tokens
    n_threads = choose_n_threads(settings.n_threads)
    params.n_threads = n_threads
    params.n_threads_batch = n_threads
    params.no_perf = True
    return params


@cache
def has_amx() -> bool:
    """Whether ggml would use AMX, which crashes (SIGILL) in builds by GCC 12 or older.

    That compiler drops the tile configuration that ggml writes before `ldtilecfg`. Only
    servers have AMX; without the extra buffer types they use AVX-512.
    LOCALSPEC_AMX=shown|hidden overrides detection (`scripts/test --amx`).
    """
    override = os.environ.get("LOCALSPEC_AMX")
    if override in ("shown", "hidden"):
        return override == "shown"
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "amx_int8" in cpuinfo
