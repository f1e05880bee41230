"""Model of a ggml compute graph: the size, the sources and the backend of each tensor.

It holds only what decides on memory.  Nodes are in the order in which ggml computes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from localspec.fit.context_params import ContextParams
from localspec.fit.hparams import LayerHparams, ModelHparams
from localspec.fit.layer_placement import LayerPlacement
from localspec.fit.model_buffers import EXPERT_TENSORS, is_repacked, tensor_bytes
from localspec.models.gguf.tensors import TensorInfo


class GraphNode:
    """A tensor.  `root` is what a view looks into; `inplace` says it may take a parent's place.

    `backend` None: it goes where its neighbours go.  `outside`: a weight or a cache, which has
    memory of its own.
    """

    kind = ""
    root: GraphNode | None = None
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

    def __init__(self, shape: tuple[int, ...], size: int, srcs: list[GraphNode]) -> None:
        self.shape = shape
        self.size = size
        self.srcs = srcs
        self.layout: object = shape
        self.copies: dict[int, GraphNode] = {}

    @property
    def span(self) -> int:
        """Of a look that skips some numbers: bytes from the first to the last."""
        return self.size if self.root is not None else 0

    @property
    def rows(self) -> int:
        """Batch width; used by the offload rule."""
        if self.kind == "rows":
            return 0
        if self.kind == "product":
            return self.shape[1] if len(self.shape) > 1 else 1
        if self.kind in ("experts", "rope"):
            return self.shape[2] if len(self.shape) > 2 else 1
        return prod(self.shape[1:])


class ComputeGraph:
    """Nodes in order of computation, and the inputs that are there from the beginning."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.leafs: list[GraphNode] = []

    def expand(self, node: GraphNode) -> GraphNode:
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


def input_node(shape: tuple[int, ...], item: int = 4) -> GraphNode:
    """An input."""
    return GraphNode(shape, prod(shape) * item, [])


def outside(size: int, backend: int, *, weight: bool = False) -> GraphNode:
    """A tensor that lies in memory of its own."""
    node = GraphNode((), size, [])
    node.outside, node.backend, node.weight = True, backend, weight
    return node


def op(shape: tuple[int, ...], *srcs: GraphNode, kind: str = "", item: int = 4) -> GraphNode:
    """An operation that needs memory for its result."""
    node = GraphNode(shape, prod(shape) * item, list(srcs))
    node.kind = kind
    return node


def over(first: GraphNode, *srcs: GraphNode, kind: str = "") -> GraphNode:
    """An operation of the same layout as `first`, which may be overwritten."""
    node = GraphNode(first.shape, prod(first.shape) * 4, [first, *srcs])
    node.inplace = True
    node.kind = kind
    return node


def view(of: GraphNode, shape: tuple[int, ...], *, plain: bool = False, span: int = 0) -> GraphNode:
    """A look into another tensor; `plain`: all of it, in order, by another shape.

    `span`: bytes from its first number to its last, where it skips some.
    """
    node = GraphNode(shape, span or prod(shape) * 4, [of])
    node.root = of.root or of
    if not plain:
        node.layout = object()
    return node


def store_node(cache: GraphNode, *srcs: GraphNode) -> GraphNode:
    """A write into memory of its own."""
    node = GraphNode((), 0, list(srcs))
    node.root = cache
    node.layout = object()
    node.kind = "store"
    return node


# Building blocks of a model's graph: weights, inputs, common operations.

_MROPE = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "paddleocr", "hunyuan_vl")
_SMALL_BATCH = 32


@dataclass
class GraphBuilder:
    """One pass of `n` tokens over a model, under construction."""

    hparams: ModelHparams
    params: ContextParams
    placement: LayerPlacement
    graph: ComputeGraph = field(default_factory=ComputeGraph)
    il: int = 0
    """The layer that is being built."""
    inputs: dict[str, GraphNode] = field(default_factory=dict)
    ends: dict[tuple[str, int], GraphNode] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.params.n_ubatch

    @property
    def layer(self) -> LayerHparams:
        return self.hparams.layers[self.il]

    @property
    def home(self) -> int:
        """The layer's backend."""
        return self.placement.layer_backends[self.il]

    @property
    def table(self) -> dict[str, TensorInfo]:
        """The layer's tensors."""
        return self.hparams.layer_tensors.get(self.il, {})

    # --- inputs -------------------------------------------------------------------------

    def given(self, name: str, shape: tuple[int, ...], item: int = 4) -> GraphNode:
        found = self.inputs.get(name)
        if found is None:
            found = self.inputs[name] = input_node(shape, item)
        return found

    def positions(self) -> GraphNode:
        return self.given("pos", (self.n * (4 if self.hparams.arch in _MROPE else 1),))

    def rows_out(self, cur: GraphNode) -> GraphNode:
        """Only the rows whose logits are wanted."""
        ids = self.given("out_ids", (self.outputs,))
        return op((cur.shape[0], self.outputs), cur, ids, kind="rows")

    @property
    def outputs(self) -> int:
        return min(self.n, self.params.n_outputs_max)

    # --- weights ------------------------------------------------------------------------

    def weight(self, name: str) -> GraphNode | None:
        """A tensor of the layer; None where the model has none of that name."""
        tensor = self.table.get(name)
        if tensor is None:
            return None
        cpu = self.placement.experts_on_cpu and EXPERT_TENSORS.match(name)
        return self._weight(tensor, self.placement.cpu_backend if cpu else self.home)

    def end(self, name: str, backend: int) -> GraphNode | None:
        """A tensor of no layer, one on each backend."""
        tensor = self.hparams.global_tensors.get(name)
        if tensor is None:
            return None
        found = self.ends.get((name, backend))
        if found is None:
            found = self.ends[name, backend] = self._weight(tensor, backend)
        return found

    def _weight(self, tensor: TensorInfo, backend: int) -> GraphNode:
        node = outside(tensor_bytes(tensor, self.placement, 0), backend, weight=True)
        node.shape = tensor.shape
        at_home = backend == self.placement.cpu_backend and self.placement.repacks
        node.repacked = at_home and is_repacked(tensor)
        return node

    # --- steps --------------------------------------------------------------------------

    def times(self, name: str, cur: GraphNode) -> GraphNode:
        """A product with a matrix of the layer, its bias added; `cur` where there is none."""
        matrix = self.weight(f"{name}.weight")
        if matrix is None:
            return cur
        return self.biased(name, self.product(matrix, cur))

    def product(self, matrix: GraphNode, cur: GraphNode) -> GraphNode:
        wide = matrix.shape[1] if len(matrix.shape) > 1 else 1
        return op((wide, *cur.shape[1:]), matrix, cur, kind="product")

    def biased(self, name: str, cur: GraphNode) -> GraphNode:
        bias = self.weight(f"{name}.bias")
        return cur if bias is None else over(cur, bias)

    def norm(self, name: str, cur: GraphNode) -> GraphNode:
        """RMS norm by a weight of the layer; `cur` where there is none."""
        matrix = self.weight(f"{name}.weight")
        if matrix is None:
            return cur
        normed = over(cur)
        if self.placement.norms_pinned and (
            self.placement.fully_offloaded or self.n < _SMALL_BATCH
        ):
            normed.backend = self.home  # llama.cpp pins it (graph_get_cb)
        scaled = over(normed, matrix)
        bias = self.weight(f"{name}.bias")
        return scaled if bias is None else over(scaled, bias)

    def rope(self, cur: GraphNode) -> GraphNode:
        return over(cur, self.positions(), *self._factors(), kind="rope")

    def _factors(self) -> list[GraphNode]:
        """Of the rotation, where a file has some; they matter where they must be copied."""
        if self.placement.cpu_backend == 0 or (self.hparams.arch == "gemma4" and self.layer.is_swa):
            return []
        found = self.end("rope_freqs.weight", self.home)
        return [found] if found else []

    def add(self, first: GraphNode, second: GraphNode) -> GraphNode:
        return over(first, second)

    def expand(self, cur: GraphNode) -> GraphNode:
        return self.graph.expand(cur)

    def store(self, *srcs: GraphNode) -> GraphNode:
        """Into the layer's part of the cache."""
        return self.expand(store_node(self.cache(0), *srcs))

    def cache(self, size: int) -> GraphNode:
        """The layer's part of the cache, as far as it is looked at."""
        layer = self.hparams.kv_source_layer(self.il)
        return outside(size, self.placement.layer_backends[layer])


def flat(cur: GraphNode, *shape: int) -> GraphNode:
    """The same numbers in another shape."""
    return view(cur, shape, plain=True)
