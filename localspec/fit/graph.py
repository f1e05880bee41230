"""A model's compute graph as ggml would build it: what each tensor weighs and who reads it.

Only what decides on memory is kept.  Nodes stand in the order in which ggml computes them.
"""

from __future__ import annotations

from math import prod


class Node:
    """A tensor.  `root` is what a view looks into; `inplace` says it may take a parent's place.

    `backend` None: it goes where its neighbours go.  `outside`: a weight or a cache, which has
    memory of its own.
    """

    kind = ""
    root: Node | None = None
    inplace = outside = weight = seen = live = False
    pinned = False
    """Never overwritten or freed: an input that has copies."""
    backend: int | None = None
    repacked = False
    """A weight that only the CPU can read."""
    home = 0
    """The backend of its layer."""
    extra = 0
    """Bytes more where the backend copies a quantised cache."""
    children = views = 0
    addr = (0, 0)

    def __init__(self, shape: tuple[int, ...], size: int, srcs: list[Node]) -> None:
        self.shape = shape
        self.size = size
        self.srcs = srcs
        self.layout: object = shape
        self.copies: dict[int, Node] = {}

    @property
    def span(self) -> int:
        """Of a look that skips some numbers: bytes from the first to the last."""
        return self.size if self.root is not None else 0

    @property
    def rows(self) -> int:
        """How wide the operation is, for a card that would rather not be asked."""
        if self.kind == "rows":
            return 0
        if self.kind == "product":
            return self.shape[1] if len(self.shape) > 1 else 1
        if self.kind in ("experts", "rope"):
            return self.shape[2] if len(self.shape) > 2 else 1
        return prod(self.shape[1:])


class Graph:
    """Nodes in order of computation, and the inputs that are there from the beginning."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.leafs: list[Node] = []

    def expand(self, node: Node) -> Node:
        """Compute it here, and before it whatever it needs."""
        if not node.seen:
            node.seen = True
            for src in node.srcs:
                if not src.seen:
                    self.expand(src)
            if node.srcs or node.kind == "store":
                self.nodes.append(node)
            elif not node.outside:
                self.leafs.append(node)
        return node


def given(shape: tuple[int, ...], item: int = 4) -> Node:
    """An input."""
    return Node(shape, prod(shape) * item, [])


def outside(size: int, backend: int, *, weight: bool = False) -> Node:
    """A tensor that lies in memory of its own."""
    node = Node((), size, [])
    node.outside, node.backend, node.weight = True, backend, weight
    return node


def op(shape: tuple[int, ...], *srcs: Node, kind: str = "", item: int = 4) -> Node:
    """An operation that needs memory for its result."""
    node = Node(shape, prod(shape) * item, list(srcs))
    node.kind = kind
    return node


def over(first: Node, *srcs: Node, kind: str = "") -> Node:
    """An operation of the same layout as `first`, which may be overwritten."""
    node = Node(first.shape, prod(first.shape) * 4, [first, *srcs])
    node.inplace = True
    node.kind = kind
    return node


def view(of: Node, shape: tuple[int, ...], *, plain: bool = False, span: int = 0) -> Node:
    """A look into another tensor; `plain`: all of it, in order, by another shape.

    `span`: bytes from its first number to its last, where it skips some.
    """
    node = Node(shape, span or prod(shape) * 4, [of])
    node.root = of.root or of
    if not plain:
        node.layout = object()
    return node


def store(cache: Node, *srcs: Node) -> Node:
    """A write into memory of its own."""
    node = Node((), 0, list(srcs))
    node.root = cache
    node.layout = object()
    node.kind = "store"
    return node
