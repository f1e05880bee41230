"""What all parts of a graph are built with: a model's weights, a pass's inputs, small steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.fit import graph
from localspec.fit.facts import Facts, Layer
from localspec.fit.graph import Graph, Node, given, op, outside, over, view
from localspec.fit.opening import Opening
from localspec.fit.placement import Placement
from localspec.fit.weights import EXPERTS, is_repacked, on
from localspec.models.gguf.tensors import Tensor

_MROPE = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "paddleocr", "hunyuan_vl")
_FEW = 32


@dataclass
class Building:
    """One pass of `n` tokens over a model, under construction."""

    facts: Facts
    opening: Opening
    placement: Placement
    graph: Graph = field(default_factory=Graph)
    il: int = 0
    """The layer that is being built."""
    inputs: dict[str, Node] = field(default_factory=dict)
    ends: dict[tuple[str, int], Node] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.opening.n_ubatch

    @property
    def layer(self) -> Layer:
        return self.facts.layers[self.il]

    @property
    def home(self) -> int:
        """The layer's backend."""
        return self.placement.layers[self.il]

    @property
    def table(self) -> dict[str, Tensor]:
        """The layer's tensors."""
        return self.facts.by_layer.get(self.il, {})

    # --- inputs -------------------------------------------------------------------------

    def given(self, name: str, shape: tuple[int, ...], item: int = 4) -> Node:
        found = self.inputs.get(name)
        if found is None:
            found = self.inputs[name] = given(shape, item)
        return found

    def positions(self) -> Node:
        return self.given("pos", (self.n * (4 if self.facts.arch in _MROPE else 1),))

    def rows_out(self, cur: Node) -> Node:
        """Only the rows whose logits are wanted."""
        ids = self.given("out_ids", (self.outputs,))
        return op((cur.shape[0], self.outputs), cur, ids, kind="rows")

    @property
    def outputs(self) -> int:
        return min(self.n, self.opening.n_outputs)

    # --- weights ------------------------------------------------------------------------

    def weight(self, name: str) -> Node | None:
        """A tensor of the layer; None where the model has none of that name."""
        tensor = self.table.get(name)
        if tensor is None:
            return None
        cpu = self.placement.experts_on_cpu and EXPERTS.match(name)
        return self._weight(tensor, self.placement.cpu if cpu else self.home)

    def end(self, name: str, backend: int) -> Node | None:
        """A tensor of no layer, one on each backend."""
        tensor = self.facts.others.get(name)
        if tensor is None:
            return None
        found = self.ends.get((name, backend))
        if found is None:
            found = self.ends[name, backend] = self._weight(tensor, backend)
        return found

    def _weight(self, tensor: Tensor, backend: int) -> Node:
        node = outside(on(tensor, self.placement, 0), backend, weight=True)
        node.shape = tensor.shape
        at_home = backend == self.placement.cpu and self.placement.repacks
        node.repacked = at_home and is_repacked(tensor)
        return node

    # --- steps --------------------------------------------------------------------------

    def times(self, name: str, cur: Node) -> Node:
        """A product with a matrix of the layer, its bias added; `cur` where there is none."""
        matrix = self.weight(f"{name}.weight")
        if matrix is None:
            return cur
        return self.biased(name, self.product(matrix, cur))

    def product(self, matrix: Node, cur: Node) -> Node:
        wide = matrix.shape[1] if len(matrix.shape) > 1 else 1
        return op((wide, *cur.shape[1:]), matrix, cur, kind="product")

    def biased(self, name: str, cur: Node) -> Node:
        bias = self.weight(f"{name}.bias")
        return cur if bias is None else over(cur, bias)

    def norm(self, name: str, cur: Node) -> Node:
        """RMS norm by a weight of the layer; `cur` where there is none."""
        matrix = self.weight(f"{name}.weight")
        if matrix is None:
            return cur
        normed = over(cur)
        if self.placement.pinned and (self.placement.full or self.n < _FEW):
            normed.backend = self.home  # llama.cpp pins it (graph_get_cb)
        scaled = over(normed, matrix)
        bias = self.weight(f"{name}.bias")
        return scaled if bias is None else over(scaled, bias)

    def rope(self, cur: Node) -> Node:
        return over(cur, self.positions(), *self._factors(), kind="rope")

    def _factors(self) -> list[Node]:
        """Of the rotation, where a file has some; they matter where they must be copied."""
        if self.placement.cpu == 0 or (self.facts.arch == "gemma4" and self.layer.window):
            return []
        found = self.end("rope_freqs.weight", self.home)
        return [found] if found else []

    def add(self, first: Node, second: Node) -> Node:
        return over(first, second)

    def expand(self, cur: Node) -> Node:
        return self.graph.expand(cur)

    def store(self, *srcs: Node) -> Node:
        """Into the layer's part of the cache."""
        return self.expand(graph.store(self.cache(0), *srcs))

    def cache(self, size: int) -> Node:
        """The layer's part of the cache, as far as it is looked at."""
        layer = self.facts.kv_layer(self.il)
        return outside(size, self.placement.layers[layer])


def flat(cur: Node, *shape: int) -> Node:
    """The same numbers in another shape."""
    return view(cur, shape, plain=True)
