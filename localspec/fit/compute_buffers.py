"""Bytes of the compute buffers on each device: what one pass over a full batch needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from localspec.fit import model_graph
from localspec.fit.compute_graph import ComputeGraph, GraphNode
from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import ModelHparams
from localspec.fit.layer_placement import LayerPlacement


@lru_cache(maxsize=1024)
def estimate(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> tuple[int, ...]:
    """Bytes by backend; with several GPUs the maximum over both placements of the norms."""
    sizes = _reserve(hparams, params, placement)
    if placement.cpu_backend > 1 and placement.fully_offloaded:
        unpinned = _reserve(hparams, params, replace(placement, norms_pinned=False))
        sizes = [max(pair) for pair in zip(sizes, unpinned, strict=True)]
    return tuple(sizes)


def is_flash_attn_on_layer_device(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> bool:
    """Whether flash attention runs on its layer's device, as llama.cpp tests with one token."""
    if placement.cpu_backend == 0 or (placement.cpu_backend == 1 and placement.fully_offloaded):
        return True
    one_token = replace(params, n_ctx=256, n_ctx_swa=256, n_ubatch=1, n_outputs_max=1)
    return _is_one_token_on_layer_device(hparams, one_token, placement)


@lru_cache(maxsize=1024)
def _is_one_token_on_layer_device(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> bool:
    graph = _build_graph(hparams, params, placement)
    assign_backends(graph, placement.cpu_backend)
    return all(node.backend == node.home for node in graph.nodes if node.kind == "flash")


def _build_graph(
    hparams: ModelHparams, params: ContextParams, placement: LayerPlacement
) -> ComputeGraph:
    build = model_graph.build_head_graph if params.head_kind else model_graph.build_model_graph
    return build(hparams, params, placement)


def _reserve(hparams: ModelHparams, params: ContextParams, placement: LayerPlacement) -> list[int]:
    graph = _build_graph(hparams, params, placement)
    alignments = [rules.alignment for rules in placement.backend_rules]
    if placement.cpu_backend == 0:
        return reserve_buffers(graph.leafs, graph.nodes, alignments)
    plan = split_graph(graph, placement)
    return reserve_buffers(plan.leafs, plan.nodes, alignments)


# ggml's scheduler (ggml-backend.cpp): the backend of each operation, and copies between backends.

_OFFLOAD_MIN_BATCH = 32
"""From this batch size on, a GPU computes with weights in system memory."""


@dataclass
class ScheduledGraph:
    """A graph with copies between backends, ready for allocation."""

    leafs: list[GraphNode] = field(default_factory=list)
    nodes: list[GraphNode] = field(default_factory=list)


def split_graph(graph: ComputeGraph, placement: LayerPlacement) -> ScheduledGraph:
    """Assigns a backend to every node and inserts copies."""
    cpu = placement.cpu_backend
    assign_backends(graph, cpu)
    plan = ScheduledGraph()
    copies: list[GraphNode] = []
    for piece in _split_by_backend(graph, cpu):
        plan.nodes += piece.entry
        copies += piece.copies
        plan.nodes += piece.nodes
    for node in plan.nodes:
        _add_padding(node, placement)
    for leaf in graph.leafs:
        _add_leaf(plan, leaf, 1 if leaf.kind == "filled" else placement.n_copies)
    if placement.n_copies > 1:
        for copy in copies:
            _add_leaf(plan, copy, placement.n_copies)
    return plan


def _add_padding(node: GraphNode, placement: LayerPlacement) -> None:
    """A GPU that converts a quantised cache to f16 keeps the copy behind the result."""
    rules = placement.backend_rules[node.backend or 0]
    if node.extra and rules.f16_copies:
        node.size = -(-node.size // rules.alignment) * rules.alignment + node.extra
        node.extra = 0


def _add_leaf(plan: ScheduledGraph, leaf: GraphNode, copies: int) -> None:
    plan.leafs.append(leaf)
    if copies > 1:
        leaf.pinned = True
        for _ in range(copies - 1):
            other = GraphNode(leaf.shape, leaf.size, [])
            other.backend, other.pinned = leaf.backend, True
            plan.leafs.append(other)


def assign_backends(graph: ComputeGraph, cpu: int) -> None:
    """Passes 1 to 4 of ggml_backend_sched_split_graph."""
    for leaf in graph.leafs:
        if leaf.kind != "filled":
            leaf.backend = cpu
    nodes = [node for node in graph.nodes if _computes(node)]
    for node in nodes:
        if node.backend is None:
            node.backend = _backend_by_memory(node, cpu)
    _spread_backends(nodes, cpu)
    _spread_backends(reversed(nodes), cpu)
    _spread_backends(nodes, -1)
    _spread_backends(reversed(nodes), -1)
    for node in graph.nodes:
        if node.root is not None and node.backend is None:
            node.backend = node.root.backend
        for src in node.srcs:
            if src.backend is None:
                src.backend = src.root.backend if src.root is not None else node.backend


def _computes(node: GraphNode) -> bool:
    return node.root is None or node.kind == "store"


def _backend_by_memory(node: GraphNode, cpu: int) -> int | None:
    """Where its result or its weights lie."""
    if node.root is not None:
        return node.root.backend
    if node.kind in ("rope", "flash"):
        return None
    for src in node.srcs:
        if src.weight:
            if src.backend == cpu and not src.repacked and node.rows >= _OFFLOAD_MIN_BATCH:
                return 0
            return src.backend
    return None


def _spread_backends(nodes: Iterable[GraphNode], stop: int) -> None:
    """Nodes without a backend take that of the node before them, except backend `stop`."""
    current: int | None = None
    for node in nodes:
        if node.backend is not None:
            current = None if node.backend == stop else node.backend
        elif current is not None:
            node.backend = current


@dataclass
class _SchedSplit:
    """Nodes that run on one backend without a break."""

    backend: int
    entry: list[GraphNode] = field(default_factory=list)
    copies: list[GraphNode] = field(default_factory=list)
    nodes: list[GraphNode] = field(default_factory=list)


def _split_by_backend(graph: ComputeGraph, cpu: int) -> list[_SchedSplit]:
    first = next((n.backend for n in graph.nodes if _computes(n)), cpu)
    found = [_SchedSplit(first or 0)]
    for node in graph.nodes:
        piece = found[-1]
        if not _computes(node):
            piece.nodes.append(node)
            continue
        if node.backend != piece.backend or (piece.copies and _foreign_weight(node, piece.backend)):
            piece = _SchedSplit(node.backend or 0)
            found.append(piece)
        for i, src in enumerate(node.srcs):
            node.srcs[i] = _on_backend(src, piece)
        piece.nodes.append(node)
    return found


def _foreign_weight(node: GraphNode, backend: int) -> bool:
    return any(src.weight and src.backend != backend for src in node.srcs)


def _on_backend(src: GraphNode, piece: _SchedSplit) -> GraphNode:
    """The source itself, or a copy of it on the piece's backend."""
    backend = piece.backend
    if src.backend == backend or (src.outside and not src.size):
        return src
    copy = src.copies.get(backend)
    if copy is None:
        copy = src.copies[backend] = GraphNode(src.shape, src.size, [])
        copy.backend = backend
        keep = GraphNode((), 0, [src])
        keep.kind, keep.root, keep.backend = "keep", src.root or src, src.backend
        piece.entry += (keep, copy)
        piece.copies.append(copy)
    return copy


# ggml's graph allocator (ggml-alloc.c): the size of a buffer shared by short-lived tensors.

_ENDLESS = 1 << 62


class BufferAllocator:
    """One buffer: free blocks by address, and the most that was ever used."""

    def __init__(self, alignment: int) -> None:
        self.alignment = alignment
        self.free = [[0, _ENDLESS]]
        self.most = 0

    def padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def take(self, size: int) -> int:
        """The address of `size` padded bytes."""
        free = self.free
        best, least = len(free) - 1, _ENDLESS
        for i in range(len(free) - 1):
            if size <= free[i][1] <= least:
                best, least = i, free[i][1]
        block = free[best]
        address = block[0]
        block[0] += size
        block[1] -= size
        if not block[1]:
            del free[best]
        self.most = max(self.most, address + size)
        return address

    def give(self, address: int, size: int) -> None:
        """The opposite of `take`."""
        free = self.free
        for i, block in enumerate(free):
            if block[0] + block[1] == address:
                block[1] += size
                if i + 1 < len(free) and block[0] + block[1] == free[i + 1][0]:
                    block[1] += free.pop(i + 1)[1]
                return
            if address + size == block[0]:
                block[0] = address
                block[1] += size
                return  # a block that ended here was found before
            if block[0] > address:
                free.insert(i, [address, size])
                return


def reserve_buffers(
    leafs: Sequence[GraphNode], nodes: Sequence[GraphNode], alignments: Sequence[int]
) -> list[int]:
    """Bytes of each backend's buffer for one pass.  Every node has its backend."""
    work = _GraphAllocator([BufferAllocator(alignment) for alignment in alignments])
    for leaf in leafs:
        work.place(leaf)
    for node in nodes:
        if node.root is not None and node.kind != "keep":
            node.root.views += 1
        for src in node.srcs:
            src.children += 1
    for node in nodes:
        for src in node.srcs:
            work.place(src)
        work.place(node)
        for src in node.srcs:
            src.children -= 1
            if not src.children and not src.views:
                work.drop(src)
    return [arena.most for arena in work.arenas]


class _GraphAllocator:
    def __init__(self, arenas: list[BufferAllocator]) -> None:
        self.arenas = arenas

    def place(self, node: GraphNode) -> None:
        if node.live or node.outside or node.root is not None:
            return
        node.live = True
        if node.inplace and self._overwrites(node):
            return
        arena = self.arenas[node.backend or 0]
        size = arena.padded(node.size)
        node.addr = (arena.take(size), node.backend or 0)

    def _overwrites(self, node: GraphNode) -> bool:
        """Reuses the memory of a parent that no other node needs; ggml never reuses a view."""
        for src in node.srcs:
            if src.children != 1 or src.views or not src.live or src.pinned:
                continue
            if src.layout != node.layout:
                continue
            src.live = False
            node.addr = src.addr
            arena = self.arenas[node.addr[1]]
            had, needs = arena.padded(src.size), arena.padded(node.size)
            if had > needs:
                arena.give(node.addr[0] + needs, had - needs)
            return True
        return False

    def drop(self, node: GraphNode) -> None:
        """Frees a node that has no readers left, or the tensor it is a view of."""
        owner = node
        if node.root is not None:
            owner = node.root
            owner.views -= 1
            if owner.views or owner.children:
                return
        if owner.live and not owner.pinned and not owner.outside:
            arena = self.arenas[owner.addr[1]]
            arena.give(owner.addr[0], arena.padded(owner.size))
            owner.live = False
