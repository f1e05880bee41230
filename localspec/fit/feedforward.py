"""The feed-forward part of a layer's graph: dense, or a choice of experts."""

from __future__ import annotations

from localspec.fit.building import Building, flat
from localspec.fit.graph import Node, op, over, view

_SQUARED = ("nemotron_h", "nemotron_h_moe", "nemotron")
_SPLIT_ACTIVATION = ("phi3", "chatglm", "glm4")
_RAW_CHOICE = ("gpt-oss",)
"""Their weights are a softmax of the chosen scores, not of all."""


def feed_forward(b: Building, cur: Node) -> Node:
    if "ffn_gate_inp.weight" not in b.table:
        return dense(b, cur)
    found = experts(b, cur)
    if "ffn_up_shexp.weight" in b.table:
        shared = dense(b, cur, "_shexp")
        if "ffn_gate_inp_shexp.weight" in b.table:
            shared = over(shared, over(b.times("ffn_gate_inp_shexp", cur)))
        found = over(found, shared)
    return found


def dense(b: Building, cur: Node, which: str = "") -> Node:
    up = b.times(f"ffn_up{which}", cur)
    if f"ffn_gate{which}.weight" in b.table:
        gate = b.times(f"ffn_gate{which}", cur)
        found = op(gate.shape, gate, up)
    elif not which and b.facts.arch in _SPLIT_ACTIVATION:
        found = op((up.shape[0] // 2, *up.shape[1:]), up)
    else:
        found = over(up)
    return b.times(f"ffn_down{which}", found)


def experts(b: Building, cur: Node, scores: Node | None = None) -> Node:
    """Some experts for each token; `scores` where they do not come from `cur`."""
    n, d = cur.shape[1], cur.shape[0]
    n_expert = b.facts.number("expert_count")
    used = b.facts.each("expert_used_count")[b.il]
    if scores is None:
        scores = b.times("ffn_gate_inp", cur)
    raw = b.facts.arch in _RAW_CHOICE
    chances = scores if raw else over(scores)
    bias = b.weight("exp_probs_b.bias")
    order = chances if bias is None else over(chances, bias)
    chosen = view(op((n_expert, n), order), (used, n))
    weights = op((1, used, n), flat(chances, 1, n_expert, n), chosen, kind="rows")
    if raw:
        weights = flat(over(flat(weights, used, n)), 1, used, n)
    else:
        part = flat(weights, used, n)
        total = over(op((1, n), part))
        weights = flat(over(part, total), 1, used, n)
    b.expand(weights)
    down = _each(b, flat(cur, d, 1, n), chosen, used)
    down = over(_scaled(b, down, chosen, n_expert, used), weights)
    b.expand(down)
    return _summed(b, down, used)


def _each(b: Building, cur: Node, chosen: Node, used: int) -> Node:
    """Every chosen expert's own feed-forward."""
    if "ffn_gate_up_exps.weight" in b.table:
        both = _expert(b, "ffn_gate_up_exps", cur, chosen, used)
        half = (both.shape[0] // 2, *both.shape[1:])
        found = op(half, view(both, half), view(both, half))
    else:
        up = _expert(b, "ffn_up_exps", cur, chosen, used)
        if "ffn_gate_exps.weight" in b.table:
            gate = _expert(b, "ffn_gate_exps", cur, chosen, used)
            found = op(gate.shape, gate, up)
        else:
            found = over(over(up))
    return _expert(b, "ffn_down_exps", found, chosen, used)


def _expert(b: Building, name: str, cur: Node, chosen: Node, used: int) -> Node:
    matrix = b.weight(f"{name}.weight")
    wide = matrix.shape[1] if matrix else cur.shape[0]
    srcs = [matrix] if matrix else []
    found = op((wide, used, cur.shape[2]), *srcs, cur, chosen, kind="experts")
    bias = b.weight(f"{name}.bias")
    return found if bias is None else over(found, bias, chosen)


def _scaled(b: Building, down: Node, chosen: Node, n_expert: int, used: int) -> Node:
    scale = b.weight("ffn_down_exps.scale")
    if scale is None:
        return down
    n = down.shape[2]
    each = op((1, n_expert, n), view(scale, (1,)))
    return over(down, op((1, used, n), each, chosen, kind="rows"))


def _summed(b: Building, down: Node, used: int) -> Node:
    shape = (down.shape[0], down.shape[2])
    parts = [b.expand(view(down, shape)) for _ in range(used)]
    found = parts[0]
    for part in parts[1:]:
        found = b.expand(over(found, part))
    return op(shape, found) if used == 1 else found
