"""Bytes of keys, values and recurrent states on each device."""

from __future__ import annotations

from localspec.fit.facts import Facts, Layer
from localspec.fit.opening import Opening
from localspec.fit.placement import Placement
from localspec.fit.weights import padding
from localspec.models.gguf.tensors import TYPES


def place(facts: Facts, opening: Opening, placement: Placement) -> tuple[int, ...]:
    """Bytes by backend."""
    sums = [0] * len(placement.names)
    seen: dict[tuple[Layer, int], int] = {}
    for il, layer in enumerate(facts.layers):
        if (il >= facts.n_layer) != (opening.head == "mtp"):
            continue  # a layer that guesses ahead has a cache of its own
        at = placement.layers[il]
        size = seen.get((layer, at))
        if size is None:
            size = seen[layer, at] = _layer(facts, layer, opening, placement, at)
        sums[at] += size
    return tuple(sums)


def _layer(facts: Facts, layer: Layer, opening: Opening, placement: Placement, at: int) -> int:
    size = 0
    if layer.attention:
        cells = opening.n_swa if layer.window else opening.n_ctx
        widths = [layer.n_head_kv * layer.head_k]
        if not facts.mla:
            widths.append(v_width(facts, layer, opening))
        for width in widths:
            size += _aligned(
                row(opening.kv_type, width) * cells, opening.kv_type, width, placement, at
            )
    if layer.recurrent:
        for width in (facts.state_r, facts.state_s):
            size += _aligned(4 * width * (1 + opening.n_rs_seq), 0, width, placement, at)
    return size


def v_width(facts: Facts, layer: Layer, opening: Opening) -> int:
    """Across tokens all layers are as wide as the widest."""
    if opening.by_token:
        return layer.n_head_kv * layer.head_v
    return max(other.n_head_kv * other.head_v for other in facts.layers)


def row(kind: int, width: int) -> int:
    _, block, block_bytes = TYPES[kind]
    return width // block * block_bytes


def _aligned(size: int, kind: int, width: int, placement: Placement, at: int) -> int:
    rules = placement.rules[at]
    if rules.padding and size:
        size += padding(kind, width, rules.padding)
    return -(-size // rules.alignment) * rules.alignment
