"""The attention part of a layer's graph: plain, with a sliding window, or compressed (MLA)."""

from __future__ import annotations

from localspec.fit.building import Building, flat
from localspec.fit.cache import row, v_width
from localspec.fit.graph import Node, op, over, view
from localspec.models.gguf.tensors import TYPES

_F32, _F16 = 0, 1
_SOFTCAPPED = ("gemma2", "grok")
_GATED = ("qwen35", "qwen35moe", "qwen3next")
_NO_ROPE_STEP = {"smollm3": 4, "llama4": 4}
"""Every n-th layer does not rotate positions, by architecture."""
_NO_ROPE = ("nemotron_h", "nemotron_h_moe")
_TURN_V = 64


def attention(b: Building, cur: Node) -> Node:
    """From the normed input to the output matrix's product."""
    if b.facts.mla:
        return compressed(b, cur)
    if b.facts.arch in _GATED:
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
    if b.facts.arch == "gemma4" and v is not None:
        v = over(v)
    return b.times("attn_output", attend(b, q, k, v))


def _rotated(b: Building) -> bool:
    if b.facts.arch in _NO_ROPE:
        return False
    if b.facts.arch.startswith("granite"):
        return b.facts.header.keys.get(f"{b.facts.arch}.rope.scaling.finetuned") is not False
    step = _NO_ROPE_STEP.get(b.facts.arch, 0)
    return not step or (b.il + 1) % step != 0


def _qkv(b: Building, cur: Node) -> tuple[Node, Node | None, Node | None]:
    layer, n = b.layer, b.n
    widths = (
        (layer.head_k, layer.n_head, n),
        (layer.head_k, layer.n_head_kv, n),
        (layer.head_v, layer.n_head_kv, n),
    )
    fused = b.weight("attn_qkv.weight")
    if fused is not None:
        qkv = b.biased("attn_qkv", b.product(fused, cur))
        row = qkv.shape[0]
        q, k, v = (view(qkv, s, span=4 * ((n - 1) * row + s[0] * s[1])) for s in widths)
        return q, k, v
    q = flat(b.times("attn_q", cur), *widths[0])
    if "attn_k.weight" not in b.table or not layer.attention:
        return q, None, None
    keys = b.times("attn_k", cur)
    values = b.times("attn_v", cur) if "attn_v.weight" in b.table else keys
    return q, flat(keys, *widths[1]), flat(values, *widths[2])


def _gated(b: Building, cur: Node) -> Node:
    """Queries come with a gate for what attention gives."""
    layer, n = b.layer, b.n
    both = b.times("attn_q", cur)
    keys, values = b.times("attn_k", cur), b.times("attn_v", cur)
    q = b.norm("attn_q_norm", view(both, (layer.head_k, layer.n_head, n)))
    k = b.norm("attn_k_norm", flat(keys, layer.head_k, layer.n_head_kv, n))
    half = view(both, (layer.head_k, layer.n_head, n))
    gate = op((layer.head_k * layer.n_head, n), half)
    v = flat(values, layer.head_v, layer.n_head_kv, n)
    found = attend(b, b.rope(q), b.rope(k), v)
    return b.times("attn_output", over(found, over(gate)))


def attend(b: Building, q: Node, k: Node | None, v: Node | None) -> Node:
    """Write keys and values, read all of them.  Gives (heads x width, tokens)."""
    layer = b.layer
    turn = _turn(b, "k", layer.head_k), _turn(b, "v", layer.head_v)
    if turn[0]:
        q = _turned(q, turn[0])
        k = _turned(k, turn[0]) if k is not None else None
    if turn[1] and v is not None:
        v = _turned(v, turn[1])
    b.expand(q)
    order = (k, v) if b.facts.n_swa else (v, k)
    for part in order:
        if part is not None:
            b.expand(part)
    _write(b, k, v)
    found = heads(b, q, layer.n_head_kv * layer.head_k, layer.n_head_kv * layer.head_v)
    return _turned(found, turn[1]) if turn[1] else found


def _turn(b: Building, part: str, width: int) -> Node | None:
    """The matrix by which a quantised cache's rows are turned, so that they lose less."""
    size = 0
    if TYPES[b.opening.kv_type][1] > 1 and width % 64 == 0:
        widths = {layer.head_k for layer in b.facts.layers if layer.attention and _same(b, layer)}
        if len(widths) == 1:
            size = _TURN_V
            while part == "k" and width % (2 * size) == 0:
                size *= 2
    if not size:
        return None
    return b.given(f"turn_{part}{b.layer.window}", (size, size))


def _same(b: Building, layer: object) -> bool:
    return getattr(layer, "window", False) == b.layer.window


def _turned(cur: Node, by: Node) -> Node:
    size = by.shape[0]
    rows = 1
    for n in cur.shape:
        rows *= n
    shape = (size, rows // size)
    plain = cur.root is None or cur.layout == cur.shape
    cur_rows = flat(cur, *shape) if plain else op(shape, cur)
    return flat(op(shape, by, cur_rows, kind="product"), *cur.shape)


def _write(b: Building, k: Node | None, v: Node | None) -> None:
    which = "swa" if b.layer.window else ""
    n = b.n
    if k is not None:
        rows = b.given(f"k_idxs{which}", (n,), 8)
        b.store(view(k, (k.shape[0] * k.shape[1], n), span=k.span), rows)
    if v is None:
        return
    if b.opening.by_token:
        rows = b.given(f"v_idxs{which}", (n,), 8)
        b.store(view(v, (v.shape[0] * v.shape[1], n), span=v.span), rows)
        return
    wide, most = v.shape[0] * v.shape[1], v_width(b.facts, b.layer, b.opening)
    rows = b.given(f"v_idxs{which}", (n * most,), 8)
    plain = v.root is None or v.layout == v.shape
    v = flat(v, wide, n) if plain else op((wide, n), v)
    if wide < most:
        v = op((most, n), v)
    b.store(flat(v, 1, v.shape[0] * n), rows)


def heads(b: Building, q: Node, k_wide: int, v_wide: int, *, unpack: Node | None = None) -> Node:
    """Softmax over the cache; `unpack` makes compressed values whole again."""
    layer, n = b.layer, b.n
    cells = b.opening.n_swa if layer.window else b.opening.n_ctx
    which = "swa" if layer.window else ""
    mask = b.given(f"mask{which}", (cells, n), 2 if b.opening.flash else 4)
    q = view(view(q, q.shape), (q.shape[0], n, q.shape[1]))
    k = b.cache(row(b.opening.kv_type, k_wide) * cells)
    v = b.cache(row(b.opening.kv_type, k_wide if b.facts.mla else v_wide) * cells)
    if b.opening.flash:
        return b.expand(_flash(b, [q, k, v, mask], (k_wide * cells, v_wide * cells), unpack))
    return b.expand(_plain(b, [q, k, v, mask], cells, v_wide, unpack))


def _flash(b: Building, srcs: list[Node], elements: tuple[int, int], unpack: Node | None) -> Node:
    layer, n = b.layer, b.n
    if b.opening.kv_type == _F32:
        for i, n_elements in enumerate(elements):
            srcs[1 + i] = op((n_elements,), srcs[1 + i], item=2)
    sinks = b.weight("attn_sinks.weight")
    found = op((layer.head_v, layer.n_head, n), *srcs, *([sinks] if sinks else []), kind="flash")
    found.home = b.home
    if b.opening.kv_type not in (_F16, _F32):
        found.extra = 2 * sum(elements)
    if unpack is not None:
        wide = unpack.shape[1]
        whole = op((wide, n, layer.n_head), unpack, view(found, found.shape), kind="product")
        found = op((wide, layer.n_head, n), view(whole, whole.shape))
    return flat(found, found.shape[0] * found.shape[1], n)


def _plain(b: Building, srcs: list[Node], cells: int, v_wide: int, unpack: Node | None) -> Node:
    layer, n = b.layer, b.n
    q, k, v, mask = srcs
    scores = op((cells, n, layer.n_head), k, q, kind="product")
    if b.facts.arch in _SOFTCAPPED:
        scores = over(over(over(scores)))
    sinks = b.weight("attn_sinks.weight")
    scores = over(scores, mask, *([sinks] if sinks else []))
    if unpack is not None or b.opening.by_token:
        v = op((cells, v_wide), v, item=4 if b.opening.kv_type == _F32 else 2)
    found = op((layer.head_v, n, layer.n_head), v, scores, kind="product")
    if unpack is not None:
        found = op((unpack.shape[1], n, layer.n_head), unpack, found, kind="product")
    return op((found.shape[0] * layer.n_head, n), view(found, found.shape))


def compressed(b: Building, cur: Node) -> Node:
    """MLA: one row of the cache a token, keys and values in one."""
    layer, n = b.layer, b.n
    head = b.facts.number("attention.key_length_mla")
    rank = b.facts.number("attention.kv_lora_rank")
    rope = layer.head_k - rank
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
