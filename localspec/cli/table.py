"""Text tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.sanitize import sanitize


def format_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows into columns.  Cells are sanitized, as they may come from files or the hub."""
    cleaned = [[sanitize(cell, multiline=False) for cell in row] for row in rows]
    count = max((len(row) for row in cleaned), default=0)
    widths = [
        max((len(row[i]) for row in cleaned if i < len(row)), default=0) for i in range(count)
    ]
    for row in cleaned:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        yield line.rstrip()
