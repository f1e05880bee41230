"""Bytes of a model's weights on each device."""

from __future__ import annotations

import platform
import re
from functools import cache, lru_cache

from localspec.fit.hparams import ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.machine.llama_params import has_amx
from localspec.models.gguf.tensors import GGML_TYPES, TensorInfo

_INPUT_TENSORS = frozenset(
    {
        "token_embd.weight",
        "token_types.weight",
        "position_embd.weight",
        "per_layer_token_embd.weight",
        "token_embd_norm.weight",
    }
)
_OUTPUT_TENSORS = re.compile(
    r"(output|cls|dense_|enc\.output|dec\.output|fc\.|d2t|markov_|conf_proj)"
)
_PER_DEVICE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Copied to each device that has layers."""
_FIRST_LAYER_TENSORS = ("per_layer_model_proj.weight", "per_layer_proj_norm.weight")
_DUPLICATED_EMBEDDINGS = frozenset({"gemma4"})
"""llama.cpp loads their tied embeddings twice, also on the CPU."""
EXPERT_TENSORS = re.compile(r"ffn_(up|down|gate_up|gate)_(ch|)exps")
_REPACKED_TYPES = {
    "x86": frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    "arm": frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"}),
}
"""Types that ggml repacks for the CPU's instructions, in a separate buffer."""


@lru_cache(maxsize=1024)
def estimate(hparams: ModelHparams, placement: LayerPlacement) -> tuple[int, ...]:
    """Bytes by backend."""
    sums = [0] * len(placement.backend_names)
    cpu = placement.cpu_backend
    for il, tensors in hparams.layer_tensors.items():
        if il >= hparams.n_layer_loaded:
            continue  # MTP layers
        layer_backend = placement.layer_backends[il]
        for name, tensor in tensors.items():
            on_cpu = placement.experts_on_cpu and EXPERT_TENSORS.match(name)
            backend = cpu if on_cpu else layer_backend
            sums[backend] += tensor_bytes(tensor, placement, backend)
    for name, tensor in hparams.global_tensors.items():
        for backend in _backends_of(hparams, name, placement):
            sums[backend] += tensor_bytes(tensor, placement, backend)
    if hparams.has_tied_output:
        table = hparams.global_tensors["token_embd.weight"]
        output = placement.output_backend
        twice = hparams.arch in _DUPLICATED_EMBEDDINGS or (placement.repacks and is_repacked(table))
        if output != cpu or twice:
            sums[output] += tensor_bytes(table, placement, output)
    return tuple(sums)


def _backends_of(hparams: ModelHparams, name: str, placement: LayerPlacement) -> set[int]:
    if name == "token_embd_norm.weight" and hparams.arch.startswith("lfm2"):
        return {placement.output_backend}
    if name in _INPUT_TENSORS:
        return {placement.cpu_backend}
    if name in _PER_DEVICE_TENSORS:
        layers = hparams.layers
        return {
            placement.layer_backends[il] for il in range(hparams.n_layer) if not layers[il].is_swa
        }
    if name in _FIRST_LAYER_TENSORS:
        return {placement.layer_backends[0]}
    if _OUTPUT_TENSORS.match(name):
        return {placement.output_backend}
    return {placement.cpu_backend}


def tensor_bytes(tensor: TensorInfo, placement: LayerPlacement, backend: int) -> int:
    """Bytes of a tensor with the padding and alignment of the backend."""
    size = tensor.n_bytes
    rules = placement.backend_rules[backend]
    if rules.padding:
        size += padding_bytes(tensor.type, tensor.shape[0], rules.padding)
    return -(-size // rules.alignment) * rules.alignment


@cache
def padding_bytes(ggml_type: int, width: int, multiple: int) -> int:
    """Bytes after the last row of a quantised tensor, so that kernels may read past it."""
    _, block, block_bytes = GGML_TYPES[ggml_type]
    if block == 1 or width % multiple == 0:
        return 0
    short = multiple - width % multiple
    return short // block * block_bytes


def is_repacked(matrix: TensorInfo) -> bool:
    """Whether ggml repacks this matrix on this CPU (ggml_repack_get_optimal_repack_type).

    A repacked matrix stays on the CPU: GPUs cannot use it, nor can it serve as token embeddings.
    """
    return matrix.type_name in _repacked_types() and matrix.shape[1] % 8 == 0


@cache
def _repacked_types() -> frozenset[str]:
    if has_amx():
        return frozenset()  # llama_params turns extra buffer types off
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return _REPACKED_TYPES["arm"]
    return _REPACKED_TYPES["x86"] if machine in ("x86_64", "amd64") else frozenset()
