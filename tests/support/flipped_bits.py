"""Copies of a database file with one bit flipped."""

from collections.abc import Iterator, Sequence

_HEADER_SIZE = 100
_UNUSED_STRIDE = 64


def flip_database_bits(
    body: bytes, *, left_out: range, stride: int
) -> Iterator[tuple[str, bytes]]:
    """Flip a bit in each `stride`th byte of a SQLite file, but for those `left_out`.

    Each copy comes with the place of the bit, as text. In the header all bits are
    tried, because each has a meaning of its own. Of the zeros one in 64 is tried: they
    are nine tenths of a small file, and mostly space that is not used.
    """
    n_zeros = 0
    for at in range(0, len(body), stride):
        if at in left_out:
            continue
        bits: Sequence[int] = (at % 8,)
        if at < _HEADER_SIZE:
            bits = range(8)
        elif body[at] == 0:
            n_zeros += 1
            if n_zeros % _UNUSED_STRIDE:
                continue
        for bit in bits:
            flipped = body[at] ^ (1 << bit)
            harmed = body[:at] + bytes([flipped]) + body[at + 1 :]
            yield f"byte {at}, bit {bit}", harmed
