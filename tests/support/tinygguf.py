"""Writes real GGUF models of a few hundred kilobytes, which llama.cpp runs."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, TokenType
from gguf.quants import quantize
from msgspec import Struct, field
from numpy.typing import NDArray

LETTERS = tuple(map(chr, range(33, 127)))
WORDS = (
    "▁",
    *LETTERS,
    "▁a",
    "▁t",
    "▁th",
    "▁the",
    "in",
    "er",
    "on",
    "é",
    "漢字",
    "▁s",
    "es",
)
BOS = 1
EOS = 2
FIRST_BYTE = 3


class Shape(Struct, frozen=True):
    n_embd: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    n_ff: int = 128
    n_ctx: int = 1024


class Model(Struct):
    """The contents of one file; tests modify it before `write`."""

    arch: str
    words: Sequence[str] = WORDS
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    """float32 or integers."""
    keys: dict[str, Any] = field(default_factory=dict)
    """Architecture keys, without the architecture's prefix."""
    kind: Kind = Kind.F32
    """The type of matrices whose rows can be quantised."""
    tokens: list[str] | None = None
    """Replaces the whole vocabulary."""
    tokenizer: str = "llama"
    controls: Sequence[str] = ()
    """The words that are control tokens; the last one ends a turn."""
    user_defined: Sequence[str] = ()
    """The words that llama.cpp finds before it splits a text into words."""
    template: str = ""
    add_eos: bool = False
    add_space_prefix: bool = True
    mask: int | None = None
    """The mask token of a block head."""
    exact: Collection[str] = ()
    """Tensors that stay float32."""

    def vocabulary(self) -> list[str]:
        """An SPM vocabulary: three special tokens, the 256 bytes, the words."""
        if self.tokens is not None:
            return self.tokens
        bytes_ = [f"<0x{i:02X}>" for i in range(256)]
        return ["<unk>", "<s>", "</s>", *bytes_, *self.words]

    def write(self, path: Path, *, tensors_per_split: int = 0) -> Path:
        writer = GGUFWriter(path, self.arch, split_max_tensors=tensors_per_split)
        for key, value in self.keys.items():
            _add(writer, f"{self.arch}.{key}", value)
        self._write_vocabulary(writer)
        for name, values in self.tensors.items():
            if values.dtype.kind == "i":
                writer.add_tensor(name, values)
            elif not self._quantised(name, values):
                writer.add_tensor(name, values.astype(np.float32))
            else:
                writer.add_tensor(
                    name, quantize(values, self.kind), raw_dtype=self.kind
                )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _quantised(self, name: str, values: NDArray[Any]) -> bool:
        rows = values.ndim > 1 and not values.shape[-1] % 32
        return self.kind is not Kind.F32 and rows and name not in self.exact

    def _type_of(self, word: str) -> TokenType:
        if word in self.controls:
            return TokenType.CONTROL
        if word in self.user_defined:
            return TokenType.USER_DEFINED
        return TokenType.NORMAL

    def _write_vocabulary(self, writer: GGUFWriter) -> None:
        if self.mask is not None:
            writer.add_mask_token_id(self.mask)
        tokens = self.vocabulary()
        types = [
            TokenType.UNKNOWN,
            TokenType.CONTROL,
            TokenType.CONTROL,
            *[TokenType.BYTE] * 256,
        ]
        types += [self._type_of(token) for token in tokens[len(types) :]]
        writer.add_tokenizer_model(self.tokenizer)
        if self.tokenizer == "none":
            writer.add_uint32(f"{self.arch}.vocab_size", len(tokens))
            return
        writer.add_token_list(tokens)
        # Longer words score higher, so that merging letters finds them.
        writer.add_token_scores([float(len(token)) for token in tokens])
        writer.add_token_types(types[: len(tokens)])
        writer.add_bos_token_id(BOS)
        writer.add_eos_token_id(EOS)
        if self.add_eos:
            writer.add_add_eos_token(self.add_eos)
        if not self.add_space_prefix:
            writer.add_add_space_prefix(self.add_space_prefix)
        if self.controls:
            writer.add_eot_token_id(tokens.index(self.controls[-1]))
        if self.template:
            writer.add_chat_template(self.template)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        writer.add_uint32(key, value)


class RandomTensors:
    """Random weights; the same seed and order of calls give the same weights.

    With std 0.12 in the layers, a text soon repeats parts of itself without being a
    mere cycle: prompt lookup finds drafts.
    """

    def __init__(self, seed: int, model: Model, std: float = 0.12) -> None:
        self._rng = np.random.default_rng(seed)
        self._tensors = model.tensors
        self._std = std

    def matrix(self, name: str, *shape: int, std: float | None = None) -> None:
        values = self._rng.standard_normal(shape) * (std or self._std)
        self._tensors[f"{name}.weight"] = values.astype(np.float32)

    def ones(self, name: str, n: int) -> None:
        self._tensors[f"{name}.weight"] = np.ones(n, np.float32)

    def attention(
        self,
        block: str,
        shape: Shape,
        *,
        n_in: int | None = None,
        head_norms: bool = False,
    ) -> None:
        head = shape.n_embd // shape.n_head
        n_in = n_in or shape.n_embd
        self.ones(f"{block}.attn_norm", shape.n_embd)
        self.matrix(f"{block}.attn_q", shape.n_embd, n_in)
        self.matrix(f"{block}.attn_k", shape.n_head_kv * head, n_in)
        self.matrix(f"{block}.attn_v", shape.n_head_kv * head, n_in)
        self.matrix(f"{block}.attn_output", shape.n_embd, shape.n_embd)
        if head_norms:
            self.ones(f"{block}.attn_q_norm", head)
            self.ones(f"{block}.attn_k_norm", head)

    def feed_forward(self, block: str, shape: Shape) -> None:
        self.ones(f"{block}.ffn_norm", shape.n_embd)
        self.matrix(f"{block}.ffn_gate", shape.n_ff, shape.n_embd)
        self.matrix(f"{block}.ffn_up", shape.n_ff, shape.n_embd)
        self.matrix(f"{block}.ffn_down", shape.n_embd, shape.n_ff)


def llama(
    seed: int = 0,
    *,
    shape: Shape | None = None,
    tied: bool = False,
    kind: Kind = Kind.F32,
    words: Sequence[str] = WORDS,
) -> Model:
    """A transformer with random weights that never generates EOS."""
    shape = shape or Shape()
    model = Model("llama", words=words, kind=kind, keys=transformer_keys(shape))
    random = RandomTensors(seed, model)
    add_ends(random, model, shape.n_embd, tied)
    for i in range(shape.n_layer):
        random.attention(f"blk.{i}", shape)
        random.feed_forward(f"blk.{i}", shape)
    return model


def nudged(model: Model, seed: int, by: float = 0.05) -> Model:
    """The model with a little noise on every matrix.

    As a draft it has a high acceptance rate.
    """
    rng = np.random.default_rng(seed)
    for name, values in model.tensors.items():
        if values.ndim > 1 and values.any():
            noise = rng.standard_normal(values.shape) * by * values.std()
            model.tensors[name] = (values + noise).astype(np.float32)
    _silence_eos(model)
    return model


def sliding(seed: int = 0, *, window: int = 32, shape: Shape | None = None) -> Model:
    """gemma3: attention over a sliding window, but in every sixth layer."""
    shape = shape or Shape()
    keys = transformer_keys(shape) | {
        "attention.sliding_window": window,
        "attention.key_length": shape.n_embd // shape.n_head,
        "attention.value_length": shape.n_embd // shape.n_head,
    }
    model = Model("gemma3", keys=keys)
    random = RandomTensors(seed, model)
    add_ends(random, model, shape.n_embd, tied=False)
    for i in range(shape.n_layer):
        block = f"blk.{i}"
        random.attention(block, shape, head_norms=True)
        random.feed_forward(block, shape)
        random.ones(f"{block}.post_attention_norm", shape.n_embd)
        random.ones(f"{block}.post_ffw_norm", shape.n_embd)
    return model


def lfm2(seed: int = 0) -> Model:
    """Hybrid: short convolutions and attention.

    llama.cpp supports rollback by checkpoints.
    """
    shape = Shape()
    heads = [0, shape.n_head_kv, 0, shape.n_head_kv]
    keys = transformer_keys(shape) | {
        "block_count": len(heads),
        "attention.head_count_kv": heads,
        "shortconv.l_cache": 3,
    }
    model = Model("lfm2", keys=keys)
    random = RandomTensors(seed, model)
    add_ends(random, model, shape.n_embd, tied=False, norm="token_embd_norm")
    for i, n_head_kv in enumerate(heads):
        block = f"blk.{i}"
        if n_head_kv:
            random.attention(block, shape, head_norms=True)
        else:
            random.ones(f"{block}.attn_norm", shape.n_embd)
            random.matrix(f"{block}.shortconv.conv", shape.n_embd, 3, std=0.5)
            random.matrix(f"{block}.shortconv.in_proj", 3 * shape.n_embd, shape.n_embd)
            random.matrix(f"{block}.shortconv.out_proj", shape.n_embd, shape.n_embd)
        random.feed_forward(block, shape)
    return model


def mamba2(seed: int = 0) -> Model:
    """Recurrent: its state cannot be truncated."""
    n_embd = 64
    inner = 128
    state = 16
    kernel = 4
    rank = 4
    wide = inner + 2 * state
    keys = {
        "block_count": 2,
        "context_length": 1024,
        "embedding_length": n_embd,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
        "ssm.group_count": 1,
    }
    model = Model("mamba2", keys=keys)
    random = RandomTensors(seed, model)
    add_ends(random, model, n_embd, tied=False)
    for block in ("blk.0", "blk.1"):
        random.ones(f"{block}.attn_norm", n_embd)
        random.matrix(f"{block}.ssm_in", inner + wide + rank, n_embd)
        random.matrix(f"{block}.ssm_conv1d", wide, kernel)
        random.matrix(f"{block}.ssm_out", n_embd, inner)
        model.tensors |= {
            f"{block}.ssm_conv1d.bias": np.zeros(wide, np.float32),
            f"{block}.ssm_dt.bias": np.zeros(rank, np.float32),
            f"{block}.ssm_a": np.full((rank, 1), -1.0, np.float32),
            f"{block}.ssm_d": np.ones((rank, 1), np.float32),
            f"{block}.ssm_norm.weight": np.ones(inner, np.float32),
        }
    return model


def parrot(
    says: Sequence[str],
    *,
    loop: bool = False,
    n_ctx: int = 1024,
    controls: Sequence[str] = (),
    others: Sequence[str] = (),
) -> Model:
    """Generates the words of `says` in order after any prompt; it knows `others`, too.

    Then it ends or, with `loop`, starts again.

    Each word may occur once.  The end is the last of `controls`, or EOS.  The last token alone
    decides: the layer adds nothing, each word of `says` has its own unit vector as embedding (all
    others share one), and a token's output row points at the word before it.
    """
    shape = Shape(n_embd=-(-(len(says) + 1) // 64) * 64, n_layer=1, n_ctx=n_ctx)
    known = Model("llama").vocabulary()
    words = [
        *WORDS,
        *controls,
        *(w for w in says if w not in known and w not in controls),
        *others,
    ]
    model = Model("llama", words=words, keys=transformer_keys(shape), controls=controls)
    tokens = model.vocabulary()
    places = [tokens.index(word) for word in says]
    random = RandomTensors(0, model)
    random.attention("blk.0", shape)
    random.feed_forward("blk.0", shape)
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        model.tensors[name][:] = 0
    embedding = np.zeros((len(tokens), shape.n_embd), np.float32)
    output = np.zeros_like(embedding)
    embedding[:, 0] = 1
    for i, token in enumerate(places):
        embedding[token] = np.eye(shape.n_embd)[i + 1]
        output[token, i] = 10
    end = tokens.index(controls[-1]) if controls else EOS
    last = places[0] if loop else end
    output[last, len(says)] = 10
    model.tensors["token_embd.weight"] = embedding
    model.tensors["output.weight"] = output
    random.ones("output_norm", shape.n_embd)
    return model


def transformer_keys(shape: Shape) -> dict[str, Any]:
    return {
        "block_count": shape.n_layer,
        "context_length": shape.n_ctx,
        "embedding_length": shape.n_embd,
        "feed_forward_length": shape.n_ff,
        "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.n_embd // shape.n_head,
    }


def add_ends(
    random: RandomTensors,
    model: Model,
    n_embd: int,
    tied: bool,
    norm: str = "output_norm",
) -> None:
    n_vocab = len(model.vocabulary())
    random.matrix("token_embd", n_vocab, n_embd, std=1.0)
    if not tied:
        random.matrix("output", n_vocab, n_embd, std=0.3)
    random.ones(norm, n_embd)
    _silence_eos(model)


def _silence_eos(model: Model) -> None:
    """Makes its logit 0, which is never near the top of some 300 random ones."""
    name = "output.weight" if "output.weight" in model.tensors else "token_embd.weight"
    model.tensors[name][EOS] = 0
