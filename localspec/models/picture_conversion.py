"""A child process that converts a picture to PNG with Pillow: standard input to output.

A program of many formats reads bytes from anywhere here, so it has limits of memory,
time and pixels.
"""

from __future__ import annotations

import importlib
import io
import sys
from contextlib import suppress
from typing import Any

from localspec import child_process
from localspec.models.pictures import MAX_BYTES, MAX_PIXELS

_ADDRESS_SPACE = 3 * 2**30
_CPU_SECONDS = 50
_KINDS = ("WEBP", "TIFF", "PNG", "JPEG", "MPO")
"""The formats that Pillow may use; it knows some that start other programs."""


def convert(data: bytes) -> bytes:
    """Raises what Pillow raises, or ValueError for too many pixels."""
    pil: Any = importlib.import_module("PIL.Image")
    operations: Any = importlib.import_module("PIL.ImageOps")
    image = pil.open(io.BytesIO(data), formats=_KINDS)
    if image.width * image.height > MAX_PIXELS:
        raise ValueError("too many pixels")
    image = operations.exif_transpose(image)
    if image.mode == "CMYK":
        image = _convert_inks(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = pil.new("RGBA", image.size, "white")
        image = pil.alpha_composite(white, image)
    image = image.convert("RGB")
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=1)
    if out.tell() > MAX_BYTES:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=95)
    return out.getvalue()


def _convert_inks(image: Any) -> Any:
    """The colours that the picture's own profile of its inks says, if it has one."""
    profile = image.info.get("icc_profile")
    if profile:
        with suppress(Exception):  # a damaged profile: Pillow's own conversion is left
            colours: Any = importlib.import_module("PIL.ImageCms")
            source = colours.ImageCmsProfile(io.BytesIO(profile))
            screen = colours.createProfile("sRGB")
            return colours.profileToProfile(image, source, screen, outputMode="RGB")
    return image.convert("RGB")


def main() -> int:
    child_process.set_up_child(0)
    child_process.limit_resources(_ADDRESS_SPACE, _CPU_SECONDS)
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        converted = convert(data)
    except Exception as error:  # Pillow raises errors of many kinds; the parent says it
        print(f"localspec: {type(error).__name__}", file=sys.stderr)
        return 1
    sys.stdout.buffer.write(converted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
