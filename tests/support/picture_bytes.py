"""Writes small pictures of each kind byte by byte, and headers of any size."""

import struct
import zlib
from collections.abc import Sequence

Grey = Sequence[Sequence[int]]
"""Rows of grey values, 0 to 255."""


def shades(width: int, height: int) -> list[list[int]]:
    """A picture in which all rows and columns differ."""
    return [
        [(37 * x + 91 * y + 3 * x * y) % 256 for x in range(width)]
        for y in range(height)
    ]


def png_chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


def png_header(width: int, height: int, *, depth: int = 8, colours: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head)


def png(grey: Grey, *chunks: bytes) -> bytes:
    """`chunks` come before the pixels."""
    rows = b"".join(b"\0" + bytes(row) for row in grey)
    return b"".join(
        [
            png_header(len(grey[0]), len(grey)),
            *chunks,
            png_chunk(b"IDAT", zlib.compress(rows)),
            png_chunk(b"IEND", b""),
        ]
    )


def empty_png(width: int, height: int) -> bytes:
    """A picture of one colour; of any size a few kilobytes."""
    packer = zlib.compressobj(9)
    parts = [packer.compress(bytes(width + 1)) for _ in range(height)]
    pixels = b"".join([*parts, packer.flush()])
    return (
        png_header(width, height) + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")
    )


def bmp(grey: Grey, *, header_size: int = 40, depth: int = 24) -> bytes:
    width = len(grey[0])
    height = len(grey)
    rows: list[bytes] = []
    for row in reversed(grey):
        data = b"".join(bytes((value, value, value)) for value in row)
        rows.append(data + bytes(-len(data) % 4))
    pixels = b"".join(rows)
    start = 14 + header_size
    if header_size == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, depth)
    else:
        head = struct.pack("<IiiHH", header_size, width, height, 1, depth)
    head += bytes(header_size - len(head))
    return (
        b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + head + pixels
    )


def gif(width: int, height: int) -> bytes:
    """A picture of one colour: a code that clears the table, one a pixel, and the end."""
    palette = bytes((0, 0, 0, 200, 200, 200))
    screen = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + palette
    comment = b"\x21\xfe\x05hello\x00"
    image = b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0)
    bits = ""
    for i in range(width * height):
        if i % 2 == 0:  # The table is cleared before its codes become longer.
            bits = f"{4:03b}" + bits
        bits = f"{1:03b}" + bits
    bits = f"{5:03b}" + bits
    n_bytes = -(-len(bits) // 8)
    codes = int(bits, 2).to_bytes(n_bytes, "little")
    blocks = b""
    for start in range(0, len(codes), 255):
        block = codes[start : start + 255]
        blocks += bytes((len(block),)) + block
    return screen + comment + image + b"\x02" + blocks + b"\x00\x3b"


def exif(orientation: int, order: str = "<") -> bytes:
    """EXIF data with one tag before the orientation."""
    first = b"II" if order == "<" else b"MM"
    other = struct.pack(f"{order}HHII", 0x010F, 2, 4, 0)
    tag = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    head = first + struct.pack(f"{order}HI", 42, 8)
    return head + struct.pack(f"{order}H", 2) + other + tag + bytes(4)


def jpeg_segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def jpeg_header(
    width: int,
    height: int,
    *,
    frame: int = 0xC0,
    precision: int = 8,
    n_colours: int = 1,
    before: bytes = b"",
) -> bytes:
    colours = b"".join(bytes((i + 1, 0x11, 0)) for i in range(n_colours))
    head = struct.pack(">BHHB", precision, height, width, n_colours) + colours
    return b"\xff\xd8" + before + jpeg_segment(frame, head)


_CATEGORY_LENGTHS = (0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0)
"""How many codes have each length: the usual table of JPEG, for categories 0 to 11."""


def _category_codes() -> list[str]:
    codes: list[str] = []
    code = 0
    for i, n in enumerate(_CATEGORY_LENGTHS):
        for _ in range(n):
            codes.append(f"{code:0{i + 1}b}")
            code += 1
        code <<= 1
    return codes


def jpeg(blocks: Grey, *, orientation: int | None = None) -> bytes:
    """A grey JPEG; each value is a block of 8 × 8 pixels."""
    codes = _category_codes()
    bits: list[str] = []
    previous = 0
    for row in blocks:
        for value in row:
            level = value - 128
            difference = level - previous
            previous = level
            n_bits = abs(difference).bit_length()
            bits.append(codes[n_bits])
            if n_bits:
                shown = difference
                if difference < 0:
                    shown += (1 << n_bits) - 1
                bits.append(f"{shown:0{n_bits}b}")
            bits.append("0")  # No other waves in this block.
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    scan = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")
    before = b""
    if orientation is not None:
        before = jpeg_segment(0xE1, b"Exif\0\0" + exif(orientation))
    tables = jpeg_segment(0xDB, b"\0" + bytes((8,) * 64))
    tables += jpeg_segment(0xC4, b"\x00" + bytes(_CATEGORY_LENGTHS) + bytes(range(12)))
    tables += jpeg_segment(0xC4, b"\x10" + bytes((1, *[0] * 15)) + b"\0")
    width = 8 * len(blocks[0])
    height = 8 * len(blocks)
    return (
        jpeg_header(width, height, before=before)
        + tables
        + jpeg_segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
        + scan
        + b"\xff\xd9"
    )
