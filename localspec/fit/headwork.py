"""A head's graph for one pass over its rows, as llama.cpp builds it (src/models/*.cpp)."""

from __future__ import annotations

from localspec.fit import network
from localspec.fit.attention import attention
from localspec.fit.building import Building
from localspec.fit.facts import Facts
from localspec.fit.feedforward import dense
from localspec.fit.graph import Graph, Node, op, outside, over
from localspec.fit.opening import Opening
from localspec.fit.placement import Placement


def build(facts: Facts, opening: Opening, placement: Placement) -> Graph:
    """Logits of every row are computed, wanted or not."""
    b = Building(facts, opening, placement)
    cur = {"eagle3": _eagle3, "mtp": _mtp}.get(opening.head, _block)(b)
    _output(b, cur)
    return b.graph


def _token(b: Building) -> Node:
    """The embedding of its token; the table may be the target's."""
    table = outside(0, b.placement.cpu, weight=True)
    return op((b.facts.n_embd, b.n), table, b.given("tokens", (b.n,)), kind="rows")


def _state(b: Building) -> Node:
    return b.given("embd", (b.facts.n_embd, b.n))


def _eagle3(b: Building) -> Node:
    """One layer, which sees token and state side by side."""
    d = b.facts.n_embd
    start = _state(b)
    state, token = b.norm("attn_norm_2", start), b.norm("attn_norm", _token(b))
    if b.facts.header.keys.get("eagle3.norm_before_residual") is True:
        start = state
    between = over(attention(b, op((2 * d, b.n), token, state)), start)
    cur = over(dense(b, b.norm("ffn_norm", between)), between)
    cur.pinned = True
    return cur


def _mtp(b: Building) -> Node:
    """The target's own layer behind its last; it begins with a matrix for token and state."""
    b.il = b.facts.n_layer
    both = b.norm("nextn.enorm", _token(b)), b.norm("nextn.hnorm", _state(b))
    start = b.times("nextn.eh_proj", op((2 * b.facts.n_embd, b.n), *both))
    cur = b.rows_out(network.layer(b, start, last=False))
    cur.pinned = True
    return cur


def _block(b: Building) -> Node:
    """Tokens alone, through layers as a model's."""
    cur = _token(b)
    for il in network.sample(b.facts, b.placement):
        b.il = il
        cur = network.layer(b, cur, last=False)
    return cur


def _output(b: Building, cur: Node) -> None:
    """By its own matrix or the target's; a reduced vocabulary is spread over the whole."""
    home = b.placement.output
    own = b.weight("nextn.shared_head_norm.weight") if b.opening.head == "mtp" else None
    norm = own or b.end("output_norm.weight", home)
    if norm is not None:
        cur = over(over(cur), norm)
    cur.pinned = True
    cur = b.product(_matrix(b, home), cur)
    if "d2t" in b.facts.others:
        b.expand(cur)
        whole = b.given("none", (1, b.opening.n_vocab, b.n))
        whole.kind = "filled"  # no input: it lies where it is used
        cur = over(over(whole), cur)
    cur.pinned = True
    b.expand(cur)


def _matrix(b: Building, home: int) -> Node:
    own = b.weight("nextn.shared_head_head.weight") if b.opening.head == "mtp" else None
    if own is None:
        own = b.end("output.weight", home)
    if own is None and b.opening.head != "eagle3":
        own = b.end("token_embd.weight", home)
    if own is None:
        name, size = b.opening.matrix
        names = b.placement.names
        own = outside(size, names.index(name) if name in names else home, weight=True)
        own.shape = (b.facts.n_embd, b.opening.n_vocab)
    return own
