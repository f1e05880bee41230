"""The shape of a model from its catalogue entry, before its file can be read.

The size of the file, without tables, is spread evenly over the layers.
"""

from __future__ import annotations

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
from localspec.models.catalog import CatalogModel
from localspec.models.catalog_shape import CatalogShape

_VOCABULARY_BYTES = 25  # Of the file's header, per token.
_BITS = {
    "BF16": 16.0, "F16": 16.0, "F32": 32.0, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5": 5.5, "Q4_1": 5.0,
    "MXFP4": 8.5,
}  # fmt: skip
"""Of the token embeddings, by a part of the quantisation's name; of all others 4.5."""
_OUTPUT_BITS = 6.5625  # At least: an output matrix, or tied embeddings, in Q6_K.
_NARROW_BITS = 8.5  # Of Q8_0, in place of Q6_K if the rows are no multiple of its blocks.
_BLOCK = 256
_PEAK = 1.4  # The largest matrices of a mixture (Q6_K), relative to its average.


@lru_cache(maxsize=256)
def from_catalog(model: CatalogModel) -> ModelShape | None:
    """None if the entry has no shape or no size."""
    if model.shape is None or model.size is None:
        return None
    return build(model.shape, model.quantization, model.size)


def build(shape: CatalogShape, quantization: str, n_bytes: int) -> ModelShape:
    """`n_bytes`: of the file."""
    bits = next((_BITS[name] for name in _BITS if name in quantization), 4.5)
    is_narrow = shape.embd % _BLOCK > 0 and bits < _NARROW_BITS
    output_bits = _NARROW_BITS if is_narrow else max(bits, _OUTPUT_BITS)
    output = int(shape.embd * shape.vocab * output_bits / 8)
    table = output if shape.tied else int(shape.embd * shape.vocab * (bits + is_narrow) / 8)
    table += int(shape.layer_embd * shape.layers * shape.vocab * bits / 8)
    rest = n_bytes - table - output * (not shape.tied) - _VOCABULARY_BYTES * shape.vocab
    is_mxfp4 = "MXFP4" in quantization  # of experts only; the rest is in Q8_0
    layers, is_mostly_dense = _spread(shape, rest, 2 if is_mxfp4 else 1)
    inner, channels = _recurrent_widths(shape)
    return ModelShape(
        shape.architecture,
        layers,
        shape.embd,
        shape.vocab,
        shape.context,
        n_mtp=shape.mtp_layers,
        input_bytes=table,
        output_bytes=output * (not shape.tied),
        output_matrix=output,
        output_reads=output,
        is_tied=shape.tied,
        is_table_repacked=is_repacked(
            "Q8_0" if output_bits == _NARROW_BITS else "Q6_K", shape.vocab
        ),
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
        weight_type="Q8_0" if is_mxfp4 and is_mostly_dense else _weight_type(quantization),
    )


def _weight_type(quantization: str) -> str:
    """UD-Q4_K_XL, Q4_K_M: Q4_K."""
    name = quantization.removeprefix("UD-").removesuffix("_MOE")
    return name[:4] if name[2:4] == "_K" else name


def _spread(
    shape: CatalogShape, n_bytes: int, dense_weight: int
) -> tuple[tuple[LayerShape, ...], bool]:
    """The layers, and whether a token reads less of experts than of the rest.

    `dense_weight`: bits of what is no expert, relative to experts.
    """
    layers = [_read_layer(shape, il) for il in range(shape.layers + shape.mtp_layers)]
    # Parameters in place of bytes.
    dense = dense_weight * sum(layer.weights for layer in layers)
    experts = sum(layer.experts for layer in layers)
    scale = n_bytes / (dense + experts)
    weights = int(scale * dense / len(layers))
    peak = scale * (1.0 if dense_weight > 1 else _PEAK)
    sized = (
        replace(
            layer,
            weights=weights,
            matrix=int(layer.matrix * peak * dense_weight),
            experts=int(layer.experts * scale),
            expert_matrix=int(layer.expert_matrix * peak),
        )
        for layer in layers
    )
    return tuple(sized), dense * shape.experts > experts * shape.experts_used


def _recurrent_widths(shape: CatalogShape) -> tuple[int, int]:
    """Of the state's input, and of the convolution's."""
    inner = shape.inner or shape.state * shape.state_heads
    return inner, inner + 2 * shape.groups * shape.state


def _read_layer(shape: CatalogShape, il: int) -> LayerShape:
    """With about as many parameters as the layer has, in place of bytes."""
    embd, heads, expert_ff = shape.embd, shape.heads, shape.expert_ff or shape.ff
    n_expert = shape.experts if il >= shape.dense_layers else 0
    has_dense = not n_expert or shape.architecture == "gemma4"
    ff = shape.n_ff(il) if has_dense else shape.shared_ff
    is_fused = shape.architecture == "phi3"  # one matrix for gate and up
    is_swa = shape.window > 0 and il < shape.layers and not shape.has_full_attention(il)
    k = (shape.sliding_head_dim if is_swa else 0) or shape.key_dim
    v, n_head_kv, mla = shape.value_dim or k, shape.n_head_kv(il), 0
    wide = heads * k * (1 + (shape.architecture in GATED_ATTENTION))
    if shape.kv_rank:  # `head_dim` and `value_dim` are those of the uncompressed heads
        k, v, n_head_kv, mla = shape.kv_rank + shape.rope_dim, shape.kv_rank, 1, k + shape.kv_rank
    widths = (heads, n_head_kv, k, v)
    is_recurrent = not shape.has_attention(il)
    if is_recurrent:
        wide = sum(_recurrent_widths(shape)) or 3 * embd
    expert_matrix = n_expert * embd * expert_ff
    n_matrices = 4 if is_fused else 3
    return LayerShape(
        embd * (2 * wide + 2 * n_head_kv * k + 3 * ff + 6 * n_expert),  # a router is in F32
        3 * expert_matrix,
        embd * max(ff * (1 + is_fused), wide),
        expert_matrix * (2 if shape.architecture == "gemma4" else 1),
        0 if is_recurrent else heads,
        n_head_kv,
        k,
        v,
        attention_width(shape.architecture, widths, mla=mla, is_fused=is_fused),
        feed_forward_width(embd, n_matrices * ff, shape.experts_used, expert_ff, n_expert),
        is_swa,
        is_recurrent,
        not is_recurrent and not shape.layers - shape.shared_kv_layers <= il < shape.layers,
    )
