"""Heads with random weights for the zoo's `deep` target: they run, but predict nothing."""

from collections.abc import Iterable, Sequence

import numpy as np
from gguf import GGMLQuantizationType as Kind
from msgspec.structs import replace

from tests.support import tinygguf
from tests.support.tinygguf import Model, RandomTensors, Shape

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
    like: Shape | None = None,
) -> Model:
    """If it is narrower than its target, it has embeddings of its own.

    `reduced` are the ids that it can draft.

    Its attention and feed-forward network are `like` those of a shape.
    """
    shape = _shape(n_embd, 1, like)
    keys = tinygguf.transformer_keys(shape) | _keys(shape, layers)
    model = Model("eagle3", keys=keys | {"target_hidden_size": of})
    random = RandomTensors(_SEED, model, std=0.2)
    n_vocab = len(model.vocabulary())
    random.matrix("fc", n_embd, len(layers) * of)
    random.ones("output_norm", n_embd)
    random.ones("blk.0.attn_norm_2", n_embd)
    random.attention("blk.0", shape, n_in=2 * n_embd)
    random.feed_forward("blk.0", shape)
    if n_embd != of:
        random.matrix("token_embd", n_vocab, n_embd, std=1.0)
        random.matrix("output", n_vocab, n_embd)
    if reduced is not None:
        ids = np.array(sorted(reduced), np.int64)
        model.tensors["d2t"] = ids
        random.matrix("output", len(ids), n_embd)
    return model


def block(*, markov: bool = False, n_embd: int = DEEP.n_embd, size: int = 6) -> Model:
    """A head that drafts blocks: DFlash, or with `markov` DSpark.

    DSpark has Markov matrices and a confidence.
    """
    shape = _shape(n_embd, 2)
    keys = tinygguf.transformer_keys(shape) | _keys(shape, TAPS)
    model = Model("dflash", keys=keys | {"block_size": size})
    model.keys["attention.causal"] = False
    model.mask = len(model.vocabulary()) - 1
    random = RandomTensors(_SEED, model, std=0.2)
    random.matrix("fc", n_embd, len(TAPS) * n_embd)
    random.ones("enc.output_norm", n_embd)
    random.ones("output_norm", n_embd)
    for at in ("blk.0", "blk.1"):
        random.attention(at, shape, head_norms=True)
        random.feed_forward(at, shape)
    if markov:
        model.keys |= {"sample_from_anchor": True, "has_confidence_head": True}
        random.matrix("markov_w1", len(model.vocabulary()), 32)
        random.matrix("markov_w2", len(model.vocabulary()), 32)
        random.matrix("conf_proj", 1, n_embd + 32)
        model.tensors["conf_proj.bias"] = np.zeros(1, np.float32)
    return model


def with_selector(model: Model, top_k: int = 7) -> Model:
    """A DFlash head as DFlash2, with a selector of candidates.

    Its convolutions change little.
    """
    n_embd = model.keys["embedding_length"]
    kernel = 3
    group = 16
    rank = 32
    random = RandomTensors(_SEED, model, std=0.2)
    n_vocab = len(model.vocabulary())
    model.keys |= {
        "conv_kernel_size": kernel,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": top_k,
    }
    for at in ("blk.0", "blk.1"):
        for part in ("attn", "ffn"):
            base = np.zeros((2, kernel, n_embd), np.float32)
            base[:, 0] = 1.0
            model.tensors[f"{at}.{part}_conv_base"] = base
            model.exact = {*model.exact, f"{at}.{part}_conv_base"}
            random.matrix(
                f"{at}.{part}_conv_proj", 2 * kernel * n_embd // group, n_embd, std=1e-3
            )
    random.matrix("selector_predecessor", n_vocab, rank)
    random.matrix("selector_successor", n_vocab, rank)
    random.matrix("selector_hidden", rank, n_embd)
    return model


def mimo2(*, window: int = 32, n_mtp: int = 1) -> Model:
    """`deep` with a window in every other layer, and with layers of MTP."""
    model = deep()
    n = DEEP.n_layer
    n_embd = DEEP.n_embd
    head = n_embd // DEEP.n_head
    model.arch = "mimo2"
    model.keys |= {
        "block_count": n + n_mtp,
        "nextn_predict_layers": n_mtp,
        "expert_feed_forward_length": DEEP.n_ff,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [i % 2 == 0 for i in range(n + n_mtp)],
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.freq_base_swa": model.keys.get("rope.freq_base", 10000.0),
    }
    random = RandomTensors(_SEED, model, std=0.2)
    for at in (f"blk.{il}" for il in range(n, n + n_mtp)):
        random.matrix(
            f"{at}.attn_qkv", (DEEP.n_head + 2 * DEEP.n_head_kv) * head, n_embd
        )
        random.matrix(f"{at}.attn_output", n_embd, DEEP.n_head * head)
        random.feed_forward(at, DEEP)
        random.matrix(f"{at}.nextn.eh_proj", n_embd, 2 * n_embd)
        for name in ("attn_norm", "nextn.enorm", "nextn.hnorm"):
            random.ones(f"{at}.{name}", n_embd)
    return model


def step35(*, n_mtp: int = 3) -> Model:
    """Step 3.5: as `mimo2`, with a gate for each head.

    A full layer rotates half of a head.
    """
    model = mimo2(n_mtp=n_mtp)
    model.arch = "step35"
    head = DEEP.n_embd // DEEP.n_head
    model.keys["rope.dimension_count"] = head
    model.keys["rope.dimension_count_swa"] = head
    random = RandomTensors(_SEED, model, std=0.2)
    for il in range(DEEP.n_layer + n_mtp):
        random.matrix(f"blk.{il}.attn_gate", DEEP.n_head, DEEP.n_embd)
        for name in ("attn_q_norm", "attn_k_norm"):
            random.ones(f"blk.{il}.{name}", head)
    return model


def hy_v3(*, n_mtp: int = 3) -> Model:
    """Hunyuan 3: as `mimo2` without windows, with norms of queries and keys."""
    model = mimo2(n_mtp=n_mtp)
    model.arch = "hy_v3"
    head = DEEP.n_embd // DEEP.n_head
    for name in ("attention.sliding_window", "attention.sliding_window_pattern"):
        del model.keys[name]
    del model.keys["rope.freq_base_swa"]
    model.keys["rope.dimension_count"] = head
    random = RandomTensors(_SEED, model)
    for il in range(DEEP.n_layer + n_mtp):
        for name in ("attn_q_norm", "attn_k_norm"):
            random.ones(f"blk.{il}.{name}", head)
    return model


def assistant(target: Model) -> Model:
    """A Gemma 4 assistant: four layers of queries for its target's keys and values."""
    n_embd = 128
    of = target.keys["embedding_length"]
    keys = target.keys
    windows = [True, True, True, False]
    per_layer = keys["attention.head_count_kv"]
    n_head_kv = (
        per_layer if isinstance(per_layer, list) else [per_layer] * keys["block_count"]
    )
    copied = [f"{name}{swa}" for swa in ("", "_swa") for name in (
        "attention.key_length", "attention.value_length", "rope.dimension_count")]  # fmt: skip
    copied += ["context_length", "rope.freq_base", "attention.layer_norm_rms_epsilon"]
    shape = Shape(n_embd=n_embd, n_ff=2 * n_embd)
    model = Model("gemma4-assistant")
    model.keys = {key: keys[key] for key in (*copied, "attention.sliding_window")} | {
        "block_count": 4,
        "nextn_predict_layers": 4,
        "embedding_length": n_embd,
        "embedding_length_out": of,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": [
            n_head_kv[-2] if each else n_head_kv[-1] for each in windows
        ],
        "attention.sliding_window_pattern": windows,
    }
    random = RandomTensors(_SEED, model, std=n_embd**-0.5)
    random.matrix("token_embd", len(model.vocabulary()), n_embd)
    random.ones("output_norm", n_embd)
    random.matrix("nextn.post_projection", of, n_embd)
    random.matrix("nextn.pre_projection", n_embd, 2 * of, std=(2 * of) ** -0.5)
    random.ones("rope_freqs", keys["attention.key_length"] // 2)
    for il, is_windowed in enumerate(windows):
        width = keys["attention.key_length" + "_swa" * is_windowed]
        at = f"blk.{il}"
        for name in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            random.ones(f"{at}.{name}", n_embd)
        random.ones(f"{at}.attn_q_norm", width)
        random.ones(f"{at}.layer_output_scale", 1)
        random.matrix(f"{at}.attn_q", shape.n_head * width, n_embd)
        random.matrix(f"{at}.attn_output", n_embd, shape.n_head * width)
        random.feed_forward(at, shape)
    return model


def _shape(n_embd: int, n_layer: int, like: Shape | None = None) -> Shape:
    like = like or Shape(n_ff=2 * n_embd, n_head=2, n_head_kv=2)
    return replace(like, n_embd=n_embd, n_layer=n_layer)


def _keys(shape: Shape, layers: Sequence[int]) -> dict[str, object]:
    head = shape.n_embd // shape.n_head
    lengths = {"attention.key_length": head, "attention.value_length": head}
    return {**lengths, "target_layers": list(layers)}
