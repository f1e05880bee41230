"""The tensors that a model's file holds: their names and dimensions, by its shape.

From src/models/*.cpp of llama.cpp (load_arch_tensors).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localspec.models.blueprint import recurrent
from localspec.models.blueprint.recipe import Row
from localspec.models.blueprint.shape import Shape


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture departs from llama's."""

    biases: bool = False
    """Queries, keys and values have them."""
    head_norms: bool = False
    post_norms: bool = False
    """Norms behind attention and feed-forward, too."""
    fused: bool = False
    """One matrix for queries, keys and values; one for gate and up."""
    gated: bool = False
    """Queries come with a gate for the attention's output."""
    mixer: str = ""
    """What layers without attention are."""
    output_norm: str = "output_norm"


FAMILIES = {
    "llama": Family(),
    "mistral3": Family(),
    "smollm3": Family(),
    "granite": Family(),
    "qwen2": Family(biases=True),
    "qwen3": Family(head_norms=True),
    "qwen3moe": Family(head_norms=True),
    "gemma2": Family(post_norms=True),
    "gemma3": Family(head_norms=True, post_norms=True),
    "gemma4": Family(head_norms=True, post_norms=True),
    "gpt-oss": Family(biases=True),
    "phi3": Family(fused=True),
    "deepseek2": Family(),
    "mamba2": Family(mixer="mamba2"),
    "granitehybrid": Family(mixer="mamba2"),
    "qwen35": Family(head_norms=True, gated=True, mixer="delta"),
    "qwen35moe": Family(head_norms=True, gated=True, mixer="delta"),
    "lfm2": Family(head_norms=True, mixer="shortconv", output_norm="token_embd_norm"),
    "lfm2moe": Family(head_norms=True, mixer="shortconv", output_norm="token_embd_norm"),
}
"""What can be drawn, by architecture."""


def rows(shape: Shape) -> list[Row]:
    """All tensors of the file; `needs.check` has taken the shape."""
    found = list(_ends(shape))
    for layer in range(shape.layers + shape.mtp_layers):
        found += ((f"blk.{layer}.{name}", dims) for name, dims in _layer(shape, layer))
    return found


def _ends(shape: Shape) -> Iterator[Row]:
    embd, family = shape.embd, FAMILIES[shape.architecture]
    yield "token_embd.weight", (embd, shape.vocab)
    if not shape.tied:
        yield "output.weight", (embd, shape.vocab)
    yield f"{family.output_norm}.weight", (embd,)
    if shape.rope_factors:
        tables = ("rope_factors_long", "rope_factors_short") if family.fused else ("rope_freqs",)
        for table in tables:
            yield f"{table}.weight", ((shape.rope_dim or shape.key_dim) // 2,)
    if shape.layer_embd:
        wide = shape.layer_embd * shape.layers
        yield "per_layer_token_embd.weight", (wide, shape.vocab)
        yield "per_layer_model_proj.weight", (embd, wide)
        yield "per_layer_proj_norm.weight", (shape.layer_embd,)


def _layer(shape: Shape, layer: int) -> Iterator[Row]:
    family = FAMILIES[shape.architecture]
    yield "attn_norm.weight", (shape.embd,)
    if family.mixer and not has_attention(shape, layer):
        yield from recurrent.MIXERS[family.mixer](shape)
    elif shape.kv_rank:
        yield from _compressed(shape)
    else:
        yield from _attention(shape, layer)
    if shape.ff or shape.experts:
        yield from _feed_forward(shape, layer)
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


def has_attention(shape: Shape, layer: int) -> bool:
    """Whether a layer is no recurrent one."""
    return layer >= shape.layers or (shape.heads > 0 and shape.full(layer))


def kv_heads(shape: Shape, layer: int) -> int:
    if FAMILIES[shape.architecture].mixer and not has_attention(shape, layer):
        return 0
    return (shape.full_kv_heads if shape.full(layer) else 0) or shape.n_head_kv


def feed_forward(shape: Shape, layer: int) -> int:
    shares = layer >= shape.layers - shape.shared_kv_layers
    return (shape.shared_kv_ff if shares else 0) or shape.ff


def _attention(shape: Shape, layer: int) -> Iterator[Row]:
    family, embd = FAMILIES[shape.architecture], shape.embd
    key = (0 if shape.full(layer) else shape.sliding_head_dim) or shape.key_dim
    value = shape.value_dim or key
    heads, n_kv = shape.heads, kv_heads(shape, layer)
    wide = {"q": heads * key * (2 if family.gated else 1), "k": n_kv * key, "v": n_kv * value}
    if layer >= shape.layers - shape.shared_kv_layers and layer < shape.layers:
        wide = {"q": wide["q"]}
    elif shape.keys_as_values and shape.full(layer):
        del wide["v"]
    if family.fused:
        yield "attn_qkv.weight", (embd, sum(wide.values()))
    else:
        for part, width in wide.items():
            yield f"attn_{part}.weight", (embd, width)
            if family.biases:
                yield f"attn_{part}.bias", (width,)
            if family.head_norms and part != "v":
                yield f"attn_{part}_norm.weight", (key,)
    yield "attn_output.weight", (heads * value, embd)
    if shape.architecture == "gpt-oss":
        yield "attn_output.bias", (embd,)
        yield "attn_sinks.weight", (heads,)
    if family.post_norms or family.gated or shape.architecture == "gpt-oss":
        yield "post_attention_norm.weight", (embd,)


def _compressed(shape: Shape) -> Iterator[Row]:
    """MLA: `head_dim` and `value_dim` are those of the heads once they are unpacked."""
    embd, heads = shape.embd, shape.heads
    plain = shape.head_dim - shape.rope_dim
    if shape.q_rank:
        yield "attn_q_a.weight", (embd, shape.q_rank)
        yield "attn_q_a_norm.weight", (shape.q_rank,)
        yield "attn_q_b.weight", (shape.q_rank, heads * shape.head_dim)
    else:
        yield "attn_q.weight", (embd, heads * shape.head_dim)
    yield "attn_kv_a_mqa.weight", (embd, shape.kv_rank + shape.rope_dim)
    yield "attn_kv_a_norm.weight", (shape.kv_rank,)
    yield "attn_k_b.weight", (plain, shape.kv_rank, heads)
    yield "attn_v_b.weight", (shape.kv_rank, shape.value_dim, heads)
    yield "attn_output.weight", (heads * shape.value_dim, embd)


def _feed_forward(shape: Shape, layer: int) -> Iterator[Row]:
    family, embd, ff = FAMILIES[shape.architecture], shape.embd, feed_forward(shape, layer)
    if not family.gated and shape.architecture != "gpt-oss":
        yield "ffn_norm.weight", (embd,)
    both = shape.architecture == "gemma4"
    if shape.experts and layer >= shape.dense_layers:
        yield from _experts(shape)
    if not shape.experts or layer < shape.dense_layers or both:
        if not family.fused:
            yield "ffn_gate.weight", (embd, ff)
        yield "ffn_up.weight", (embd, 2 * ff if family.fused else ff)
        yield "ffn_down.weight", (ff, embd)
    if family.post_norms:
        yield "post_ffw_norm.weight", (embd,)


def _experts(shape: Shape) -> Iterator[Row]:
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
