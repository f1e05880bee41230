"""The picture of `localspec verify`, for models that see: 96 × 64 pixels."""

from __future__ import annotations

import struct
import zlib

_WIDTH = 96
_HEIGHT = 64


def make_picture() -> bytes:
    """A PNG: a yellow disc over a ground of stripes, in front of a sky that darkens."""
    rows: list[bytes] = []
    for y in range(_HEIGHT):
        row = bytearray((0,))  # Each row of a PNG begins with its filter: none.
        for x in range(_WIDTH):
            row += bytes(_colour_at(x, y))
        rows.append(bytes(row))
    header = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(b"".join(rows), 9)),
            _chunk(b"IEND", b""),
        ]
    )


def _colour_at(x: int, y: int) -> tuple[int, int, int]:
    if (x - 30) ** 2 + (y - 20) ** 2 < 14**2:
        return 250, 210, 40
    if y >= 44:
        return (40, 130, 60) if (x + y) // 8 % 2 else (90, 170, 80)
    return 60 + y, 110 + 2 * y, 235


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
