"""Heads with random weights for the zoo's `deep` target: all of the plumbing, none of the skill."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from tests.support import tinygguf
from tests.support.tinygguf import Model, Shape

DEEP = Shape(n_layer=4)
TAPS = (1, 2, 3)
_SEED = 9


def quantised(model: Model) -> Model:
    """Q8_0 with flash attention computes the same at every width; F32 does not."""
    return replace(model, kind=Kind.Q8_0)


def deep() -> Model:
    """A target with enough layers to tap."""
    return tinygguf.llama(0, shape=DEEP)


def eagle3(
    *,
    n_embd: int = DEEP.n_embd,
    layers: Sequence[int] = TAPS,
    reduced: Iterable[int] | None = None,
    of: int = DEEP.n_embd,
    spoken: Path | None = None,
    like: Shape | None = None,
) -> Model:
    """Narrower than its target it has embeddings of its own; `reduced` are the ids it can guess.

    `spoken`: as a model's; its attention and feed-forward network are `like` those of a shape.
    """
    shape = _shape(n_embd, 1, like)
    head = n_embd // shape.n_head
    model = Model("eagle3", spoken=spoken, keys=_keys(shape, layers) | {"target_hidden_size": of})
    rng = np.random.default_rng(_SEED)

    def matrix(name: str, rows: int, columns: int, std: float = 0.2) -> None:
        model.tensors[f"{name}.weight"] = _normal(rng, rows, columns) * std

    matrix("fc", n_embd, len(layers) * of)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
        model.tensors[f"{name}.weight"] = np.ones(n_embd, np.float32)
    for name, n_head in (("q", shape.n_head), ("k", shape.n_head_kv), ("v", shape.n_head_kv)):
        matrix(f"blk.0.attn_{name}", n_head * head, 2 * n_embd)
    matrix("blk.0.attn_output", n_embd, shape.n_head * head)
    matrix("blk.0.ffn_gate", shape.n_ff, n_embd)
    matrix("blk.0.ffn_up", shape.n_ff, n_embd)
    matrix("blk.0.ffn_down", n_embd, shape.n_ff)
    n_vocab = len(model.vocabulary())
    if n_embd != of:
        matrix("token_embd", n_vocab, n_embd, 1.0)
        matrix("output", n_vocab, n_embd)
    if reduced is not None:
        ids = np.array(sorted(reduced), np.int64)
        model.tensors["d2t"] = ids
        matrix("output", len(ids), n_embd)
    return model


def block(
    *,
    markov: bool = False,
    n_embd: int = DEEP.n_embd,
    size: int = 6,
    spoken: Path | None = None,
    like: Shape | None = None,
) -> Model:
    """A head that guesses blocks: DFlash, or DSpark with its Markov matrices and confidence."""
    shape = _shape(n_embd, 2, like)
    model = Model("dflash", spoken=spoken, keys=_keys(shape, TAPS) | {"block_size": size})
    model.keys["attention.causal"] = False
    model.mask = len(model.vocabulary()) - 1
    rng, head = np.random.default_rng(_SEED), n_embd // shape.n_head

    def matrix(name: str, rows: int, columns: int, std: float = 0.2) -> None:
        model.tensors[f"{name}.weight"] = _normal(rng, rows, columns) * std

    def ones(name: str, n: int) -> None:
        model.tensors[f"{name}.weight"] = np.ones(n, np.float32)

    matrix("fc", n_embd, len(TAPS) * n_embd)
    ones("enc.output_norm", n_embd)
    ones("output_norm", n_embd)
    for at in ("blk.0", "blk.1"):
        for name in ("attn_q", "attn_output"):
            matrix(f"{at}.{name}", n_embd, n_embd)
        for name in ("attn_k", "attn_v"):
            matrix(f"{at}.{name}", shape.n_head_kv * head, n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            ones(f"{at}.{name}", head)
        for name in ("attn_norm", "ffn_norm"):
            ones(f"{at}.{name}", n_embd)
        matrix(f"{at}.ffn_gate", shape.n_ff, n_embd)
        matrix(f"{at}.ffn_up", shape.n_ff, n_embd)
        matrix(f"{at}.ffn_down", n_embd, shape.n_ff)
    if markov:
        model.keys |= {"sample_from_anchor": True, "has_confidence_head": True}
        matrix("markov_w1", len(model.vocabulary()), 32)
        matrix("markov_w2", len(model.vocabulary()), 32)
        matrix("conf_proj", 1, n_embd + 32)
        model.tensors["conf_proj.bias"] = np.zeros(1, np.float32)
    return model


def mimo2(seed: int = 9, *, window: int = 32) -> Model:
    """`deep` as another architecture: with a window in every other layer, and a layer of MTP."""
    model = deep()
    n, n_embd, n_ff = DEEP.n_layer, DEEP.n_embd, DEEP.n_ff
    head = n_embd // DEEP.n_head
    model.arch = "mimo2"
    model.keys |= {
        "block_count": n + 1,
        "nextn_predict_layers": 1,
        "expert_feed_forward_length": n_ff,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [i % 2 == 0 for i in range(n + 1)],
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.freq_base_swa": 10000.0,
    }
    rng = np.random.default_rng(seed)
    shapes = {
        "attn_qkv": ((DEEP.n_head + 2 * DEEP.n_head_kv) * head, n_embd),
        "attn_output": (n_embd, DEEP.n_head * head),
        "ffn_gate": (n_ff, n_embd),
        "ffn_up": (n_ff, n_embd),
        "ffn_down": (n_embd, n_ff),
        "nextn.eh_proj": (n_embd, 2 * n_embd),
    }
    for name, rows in shapes.items():
        model.tensors[f"blk.{n}.{name}.weight"] = _normal(rng, *rows) * 0.2
    for name in ("attn_norm", "ffn_norm", "nextn.enorm", "nextn.hnorm"):
        model.tensors[f"blk.{n}.{name}.weight"] = np.ones(n_embd, np.float32)
    return model


def _shape(n_embd: int, n_layer: int, like: Shape | None) -> Shape:
    like = like or Shape(n_ff=2 * n_embd, n_head=2, n_head_kv=2)
    return replace(like, n_embd=n_embd, n_layer=n_layer)


def _keys(shape: Shape, layers: Sequence[int]) -> dict[str, object]:
    head = shape.n_embd // shape.n_head
    return {
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "target_layers": list(layers),
    }


def _normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape).astype(np.float32)
