"""The memory of a device: verdict, bar, scale and legend."""

from collections.abc import Sequence
from typing import Literal

import pytest
from msgspec.structs import replace

from localspec.fit.plan import DeviceFit
from localspec.machine.device import Device, DeviceMemory
from localspec.report import memory
from localspec.report.lines import count_cells, plain_text
from localspec.symbols import ASCII_TRANSLATION

GIB = 1 << 30


def device_fit(
    parts: Sequence[float] = (0, 0, 0, 0),
    *,
    free: float | None = 16,
    total: float | None = 16,
    reserve: float = 0,
    kind: Literal["gpu", "cpu"] = "gpu",
) -> DeviceFit:
    """`parts`: GiB of the target, the draft, the KV cache and the compute buffers."""
    target, draft, kv, compute = (int(part * GIB) for part in parts)
    device = Device(
        "CUDA0",
        "a card",
        kind=kind,
        free=to_bytes(free),
        total=to_bytes(total),
    )
    return DeviceFit(
        device,
        reserve=int(reserve * GIB),
        target=DeviceMemory(target, kv, compute),
        draft=DeviceMemory(draft),
    )


def to_bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * GIB)


@pytest.mark.parametrize(
    ("parts", "bar"),
    [
        ((4, 2, 1, 1), "████▓▓▒░········"),
        ((16, 0, 0, 0), "████████████████"),
        ((0.1, 0, 0.1, 0.1), "█▒░·············"),
        ((0, 0, 0, 0), "················"),
    ],
)
def test_a_bar_shows_each_part_in_proportion_and_at_least_a_cell_of_it(
    parts: Sequence[float], bar: str
) -> None:
    assert plain_text(memory.format_bar(device_fit(parts), 16)) == bar


def test_the_memory_of_other_programs_is_at_the_end_of_the_bar() -> None:
    used_by_others = device_fit((4, 0, 0, 0), free=12)
    assert plain_text(memory.format_bar(used_by_others, 16)) == "████········╱╱╱╱"


def test_what_exceeds_the_free_memory_is_marked_as_missing() -> None:
    too_big = device_fit((12, 0, 4, 0), free=8)
    bar = memory.format_bar(too_big, 16)
    assert plain_text(bar) == "████████████▒▒▒▒"
    missing = [span.text for span in bar if span.role == "missing memory"]
    assert missing == ["████", "▒▒▒▒"]


@pytest.mark.parametrize("width", [24, 46, 64])
@pytest.mark.parametrize("gib", [0.0, 0.01, 3, 8, 11.5, 40])
def test_a_bar_has_as_many_cells_as_it_was_given(width: int, gib: float) -> None:
    fit = device_fit((gib, 0.01, 0.01, gib / 20), free=11.3, total=12)
    bar = memory.format_bar(fit, width)
    assert count_cells(bar) == width
    assert len(memory.format_scale(fit, width)) <= width
    signs = {part.sign for part in memory.BAR_PARTS} & set(plain_text(bar))
    # Target, draft and KV are seen however small they are; without a target, one less.
    n_expected = 3 if gib else 1
    assert len(signs) >= n_expected
    assert plain_text(bar).translate(ASCII_TRANSLATION).isascii()


def test_a_bar_of_unknown_memory_has_a_scale_without_numbers() -> None:
    unknown = device_fit((1, 0, 0, 0), free=None, total=None)
    assert count_cells(memory.format_bar(unknown, 32)) == 32
    assert memory.format_scale(unknown, 32) == "0 GB"


def test_the_example_of_the_report() -> None:
    fit = device_fit((3, 0, 1, 0), free=6, total=8)
    scale, bar, legend = map(plain_text, memory.format_device_memory(fit, 32))
    assert scale == "0 GB            6.0 free     8.0"
    assert bar == "████████████▒▒▒▒········╱╱╱╱╱╱╱╱"
    assert legend == "█ target 3.0   ▒ KV 1.0"


def test_labels_that_would_overlap_become_one() -> None:
    almost_free = device_fit((3, 0, 0, 0), free=15.5)
    scale = memory.format_scale(almost_free, 32)
    assert scale == "0 GB           15.5 free of 16.0"


def test_a_narrow_legend_shortens_the_longest_name() -> None:
    fit = device_fit((4, 2, 1, 1))
    wide = plain_text(memory.format_legend(fit, 80))
    narrow = plain_text(memory.format_legend(fit, 44))
    assert wide == "█ target 4.0   ▓ draft 2.0   ▒ KV 1.0   ░ compute buffers 1.0"
    assert narrow == "█ target 4.0 ▓ draft 2.0 ▒ KV 1.0 ░ buf. 1.0"


@pytest.mark.parametrize(
    ("gib", "shown"), [(0, "0.0"), (0.001, "<0.01"), (0.04, "0.04"), (4.51, "4.5")]
)
def test_small_sizes_have_two_digits(gib: float, shown: str) -> None:
    assert memory.short_gib(gib * GIB) == shown


@pytest.mark.parametrize(
    ("fit", "short", "with_need"),
    [
        (
            device_fit((6, 0, 0, 0), reserve=1),
            "fits, 9.0 GB to spare",
            "fits: needs 6.0 GB, 9.0 GB to spare",
        ),
        (
            device_fit((15.5, 0, 0, 0), reserve=1),
            "tight: uses 0.50 GB reserved for other programs",
            "tight: needs 15.5 GB, uses 0.50 GB reserved for other programs",
        ),
        (
            device_fit((20, 0, 0, 0)),
            "too big: needs 20.0 GB, 4.0 GB more than the GPU has free",
            "too big: needs 20.0 GB, 4.0 GB more than the GPU has free",
        ),
        (
            device_fit((20, 0, 0, 0), kind="cpu"),
            "too big: needs 20.0 GB, 4.0 GB more than this computer has free",
            "too big: needs 20.0 GB, 4.0 GB more than this computer has free",
        ),
        (
            device_fit((2, 0, 0, 0), free=None),
            "free memory is unknown",
            "needs 2.0 GB, free memory is unknown",
        ),
    ],
)
def test_the_verdict_in_words(fit: DeviceFit, short: str, with_need: str) -> None:
    assert memory.describe_device_fit(fit) == short
    assert memory.describe_device_fit(fit, with_need=True) == with_need


def test_a_figure_that_llama_cpp_did_not_count_is_about() -> None:
    fit = replace(device_fit((6, 0, 0, 0), reserve=1), is_coarse=True)
    assert memory.describe_device_fit(fit) == "fits, about 9.0 GB to spare"
    text = memory.describe_device_fit(fit, with_need=True)
    assert text == "fits: needs about 6.0 GB, 9.0 GB to spare"
