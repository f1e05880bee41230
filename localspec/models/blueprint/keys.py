"""The keys that a model's file begins with, by its shape: those that llama.cpp asks for."""

from __future__ import annotations

from localspec.models.blueprint.rows import FAMILIES, feed_forward, kv_heads
from localspec.models.blueprint.shape import Shape
from localspec.models.gguf.parser import Value

_ROPE_BASE = 10_000.0
_EPSILON = 2.0**-20
"""As it stands in 32 bits; memory does not depend on it."""
_SIGMOID = 2


def keys(shape: Shape) -> dict[str, Value]:
    """Keys of the architecture, its name in front."""
    found: dict[str, Value] = {
        "vocab_size": shape.vocab,
        "block_count": shape.layers + shape.mtp_layers,
        "context_length": shape.context,
        "embedding_length": shape.embd,
        "feed_forward_length": _even([feed_forward(shape, i) for i in range(shape.layers)]),
        "attention.layer_norm_rms_epsilon": _EPSILON,
        "attention.head_count": shape.heads,
    }
    if shape.heads:
        found |= _attention(shape)
    found |= _experts(shape) | _sliding(shape) | _recurrent(shape)
    if shape.mtp_layers:
        found["nextn_predict_layers"] = shape.mtp_layers
    if shape.architecture.startswith("granite"):
        found["logit_scale"] = 1.0
    return {f"{shape.architecture}.{key}": value for key, value in found.items()}


def _attention(shape: Shape) -> dict[str, Value]:
    per_layer = [kv_heads(shape, i) for i in range(shape.layers + shape.mtp_layers)]
    if FAMILIES[shape.architecture].mixer == "delta":
        per_layer = [shape.n_head_kv]
    found: dict[str, Value] = {
        "attention.head_count_kv": _even(per_layer),
        "attention.key_length": shape.key_dim,
        "attention.value_length": shape.value_dim or shape.key_dim,
        "rope.dimension_count": shape.rope_dim or shape.key_dim,
        "rope.freq_base": _ROPE_BASE,
    }
    if shape.kv_rank:
        found |= {
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": shape.kv_rank,
            "attention.key_length": shape.kv_rank + shape.rope_dim,
            "attention.value_length": shape.kv_rank,
            "attention.key_length_mla": shape.head_dim,
            "attention.value_length_mla": shape.value_dim,
        }
    if shape.q_rank:
        found["attention.q_lora_rank"] = shape.q_rank
    return found


def _experts(shape: Shape) -> dict[str, Value]:
    if not shape.experts:
        return {}
    found: dict[str, Value] = {
        "expert_count": shape.experts,
        "expert_used_count": shape.experts_used,
        "expert_feed_forward_length": shape.expert_ff or shape.ff,
    }
    if shape.dense_layers:
        found["leading_dense_block_count"] = shape.dense_layers
    if shape.shared_ff:
        found["expert_shared_feed_forward_length"] = shape.shared_ff
    if shape.architecture in ("deepseek2", "lfm2moe"):
        found["expert_gating_func"] = _SIGMOID
    if shape.architecture == "deepseek2":
        found["expert_shared_count"] = shape.shared_ff // shape.expert_ff
    return found


def _sliding(shape: Shape) -> dict[str, Value]:
    if not shape.window:
        return {}
    found: dict[str, Value] = {"attention.sliding_window": shape.window}
    if shape.architecture == "gemma4":
        found |= {
            "attention.sliding_window_pattern": tuple(
                not shape.full(i) for i in range(shape.layers)
            ),
            "attention.shared_kv_layers": shape.shared_kv_layers,
            "attention.key_length_swa": shape.sliding_head_dim,
            "attention.value_length_swa": shape.sliding_head_dim,
            "rope.dimension_count_swa": shape.sliding_head_dim,
            "embedding_length_per_layer_input": shape.layer_embd,
        }
    elif shape.full_every:
        found["attention.sliding_window_pattern"] = shape.full_every
    return found


def _recurrent(shape: Shape) -> dict[str, Value]:
    mixer = FAMILIES[shape.architecture].mixer
    if mixer == "shortconv":
        return {"shortconv.l_cache": shape.conv}
    if not mixer:
        return {}
    found: dict[str, Value] = {
        "ssm.conv_kernel": shape.conv,
        "ssm.inner_size": shape.inner or shape.state * shape.state_heads,
        "ssm.state_size": shape.state,
        "ssm.time_step_rank": shape.state_heads,
        "ssm.group_count": shape.groups,
    }
    if mixer == "delta":
        found["full_attention_interval"] = shape.full_every
        found["rope.dimension_sections"] = (11, 11, 10, 0)
    return found


def _even(values: list[int]) -> Value:
    """One number where all layers have the same."""
    return values[0] if len(set(values)) == 1 else tuple(values)
