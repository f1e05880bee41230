"""Columns of text are aligned as a terminal shows them."""

from rich.cells import cell_len

from localspec.report.lines import format_columns


def test_columns_begin_below_each_other_whatever_the_characters_are() -> None:
    names = ("plain", "模型", "Größe", "u\u0308ber", "한국어 모델", "ｆｕｌｌ")
    rows = [(name, "next") for name in names]
    starts = {cell_len(line.removesuffix("next")) for line in format_columns(rows)}
    assert len(starts) == 1
