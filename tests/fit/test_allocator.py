"""The model of ggml's graph allocator, on graphs small enough to check by hand."""

from __future__ import annotations

from localspec.fit.compute_buffers import BufferAllocator, reserve_buffers
from localspec.fit.compute_graph import (
    ComputeGraph,
    GraphNode,
    input_node,
    op,
    outside,
    over,
    store_node,
    view,
)


def needed(graph: ComputeGraph) -> int:
    return reserve_buffers(graph.leafs, graph.nodes, [32])[0]


def built(last: GraphNode) -> ComputeGraph:
    graph = ComputeGraph()
    graph.expand(last)
    return graph


def test_the_tightest_gap_is_taken() -> None:
    arena = BufferAllocator(32)
    first, second, third, fourth = (arena.take(size) for size in (96, 32, 64, 32))
    arena.give(first, 96)
    arena.give(third, 64)
    assert arena.take(64) == third
    assert arena.take(64) == first
    assert second < fourth == arena.most - 32


def test_neighbours_grow_together() -> None:
    arena = BufferAllocator(32)
    blocks = [arena.take(32) for _ in range(4)]
    for at in (0, 2, 1):
        arena.give(blocks[at], 32)
    assert arena.free[0] == [0, 96]
    arena.give(blocks[3], 32)
    assert len(arena.free) == 1


def test_an_operation_takes_its_parents_place() -> None:
    """Only the last reader may, and never where a look into the parent is left."""
    start = input_node((64,))
    assert needed(built(over(over(start)))) == 256
    kept = input_node((64,))
    assert needed(built(over(over(kept), kept))) == 512
    looked = input_node((64,))
    assert needed(built(over(view(looked, (64,), plain=True)))) == 512


def test_memory_is_used_again() -> None:
    cur = input_node((64,))
    for _ in range(10):
        cur = op((64,), cur)
    assert needed(built(cur)) == 512


def test_what_lies_outside_costs_nothing() -> None:
    weight = outside(1 << 30, 0, weight=True)
    assert needed(built(op((8,), weight, input_node((8,))))) == 64
    graph = ComputeGraph()
    graph.expand(store_node(outside(0, 0), input_node((8,))))
    assert needed(graph) == 32


def test_an_input_that_nobody_reads_stays() -> None:
    graph = built(op((64,), input_node((8,))))
    graph.expand(input_node((64,)))
    assert needed(graph) == 32 + 256 + 256
