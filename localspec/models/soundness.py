"""What in a head's file alone makes llama.cpp abort, or compute nonsense: each with its rule.

From src/models/{eagle3,dflash}.cpp: their asserts, and the sizes that they take on trust.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from sys import byteorder
from typing import TYPE_CHECKING

from localspec.models.header import Header

if TYPE_CHECKING:
    from localspec.models.gguf.tensors import Tensor

Problem = tuple[str, str]
"""A rule and what breaks it."""
MAP = "d2t"
"""The tensor of a reduced vocabulary: the target's token for each token of the head's."""
_I64 = 27


def tensors(head: Header) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in head.tensors}


def problems(head: Header) -> Iterator[Problem]:
    """The first of them is reason enough."""
    yield from _of_attention(head)
    if head.architecture == "eagle3":
        yield from _of_one_layer(head)
    else:
        yield from _of_blocks(head)
    yield from _of_the_map(head)


def _of_attention(head: Header) -> Iterator[Problem]:
    n, n_kv = head.n_head, head.n_head_kv
    if n < 1 or n_kv < 1 or n % n_kv:
        yield "attention", f"its {n} attention heads cannot share {n_kv} of keys and values"
        return
    width = head.n_embd // n
    keys, values = (head.number(f"attention.{name}_length", width) for name in ("key", "value"))
    if keys != values:
        yield "attention", f"its keys are {keys} wide and its values {values}"
    turned = head.number("rope.dimension_count", keys)
    if turned % 2 or not 0 < turned <= keys:
        yield "attention", f"it turns {turned} of {keys} dimensions by position"


def _of_one_layer(head: Header) -> Iterator[Problem]:
    if head.n_layer != 1:
        yield "head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}"
    embeddings, n = tensors(head).get("token_embd.weight"), head.tokenizer.n_tokens
    if embeddings is not None and embeddings.shape[-1] != n:
        yield "embeddings", f"it has {embeddings.shape[-1]:,} embeddings for {n:,} tokens"


def _of_blocks(head: Header) -> Iterator[Problem]:
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int):
        yield "mask-token", "it has no mask token, which its blocks are made of"
    elif not 0 <= mask < head.tokenizer.n_tokens:
        yield "mask-token", f"its mask token {mask:,} is beyond its {head.tokenizer.n_tokens:,}"
    key = "dflash.block_size"
    if "markov_w1.weight" in tensors(head) and key not in head.keys:
        yield "block-size", "it does not say how long its blocks are"
    elif key in head.keys and head.number("block_size") < 2:
        yield "block-size", f"blocks of {str(head.keys[key])[:20]} tokens guess nothing"


def _of_the_map(head: Header) -> Iterator[Problem]:
    own = tensors(head)
    map_, output = own.get(MAP), own.get("output.weight")
    if map_ is None:
        return
    rule = "reduced-vocabulary"
    if map_.type != _I64:
        yield rule, f"its reduced vocabulary (d2t) is of type {map_.type_name} and must be I64"
    if output is None or output.shape[-1] != map_.shape[0]:
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"its reduced vocabulary (d2t) has {map_.shape[0]:,} tokens, its output has {rows}"
        yield rule, detail


def problems_of_data(path: Path, head: Header) -> Iterator[Problem]:
    """Of the numbers in the map, which the header does not show."""
    map_ = tensors(head).get(MAP)
    if map_ is None:
        return
    ids = array("q")
    with path.open("rb") as file:
        file.seek(head.data_offset + map_.offset)
        ids.frombytes(file.read(map_.n_bytes))
    if byteorder == "big":
        ids.byteswap()
    n = head.tokenizer.n_tokens
    if wrong := [token for token in ids if not 0 <= token < n]:
        yield "reduced-vocabulary", f"its reduced vocabulary (d2t) names token {wrong[0]} of {n:,}"
    elif len(set(ids)) < len(ids):
        detail = "its reduced vocabulary (d2t) names tokens twice: perhaps it holds differences"
        yield "reduced-vocabulary", detail
