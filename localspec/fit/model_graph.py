"""Compute graph of a whole model for one batch, as llama.cpp builds it (src/models/*.cpp).

The tensors of a layer decide its parts, so unknown architectures are nearly right.  Of equal layers
two are built: their memory repeats.
"""

from __future__ import annotations

from localspec.fit.compute_graph import (
    ComputeGraph,
    GraphBuilder,
    GraphNode,
    flat,
    op,
    outside,
    over,
    view,
)
from localspec.fit.context_params import ContextParams
from localspec.fit.graph_layers import attention, dense, experts, feed_forward, mixer
from localspec.fit.hparams import ModelHparams, word_set
from localspec.fit.layer_placement import LayerPlacement

_LATE = word_set(
    "gemma4 gpt-oss qwen35 qwen35moe qwen3next nemotron_h nemotron_h_moe bailingmoe3 cohere2moe "
    "hy_v3 step35"
)
"""They leave out rows that nobody asked for only before the output."""
_NORM_FIRST = ("qwen35", "qwen35moe", "qwen3next")
_ALIKE = 2


def build_model_graph(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> ComputeGraph:
    """One pass over a batch as large as may be."""
    b = GraphBuilder(hparams, params, placement)
    cur = _embedding(b)
    per_layer = _per_layer(b, cur)
    chosen = representative_layers(hparams, placement, params.hidden_state_layers)
    late = (
        hparams.arch in _LATE
        or params.keeps_last_hidden_state
        or hparams.n_layer in params.hidden_state_layers
    )
    for il in chosen:
        b.il = il
        cur.pinned |= il in params.hidden_state_layers
        cur = build_layer(b, cur, last=il == chosen[-1] and not late)
        if per_layer is not None:
            cur = _with_own_input(b, cur, per_layer)
        scale = b.weight("layer_output_scale.weight")
        if scale is not None:
            cur = over(cur, scale)
    _build_output(b, cur, late)
    return b.graph


def representative_layers(
    hparams: ModelHparams,
    placement: LayerPlacement,
    hidden_state_layers: frozenset[int] = frozenset(),
) -> list[int]:
    """Layers that stand for all: every kind, every kind behind every other; all where some are
    tapped."""
    seen: dict[tuple[object, object], int] = {}
    found: list[int] = []
    before: object = None
    last = hparams.n_layer - 1
    told = hparams.number("embedding_length_per_layer_input") or hparams.number(
        "attention.shared_kv_layers"
    )
    copied = placement.cpu_backend > 1 or (
        placement.cpu_backend == 1 and not placement.fully_offloaded
    )
    if hidden_state_layers or (told and copied):
        return list(range(hparams.n_layer))  # each is unlike the others
    for il in range(hparams.n_layer):
        kind = _kind(hparams, placement, il)
        times = seen.get((before, kind), 0)
        if times < _ALIKE or il == last:
            found.append(il)
        seen[before, kind] = times + 1
        before = kind
    return found


def _kind(hparams: ModelHparams, placement: LayerPlacement, il: int) -> object:
    tensors = hparams.layer_tensors.get(il, {})
    if placement.cpu_backend == 0 or (placement.fully_offloaded and not placement.experts_on_cpu):
        wide = tensors.get("ffn_up.weight")
        size = wide.shape[1] if wide else 0
    else:
        size = hparams.layer_bytes[il]  # they may have to be copied
    return hparams.layers[il], len(tensors), size, placement.layer_backends[il]


def _embedding(b: GraphBuilder) -> GraphNode:
    d = b.hparams.n_embd
    table = outside(0, b.placement.cpu_backend, weight=True)
    cur = b.expand(op((d, b.n), table, b.given("tokens", (b.n,)), kind="rows"))
    b.expand(b.given("embd", (d, b.n)))  # what could be read instead
    return cur


def build_layer(b: GraphBuilder, start: GraphNode, *, last: bool) -> GraphNode:
    normed = b.norm("attn_norm", start)
    if b.hparams.arch in _NORM_FIRST:
        b.expand(normed)
    if b.layer.is_recurrent:
        cur = mixer(b, normed)
    elif "attn_output.weight" in b.table:
        cur = attention(b, normed)
    else:
        cur = feed_forward(b, normed)  # a layer of its own (nemotron_h)
    if last:
        cur, start = b.rows_out(cur), b.rows_out(start)
    if not {"ffn_down.weight", "ffn_down_exps.weight"} & b.table.keys():
        return over(cur, start)
    if (
        b.hparams.has_recurrent_state
        and "attn_output.weight" not in b.table
        and not b.layer.is_recurrent
    ):
        return over(cur, start)
    if "ffn_norm.weight" in b.table:
        cur = b.norm("post_attention_norm", cur)
        between = over(cur, start) if not b.hparams.arch.startswith("lfm2") else over(start, cur)
        normed = b.norm("ffn_norm", between)
    else:
        between = over(cur, start)
        normed = b.norm("post_attention_norm", between)
    cur = _both(b, normed, between) if _is_both(b) else feed_forward(b, normed)
    cur = b.norm("post_ffw_norm", cur)
    return (
        over(between, cur) if b.hparams.arch in ("phi3", "lfm2", "lfm2moe") else over(cur, between)
    )


def _is_both(b: GraphBuilder) -> bool:
    return "pre_ffw_norm_2.weight" in b.table


def _both(b: GraphBuilder, normed: GraphNode, between: GraphNode) -> GraphNode:
    """Gemma 4: a dense part and experts, side by side."""
    first = b.norm("post_ffw_norm_1", dense(b, normed))
    second = b.norm("pre_ffw_norm_2", between)
    scale = b.weight("ffn_gate_inp.scale")
    scores = b.times("ffn_gate_inp", over(over(between), *([scale] if scale else [])))
    b_experts = experts(b, second, scores)
    return over(first, b.norm("post_ffw_norm_2", b_experts))


def _per_layer(b: GraphBuilder, cur: GraphNode) -> GraphNode | None:
    """What each layer of a small Gemma is told besides."""
    wide = b.hparams.number("embedding_length_per_layer_input")
    if not wide or "per_layer_token_embd.weight" not in b.hparams.global_tensors:
        return None
    n, layers = b.n, b.hparams.n_layer
    table = outside(0, b.placement.cpu_backend, weight=True)
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


def _with_own_input(b: GraphBuilder, cur: GraphNode, per_layer: GraphNode) -> GraphNode:
    found = over(b.times("inp_gate", cur))
    found = over(found, view(per_layer, (found.shape[0], b.n)))
    found = b.norm("post_norm", b.times("proj", found))
    return over(cur, found)


def _build_output(b: GraphBuilder, cur: GraphNode, late: bool) -> None:
    """What is handed out keeps its memory to the end."""
    home = b.placement.output_backend
    norm = b.end("output_norm.weight", home) or b.end("token_embd_norm.weight", home)
    rows_first = late and b.hparams.arch in ("gpt-oss", "mimo2")
    rows_first = rows_first or b.hparams.n_layer in b.params.hidden_state_layers
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


# Heads.


def build_head_graph(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> ComputeGraph:
    """Logits of every row are computed, wanted or not."""
    b = GraphBuilder(hparams, params, placement)
    cur = {"eagle3": _eagle3, "mtp": _mtp}.get(params.head_kind, _block)(b)
    _build_head_output(b, cur)
    return b.graph


def _token(b: GraphBuilder) -> GraphNode:
    """The embedding of its token; the table may be the target's."""
    table = outside(0, b.placement.cpu_backend, weight=True)
    return op((b.hparams.n_embd, b.n), table, b.given("tokens", (b.n,)), kind="rows")


def _state(b: GraphBuilder) -> GraphNode:
    return b.given("embd", (b.hparams.n_embd, b.n))


def _eagle3(b: GraphBuilder) -> GraphNode:
    """One layer, which sees token and state side by side."""
    d = b.hparams.n_embd
    start = _state(b)
    state, token = b.norm("attn_norm_2", start), b.norm("attn_norm", _token(b))
    if b.hparams.header.keys.get("eagle3.norm_before_residual") is True:
        start = state
    between = over(attention(b, op((2 * d, b.n), token, state)), start)
    cur = over(dense(b, b.norm("ffn_norm", between)), between)
    cur.pinned = True
    return cur


def _mtp(b: GraphBuilder) -> GraphNode:
    """The target's own layer behind its last; it begins with a matrix for token and state."""
    b.il = b.hparams.n_layer
    both = b.norm("nextn.enorm", _token(b)), b.norm("nextn.hnorm", _state(b))
    start = b.times("nextn.eh_proj", op((2 * b.hparams.n_embd, b.n), *both))
    cur = b.rows_out(build_layer(b, start, last=False))
    cur.pinned = True
    return cur


def _block(b: GraphBuilder) -> GraphNode:
    """Tokens alone, through layers as a model's."""
    cur = _token(b)
    for il in representative_layers(b.hparams, b.placement):
        b.il = il
        cur = build_layer(b, cur, last=False)
    return cur


def _build_head_output(b: GraphBuilder, cur: GraphNode) -> None:
    """By its own matrix or the target's; a reduced vocabulary is spread over the whole."""
    home = b.placement.output_backend
    own = b.weight("nextn.shared_head_norm.weight") if b.params.head_kind == "mtp" else None
    norm = own or b.end("output_norm.weight", home)
    if norm is not None:
        cur = over(over(cur), norm)
    cur.pinned = True
    cur = b.product(_head_output_matrix(b, home), cur)
    if "d2t" in b.hparams.global_tensors:
        b.expand(cur)
        whole = b.given("none", (1, b.params.n_vocab, b.n))
        whole.kind = "filled"  # no input: it lies where it is used
        cur = over(over(whole), cur)
    cur.pinned = True
    b.expand(cur)


def _head_output_matrix(b: GraphBuilder, home: int) -> GraphNode:
    own = b.weight("nextn.shared_head_head.weight") if b.params.head_kind == "mtp" else None
    if own is None:
        own = b.end("output.weight", home)
    if own is None and b.params.head_kind != "eagle3":
        own = b.end("token_embd.weight", home)
    if own is None:
        name, size = b.params.target_output_matrix
        names = b.placement.backend_names
        own = outside(size, names.index(name) if name in names else home, weight=True)
        own.shape = (b.hparams.n_embd, b.params.n_vocab)
    return own
