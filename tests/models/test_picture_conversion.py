"""With Pillow, pictures that llama.cpp cannot read become PNG; a broken one an error."""

import io
from typing import Any

import pytest

from localspec.errors import PictureError
from localspec.models import pictures
from localspec.models.pictures import accept_picture, check_picture
from tests.support.picture_bytes import exif, jpeg, png, shades

Image: Any = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def saved(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def pixels(data: bytes) -> list[Any]:
    image = Image.open(io.BytesIO(data))
    return [image.getpixel((x, 0)) for x in range(image.width)]


@pytest.mark.parametrize("kind", ["WEBP", "TIFF"])
def test_a_picture_of_another_kind_is_converted(kind: str) -> None:
    image = Image.new("RGB", (24, 16), (10, 200, 30))

    accepted = accept_picture(saved(image, kind, lossless=True), "photo.x")

    assert accepted.picture.kind == "png"
    assert (accepted.picture.width, accepted.picture.height) == (24, 16)
    assert accepted.picture == check_picture(accepted.data, "photo.x")
    assert pixels(accepted.data)[0] == (10, 200, 30)


def test_a_picture_that_was_turned_is_upright_afterwards() -> None:
    image = Image.new("RGB", (24, 16), (10, 200, 30))
    data = saved(image, "WEBP", exif=b"Exif\0\0" + exif(6))

    accepted = accept_picture(data, "photo.webp")

    assert accepted.picture.shown_size == (16, 24)


def test_a_transparent_picture_comes_out_on_white() -> None:
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))

    accepted = accept_picture(saved(image, "PNG"), "logo.png")

    assert pixels(accepted.data) == [(255, 0, 0), (255, 255, 255)]


def test_a_picture_of_inks_comes_out_in_colours() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))

    accepted = accept_picture(saved(image, "JPEG"), "print.jpg")

    red, green, blue = pixels(accepted.data)[0]
    assert red > 200
    assert max(green, blue) < 90


def test_what_llama_cpp_reads_as_it_looks_stays_as_it_is() -> None:
    for data in (png(shades(9, 9)), jpeg(shades(2, 2))):
        assert accept_picture(data, "x").data == data


def test_too_many_pixels_and_damaged_bytes_are_refused() -> None:
    large = saved(Image.new("L", (8000, 6000)), "TIFF", compression="tiff_deflate")
    whole = saved(Image.new("RGB", (64, 64)), "WEBP")

    for data in (large, whole[: len(whole) // 2], b"II*\0" + bytes(60)):
        with pytest.raises(PictureError, match=r"odd\.x"):
            accept_picture(data, "odd.x")


def test_a_conversion_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pictures, "_CONVERSION_SECONDS", 0.01)
    data = saved(Image.new("RGB", (64, 64)), "WEBP")

    with pytest.raises(PictureError, match="cannot be converted"):
        accept_picture(data, "slow.webp")
