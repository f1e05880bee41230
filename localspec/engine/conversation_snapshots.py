"""Conversations that left the KV cache, kept in RAM: one that comes back is not read again.

llama.cpp's server does the same (`--cache-ram`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

from localspec.engine.prefix_cache import PrefixCache, common_prefix_length
from localspec.lazy_dataclass import dataclass

MIN_TOKENS = 256
"""Fewer are not worth a copy of the whole cache."""


class SavableModel(Protocol):
    """A model whose memory can be copied."""

    n_past: int

    def state_bytes(self) -> int:
        """The size of a copy; 0 if there can be none."""
        ...

    def save_state(self) -> Any: ...

    def restore_state(self, state: Any, n_past: int) -> bool:
        """Replace the memory; if that fails, it is empty."""
        ...


@dataclass(frozen=True, slots=True)
class SavedCache:
    tokens: tuple[int, ...]
    state: Any
    n_bytes: int


class ConversationSnapshots:
    """Copies of the caches of the target and of its draft, if it has one; the oldest go first."""

    def __init__(self, caches: Sequence[PrefixCache], max_bytes: int) -> None:
        """`max_bytes` of all copies; the models of `caches` are `SavableModel`s."""
        self._caches = [(cache, cast("SavableModel", cache.model)) for cache in caches]
        self._max_bytes = max_bytes
        self._snapshots: list[tuple[SavedCache, ...]] = []

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for snapshot in self._snapshots for each in snapshot)

    def switch_to(self, tokens: Sequence[int]) -> None:
        """Before `tokens` are read: save what would be lost, restore what they continue."""
        if not self._max_bytes:
            return
        cache, model = self._caches[0]
        n_cached = min(cache.n_cached, model.n_past)
        n_shared = min(cache.count_shared(tokens), n_cached)
        saved = max(
            self._snapshots,
            key=lambda each: common_prefix_length(each[0].tokens, tokens),
            default=None,
        )
        if saved and common_prefix_length(saved[0].tokens, tokens) < n_shared + MIN_TOKENS:
            saved = None
        if saved:
            self._snapshots.remove(saved)
        if n_cached - n_shared >= MIN_TOKENS:
            self._save()
        if saved:
            for (cache, model), part in zip(self._caches, saved, strict=True):
                if part.n_bytes:  # else the draft model reads again
                    is_there = model.restore_state(part.state, len(part.tokens))
                    cache.replace(part.tokens if is_there else ())

    def _save(self) -> None:
        texts = [tuple(cache.settle()) for cache, _ in self._caches]
        sizes = [model.state_bytes() for _, model in self._caches]
        if not sizes[0] or sum(sizes) > self._max_bytes:
            return
        new = tuple(
            SavedCache(text, model.save_state() if size else None, size)
            for (_, model), text, size in zip(self._caches, texts, sizes, strict=True)
        )
        self._snapshots = [
            each
            for each in self._snapshots
            if common_prefix_length(each[0].tokens, texts[0]) < len(each[0].tokens)  # not continued
        ]
        self._snapshots.append(new)
        while self.n_bytes > self._max_bytes:
            del self._snapshots[0]
