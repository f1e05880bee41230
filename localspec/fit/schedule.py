"""ggml's scheduler: which operation runs on which device, and what is copied between them.

After ggml/src/ggml-backend.cpp, ggml_backend_sched_split_graph.  The last backend is the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from localspec.fit.graph import Graph, Node
from localspec.fit.placement import Placement

_WIDE = 32
"""Rows from which on a card asks for weights that lie in the computer's memory."""


@dataclass
class Plan:
    """A graph with its copies, ready to be given memory."""

    leafs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def split(graph: Graph, placement: Placement) -> Plan:
    """Give every node its backend; put in what is copied."""
    cpu = placement.cpu
    assign(graph, cpu)
    plan = Plan()
    copies: list[Node] = []
    for piece in _pieces(graph, cpu):
        plan.nodes += piece.entry
        copies += piece.copies
        plan.nodes += piece.nodes
    for node in plan.nodes:
        _add_padding(node, placement)
    for leaf in graph.leafs:
        _leaf(plan, leaf, 1 if leaf.kind == "filled" else placement.copies)
    if placement.copies > 1:
        for copy in copies:
            _leaf(plan, copy, placement.copies)
    return plan


def _add_padding(node: Node, placement: Placement) -> None:
    """A card that unpacks a quantised cache keeps the copy behind the result."""
    rules = placement.rules[node.backend or 0]
    if node.extra and rules.f16_copies:
        node.size = -(-node.size // rules.alignment) * rules.alignment + node.extra
        node.extra = 0


def _leaf(plan: Plan, leaf: Node, copies: int) -> None:
    plan.leafs.append(leaf)
    if copies > 1:
        leaf.pinned = True
        for _ in range(copies - 1):
            other = Node(leaf.shape, leaf.size, [])
            other.backend, other.pinned = leaf.backend, True
            plan.leafs.append(other)


# --- which backend ----------------------------------------------------------------------


def assign(graph: Graph, cpu: int) -> None:
    """Passes 1 to 4 of ggml's."""
    for leaf in graph.leafs:
        if leaf.kind != "filled":
            leaf.backend = cpu
    nodes = [node for node in graph.nodes if _computes(node)]
    for node in nodes:
        if node.backend is None:
            node.backend = _by_memory(node, cpu)
    _spread(nodes, cpu)
    _spread(reversed(nodes), cpu)
    _spread(nodes, -1)
    _spread(reversed(nodes), -1)
    for node in graph.nodes:
        if node.root is not None and node.backend is None:
            node.backend = node.root.backend
        for src in node.srcs:
            if src.backend is None:
                src.backend = src.root.backend if src.root is not None else node.backend


def _computes(node: Node) -> bool:
    return node.root is None or node.kind == "store"


def _by_memory(node: Node, cpu: int) -> int | None:
    """Where its result or its weights lie."""
    if node.root is not None:
        return node.root.backend
    if node.kind in ("rope", "flash"):
        return None
    for src in node.srcs:
        if src.weight:
            if src.backend == cpu and not src.repacked and node.rows >= _WIDE:
                return 0
            return src.backend
    return None


def _spread(nodes: Iterable[Node], stop: int) -> None:
    """Neighbours without a backend follow the one before; nobody follows backend `stop`."""
    current: int | None = None
    for node in nodes:
        if node.backend is not None:
            current = None if node.backend == stop else node.backend
        elif current is not None:
            node.backend = current


# --- what is copied ---------------------------------------------------------------------


@dataclass
class _Piece:
    """Nodes that run on one backend without a break."""

    backend: int
    entry: list[Node] = field(default_factory=list)
    copies: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)


def _pieces(graph: Graph, cpu: int) -> list[_Piece]:
    first = next((n.backend for n in graph.nodes if _computes(n)), cpu)
    found = [_Piece(first or 0)]
    for node in graph.nodes:
        piece = found[-1]
        if not _computes(node):
            piece.nodes.append(node)
            continue
        if node.backend != piece.backend or (piece.copies and _foreign_weight(node, piece.backend)):
            piece = _Piece(node.backend or 0)
            found.append(piece)
        for i, src in enumerate(node.srcs):
            node.srcs[i] = _here(src, piece)
        piece.nodes.append(node)
    return found


def _foreign_weight(node: Node, backend: int) -> bool:
    return any(src.weight and src.backend != backend for src in node.srcs)


def _here(src: Node, piece: _Piece) -> Node:
    """The source itself, or a copy of it on the piece's backend."""
    backend = piece.backend
    if src.backend == backend or (src.outside and not src.size):
        return src
    copy = src.copies.get(backend)
    if copy is None:
        copy = src.copies[backend] = Node(src.shape, src.size, [])
        copy.backend = backend
        keep = Node((), 0, [src])
        keep.kind, keep.root, keep.backend = "keep", src.root or src, src.backend
        piece.entry += (keep, copy)
        piece.copies.append(copy)
    return copy
