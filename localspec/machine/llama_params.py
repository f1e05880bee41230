"""What llama.cpp is given for our settings: one answer for the engine and for the probe.

The module `c` is llama_cpp.llama_cpp, handed in by those who may import it.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.machine.ggml import GgmlLibrary
from localspec.protocol.wire import ContextSettings, LoadCommand

KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q4_0": 2}
"""ggml_type."""
FLASH_ATTN_TYPES = {"auto": -1, "on": 1, "off": 0}
"""llama_flash_attn_type."""
SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}
"""llama_split_mode."""

DEFAULT_CTX = 8192
_CTX_STEP = 256
"""llama.cpp's contexts are multiples of it."""
_MIN_BATCH = 32
HEAD_BATCH = 64
"""Rows of one pass of a head: llama.cpp computes logits for each of them, wanted or not."""
_MAX_CTX_FACTOR = 8
"""Times the trained context: beyond that it is a slip, and llama.cpp would try to allocate it."""
_EXPERT_PATTERN = rb"\.ffn_(up|down|gate_up|gate)_(ch|)exps"
"""llama.cpp's own pattern for --cpu-moe: the experts' weights, which are most of the model."""


class _TensorBuftOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama_cpp does not name."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class ModelRole:
    """How one model of a pair is opened.

    `outputs` is the most rows of logits one pass may ask for; `rollback` how many tokens of the
    last pass must be forgettable where the memory is recurrent; `within_trained` cuts the context
    to what the model was trained with; `predicting`: with its layers that guess ahead (MTP);
    without `repack` ggml does not rearrange weights for this CPU's instructions.
    """

    settings: ContextSettings
    n_outputs_max: int
    n_rs_seq: int
    limit_to_trained_ctx: bool = False
    load_mtp: bool = False
    repack: bool = True


def target_role(load: LoadCommand, *, load_mtp: bool = False) -> ModelRole:
    role = ModelRole(load.target_settings, load.draft_max + 1, load.draft_max)
    return replace(role, load_mtp=load_mtp)


def draft_role(load: LoadCommand, n_ctx: int) -> ModelRole:
    """Beside a target whose context has n_ctx tokens.

    A draft may have a shorter memory than its target: it then stops guessing, no more.
    """
    settings = replace(load.draft_settings, n_ctx=load.draft_settings.n_ctx or n_ctx)
    return ModelRole(settings, 1, load.draft_max, limit_to_trained_ctx=True)


def head_role(load: LoadCommand, n_ctx: int) -> ModelRole:
    """Beside a target whose context has n_ctx tokens: a row of it for each of them."""
    return ModelRole(replace(load.draft_settings, n_ctx=n_ctx, n_ubatch=HEAD_BATCH), HEAD_BATCH, 0)


@dataclass(frozen=True, slots=True)
class LlamaModelParams:
    """llama_model_params, and what must live until the model is loaded."""

    params: Any
    keep_alive: tuple[Any, ...]


def model_params(c: Any, settings: ContextSettings) -> LlamaModelParams:
    """Raises UsageError."""
    params = c.llama_model_default_params()
    params.n_gpu_layers = settings.n_gpu_layers
    params.main_gpu = settings.main_gpu
    params.use_extra_bufts = not has_amx()
    params.split_mode = _enum_value(SPLIT_MODES, settings.split_mode, "split mode")
    kept: list[Any] = []
    if settings.tensor_split:
        kept.append(tensor_split_array(c, settings.tensor_split))
        params.tensor_split = kept[-1]
    if settings.cpu_moe:
        kept.append(_experts_on_cpu(c))
        params.tensor_buft_overrides = ctypes.cast(kept[-1], ctypes.c_void_p)
    return LlamaModelParams(params, tuple(kept))


def tensor_split_array(c: Any, split: tuple[float, ...]) -> Any:
    """A tensor_split of llama.cpp's; it reads all of the array.  Raises UsageError."""
    most = int(c.llama_max_devices())
    if len(split) > most or not sum(split) > 0 or min(split) < 0:
        raise UsageError(
            f"The split {split} makes no sense for {most} devices.",
            "Give one share a device, such as 3,1.",
        )
    return (ctypes.c_float * most)(*split)


def _experts_on_cpu(c: Any) -> Any:
    cpu = GgmlLibrary(c._lib).backend_cpu_buffer_type()
    return (_TensorBuftOverride * 2)(
        _TensorBuftOverride(_EXPERT_PATTERN, cpu), _TensorBuftOverride(None, None)
    )


def limit_to_trained(c: Any, model: Any, role: ModelRole) -> ModelRole:
    """The role, its context cut to what the model was trained with where it asks for that."""
    known = int(c.llama_model_n_ctx_train(model))
    asked = role.settings.n_ctx
    if not (role.limit_to_trained_ctx and asked and known):
        return role
    return replace(role, settings=replace(role.settings, n_ctx=min(asked, known)))


def resolve_n_ctx(settings: ContextSettings, trained: int, name: str) -> int:
    """Tokens of context that the settings stand for.  Raises UsageError."""
    trained = trained or DEFAULT_CTX
    n_ctx = settings.n_ctx or min(DEFAULT_CTX, trained)
    if not 0 < n_ctx <= _MAX_CTX_FACTOR * trained:
        raise UsageError(
            f"A context of {n_ctx:,} tokens makes no sense for {name}, "
            f"which was trained with {trained:,}.",
            f"Use --ctx {trained} or less.",
        )
    return n_ctx


def is_recurrent(c: Any, model: Any) -> bool:
    return bool(c.llama_model_is_recurrent(model) or c.llama_model_is_hybrid(model))


def context_params(c: Any, model: Any, role: ModelRole, n_ctx: int) -> Any:
    """llama_context_params for a loaded model and a context of n_ctx tokens.  Raises UsageError."""
    settings = role.settings
    params = c.llama_context_default_params()
    # llama.cpp rounds up likewise, but would cut the batch to what was asked.
    params.n_ctx = -(-n_ctx // _CTX_STEP) * _CTX_STEP
    batch = max(settings.n_ubatch, role.n_outputs_max, _MIN_BATCH)
    params.n_batch = params.n_ubatch = min(batch, params.n_ctx)
    params.n_seq_max = 1
    params.n_outputs_max = role.n_outputs_max
    params.n_outputs_max_per_seq = role.n_outputs_max
    params.n_rs_seq = role.n_rs_seq if is_recurrent(c, model) else 0
    params.type_k = params.type_v = _enum_value(KV_TYPES, settings.kv_type, "KV type")
    params.flash_attn_type = _enum_value(FLASH_ATTN_TYPES, settings.flash_attn, "flash attention")
    params.swa_full = settings.swa_full and role.n_outputs_max > 1
    params.n_threads = params.n_threads_batch = resolve_n_threads(settings.n_threads)
    params.no_perf = True
    return params


def output_bytes(c: Any, model: Any, role: ModelRole) -> int:
    """Of the rows of logits, once as many were asked for as may be."""
    return int(4 * role.n_outputs_max * c.llama_vocab_n_tokens(c.llama_model_get_vocab(model)))


@cache
def has_amx() -> bool:
    """Whether ggml would take its AMX path, which dies of SIGILL when GCC 12 or older built it.

    That compiler drops the tile configuration ggml writes before `ldtilecfg`.  Only servers have
    AMX; without the extra buffer types such a machine uses AVX-512.
    LOCALSPEC_AMX=shown|hidden answers instead of the CPU (`scripts/test --amx`).
    """
    if (answer := os.environ.get("LOCALSPEC_AMX")) in ("shown", "hidden"):
        return answer == "shown"
    try:
        return "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def resolve_n_threads(requested: int | None) -> int:
    """Physical cores - 1 unless asked: two full pools and a screen would stall each other."""
    most = 4 * (os.cpu_count() or 1)
    if requested is not None:
        return max(1, min(requested, most))
    import psutil  # noqa: PLC0415  not for who only prices

    return max(1, (psutil.cpu_count(logical=False) or os.cpu_count() or 2) - 1)


def _enum_value(table: dict[str, int], value: str, what: str) -> int:
    if value not in table:
        raise UsageError(f"{value!r} is no {what}.", f"Use one of: {', '.join(table)}.")
    return table[value]
