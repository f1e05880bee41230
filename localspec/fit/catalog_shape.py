"""The shape of a model from its catalogue entry, before its file can be read.

Weights are spread by the numbers of parameters over the size of the file; without an exact size,
by the bits of the quantisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from localspec.fit.shape import (
    GATED_ATTENTION,
    LayerShape,
    ModelShape,
    attention_width,
    feed_forward_width,
    is_repacked,
)
from localspec.lazy_dataclass import dataclass
from localspec.models.catalog import CatalogModel
from localspec.models.catalog_shape import CatalogShape

_VOCABULARY_BYTES = 25
"""Of the file's header, per token."""
_ROUTER_WEIGHT = 6
"""Its matrix is in F32."""
_MAX_ABOVE_RECIPE = 1.1
"""A rounded size that is larger by more than this is rounded too far."""
_Q8_0_BITS = 8.5
_BLOCK = 256
"""Rows of other widths have blocks of 32, with more bits."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Bits per weight of a quantisation, by llama.cpp's recipes (src/llama-quant.cpp)."""

    type_name: str
    """Of most tensors."""
    layers: float
    table: float
    output: float
    """Also of tied embeddings."""
    dense: float = 0.0
    """Of what is no expert, if it differs."""


_RECIPES = {
    "F32": _Recipe("F32", 32, 32, 32),
    "BF16": _Recipe("BF16", 16, 16, 16),
    "F16": _Recipe("F16", 16, 16, 16),
    "Q8_0": _Recipe("Q8_0", 8.5, 8.5, 8.5),
    "Q6_K": _Recipe("Q6_K", 6.5625, 6.5625, 6.5625),
    "Q5_K_S": _Recipe("Q5_K", 5.5, 5.5, 6.5625),
    "Q5_K": _Recipe("Q5_K", 5.66, 5.5, 6.5625),
    "Q4_K_S": _Recipe("Q4_K", 4.56, 4.5, 6.5625),
    "Q4_K": _Recipe("Q4_K", 4.82, 4.5, 6.5625),
    "Q5_0": _Recipe("Q5_0", 5.5, 5.5, 6.5625),
    "Q4_0": _Recipe("Q4_0", 4.5, 4.5, 6.5625),
    "Q4_1": _Recipe("Q4_1", 5.0, 5.0, 6.5625),
    "MXFP4": _Recipe("MXFP4", 4.25, 8.5, 8.5, dense=8.5),
}
"""The first whose name is part of the quantisation's: UD-Q4_K_XL is nearly Q4_K_M."""


@lru_cache(maxsize=256)
def from_catalog(model: CatalogModel) -> ModelShape | None:
    """None if the entry has no shape, or neither a size nor a known quantisation."""
    if model.shape is None:
        return None
    return build(model.shape, model.quantization, model.bytes, model.about)


def build(
    shape: CatalogShape, quantization: str, n_bytes: int | None, about: int | None = None
) -> ModelShape | None:
    """`n_bytes` and `about`: of the file, exact or at most."""
    recipe = next((_RECIPES[name] for name in _RECIPES if name in quantization), None)
    layers = [_count_layer(shape, il) for il in range(shape.layers + shape.mtp_layers)]
    if recipe is None:
        if not (size := n_bytes or about):
            return None
        n_all = sum(each.weights + each.experts for each in layers)
        n_all += shape.vocab * (2 * shape.embd + shape.layer_embd * shape.layers)
        recipe = _Recipe(quantization, *[8 * size / n_all] * 3)
    sizes = _spread(shape, recipe, layers, n_bytes, about)
    inner, channels = _recurrent_widths(shape)
    return ModelShape(
        shape.architecture,
        sizes.layers,
        shape.embd,
        shape.vocab,
        shape.context,
        n_mtp=shape.mtp_layers,
        input_bytes=sizes.table,
        output_bytes=sizes.output * (not shape.tied),
        output_matrix=sizes.output,
        output_reads=sizes.output,
        is_tied=shape.tied,
        is_table_repacked=is_repacked(sizes.output_type, shape.vocab),
        n_swa=shape.window,
        n_expert=shape.experts,
        n_expert_used=shape.experts_used,
        mla_result=shape.heads * (shape.kv_rank + shape.value_dim) * (shape.kv_rank > 0),
        n_shared_kv=shape.shared_kv_layers,
        n_embd_per_layer=shape.layer_embd,
        n_embd_r=max(0, shape.conv - 1) * (channels or shape.embd),
        n_embd_s=shape.state * inner,
        ssm_inner=inner,
        ssm_channels=channels,
        weight_type=sizes.weight_type,
    )


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes."""

    layers: tuple[LayerShape, ...]
    table: int
    output: int
    output_type: str
    weight_type: str


def _spread(
    shape: CatalogShape,
    recipe: _Recipe,
    layers: Sequence[LayerShape],
    n_bytes: int | None,
    about: int | None,
) -> _Sizes:
    """`layers`: with parameters in place of bytes."""
    is_mixture = recipe.type_name.endswith("_K")
    is_narrow = shape.embd % _BLOCK > 0 and recipe.table < _Q8_0_BITS
    has_narrow_experts = is_mixture and (shape.expert_ff or shape.ff) % _BLOCK > 0
    n_table, n_rows = shape.embd * shape.vocab, shape.layer_embd * shape.layers * shape.vocab
    output_bits = _Q8_0_BITS if is_narrow else recipe.output
    output = int(n_table * output_bits / 8)
    table = output if shape.tied else int(n_table * (recipe.table + is_narrow) / 8)
    table += int(n_rows * recipe.table / 8)
    outside = table + output * (not shape.tied) + _VOCABULARY_BYTES * shape.vocab
    per_weight = (recipe.dense or recipe.layers + (is_narrow and is_mixture)) / 8
    per_expert = (recipe.layers + 0.5 * has_narrow_experts) / 8
    dense = per_weight * sum(each.weights for each in layers)
    experts = per_expert * sum(each.experts for each in layers)
    most = _MAX_ABOVE_RECIPE * (outside + dense + experts)
    size = n_bytes or min(about or outside + dense + experts, most)
    scale = (size - outside) / (dense + experts)
    # The largest matrices of a mixture are in the type of the output.
    peak = recipe.output / recipe.layers if is_mixture else 1.0
    is_mostly_dense = experts * shape.experts_used < (dense + output) * shape.experts
    return _Sizes(
        tuple(_scale(layer, scale * per_weight, scale * per_expert, peak) for layer in layers),
        table,
        output,
        "Q8_0" if output_bits == _Q8_0_BITS else "Q6_K",
        "Q8_0" if recipe.dense and is_mostly_dense else recipe.type_name,
    )


def _scale(layer: LayerShape, weight: float, expert: float, peak: float) -> LayerShape:
    """With so many bytes per parameter, and times `peak` in the largest matrix."""
    return replace(
        layer,
        weights=int(layer.weights * weight),
        matrix=int(layer.matrix * weight * peak),
        experts=int(layer.experts * expert),
        expert_matrix=int(layer.expert_matrix * expert * peak),
    )


def _recurrent_widths(shape: CatalogShape) -> tuple[int, int]:
    """Of the state's input, and of the convolution's."""
    inner = shape.inner or shape.state * shape.state_heads
    return inner, inner + 2 * shape.groups * shape.state


def _count_layer(shape: CatalogShape, il: int) -> LayerShape:
    """With parameters in place of bytes."""
    embd, expert_ff = shape.embd, shape.expert_ff or shape.ff
    layer = _count_attention(shape, il) if shape.has_attention(il) else _count_recurrent(shape)
    n_expert = shape.experts if il >= shape.dense_layers else 0
    has_dense = not n_expert or shape.architecture == "gemma4"
    ff = shape.n_ff(il) if has_dense else shape.shared_ff
    is_fused = shape.architecture == "phi3"  # gate and up in one matrix
    weights = layer.weights + 3 * embd * ff + 2 * embd * shape.layer_embd
    weights += _ROUTER_WEIGHT * embd * n_expert + 2 * embd * embd * (il >= shape.layers)
    expert_matrix = n_expert * embd * expert_ff
    return replace(
        layer,
        weights=weights,
        experts=3 * expert_matrix,
        matrix=max(layer.matrix, embd * ff * (1 + is_fused)),
        expert_matrix=expert_matrix * (2 if shape.architecture == "gemma4" else 1),
        ff=feed_forward_width(
            embd, ff * (4 if is_fused else 3), shape.experts_used, expert_ff, n_expert
        ),
    )


def _count_attention(shape: CatalogShape, il: int) -> LayerShape:
    embd, heads = shape.embd, shape.heads
    is_full = shape.has_full_attention(il) or il >= shape.layers
    is_swa = shape.window > 0 and not is_full
    k = (shape.sliding_head_dim if is_swa else 0) or shape.key_dim
    v, n_head_kv, mla = shape.value_dim or k, shape.n_head_kv(il), 0
    has_kv = not shape.layers - shape.shared_kv_layers <= il < shape.layers
    queries = heads * k * (1 + (shape.architecture in GATED_ATTENTION))
    if shape.kv_rank:  # MLA: `head_dim` and `value_dim` are those of the uncompressed heads
        rank, rope = shape.kv_rank, shape.rope_dim
        weights = (embd + heads * k) * shape.q_rank if shape.q_rank else embd * heads * k
        weights += embd * (rank + rope + heads * v) + heads * rank * (k - rope + v)
        k, v, n_head_kv, mla = rank + rope, rank, 1, k + rank
    else:
        has_values = not (shape.keys_as_values and is_full)
        keys_and_values = n_head_kv * (k + v * has_values) * has_kv
        weights = embd * (queries + keys_and_values + heads * v)
    is_fused = shape.architecture == "phi3"
    width = attention_width(
        shape.architecture, (heads, n_head_kv, k, v), mla=mla, is_fused=is_fused
    )
    return LayerShape(
        weights, 0, embd * queries, 0, heads, n_head_kv, k, v, width, is_swa=is_swa, has_kv=has_kv
    )


def _count_recurrent(shape: CatalogShape) -> LayerShape:
    inner, channels = _recurrent_widths(shape)
    width = channels + inner or 3 * shape.embd
    weights = shape.embd * (width + (inner or shape.embd) + 2 * shape.state_heads)
    return LayerShape(weights, matrix=shape.embd * width, is_recurrent=True)
