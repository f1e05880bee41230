"""Names and dimensions of the tensors of a model's file, by the model's shape.

From src/models/*.cpp of llama.cpp (load_arch_tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localspec.models.catalog_entries import CatalogShape
from tests.support.synthetic_header.quantization_types import TensorShape

_TRAITS = {
    "qwen2": "qkv_biases", "gpt-oss": "qkv_biases", "qwen3": "qk_norms", "qwen3moe": "qk_norms",
    "gemma2": "post_norms", "gemma3": "qk_norms post_norms", "gemma4": "qk_norms post_norms",
    "phi3": "fused_projections", "qwen35": "qk_norms gated_attention",
    "qwen35moe": "qk_norms gated_attention", "lfm2": "qk_norms", "lfm2moe": "qk_norms",
}  # fmt: skip
"""The differences of an architecture from llama's.

post_norms: norms also after attention and feed-forward.  fused_projections: one matrix for queries,
keys and values; one for gate and up.  gated_attention: the query matrix also produces a gate for
the attention's output.
"""


def _has(shape: CatalogShape, trait: str) -> bool:
    return trait in _TRAITS.get(shape.architecture, "").split()


def list_tensor_shapes(shape: CatalogShape) -> list[TensorShape]:
    """All tensors of the file.  The shape must have passed `check_shape`."""
    tensors = list(_global_tensors(shape))
    for layer in range(shape.layers + shape.mtp_layers):
        tensors += ((f"blk.{layer}.{name}", dims) for name, dims in _layer_tensors(shape, layer))
    return tensors


def _global_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    embd = shape.embd
    yield "token_embd.weight", (embd, shape.vocab)
    if not shape.tied:
        yield "output.weight", (embd, shape.vocab)
    is_lfm2 = shape.architecture.startswith("lfm2")
    yield f"{'token_embd_norm' if is_lfm2 else 'output_norm'}.weight", (embd,)
    if shape.rope_factors:
        two = ("rope_factors_long", "rope_factors_short")
        for table in two if _has(shape, "fused_projections") else ("rope_freqs",):
            yield f"{table}.weight", ((shape.rope_dim or shape.key_dim) // 2,)
    if shape.layer_embd:
        wide = shape.layer_embd * shape.layers
        yield "per_layer_token_embd.weight", (wide, shape.vocab)
        yield "per_layer_model_proj.weight", (embd, wide)
        yield "per_layer_proj_norm.weight", (shape.layer_embd,)


def _layer_tensors(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    yield "attn_norm.weight", (shape.embd,)
    if shape.layer_kind(layer) == "M":
        yield from MIXER_TENSORS[MIXERS[shape.architecture]](shape)
    elif shape.kv_rank:
        yield from _mla_tensors(shape)
    else:
        yield from _attention_tensors(shape, layer)
    if shape.ff or shape.experts:
        yield from _feed_forward_tensors(shape, layer)
    if shape.layer_embd:
        yield "inp_gate.weight", (shape.embd, shape.layer_embd)
        yield "proj.weight", (shape.layer_embd, shape.embd)
        yield "post_norm.weight", (shape.embd,)
    if shape.architecture == "gemma4":
        yield "layer_output_scale.weight", (1,)
    if layer >= shape.layers:
        yield "nextn.eh_proj.weight", (2 * shape.embd, shape.embd)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            yield f"nextn.{name}.weight", (shape.embd,)


def _attention_tensors(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    embd = shape.embd
    key = (0 if shape.layer_kind(layer) == "*" else shape.sliding_head_dim) or shape.key_dim
    value = shape.value_dim or key
    heads, n_kv = shape.heads, shape.n_head_kv(layer)
    wide = {
        "q": heads * key * (2 if _has(shape, "gated_attention") else 1),
        "k": n_kv * key,
        "v": n_kv * value,
    }
    if layer >= shape.layers - shape.shared_kv_layers and layer < shape.layers:
        wide = {"q": wide["q"]}
    elif shape.keys_as_values and shape.layer_kind(layer) == "*":
        del wide["v"]
    if _has(shape, "fused_projections"):
        yield "attn_qkv.weight", (embd, sum(wide.values()))
    else:
        for part, width in wide.items():
            yield f"attn_{part}.weight", (embd, width)
            if _has(shape, "qkv_biases"):
                yield f"attn_{part}.bias", (width,)
            if _has(shape, "qk_norms") and part != "v":
                yield f"attn_{part}_norm.weight", (key,)
    yield "attn_output.weight", (heads * value, embd)
    if shape.architecture == "gpt-oss":
        yield "attn_output.bias", (embd,)
        yield "attn_sinks.weight", (heads,)
    if (
        _has(shape, "post_norms")
        or _has(shape, "gated_attention")
        or shape.architecture == "gpt-oss"
    ):
        yield "post_attention_norm.weight", (embd,)


def _mla_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    """MLA: `head_dim` and `value_dim` are those of the uncompressed heads."""
    embd, heads = shape.embd, shape.heads
    unrotated = shape.head_dim - shape.rope_dim
    if shape.q_rank:
        yield "attn_q_a.weight", (embd, shape.q_rank)
        yield "attn_q_a_norm.weight", (shape.q_rank,)
        yield "attn_q_b.weight", (shape.q_rank, heads * shape.head_dim)
    else:
        yield "attn_q.weight", (embd, heads * shape.head_dim)
    yield "attn_kv_a_mqa.weight", (embd, shape.kv_rank + shape.rope_dim)
    yield "attn_kv_a_norm.weight", (shape.kv_rank,)
    yield "attn_k_b.weight", (unrotated, shape.kv_rank, heads)
    yield "attn_v_b.weight", (shape.kv_rank, shape.value_dim, heads)
    yield "attn_output.weight", (heads * shape.value_dim, embd)


def _feed_forward_tensors(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    embd = shape.embd
    ff = shape.n_ff(layer)
    if not _has(shape, "gated_attention") and shape.architecture != "gpt-oss":
        yield "ffn_norm.weight", (embd,)
    both = shape.architecture == "gemma4"
    if shape.experts and layer >= shape.dense_layers:
        yield from _expert_tensors(shape)
    if not shape.experts or layer < shape.dense_layers or both:
        if not _has(shape, "fused_projections"):
            yield "ffn_gate.weight", (embd, ff)
        yield "ffn_up.weight", (embd, 2 * ff if _has(shape, "fused_projections") else ff)
        yield "ffn_down.weight", (ff, embd)
    if _has(shape, "post_norms"):
        yield "post_ffw_norm.weight", (embd,)


def _expert_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    embd, n, ff = shape.embd, shape.experts, shape.expert_ff or shape.ff
    yield "ffn_gate_inp.weight", (embd, n)
    if shape.architecture == "gemma4":
        yield "ffn_gate_inp.scale", (embd,)
        yield "ffn_gate_up_exps.weight", (embd, 2 * ff, n)
        yield "ffn_down_exps.scale", (n,)
        for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{name}.weight", (embd,)
    else:
        yield "ffn_gate_exps.weight", (embd, ff, n)
        yield "ffn_up_exps.weight", (embd, ff, n)
    yield "ffn_down_exps.weight", (ff, embd, n)
    if shape.architecture in ("deepseek2", "lfm2moe"):
        yield "exp_probs_b.bias", (n,)
    if shape.architecture == "gpt-oss":
        yield "ffn_gate_inp.bias", (n,)
        for part, width in {"gate": ff, "up": ff, "down": embd}.items():
            yield f"ffn_{part}_exps.bias", (width, n)
    if shape.shared_ff:
        if shape.architecture == "qwen35moe":
            yield "ffn_gate_inp_shexp.weight", (embd,)
        yield "ffn_gate_shexp.weight", (embd, shape.shared_ff)
        yield "ffn_up_shexp.weight", (embd, shape.shared_ff)
        yield "ffn_down_shexp.weight", (shape.shared_ff, embd)


def _mamba2_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    inner, heads = shape.inner, shape.state_heads
    wide = inner + 2 * shape.groups * shape.state
    yield "ssm_in.weight", (shape.embd, inner + wide + heads)
    yield "ssm_conv1d.weight", (shape.conv, wide)
    yield "ssm_conv1d.bias", (wide,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (1, heads)
    yield "ssm_d", (1, heads)
    yield "ssm_norm.weight", (inner // shape.groups, shape.groups)
    yield "ssm_out.weight", (inner, shape.embd)


def _delta_net_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    """Gated delta net: `groups` key heads and `state_heads` value heads, all `state` wide."""
    embd, heads = shape.embd, shape.state_heads
    values = shape.state * heads
    wide = 2 * shape.state * shape.groups + values
    yield "attn_qkv.weight", (embd, wide)
    yield "attn_gate.weight", (embd, values)
    yield "ssm_conv1d.weight", (shape.conv, wide)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    yield "ssm_beta.weight", (embd, heads)
    yield "ssm_alpha.weight", (embd, heads)
    yield "ssm_norm.weight", (shape.state,)
    yield "ssm_out.weight", (values, embd)
    yield "post_attention_norm.weight", (embd,)


def _shortconv_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    yield "shortconv.conv.weight", (shape.conv, shape.embd)
    yield "shortconv.in_proj.weight", (shape.embd, 3 * shape.embd)
    yield "shortconv.out_proj.weight", (shape.embd, shape.embd)


MIXERS = {
    "mamba2": "mamba2", "granitehybrid": "mamba2", "qwen35": "delta", "qwen35moe": "delta",
    "lfm2": "shortconv", "lfm2moe": "shortconv",
}  # fmt: skip
"""The kind of layers without attention, by architecture."""
DRAWN = {
    "llama", "mistral3", "smollm3", "granite", "qwen2", "qwen3", "gemma2", "gemma3", "phi3",
    "qwen3moe", "gpt-oss", "gemma4", "deepseek2", *MIXERS,
}  # fmt: skip
"""The architectures that can be drawn."""
MIXER_TENSORS: dict[str, Callable[[CatalogShape], Iterator[TensorShape]]] = {
    "mamba2": _mamba2_tensors,
    "delta": _delta_net_tensors,
    "shortconv": _shortconv_tensors,
}
