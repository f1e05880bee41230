"""Bytes of a model's weights on each device, from its table of tensors."""

from __future__ import annotations

import platform
import re
from functools import cache, lru_cache

from localspec.fit.facts import Facts
from localspec.fit.placement import Placement
from localspec.machine.parameters import has_amx
from localspec.models.gguf.tensors import TYPES, Tensor

_INPUT = frozenset(
    {
        "token_embd.weight",
        "token_types.weight",
        "position_embd.weight",
        "per_layer_token_embd.weight",
        "token_embd_norm.weight",
    }
)
_OUTPUT = re.compile(r"(output|cls|dense_|enc\.output|dec\.output|fc\.|d2t|markov_|conf_proj)")
_EVERYWHERE = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Each device that has layers has these."""
_FIRST = ("per_layer_model_proj.weight", "per_layer_proj_norm.weight")
_TWICE = frozenset({"gemma4"})
"""They ask for the output before the table of tokens, and llama.cpp makes both."""
EXPERTS = re.compile(r"ffn_(up|down|gate_up|gate)_(ch|)exps")
_REPACKED = {
    "x86": frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"}),
    "arm": frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "MXFP4"}),
}
"""Types that ggml rearranges for this processor's instructions, in a buffer of their own."""


@lru_cache(maxsize=1024)
def place(facts: Facts, placement: Placement) -> tuple[int, ...]:
    """Bytes by backend."""
    sums = [0] * len(placement.names)
    cpu = placement.cpu
    for il, tensors in facts.by_layer.items():
        if il >= facts.n_loaded:
            continue  # layers that guess ahead
        home = placement.layers[il]
        for name, tensor in tensors.items():
            at = cpu if placement.experts_on_cpu and EXPERTS.match(name) else home
            sums[at] += on(tensor, placement, at)
    for name, tensor in facts.others.items():
        for at in _homes(facts, name, placement):
            sums[at] += on(tensor, placement, at)
    if facts.tied:
        table = facts.others["token_embd.weight"]
        twice = facts.arch in _TWICE or (placement.repacks and is_repacked(table))
        if placement.output != cpu or twice:
            sums[placement.output] += on(table, placement, placement.output)
    return tuple(sums)


def _homes(facts: Facts, name: str, placement: Placement) -> set[int]:
    if name == "token_embd_norm.weight" and facts.arch.startswith("lfm2"):
        return {placement.output}
    if name in _INPUT:
        return {placement.cpu}
    if name in _EVERYWHERE:
        layers = facts.layers
        return {placement.layers[il] for il in range(facts.n_layer) if not layers[il].window}
    if name in _FIRST:
        return {placement.layers[0]}
    if _OUTPUT.match(name):
        return {placement.output}
    return {placement.cpu}


def on(tensor: Tensor, placement: Placement, backend: int) -> int:
    """Bytes of one tensor there, its padding and alignment included."""
    size = tensor.n_bytes
    rules = placement.rules[backend]
    if rules.padding:
        size += padding(tensor.type, tensor.shape[0], rules.padding)
    return -(-size // rules.alignment) * rules.alignment


@cache
def padding(kind: int, width: int, pad: int) -> int:
    """Bytes behind the last row of a quantised tensor, so that kernels may read past it."""
    _, block, block_bytes = TYPES[kind]
    if block == 1 or width % pad == 0:
        return 0
    short = pad - width % pad
    return short // block * block_bytes


def is_repacked(matrix: Tensor) -> bool:
    """Whether ggml repacks such a matrix on this CPU: repack.cpp, get_optimal_repack_type.

    A repacked matrix stays on the CPU: no card computes with it, and it is no table of tokens.
    """
    return matrix.type_name in _repacked() and matrix.shape[1] % 8 == 0


@cache
def _repacked() -> frozenset[str]:
    if has_amx():
        return frozenset()  # the extra buffers are off
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return _REPACKED["arm"]
    return _REPACKED["x86"] if machine in ("x86_64", "amd64") else frozenset()
