"""The table of memory foretold and taken that the lane prints at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_MIB = 1 << 20
_ROWS: list[tuple[str, Mapping[str, Mapping[str, int]]]] = []


def add(name: str, found: Mapping[str, Mapping[str, int]]) -> None:
    """Bytes by device: `calculated`, `counted` and `taken`."""
    _ROWS.append((name, found))


def table() -> Iterator[str]:
    """As Markdown, in MiB; empty without rows."""
    if _ROWS:
        yield "| setting | taken, MiB | counted by llama.cpp | calculated |"
        yield "|---|---|---|---|"
    for name, found in _ROWS:
        differences = (_worst(found[what], found["taken"]) for what in ("counted", "calculated"))
        yield f"| {name} | {_by_device(found['taken'])} | {' | '.join(differences)} |"


def _worst(foretold: Mapping[str, int], taken: Mapping[str, int]) -> str:
    """The largest difference on a device, as a share of all bytes."""
    differences = (foretold.get(name, 0) - taken.get(name, 0) for name in {*foretold, *taken})
    worst = max(differences, key=abs)
    return f"{worst / _MIB:+.1f} MiB, {100 * worst / sum(taken.values()):+.2f} %"


def _by_device(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size / _MIB:.1f}" for name, size in sorted(sizes.items()) if size)
