"""A whole model's graph for one pass over a batch, as llama.cpp builds it (src/models/*.cpp).

Which parts a layer has is read off its tensors, so that an architecture nobody wrote down comes
out nearly right.  Layers that are alike are built twice, not forty times: memory repeats.
"""

from __future__ import annotations

from localspec.fit.attention import attention
from localspec.fit.building import Building, flat
from localspec.fit.facts import Facts, names
from localspec.fit.feedforward import dense, experts, feed_forward
from localspec.fit.graph import Graph, Node, op, outside, over, view
from localspec.fit.opening import Opening
from localspec.fit.placement import Placement
from localspec.fit.recurrent import mixer

_LATE = names(
    "gemma4 gpt-oss qwen35 qwen35moe qwen3next nemotron_h nemotron_h_moe bailingmoe3 cohere2moe "
    "hy_v3 step35"
)
"""They leave out rows that nobody asked for only before the output."""
_NORM_FIRST = ("qwen35", "qwen35moe", "qwen3next")
_ALIKE = 2


def build(facts: Facts, opening: Opening, placement: Placement) -> Graph:
    """One pass over a batch as large as may be."""
    b = Building(facts, opening, placement)
    cur = _embedding(b)
    per_layer = _per_layer(b, cur)
    chosen = sample(facts, placement, opening.taps)
    late = facts.arch in _LATE or opening.predicting or facts.n_layer in opening.taps
    for il in chosen:
        b.il = il
        cur.pinned |= il in opening.taps
        cur = layer(b, cur, last=il == chosen[-1] and not late)
        if per_layer is not None:
            cur = _with_own_input(b, cur, per_layer)
        scale = b.weight("layer_output_scale.weight")
        if scale is not None:
            cur = over(cur, scale)
    _output(b, cur, late)
    return b.graph


def sample(facts: Facts, placement: Placement, taps: frozenset[int] = frozenset()) -> list[int]:
    """Layers that stand for all: every kind, every kind behind every other; all where some are
    tapped."""
    seen: dict[tuple[object, object], int] = {}
    found: list[int] = []
    before: object = None
    last = facts.n_layer - 1
    told = facts.number("embedding_length_per_layer_input") or facts.number(
        "attention.shared_kv_layers"
    )
    copied = placement.cpu > 1 or (placement.cpu == 1 and not placement.full)
    if taps or (told and copied):
        return list(range(facts.n_layer))  # each is unlike the others
    for il in range(facts.n_layer):
        kind = _kind(facts, placement, il)
        times = seen.get((before, kind), 0)
        if times < _ALIKE or il == last:
            found.append(il)
        seen[before, kind] = times + 1
        before = kind
    return found


def _kind(facts: Facts, placement: Placement, il: int) -> object:
    tensors = facts.by_layer.get(il, {})
    if placement.cpu == 0 or (placement.full and not placement.experts_on_cpu):
        wide = tensors.get("ffn_up.weight")
        size = wide.shape[1] if wide else 0
    else:
        size = facts.sizes[il]  # they may have to be copied
    return facts.layers[il], len(tensors), size, placement.layers[il]


def _embedding(b: Building) -> Node:
    d = b.facts.n_embd
    table = outside(0, b.placement.cpu, weight=True)
    cur = b.expand(op((d, b.n), table, b.given("tokens", (b.n,)), kind="rows"))
    b.expand(b.given("embd", (d, b.n)))  # what could be read instead
    return cur


def layer(b: Building, start: Node, *, last: bool) -> Node:
    normed = b.norm("attn_norm", start)
    if b.facts.arch in _NORM_FIRST:
        b.expand(normed)
    if b.layer.recurrent:
        cur = mixer(b, normed)
    elif "attn_output.weight" in b.table:
        cur = attention(b, normed)
    else:
        cur = feed_forward(b, normed)  # a layer of its own (nemotron_h)
    if last:
        cur, start = b.rows_out(cur), b.rows_out(start)
    if not {"ffn_down.weight", "ffn_down_exps.weight"} & b.table.keys():
        return over(cur, start)
    if b.facts.keeps_state and "attn_output.weight" not in b.table and not b.layer.recurrent:
        return over(cur, start)
    if "ffn_norm.weight" in b.table:
        cur = b.norm("post_attention_norm", cur)
        between = over(cur, start) if not b.facts.arch.startswith("lfm2") else over(start, cur)
        normed = b.norm("ffn_norm", between)
    else:
        between = over(cur, start)
        normed = b.norm("post_attention_norm", between)
    cur = _both(b, normed, between) if _is_both(b) else feed_forward(b, normed)
    cur = b.norm("post_ffw_norm", cur)
    return over(between, cur) if b.facts.arch in ("phi3", "lfm2", "lfm2moe") else over(cur, between)


def _is_both(b: Building) -> bool:
    return "pre_ffw_norm_2.weight" in b.table


def _both(b: Building, normed: Node, between: Node) -> Node:
    """Gemma 4: a dense part and experts, side by side."""
    first = b.norm("post_ffw_norm_1", dense(b, normed))
    second = b.norm("pre_ffw_norm_2", between)
    scale = b.weight("ffn_gate_inp.scale")
    scores = b.times("ffn_gate_inp", over(over(between), *([scale] if scale else [])))
    b_experts = experts(b, second, scores)
    return over(first, b.norm("post_ffw_norm_2", b_experts))


def _per_layer(b: Building, cur: Node) -> Node | None:
    """What each layer of a small Gemma is told besides."""
    wide = b.facts.number("embedding_length_per_layer_input")
    if not wide or "per_layer_token_embd.weight" not in b.facts.others:
        return None
    n, layers = b.n, b.facts.n_layer
    table = outside(0, b.placement.cpu, weight=True)
    rows = op((wide * layers, n), table, b.given("tokens2", (n,)), kind="rows")
    told = over(flat(rows, wide, layers, n))
    b.expand(told)
    b.il = 0
    matrix = b.end("per_layer_model_proj.weight", b.home)
    norm = b.end("per_layer_proj_norm.weight", b.home)
    if matrix is None or norm is None:
        return None
    own = over(b.product(matrix, cur))
    own = over(over(flat(own, wide, layers, n)), norm)
    return op((wide, n, layers), view(over(own, told), (1,)))


def _with_own_input(b: Building, cur: Node, per_layer: Node) -> Node:
    found = over(b.times("inp_gate", cur))
    found = over(found, view(per_layer, (found.shape[0], b.n)))
    found = b.norm("post_norm", b.times("proj", found))
    return over(cur, found)


def _output(b: Building, cur: Node, late: bool) -> None:
    """What is handed out keeps its memory to the end."""
    home = b.placement.output
    norm = b.end("output_norm.weight", home) or b.end("token_embd_norm.weight", home)
    rows_first = late and b.facts.arch in ("gpt-oss", "mimo2")
    rows_first = rows_first or b.facts.n_layer in b.opening.taps
    if rows_first:
        cur.pinned = True
        cur = b.rows_out(cur)
    if norm is not None:
        cur = over(over(cur), norm)
    cur.pinned = True
    if late and not rows_first:
        cur = b.rows_out(cur)
        cur.pinned = True
    matrix = b.end("output.weight", home) or b.end("token_embd.weight", home)
    if matrix is not None:
        cur = b.product(matrix, cur)
    b.expand(cur)
