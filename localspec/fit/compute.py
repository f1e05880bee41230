"""Bytes of the compute buffers on each device: what one pass over a full batch needs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from localspec.fit import allocator, headwork, network, schedule
from localspec.fit.facts import Facts
from localspec.fit.graph import Graph
from localspec.fit.opening import Opening
from localspec.fit.placement import Placement


@lru_cache(maxsize=1024)
def place(facts: Facts, opening: Opening, placement: Placement) -> tuple[int, ...]:
    """Bytes by backend; over several cards the worst of two ways to place the norms."""
    found = _reserved(facts, opening, placement)
    if placement.cpu > 1 and placement.full:
        other = _reserved(facts, opening, replace(placement, pinned=False))
        found = [max(pair) for pair in zip(found, other, strict=True)]
    return tuple(found)


def flash_is_home(facts: Facts, opening: Opening, placement: Placement) -> bool:
    """Whether attention runs where its layer lies, as llama.cpp tries it with one token."""
    if placement.cpu == 0 or (placement.cpu == 1 and placement.full):
        return True
    one = replace(opening, n_ctx=256, n_swa=256, n_ubatch=1, n_outputs=1)
    return _one_token_at_home(facts, one, placement)


@lru_cache(maxsize=1024)
def _one_token_at_home(facts: Facts, opening: Opening, placement: Placement) -> bool:
    graph = _build(facts, opening, placement)
    schedule.assign(graph, placement.cpu)
    return all(node.backend == node.home for node in graph.nodes if node.kind == "flash")


def _build(facts: Facts, opening: Opening, placement: Placement) -> Graph:
    build = headwork.build if opening.head else network.build
    return build(facts, opening, placement)


def _reserved(facts: Facts, opening: Opening, placement: Placement) -> list[int]:
    graph = _build(facts, opening, placement)
    alignments = [rules.alignment for rules in placement.rules]
    if placement.cpu == 0:
        return allocator.reserve(graph.leafs, graph.nodes, alignments)
    plan = schedule.split(graph, placement)
    return allocator.reserve(plan.leafs, plan.nodes, alignments)
