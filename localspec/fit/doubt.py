"""How far our formulas may be from what llama.cpp takes."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.fit.facts import Facts, names
from localspec.fit.opening import Opening
from localspec.machine.ledger import HOST, Projection

CHECKED = names(
    "llama mistral3 smollm3 qwen2 qwen3 qwen3moe gemma2 gemma3 gemma4 gpt-oss phi3 deepseek2 "
    "mamba2 qwen35 qwen35moe granite granitehybrid lfm2 lfm2moe eagle3 dflash"
)
"""Architectures measured against llama.cpp itself: scripts/measure_estimate.py."""
_MIB = 1024 * 1024
_BASE = 4 * _MIB
_OF_COMPUTE = 0.02
"""A card that is here differs from what llama.cpp thinks of it by so much of the graph's memory."""
_UNCHECKED_BASE = 64 * _MIB
_UNCHECKED = 0.3
_COPIES = 4
"""Of a row of activations: where a batch crosses from one device to the next."""


def of(
    found: Projection, models: Sequence[tuple[Facts, Opening]], experts_on_cpu: bool = False
) -> int:
    """Bytes by which a device's truth may differ."""
    graphs = [found.of(name).compute for name in _names(found)]
    checked = all(facts.arch in CHECKED for facts, _ in models)
    error = int((_OF_COMPUTE if checked else _UNCHECKED) * max(graphs, default=0))
    error += _BASE if checked else _UNCHECKED_BASE
    error += sum(_BASE for facts, _ in models if facts.keeps_state)
    error += sum(4 * o.n_ubatch * facts.n_embd for facts, o in models if o.predicting)
    if len(_names(found) - {HOST}) > 1 or _partial(found):
        error += sum(_COPIES * 4 * o.n_ubatch * facts.n_embd for facts, o in models)
    if experts_on_cpu and _names(found) != {HOST}:
        error += max(map(_largest, (facts for facts, _ in models)))
    return error


def _largest(facts: Facts) -> int:
    """A layer's largest matrix: it may be copied to a card while the one before is still there."""
    layer = facts.by_layer.get(facts.n_layer - 1, {})
    return max((tensor.n_bytes for tensor in layer.values()), default=0)


def _names(found: Projection) -> set[str]:
    names = set(found.target.on)
    return names | set(found.draft.on) if found.draft else names


def _partial(found: Projection) -> bool:
    """Layers both on a card and beside it."""
    ledgers = [ledger for ledger in (found.target, found.draft) if ledger]
    cards = _names(found) - {HOST}
    return bool(cards) and any(ledger.of(HOST).kv > 0 for ledger in ledgers)
