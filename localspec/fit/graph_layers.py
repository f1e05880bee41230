"""Compute graphs of layers: attention, feed-forward networks, experts, recurrent states."""

from __future__ import annotations

from math import prod

from localspec.fit.compute_graph import GraphBuilder, GraphNode, flat, op, over, view
from localspec.fit.kv_buffers import row_bytes, value_width
from localspec.models.gguf.tensors import GGML_TYPES

_F32, _F16 = 0, 1
_SOFTCAPPED = ("gemma2", "grok")
_GATED = ("qwen35", "qwen35moe", "qwen3next")
_NO_ROPE_STEP = {"smollm3": 4, "llama4": 4}
"""Every n-th layer does not rotate positions, by architecture."""
_NO_ROPE = ("nemotron_h", "nemotron_h_moe")
_TURN_V = 64


def attention(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    """From the normed input to the output matrix's product."""
    if b.hparams.is_mla:
        return compressed(b, cur)
    if b.hparams.arch in _GATED:
        return _gated(b, cur)
    q, k, v = _qkv(b, cur)
    q = b.norm("attn_q_norm", q)
    if k is not None:
        k = b.norm("attn_k_norm", k)
        if v is None:
            v = k  # replaced below
    if _rotated(b):
        q = b.rope(q)
        k = b.rope(k) if k is not None else None
    if b.hparams.arch == "gemma4" and v is not None:
        v = over(v)
    return b.times("attn_output", attend(b, q, k, v))


def _rotated(b: GraphBuilder) -> bool:
    if b.hparams.arch in _NO_ROPE:
        return False
    if b.hparams.arch.startswith("granite"):
        return b.hparams.header.keys.get(f"{b.hparams.arch}.rope.scaling.finetuned") is not False
    step = _NO_ROPE_STEP.get(b.hparams.arch, 0)
    return not step or (b.il + 1) % step != 0


def _qkv(b: GraphBuilder, cur: GraphNode) -> tuple[GraphNode, GraphNode | None, GraphNode | None]:
    layer, n = b.layer, b.n
    widths = (
        (layer.n_embd_head_k, layer.n_head, n),
        (layer.n_embd_head_k, layer.n_head_kv, n),
        (layer.n_embd_head_v, layer.n_head_kv, n),
    )
    fused = b.weight("attn_qkv.weight")
    if fused is not None:
        qkv = b.biased("attn_qkv", b.product(fused, cur))
        row = qkv.shape[0]
        q, k, v = (view(qkv, s, span=4 * ((n - 1) * row + s[0] * s[1])) for s in widths)
        return q, k, v
    q = flat(b.times("attn_q", cur), *widths[0])
    if "attn_k.weight" not in b.table or not layer.has_kv:
        return q, None, None
    keys = b.times("attn_k", cur)
    values = b.times("attn_v", cur) if "attn_v.weight" in b.table else keys
    return q, flat(keys, *widths[1]), flat(values, *widths[2])


def _gated(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    """Queries come with a gate for what attention gives."""
    layer, n = b.layer, b.n
    both = b.times("attn_q", cur)
    keys, values = b.times("attn_k", cur), b.times("attn_v", cur)
    q = b.norm("attn_q_norm", view(both, (layer.n_embd_head_k, layer.n_head, n)))
    k = b.norm("attn_k_norm", flat(keys, layer.n_embd_head_k, layer.n_head_kv, n))
    half = view(both, (layer.n_embd_head_k, layer.n_head, n))
    gate = op((layer.n_embd_head_k * layer.n_head, n), half)
    v = flat(values, layer.n_embd_head_v, layer.n_head_kv, n)
    found = attend(b, b.rope(q), b.rope(k), v)
    return b.times("attn_output", over(found, over(gate)))


def attend(b: GraphBuilder, q: GraphNode, k: GraphNode | None, v: GraphNode | None) -> GraphNode:
    """Write keys and values, read all of them.  Gives (heads x width, tokens)."""
    layer = b.layer
    turn = _turn(b, "k", layer.n_embd_head_k), _turn(b, "v", layer.n_embd_head_v)
    if turn[0]:
        q = _turned(q, turn[0])
        k = _turned(k, turn[0]) if k is not None else None
    if turn[1] and v is not None:
        v = _turned(v, turn[1])
    b.expand(q)
    order = (k, v) if b.hparams.n_swa else (v, k)
    for part in order:
        if part is not None:
            b.expand(part)
    _write(b, k, v)
    found = heads(
        b, q, layer.n_head_kv * layer.n_embd_head_k, layer.n_head_kv * layer.n_embd_head_v
    )
    return _turned(found, turn[1]) if turn[1] else found


def _turn(b: GraphBuilder, part: str, width: int) -> GraphNode | None:
    """The matrix by which a quantised cache's rows are turned, so that they lose less."""
    size = 0
    if GGML_TYPES[b.params.kv_type][1] > 1 and width % 64 == 0:
        widths = {
            layer.n_embd_head_k for layer in b.hparams.layers if layer.has_kv and _same(b, layer)
        }
        if len(widths) == 1:
            size = _TURN_V
            while part == "k" and width % (2 * size) == 0:
                size *= 2
    if not size:
        return None
    return b.given(f"turn_{part}{b.layer.is_swa}", (size, size))


def _same(b: GraphBuilder, layer: object) -> bool:
    return getattr(layer, "is_swa", False) == b.layer.is_swa


def _turned(cur: GraphNode, by: GraphNode) -> GraphNode:
    size = by.shape[0]
    rows = 1
    for n in cur.shape:
        rows *= n
    shape = (size, rows // size)
    plain = cur.root is None or cur.layout == cur.shape
    cur_rows = flat(cur, *shape) if plain else op(shape, cur)
    return flat(op(shape, by, cur_rows, kind="product"), *cur.shape)


def _write(b: GraphBuilder, k: GraphNode | None, v: GraphNode | None) -> None:
    which = "swa" if b.layer.is_swa else ""
    n = b.n
    if k is not None:
        rows = b.given(f"k_idxs{which}", (n,), 8)
        b.store(view(k, (k.shape[0] * k.shape[1], n), span=k.span), rows)
    if v is None:
        return
    if b.params.v_token_major:
        rows = b.given(f"v_idxs{which}", (n,), 8)
        b.store(view(v, (v.shape[0] * v.shape[1], n), span=v.span), rows)
        return
    wide, most = v.shape[0] * v.shape[1], value_width(b.hparams, b.layer, b.params)
    rows = b.given(f"v_idxs{which}", (n * most,), 8)
    plain = v.root is None or v.layout == v.shape
    v = flat(v, wide, n) if plain else op((wide, n), v)
    if wide < most:
        v = op((most, n), v)
    b.store(flat(v, 1, v.shape[0] * n), rows)


def heads(
    b: GraphBuilder, q: GraphNode, k_wide: int, v_wide: int, *, unpack: GraphNode | None = None
) -> GraphNode:
    """Softmax over the cache; `unpack` makes compressed values whole again."""
    layer, n = b.layer, b.n
    cells = b.params.n_ctx_swa if layer.is_swa else b.params.n_ctx
    which = "swa" if layer.is_swa else ""
    mask = b.given(f"mask{which}", (cells, n), 2 if b.params.flash_attn else 4)
    q = view(view(q, q.shape), (q.shape[0], n, q.shape[1]))
    k = b.cache(row_bytes(b.params.kv_type, k_wide) * cells)
    v = b.cache(row_bytes(b.params.kv_type, k_wide if b.hparams.is_mla else v_wide) * cells)
    if b.params.flash_attn:
        return b.expand(_flash(b, [q, k, v, mask], (k_wide * cells, v_wide * cells), unpack))
    return b.expand(_plain(b, [q, k, v, mask], cells, v_wide, unpack))


def _flash(
    b: GraphBuilder, srcs: list[GraphNode], elements: tuple[int, int], unpack: GraphNode | None
) -> GraphNode:
    layer, n = b.layer, b.n
    if b.params.kv_type == _F32:
        for i, n_elements in enumerate(elements):
            srcs[1 + i] = op((n_elements,), srcs[1 + i], item=2)
    sinks = b.weight("attn_sinks.weight")
    found = op(
        (layer.n_embd_head_v, layer.n_head, n), *srcs, *([sinks] if sinks else []), kind="flash"
    )
    found.home = b.home
    if b.params.kv_type not in (_F16, _F32):
        found.extra = 2 * sum(elements)
    if unpack is not None:
        wide = unpack.shape[1]
        whole = op((wide, n, layer.n_head), unpack, view(found, found.shape), kind="product")
        found = op((wide, layer.n_head, n), view(whole, whole.shape))
    return flat(found, found.shape[0] * found.shape[1], n)


def _plain(
    b: GraphBuilder, srcs: list[GraphNode], cells: int, v_wide: int, unpack: GraphNode | None
) -> GraphNode:
    layer, n = b.layer, b.n
    q, k, v, mask = srcs
    scores = op((cells, n, layer.n_head), k, q, kind="product")
    if b.hparams.arch in _SOFTCAPPED:
        scores = over(over(over(scores)))
    sinks = b.weight("attn_sinks.weight")
    scores = over(scores, mask, *([sinks] if sinks else []))
    if unpack is not None or b.params.v_token_major:
        v = op((cells, v_wide), v, item=4 if b.params.kv_type == _F32 else 2)
    found = op((layer.n_embd_head_v, n, layer.n_head), v, scores, kind="product")
    if unpack is not None:
        found = op((unpack.shape[1], n, layer.n_head), unpack, found, kind="product")
    return op((found.shape[0] * layer.n_head, n), view(found, found.shape))


def compressed(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    """MLA: one row of the cache a token, keys and values in one."""
    layer, n = b.layer, b.n
    head = b.hparams.number("attention.key_length_mla")
    rank = b.hparams.number("attention.kv_lora_rank")
    rope = layer.n_embd_head_k - rank
    if "attn_q_a.weight" in b.table:
        q = b.times("attn_q_b", b.norm("attn_q_a_norm", b.times("attn_q_a", cur)))
    else:
        q = b.times("attn_q", cur)
    q = flat(q, head, layer.n_head, n)
    packed = b.times("attn_kv_a_mqa", cur)
    k_rope = b.rope(view(packed, (rope, 1, n)))
    row = b.norm("attn_kv_a_norm", view(packed, (rank, n)))
    plain = view(view(q, (head - rope, layer.n_head, n)), (head - rope, n, layer.n_head))
    q_rope = b.rope(view(q, (rope, layer.n_head, n)))
    k_b = b.weight("attn_k_b.weight")
    absorbed = op((rank, n, layer.n_head), *([k_b] if k_b else []), plain, kind="product")
    q = op((rank + rope, layer.n_head, n), view(absorbed, absorbed.shape), q_rope)
    v = flat(row, rank, 1, n)
    k = op((rank + rope, 1, n), v, k_rope)
    for part in (q, v, k):
        b.expand(part)
    rows = b.given("k_idxs", (n,), 8)
    b.store(view(k, (rank + rope, n)), rows)
    unpack = b.weight("attn_v_b.weight")
    return b.times("attn_output", heads(b, q, rank + rope, rank, unpack=unpack))


# Feed-forward networks: dense, or experts.

_SQUARED = ("nemotron_h", "nemotron_h_moe", "nemotron")
_SPLIT_ACTIVATION = ("phi3", "chatglm", "glm4")
_RAW_CHOICE = ("gpt-oss",)
"""Their weights are a softmax of the chosen scores, not of all."""


def feed_forward(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    if "ffn_gate_inp.weight" not in b.table:
        return dense(b, cur)
    found = experts(b, cur)
    if "ffn_up_shexp.weight" in b.table:
        shared = dense(b, cur, "_shexp")
        if "ffn_gate_inp_shexp.weight" in b.table:
            shared = over(shared, over(b.times("ffn_gate_inp_shexp", cur)))
        found = over(found, shared)
    return found


def dense(b: GraphBuilder, cur: GraphNode, which: str = "") -> GraphNode:
    up = b.times(f"ffn_up{which}", cur)
    if f"ffn_gate{which}.weight" in b.table:
        gate = b.times(f"ffn_gate{which}", cur)
        found = op(gate.shape, gate, up)
    elif not which and b.hparams.arch in _SPLIT_ACTIVATION:
        found = op((up.shape[0] // 2, *up.shape[1:]), up)
    else:
        found = over(up)
    return b.times(f"ffn_down{which}", found)


def experts(b: GraphBuilder, cur: GraphNode, scores: GraphNode | None = None) -> GraphNode:
    """Some experts for each token; `scores` where they do not come from `cur`."""
    n, d = cur.shape[1], cur.shape[0]
    n_expert = b.hparams.number("expert_count")
    used = b.hparams.per_layer("expert_used_count")[b.il]
    if scores is None:
        scores = b.times("ffn_gate_inp", cur)
    raw = b.hparams.arch in _RAW_CHOICE
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


def _each(b: GraphBuilder, cur: GraphNode, chosen: GraphNode, used: int) -> GraphNode:
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


def _expert(b: GraphBuilder, name: str, cur: GraphNode, chosen: GraphNode, used: int) -> GraphNode:
    matrix = b.weight(f"{name}.weight")
    wide = matrix.shape[1] if matrix else cur.shape[0]
    srcs = [matrix] if matrix else []
    found = op((wide, used, cur.shape[2]), *srcs, cur, chosen, kind="experts")
    bias = b.weight(f"{name}.bias")
    return found if bias is None else over(found, bias, chosen)


def _scaled(
    b: GraphBuilder, down: GraphNode, chosen: GraphNode, n_expert: int, used: int
) -> GraphNode:
    scale = b.weight("ffn_down_exps.scale")
    if scale is None:
        return down
    n = down.shape[2]
    each = op((1, n_expert, n), view(scale, (1,)))
    return over(down, op((1, used, n), each, chosen, kind="rows"))


def _summed(b: GraphBuilder, down: GraphNode, used: int) -> GraphNode:
    shape = (down.shape[0], down.shape[2])
    parts = [b.expand(view(down, shape)) for _ in range(used)]
    found = parts[0]
    for part in parts[1:]:
        found = b.expand(over(found, part))
    return op(shape, found) if used == 1 else found


# Recurrent layers.


def mixer(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    if "shortconv.in_proj.weight" in b.table:
        return _short_convolution(b, cur)
    if "ssm_beta.weight" in b.table or "ssm_ba.weight" in b.table:
        return _delta_net(b, cur)
    return _mamba2(b, cur)


def _kept(b: GraphBuilder, floats: int) -> GraphNode:
    """The state that was kept, fetched."""
    states = b.cache(4 * floats * _written(b))
    b.store()  # a state is set to zero
    found = b.expand(op((floats, 1), states, _sequence(b, "main"), kind="rows"))
    _others(b, states)
    return found


def _sequence(b: GraphBuilder, part: str) -> GraphNode:
    """Which sequences' states are read: one, and no others."""
    found = b.inputs.get(f"s_copy {part}")
    if found is None:
        found = view(b.given("s_copy", (1,)), (1 if part == "main" else 0,))
        b.inputs[f"s_copy {part}"] = found
    return found


def _others(b: GraphBuilder, states: GraphNode) -> None:
    """States of sequences that are not read: none, but the steps are there."""
    b.store(op((0, 0), states, _sequence(b, "others"), kind="rows"))


def _written(b: GraphBuilder) -> int:
    return b.params.n_rs_seq + 1


def _short_convolution(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    d, n = cur.shape
    three = b.times("shortconv.in_proj", flat(cur, d, n))
    first, middle, last = (view(three, (d, n)) for _ in range(3))
    mixed = view(op((d, n), first, last), (n, d))
    history = flat(_kept(b, b.hparams.n_embd_r), b.hparams.n_embd_r // d, d)
    steps = op((n + history.shape[0], d), history, mixed)
    _remember(b, steps, history)
    kernel = b.weight("shortconv.conv.weight")
    found = op((d, n), steps, *([kernel] if kernel else []))
    found = over(middle, found)
    return flat(b.times("shortconv.out_proj", found), d, n)


def _remember(b: GraphBuilder, steps: GraphNode, history: GraphNode) -> None:
    """Keep the last steps, once for each token that may be taken back."""
    shape = (history.shape[0], steps.shape[1])
    span = 4 * (steps.shape[0] * (steps.shape[1] - 1) + shape[0])
    for _ in range(_written(b)):
        b.store(view(steps, shape, span=span))


def _steps(b: GraphBuilder, mixed: GraphNode) -> GraphNode:
    """What a convolution looks back at, and the batch behind it."""
    n, channels = mixed.shape
    back = max(1, b.hparams.number("ssm.conv_kernel") - 1)
    history = flat(_kept(b, b.hparams.n_embd_r), back, channels)
    steps = op((n + back, channels), history, mixed)
    _remember(b, steps, history)
    return steps


def _delta_net(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    facts, n = b.hparams, b.n
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
    state = flat(_kept(b, facts.n_embd_s), wide_v, wide_v, heads)
    kernel = b.weight("ssm_conv1d.weight")
    found = over(op((channels, n), steps, *([kernel] if kernel else [])))
    q, k = (over(over(view(found, (wide_k, heads_k, n)))) for _ in range(2))
    v = view(found, (wide_v, heads, n))
    size = (wide_v * heads, n + _written(b) * wide_v)
    both = op(size, q, k, v, gate, beta, state)
    b.store(view(both, (facts.n_embd_s, _written(b))))
    out = b.norm("ssm_norm", view(both, (wide_v, heads, n)))
    out = over(out, over(flat(z, wide_v, heads, n)))
    return flat(b.times("ssm_out", flat(out, inner, n)), facts.n_embd, n)


def _part(of: GraphNode, shape: tuple[int, ...], row: int, wide: int = 0) -> GraphNode:
    """Some columns of a matrix whose rows have `row` numbers."""
    n = of.shape[-1]
    wide = wide or prod(shape) // n
    return view(of, shape, span=4 * ((n - 1) * row + wide))


def _mamba2(b: GraphBuilder, cur: GraphNode) -> GraphNode:
    facts, n = b.hparams, b.n
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
    states = b.cache(4 * facts.n_embd_s * _written(b))
    b.store()
    a = [found for found in (b.weight("ssm_a"),) if found]
    size = (n * inner + _written(b) * facts.n_embd_s,)
    scan = op(size, states, x, step, *a, keys, values, _sequence(b, "main"))
    b.expand(scan)
    _others(b, states)
    b.store(view(scan, (facts.n_embd_s, _written(b))))
    skip = b.weight("ssm_d")
    y = view(scan, (wide, heads, n))
    y = over(y, op((wide, heads, n), x, *([skip] if skip else [])))
    y = op((wide, heads, n), op((wide, heads, n), z), y)
    if "ssm_norm.weight" in b.table:
        y = b.norm("ssm_norm", flat(y, inner // groups, groups, n))
    return b.times("ssm_out", flat(y, inner, n))
