"""Builds the header of a model's file from the model's shape, before the file is downloaded."""

from __future__ import annotations

import dataclasses

from localspec.models.catalog_entries import CatalogShape
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import GGML_TYPES, TensorInfo, Value
from localspec.models.gguf.tokenizer import NONE, TokenizerMetadata
from localspec.models.gguf.writer import data_size, serialize_header
from tests.support.synthetic_header import quantization_types
from tests.support.synthetic_header.tensor_shapes import MIXERS, list_tensor_shapes

_ALIGNMENT = 32
_ROPE_BASE = 10_000.0
_NORM_EPSILON = 2.0**-20
"""Exact in 32 bits; memory does not depend on it."""
_SIGMOID_GATING = 2


def build(shape: CatalogShape, quantization: str, name: str = "") -> Header:
    """The header of a file of this model, without its vocabulary.

    Raises ValueError for an invalid shape, and an unsupported architecture or quantisation.
    """
    shape.check()
    tensor_shapes = list_tensor_shapes(shape)
    layers = shape.layers + shape.mtp_layers
    types = quantization_types.choose_types(tensor_shapes, quantization, layers, shape.experts)
    keys: dict[str, Value] = {
        "general.architecture": shape.architecture,
        "general.type": "model",
        "general.name": name,
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "none",
    }
    recipe = quantization_types.closest_recipe(quantization)
    if (file_type := quantization_types.FILE_TYPE_IDS.get(recipe)) is not None:
        keys["general.file_type"] = file_type
    header = Header(
        architecture=shape.architecture,
        name=name,
        size=0,
        keys=keys | metadata_keys(shape),
        tensors=tuple(_place_tensors(tensor_shapes, types)),
        tokenizer=TokenizerMetadata(NONE, "none", "", shape.vocab),
        chat_template="",
        split=None,
        data_offset=0,
    )
    data_offset = len(serialize_header(header))
    return dataclasses.replace(
        header, size=data_offset + data_size(header), data_offset=data_offset
    )


def _place_tensors(
    tensor_shapes: list[quantization_types.TensorShape], types: list[int]
) -> list[TensorInfo]:
    tensors: list[TensorInfo] = []
    offset = 0
    for (name, shape), type_ in zip(tensor_shapes, types, strict=True):
        _, block, block_bytes = GGML_TYPES[type_]
        tensor = TensorInfo(name, shape, type_, offset, 0)
        n_bytes = tensor.n_elements // block * block_bytes
        tensors.append(tensor._replace(n_bytes=n_bytes))
        offset += n_bytes + -n_bytes % _ALIGNMENT
    return tensors


def metadata_keys(shape: CatalogShape) -> dict[str, Value]:
    """The architecture keys that llama.cpp reads, with the architecture's prefix."""
    keys: dict[str, Value] = {
        "vocab_size": shape.vocab,
        "block_count": shape.layers + shape.mtp_layers,
        "context_length": shape.context,
        "embedding_length": shape.embd,
        "feed_forward_length": _collapse_equal([shape.n_ff(i) for i in range(shape.layers)]),
        "attention.layer_norm_rms_epsilon": _NORM_EPSILON,
        "attention.head_count": shape.heads,
    }
    if shape.heads:
        keys |= _attention_keys(shape)
    keys |= _expert_keys(shape) | _sliding_window_keys(shape) | _recurrent_keys(shape)
    if shape.mtp_layers:
        keys["nextn_predict_layers"] = shape.mtp_layers
    if shape.architecture.startswith("granite"):
        keys["logit_scale"] = 1.0
    return {f"{shape.architecture}.{key}": value for key, value in keys.items()}


def _attention_keys(shape: CatalogShape) -> dict[str, Value]:
    per_layer = [shape.n_head_kv(i) for i in range(shape.layers + shape.mtp_layers)]
    if MIXERS.get(shape.architecture) == "delta":
        per_layer = [shape.kv_heads or shape.heads]
    keys: dict[str, Value] = {
        "attention.head_count_kv": _collapse_equal(per_layer),
        "attention.key_length": shape.key_dim,
        "attention.value_length": shape.value_dim or shape.key_dim,
        "rope.dimension_count": shape.rope_dim or shape.key_dim,
        "rope.freq_base": _ROPE_BASE,
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
    if shape.q_rank:
        keys["attention.q_lora_rank"] = shape.q_rank
    return keys


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
        keys["expert_gating_func"] = _SIGMOID_GATING
    if shape.architecture == "deepseek2":
        keys["expert_shared_count"] = shape.shared_ff // shape.expert_ff
    return keys


def _sliding_window_keys(shape: CatalogShape) -> dict[str, Value]:
    if not shape.window:
        return {}
    keys: dict[str, Value] = {"attention.sliding_window": shape.window}
    if shape.architecture == "gemma4":
        keys |= {
            "attention.sliding_window_pattern": tuple(
                shape.layer_kind(i) != "*" for i in range(shape.layers)
            ),
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
