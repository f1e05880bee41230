"""Headers of published heads, beside targets of tests/support/families.py; no data."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from localspec.models.gguf import writer
from localspec.models.gguf.header import Header
from tests.support import families, synthetic_header
from tests.support.families import FAMILIES

_Q8_0 = 8
_F32 = 0
_I64 = 27
Row = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True)
class Head:
    """One head's numbers; those that are not here are its target's."""

    family: str
    kind: str
    layers: int = 1
    embd: int = 0
    heads: int = 32
    kv_heads: int = 8
    ff: int = 14336
    head_dim: int = 128
    taps: tuple[int, ...] = (2, 16, 29)
    own: bool = False
    """It has embeddings and an output of its own."""
    reduced: int = 0
    """Tokens that it can guess."""
    block: int = 7


HEADS = {
    "eagle3-llama-8b": Head("llama", "eagle3", reduced=32000),
    "eagle3-llama-8b-whole": Head("llama", "eagle3"),
    "eagle3-llama-8b-own": Head("llama", "eagle3", embd=2048, own=True, heads=16, ff=8192),
    "eagle3-gpt-oss": Head("gpt-oss", "eagle3", kv_heads=8, head_dim=64, heads=64, ff=8640,
                           taps=(2, 12, 21), reduced=64000),
    "dflash-qwen3-8b": Head("qwen3", "dflash", layers=5, ff=12288, taps=(1, 9, 17, 25, 33),
                            block=16),
    "dspark-qwen3-8b": Head("qwen3", "dspark", layers=5, ff=12288, taps=(1, 9, 17, 25, 33)),
    "dflash-gemma4": Head("gemma4", "dflash", layers=5, taps=(2, 7, 11)),
}  # fmt: skip


def header(name: str) -> Header:
    head = HEADS[name]
    target = of_target(name)
    embd = head.embd or target.n_embd
    arch = "eagle3" if head.kind == "eagle3" else "dflash"
    numbers: dict[str, object] = {
        "context_length": target.n_ctx_train,
        "embedding_length": embd,
        "block_count": head.layers,
        "feed_forward_length": head.ff,
        "attention.head_count": head.heads,
        "attention.head_count_kv": head.kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": head.head_dim,
        "attention.value_length": head.head_dim,
        "rope.dimension_count": head.head_dim,
        "target_layers": head.taps,
    }
    if arch == "eagle3":
        numbers["target_hidden_size"] = target.n_embd
    else:
        numbers |= {"block_size": head.block, "attention.causal": False}
    keys = {f"{arch}.{key}": value for key, value in numbers.items()}
    keys |= {"general.architecture": arch, "tokenizer.ggml.mask_token_id": 5}
    tensors = synthetic_header.place_tensors(_rows(head, embd, target))
    found = replace(target, architecture=arch, name=name, keys=keys, tensors=tensors)
    return replace(
        found, size=len(writer.serialize_header(found)) + writer.data_size(found)
    )


def pair(name: str) -> tuple[Header, Header]:
    """A target and its head; of `mtp-qwen35` the very same."""
    if name in HEADS:
        return of_target(name), header(name)
    inside = predicting()
    return inside, inside


def of_target(name: str) -> Header:
    return families.header(HEADS[name].family)


def predicting() -> Header:
    """A model with a layer of its own that guesses (MTP): a qwen35."""
    shape = FAMILIES["qwen35"].full
    return synthetic_header.build(replace(shape, mtp_layers=1), "Q4_K_M")


def _rows(head: Head, d: int, target: Header) -> Iterator[Row]:
    vocab = target.tokenizer.n_tokens
    eagle = head.kind == "eagle3"
    wide = head.heads * head.head_dim
    narrow = head.kv_heads * head.head_dim
    yield "fc.weight", (len(head.taps) * target.n_embd, d), _Q8_0
    yield "output_norm.weight", (d,), _F32
    if not eagle:
        yield "enc.output_norm.weight", (d,), _F32
    if head.own:
        yield "token_embd.weight", (d, vocab), _Q8_0
    if head.reduced:
        yield "d2t", (head.reduced,), _I64
    if head.own or head.reduced:
        yield "output.weight", (d, head.reduced or vocab), _Q8_0
    if head.kind == "dspark":
        yield "markov_w1.weight", (256, vocab), _Q8_0
        yield "markov_w2.weight", (256, vocab), _Q8_0
        yield "conf_proj.weight", (d + 256, 1), _F32
        yield "conf_proj.bias", (1,), _F32
    norms = (
        {"attn_norm_2": d}
        if eagle
        else dict.fromkeys(("attn_q_norm", "attn_k_norm"), head.head_dim)
    )
    read = 2 * d if eagle else d
    matrices = {
        "attn_q": (read, wide),
        "attn_k": (read, narrow),
        "attn_v": (read, narrow),
        "attn_output": (wide, d),
    }
    ffn = {"ffn_gate": (d, head.ff), "ffn_up": (d, head.ff), "ffn_down": (head.ff, d)}
    for at in (f"blk.{il}." for il in range(head.layers)):
        for name, width in {"attn_norm": d, **norms}.items():
            yield f"{at}{name}.weight", (width,), _F32
        yield from (
            (f"{at}{name}.weight", shape, _Q8_0) for name, shape in matrices.items()
        )
        yield at + "ffn_norm.weight", (d,), _F32
        yield from ((f"{at}{name}.weight", shape, _Q8_0) for name, shape in ffn.items())
