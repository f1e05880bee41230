"""The tensors of layers without attention over single tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localspec.models.blueprint.recipe import Row
from localspec.models.blueprint.shape import Shape


def _mamba2(shape: Shape) -> Iterator[Row]:
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


def _delta(shape: Shape) -> Iterator[Row]:
    """Gated delta net: `groups` heads of keys, `state_heads` of values, all `state` wide."""
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


def _shortconv(shape: Shape) -> Iterator[Row]:
    yield "shortconv.conv.weight", (shape.conv, shape.embd)
    yield "shortconv.in_proj.weight", (shape.embd, 3 * shape.embd)
    yield "shortconv.out_proj.weight", (shape.embd, shape.embd)


MIXERS: dict[str, Callable[[Shape], Iterator[Row]]] = {
    "mamba2": _mamba2,
    "delta": _delta,
    "shortconv": _shortconv,
}
