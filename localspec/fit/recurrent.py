"""Layers that keep a state instead of keys and values, as graphs."""

from __future__ import annotations

from math import prod

from localspec.fit.building import Building, flat
from localspec.fit.graph import Node, op, over, view


def mixer(b: Building, cur: Node) -> Node:
    if "shortconv.in_proj.weight" in b.table:
        return _short_convolution(b, cur)
    if "ssm_beta.weight" in b.table or "ssm_ba.weight" in b.table:
        return _delta_net(b, cur)
    return _mamba2(b, cur)


def _kept(b: Building, floats: int) -> Node:
    """The state that was kept, fetched."""
    states = b.cache(4 * floats * _written(b))
    b.store()  # a state is set to zero
    found = b.expand(op((floats, 1), states, _sequence(b, "main"), kind="rows"))
    _others(b, states)
    return found


def _sequence(b: Building, part: str) -> Node:
    """Which sequences' states are read: one, and no others."""
    found = b.inputs.get(f"s_copy {part}")
    if found is None:
        found = view(b.given("s_copy", (1,)), (1 if part == "main" else 0,))
        b.inputs[f"s_copy {part}"] = found
    return found


def _others(b: Building, states: Node) -> None:
    """States of sequences that are not read: none, but the steps are there."""
    b.store(op((0, 0), states, _sequence(b, "others"), kind="rows"))


def _written(b: Building) -> int:
    return b.opening.n_rs_seq + 1


def _short_convolution(b: Building, cur: Node) -> Node:
    d, n = cur.shape
    three = b.times("shortconv.in_proj", flat(cur, d, n))
    first, middle, last = (view(three, (d, n)) for _ in range(3))
    mixed = view(op((d, n), first, last), (n, d))
    history = flat(_kept(b, b.facts.state_r), b.facts.state_r // d, d)
    steps = op((n + history.shape[0], d), history, mixed)
    _remember(b, steps, history)
    kernel = b.weight("shortconv.conv.weight")
    found = op((d, n), steps, *([kernel] if kernel else []))
    found = over(middle, found)
    return flat(b.times("shortconv.out_proj", found), d, n)


def _remember(b: Building, steps: Node, history: Node) -> None:
    """Keep the last steps, once for each token that may be taken back."""
    shape = (history.shape[0], steps.shape[1])
    span = 4 * (steps.shape[0] * (steps.shape[1] - 1) + shape[0])
    for _ in range(_written(b)):
        b.store(view(steps, shape, span=span))


def _steps(b: Building, mixed: Node) -> Node:
    """What a convolution looks back at, and the batch behind it."""
    n, channels = mixed.shape
    back = max(1, b.facts.number("ssm.conv_kernel") - 1)
    history = flat(_kept(b, b.facts.state_r), back, channels)
    steps = op((n + back, channels), history, mixed)
    _remember(b, steps, history)
    return steps


def _delta_net(b: Building, cur: Node) -> Node:
    facts, n = b.facts, b.n
    inner, heads = facts.number("ssm.inner_size"), facts.number("ssm.time_step_rank")
    wide_k, heads_k = facts.number("ssm.state_size"), facts.number("ssm.group_count")
    wide_v = inner // heads
    channels = inner + 2 * heads_k * wide_k
    mixed = b.times("attn_qkv", cur)
    z = b.times("attn_gate", cur)
    beta = over(flat(b.times("ssm_beta", cur), 1, heads, n))
    alpha = b.biased("ssm_dt", flat(b.times("ssm_alpha", cur), heads, n))
    a = b.weight("ssm_a")
    gate = flat(over(over(alpha), *([a] if a else [])), 1, heads, n)
    steps = _steps(b, view(mixed, (n, channels)))
    state = flat(_kept(b, facts.state_s), wide_v, wide_v, heads)
    kernel = b.weight("ssm_conv1d.weight")
    found = over(op((channels, n), steps, *([kernel] if kernel else [])))
    q, k = (over(over(view(found, (wide_k, heads_k, n)))) for _ in range(2))
    v = view(found, (wide_v, heads, n))
    size = (wide_v * heads, n + _written(b) * wide_v)
    both = op(size, q, k, v, gate, beta, state)
    b.store(view(both, (facts.state_s, _written(b))))
    out = b.norm("ssm_norm", view(both, (wide_v, heads, n)))
    out = over(out, over(flat(z, wide_v, heads, n)))
    return flat(b.times("ssm_out", flat(out, inner, n)), facts.n_embd, n)


def _part(of: Node, shape: tuple[int, ...], row: int, wide: int = 0) -> Node:
    """Some columns of a matrix whose rows have `row` numbers."""
    n = of.shape[-1]
    wide = wide or prod(shape) // n
    return view(of, shape, span=4 * ((n - 1) * row + wide))


def _mamba2(b: Building, cur: Node) -> Node:
    facts, n = b.facts, b.n
    inner, heads = facts.number("ssm.inner_size"), max(1, facts.number("ssm.time_step_rank"))
    groups, wide = facts.number("ssm.group_count"), inner // heads
    wide_b = facts.number("ssm.state_size")
    channels = inner + 2 * groups * wide_b
    all_in = flat(b.times("ssm_in", cur), 2 * inner + channels - inner + heads, n)
    row = all_in.shape[0]
    z = _part(all_in, (wide, heads, n), row)
    mixed = _part(all_in, (n, channels), row, channels)
    dt = _part(all_in, (heads, n), row)
    steps = _steps(b, view(mixed, (n, channels), span=mixed.span))
    kernel = b.weight("ssm_conv1d.weight")
    found = op((channels, n), steps, *([kernel] if kernel else []))
    found = over(b.biased("ssm_conv1d", found))
    x = _part(found, (wide, heads, n), channels)
    keys, values = (_part(found, (wide_b, groups, n), channels) for _ in range(2))
    step = b.biased("ssm_dt", op((heads, n), dt))
    states = b.cache(4 * facts.state_s * _written(b))
    b.store()
    a = [found for found in (b.weight("ssm_a"),) if found]
    size = (n * inner + _written(b) * facts.state_s,)
    scan = op(size, states, x, step, *a, keys, values, _sequence(b, "main"))
    b.expand(scan)
    _others(b, states)
    b.store(view(scan, (facts.state_s, _written(b))))
    skip = b.weight("ssm_d")
    y = view(scan, (wide, heads, n))
    y = over(y, op((wide, heads, n), x, *([skip] if skip else [])))
    y = op((wide, heads, n), op((wide, heads, n), z), y)
    if "ssm_norm.weight" in b.table:
        y = b.norm("ssm_norm", flat(y, inner // groups, groups, n))
    return b.times("ssm_out", flat(y, inner, n))
