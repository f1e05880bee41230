"""Builds the header of a model's file from the model's shape.

Tensors from src/models/*.cpp of llama.cpp (load_arch_tensors), their types from
src/llama-quant.cpp (tensor_allows_quantization, llama_tensor_get_type_impl,
tensor_type_fallback).
"""

import re
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from localspec.models.catalog_entries import CatalogShape
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import FILE_TYPES, GGML_TYPES, TensorInfo, Value
from localspec.models.gguf.tokenizer import NONE, TokenizerMetadata
from localspec.models.gguf.writer import data_size, serialize_header

TensorShape = tuple[str, tuple[int, ...]]
"""A tensor's name and its dimensions, row length first."""
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
_TYPE_IDS = {type_.name: number for number, type_ in GGML_TYPES.items()}
_FILE_TYPE_IDS = {name: number for number, name in FILE_TYPES.items()}
_RECIPES = {
    name: name for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "MXFP4")
}
_RECIPES["Q4_K_M"] = "Q4_K"
"""By name of the quantisation, the type of most tensors."""
_ALWAYS_F32 = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ssm_conv1d|shortconv\.conv\.weight|(?<!\.weight)\Z"
)
_VALUE_TENSORS = re.compile(r"attn_(v|qkv|kv_b)\.weight")
_LAYER_NUMBER = re.compile(r"blk\.(\d+)\.")


def build(shape: CatalogShape, quantization: str, name: str = "") -> Header:
    """The header of a file of this model, without its vocabulary.

    Raises ValueError for an invalid shape, and an unsupported architecture or
    quantisation.
    """
    shape.check()
    types = _TensorTypes(shape, quantization)
    rows = (
        (name, dims, _TYPE_IDS[types.choose(name, dims)])
        for name, dims in _list_tensors(shape)
    )
    keys: dict[str, Value] = {
        "general.architecture": shape.architecture,
        "general.type": "model",
        "general.name": name,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "none",
    }
    if (file_type := _FILE_TYPE_IDS.get(types.recipe)) is not None:
        keys["general.file_type"] = file_type
    header = Header(
        architecture=shape.architecture,
        name=name,
        size=0,
        keys=keys
        | {f"{shape.architecture}.{key}": value for key, value in _keys(shape).items()},
        tensors=place_tensors(rows),
        tokenizer=TokenizerMetadata(NONE, "none", "", shape.vocab),
        chat_template="",
        split=None,
        data_offset=0,
    )
    begins = len(serialize_header(header))
    return replace(header, size=begins + data_size(header), data_offset=begins)


# --- metadata
# -----------------------------------------------------------------------------------


def place_tensors(
    rows: Iterable[tuple[str, tuple[int, ...], int]],
) -> tuple[TensorInfo, ...]:
    """From names, dimensions and types, one after the other in the file."""
    tensors = list[TensorInfo]()
    offset = 0
    for name, dims, type_ in rows:
        tensor = TensorInfo(name, dims, type_, offset, n_bytes=0)
        n_bytes = GGML_TYPES[type_].row_bytes(tensor.n_elements)
        tensors.append(tensor._replace(n_bytes=n_bytes))
        offset += n_bytes + -n_bytes % 32
    return tuple(tensors)


def _keys(shape: CatalogShape) -> dict[str, Value]:
    """The architecture keys that llama.cpp reads, without the architecture's prefix."""
    keys: dict[str, Value] = {
        "vocab_size": shape.vocab,
        "block_count": shape.layers + shape.mtp_layers,
        "context_length": shape.context,
        "embedding_length": shape.embd,
        "feed_forward_length": _collapse_equal(
            [shape.n_ff(i) for i in range(shape.layers)]
        ),
        "attention.layer_norm_rms_epsilon": 2.0**-20,  # exact in 32 bits
        "attention.head_count": shape.heads,
    }
    if shape.heads:
        keys |= _attention_keys(shape)
    keys |= _expert_keys(shape) | _sliding_window_keys(shape) | _recurrent_keys(shape)
    if shape.mtp_layers:
        keys["nextn_predict_layers"] = shape.mtp_layers
    if shape.architecture.startswith("granite"):
        keys["logit_scale"] = 1.0
    return keys


def _attention_keys(shape: CatalogShape) -> dict[str, Value]:
    per_layer = [shape.n_head_kv(i) for i in range(shape.layers + shape.mtp_layers)]
    if MIXERS.get(shape.architecture) == "delta":
        per_layer = [shape.kv_heads or shape.heads]
    keys: dict[str, Value] = {
        "attention.head_count_kv": _collapse_equal(per_layer),
        "attention.key_length": shape.key_dim,
        "attention.value_length": shape.value_dim or shape.key_dim,
        "rope.dimension_count": shape.rope_dim or shape.key_dim,
        "rope.freq_base": 10_000.0,
    }
    if shape.kv_rank:
        keys |= {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": shape.kv_rank,
            "attention.key_length": shape.kv_rank + shape.rope_dim,
            "attention.value_length": shape.kv_rank,
            "attention.key_length_mla": shape.head_dim,
            "attention.value_length_mla": shape.value_dim,
        }
    return keys | ({"attention.q_lora_rank": shape.q_rank} if shape.q_rank else {})


def _expert_keys(shape: CatalogShape) -> dict[str, Value]:
    if not shape.experts:
        return {}
    keys: dict[str, Value] = {
        "expert_count": shape.experts,
        "expert_used_count": shape.experts_used,
        "expert_feed_forward_length": shape.expert_ff or shape.ff,
    }
    if shape.dense_layers:
        keys["leading_dense_block_count"] = shape.dense_layers
    if shape.shared_ff:
        keys["expert_shared_feed_forward_length"] = shape.shared_ff
    if shape.architecture in ("deepseek2", "lfm2moe"):
        keys["expert_gating_func"] = 2  # sigmoid
    if shape.architecture == "deepseek2":
        keys["expert_shared_count"] = shape.shared_ff // shape.expert_ff
    return keys


def _sliding_window_keys(shape: CatalogShape) -> dict[str, Value]:
    if not shape.window:
        return {}
    keys: dict[str, Value] = {"attention.sliding_window": shape.window}
    if shape.architecture == "gemma4":
        windows = tuple(shape.layer_kind(i) != "*" for i in range(shape.layers))
        keys |= {
            "attention.sliding_window_pattern": windows,
            "attention.shared_kv_layers": shape.shared_kv_layers,
            "attention.key_length_swa": shape.sliding_head_dim,
            "attention.value_length_swa": shape.sliding_head_dim,
            "rope.dimension_count_swa": shape.sliding_head_dim,
            "embedding_length_per_layer_input": shape.layer_embd,
        }
    elif shape.full_every:
        keys["attention.sliding_window_pattern"] = shape.full_every
    return keys


def _recurrent_keys(shape: CatalogShape) -> dict[str, Value]:
    mixer = MIXERS.get(shape.architecture)
    if mixer == "shortconv":
        return {"shortconv.l_cache": shape.conv}
    if not mixer:
        return {}
    keys: dict[str, Value] = {
        "ssm.conv_kernel": shape.conv,
        "ssm.inner_size": shape.inner or shape.state * shape.state_heads,
        "ssm.state_size": shape.state,
        "ssm.time_step_rank": shape.state_heads,
        "ssm.group_count": shape.groups,
    }
    if mixer == "delta":
        keys["full_attention_interval"] = shape.full_every
        keys["rope.dimension_sections"] = (11, 11, 10, 0)
    return keys


def _collapse_equal(values: list[int]) -> Value:
    """One number if all layers have the same."""
    return values[0] if len(set(values)) == 1 else tuple(values)


# --- tensors
# ------------------------------------------------------------------------------------


def _has(shape: CatalogShape, trait: str) -> bool:
    return trait in _TRAITS.get(shape.architecture, "").split()


def _list_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    """All of the file; a name without a suffix is a `.weight`."""
    for name, dims in _global_tensors(shape):
        yield f"{name}.weight", dims
    for i in range(shape.layers + shape.mtp_layers):
        for name, dims in _layer_tensors(shape, i):
            has_suffix = name.endswith((".bias", ".scale")) or name in (
                "ssm_a",
                "ssm_d",
            )
            yield f"blk.{i}.{name}" + ("" if has_suffix else ".weight"), dims


def _global_tensors(shape: CatalogShape) -> Iterator[TensorShape]:
    embd = shape.embd
    yield "token_embd", (embd, shape.vocab)
    if not shape.tied:
        yield "output", (embd, shape.vocab)
    yield (
        ("token_embd_norm" if shape.architecture.startswith("lfm2") else "output_norm"),
        (embd,),
    )
    if shape.rope_factors:
        two = ("rope_factors_long", "rope_factors_short")
        for table in two if _has(shape, "fused_projections") else ("rope_freqs",):
            yield table, ((shape.rope_dim or shape.key_dim) // 2,)
    if shape.layer_embd:
        wide = shape.layer_embd * shape.layers
        yield "per_layer_token_embd", (wide, shape.vocab)
        yield "per_layer_model_proj", (embd, wide)
        yield "per_layer_proj_norm", (shape.layer_embd,)


def _layer_tensors(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    embd = shape.embd
    yield "attn_norm", (embd,)
    if shape.layer_kind(layer) == "M":
        mixers = {"mamba2": _mamba2, "delta": _delta_net, "shortconv": _shortconv}
        yield from mixers[MIXERS[shape.architecture]](shape)
    else:
        yield from _mla(shape) if shape.kv_rank else _attention(shape, layer)
    if shape.ff or shape.experts:
        yield from _feed_forward(shape, layer)
    if shape.layer_embd:
        yield "inp_gate", (embd, shape.layer_embd)
        yield "proj", (shape.layer_embd, embd)
        yield "post_norm", (embd,)
    if shape.architecture == "gemma4":
        yield "layer_output_scale", (1,)
    if layer >= shape.layers:
        yield "nextn.eh_proj", (2 * embd, embd)
        yield from (
            (f"nextn.{name}", (embd,))
            for name in ("enorm", "hnorm", "shared_head_norm")
        )


def _attention(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    embd = shape.embd
    heads = shape.heads
    n_kv = shape.n_head_kv(layer)
    key = (
        0 if shape.layer_kind(layer) == "*" else shape.sliding_head_dim
    ) or shape.key_dim
    value = shape.value_dim or key
    is_gated = _has(shape, "gated_attention")
    wide = {"q": heads * key * (1 + is_gated), "k": n_kv * key, "v": n_kv * value}
    if shape.layers - shape.shared_kv_layers <= layer < shape.layers:
        wide = {"q": wide["q"]}
    elif shape.keys_as_values and shape.layer_kind(layer) == "*":
        del wide["v"]
    if _has(shape, "fused_projections"):
        yield "attn_qkv", (embd, sum(wide.values()))
        wide = {}
    for part, width in wide.items():
        yield f"attn_{part}", (embd, width)
        if _has(shape, "qkv_biases"):
            yield f"attn_{part}.bias", (width,)
        if _has(shape, "qk_norms") and part != "v":
            yield f"attn_{part}_norm", (key,)
    yield "attn_output", (heads * value, embd)
    if shape.architecture == "gpt-oss":
        yield "attn_output.bias", (embd,)
        yield "attn_sinks", (heads,)
    if _has(shape, "post_norms") or is_gated or shape.architecture == "gpt-oss":
        yield "post_attention_norm", (embd,)


def _mla(shape: CatalogShape) -> Iterator[TensorShape]:
    """MLA: `head_dim` and `value_dim` are those of the uncompressed heads."""
    embd = shape.embd
    heads = shape.heads
    if shape.q_rank:
        yield "attn_q_a", (embd, shape.q_rank)
        yield "attn_q_a_norm", (shape.q_rank,)
        yield "attn_q_b", (shape.q_rank, heads * shape.head_dim)
    else:
        yield "attn_q", (embd, heads * shape.head_dim)
    yield "attn_kv_a_mqa", (embd, shape.kv_rank + shape.rope_dim)
    yield "attn_kv_a_norm", (shape.kv_rank,)
    yield "attn_k_b", (shape.head_dim - shape.rope_dim, shape.kv_rank, heads)
    yield "attn_v_b", (shape.kv_rank, shape.value_dim, heads)
    yield "attn_output", (heads * shape.value_dim, embd)


def _feed_forward(shape: CatalogShape, layer: int) -> Iterator[TensorShape]:
    embd = shape.embd
    ff = shape.n_ff(layer)
    is_fused = _has(shape, "fused_projections")
    if not _has(shape, "gated_attention") and shape.architecture != "gpt-oss":
        yield "ffn_norm", (embd,)
    has_experts = shape.experts and layer >= shape.dense_layers
    if has_experts:
        yield from _experts(shape)
    if not has_experts or shape.architecture == "gemma4":
        if not is_fused:
            yield "ffn_gate", (embd, ff)
        yield "ffn_up", (embd, ff * (1 + is_fused))
        yield "ffn_down", (ff, embd)
    if _has(shape, "post_norms"):
        yield "post_ffw_norm", (embd,)


def _experts(shape: CatalogShape) -> Iterator[TensorShape]:
    embd = shape.embd
    n = shape.experts
    ff = shape.expert_ff or shape.ff
    yield "ffn_gate_inp", (embd, n)
    if shape.architecture == "gemma4":
        yield "ffn_gate_inp.scale", (embd,)
        yield "ffn_gate_up_exps", (embd, 2 * ff, n)
        yield "ffn_down_exps.scale", (n,)
        for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield name, (embd,)
    else:
        yield "ffn_gate_exps", (embd, ff, n)
        yield "ffn_up_exps", (embd, ff, n)
    yield "ffn_down_exps", (ff, embd, n)
    if shape.architecture in ("deepseek2", "lfm2moe"):
        yield "exp_probs_b.bias", (n,)
    if shape.architecture == "gpt-oss":
        yield "ffn_gate_inp.bias", (n,)
        for part, width in {"gate": ff, "up": ff, "down": embd}.items():
            yield f"ffn_{part}_exps.bias", (width, n)
    if shape.shared_ff:
        if shape.architecture == "qwen35moe":
            yield "ffn_gate_inp_shexp", (embd,)
        yield "ffn_gate_shexp", (embd, shape.shared_ff)
        yield "ffn_up_shexp", (embd, shape.shared_ff)
        yield "ffn_down_shexp", (shape.shared_ff, embd)


def _mamba2(shape: CatalogShape) -> Iterator[TensorShape]:
    inner = shape.inner
    heads = shape.state_heads
    wide = inner + 2 * shape.groups * shape.state
    yield "ssm_in", (shape.embd, inner + wide + heads)
    yield "ssm_conv1d", (shape.conv, wide)
    yield "ssm_conv1d.bias", (wide,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (1, heads)
    yield "ssm_d", (1, heads)
    yield "ssm_norm", (inner // shape.groups, shape.groups)
    yield "ssm_out", (inner, shape.embd)


def _delta_net(shape: CatalogShape) -> Iterator[TensorShape]:
    """Gated delta net.

    It has `groups` key heads and `state_heads` value heads, all `state` wide.
    """
    embd = shape.embd
    heads = shape.state_heads
    values = shape.state * heads
    wide = 2 * shape.state * shape.groups + values
    yield "attn_qkv", (embd, wide)
    yield "attn_gate", (embd, values)
    yield "ssm_conv1d", (shape.conv, wide)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    yield "ssm_beta", (embd, heads)
    yield "ssm_alpha", (embd, heads)
    yield "ssm_norm", (shape.state,)
    yield "ssm_out", (values, embd)
    yield "post_attention_norm", (embd,)


def _shortconv(shape: CatalogShape) -> Iterator[TensorShape]:
    yield "shortconv.conv", (shape.conv, shape.embd)
    yield "shortconv.in_proj", (shape.embd, 3 * shape.embd)
    yield "shortconv.out_proj", (shape.embd, shape.embd)


# --- types of tensors
# ---------------------------------------------------------------------------


class _TensorTypes:
    """Chooses types in file order.

    A tensor's type depends on how many of its kind came before.

    A publisher's own mixture (UD-Q4_K_XL) is taken as Q4_K_M: such files are up to a
    tenth larger.
    """

    def __init__(self, shape: CatalogShape, quantization: str) -> None:
        self.recipe = re.sub(r"\AUD-Q4_K_.*", "Q4_K_M", quantization)
        if self.recipe not in _RECIPES:
            raise ValueError(f"there is no recipe for {quantization}")
        self._main = _RECIPES[self.recipe]
        self._shape = shape
        names = [name for name, _ in _list_tensors(shape)]
        self._n_values = sum(bool(_VALUE_TENSORS.search(name)) for name in names)
        self._values_seen = 0
        self._downs_seen = 0

    def choose(self, name: str, dims: tuple[int, ...]) -> str:
        if len(dims) < 2 or _ALWAYS_F32.search(name):
            return "F32"
        if self.recipe in ("F32", "F16", "BF16"):
            return self.recipe
        if name == "per_layer_model_proj.weight":
            return "BF16"
        type_ = self._preferred(name, dims)
        fallbacks = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
        for _ in range(2):
            if not _fits_blocks(dims, type_):
                type_ = fallbacks.get(type_, "F16")
        return type_

    def _preferred(self, name: str, dims: tuple[int, ...]) -> str:
        # As in Gemma 4's files, per_layer_token_embd is treated as any other matrix.
        if name == "output.weight" or (
            self._shape.tied and name == "token_embd.weight"
        ):
            is_coarse = self._main not in ("Q8_0", "MXFP4")
            return "Q6_K" if is_coarse and _fits_blocks(dims, self._main) else "Q8_0"
        if self._main == "MXFP4":
            return self._main if len(dims) > 2 else "Q8_0"
        experts = self._shape.experts
        mixes = self._main == "Q4_K"
        if _VALUE_TENSORS.search(name):
            self._values_seen += 1
            return self._type_of_values(self._values_seen - 1, fused="qkv" in name)
        if "ffn_down" in name:
            self._downs_seen += 1
            layer = _LAYER_NUMBER.match(name) if experts > 1 else None
            i = int(layer[1]) if layer else self._downs_seen - 1
            n_layer = self._shape.layers + self._shape.mtp_layers
            return "Q6_K" if mixes and _use_more_bits(i, n_layer) else self._main
        if experts == 8 and "attn_output" in name and mixes:
            return "Q5_K"
        return "Q8_0" if experts == 8 and "attn_k.weight" in name else self._main

    def _type_of_values(self, i: int, *, fused: bool) -> str:
        if self._shape.experts == 8:
            return "Q8_0"
        if self._main != "Q4_K":
            return self._main
        if fused:  # as in files made before 2026; newer ones mix more and fewer bits
            return "Q5_K"
        # narrow values get more bits
        is_70b = self._shape.layers + self._shape.mtp_layers == 80
        if _use_more_bits(i, self._n_values):
            return "Q6_K"
        return "Q5_K" if is_70b else self._main


def _fits_blocks(dims: tuple[int, ...], type_: str) -> bool:
    return dims[0] % GGML_TYPES[_TYPE_IDS[type_]].block_size == 0


def _use_more_bits(i: int, n: int) -> bool:
    """True for the first and last eighth of the layers, and each third one between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
