"""ggml's graph allocator: how large a buffer must be for tensors that come and go.

After ggml/src/ggml-alloc.c: best fit among the gaps, parents overwritten where an operation can.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.fit.graph import Node

_ENDLESS = 1 << 62


class Arena:
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


def reserve(leafs: Sequence[Node], nodes: Sequence[Node], alignments: Sequence[int]) -> list[int]:
    """Bytes of each backend's buffer for one pass.  Every node has its backend."""
    work = _Work([Arena(alignment) for alignment in alignments])
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


class _Work:
    def __init__(self, arenas: list[Arena]) -> None:
        self.arenas = arenas

    def place(self, node: Node) -> None:
        if node.live or node.outside or node.root is not None:
            return
        node.live = True
        if node.inplace and self._overwrites(node):
            return
        arena = self.arenas[node.backend or 0]
        size = arena.padded(node.size)
        node.addr = (arena.take(size), node.backend or 0)

    def _overwrites(self, node: Node) -> bool:
        """Take the place of a parent that nobody else needs; ggml never takes a view's."""
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

    def drop(self, node: Node) -> None:
        """Nobody reads it any more: free it, or what it looks into."""
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
