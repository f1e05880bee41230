"""machine/published.py: what others measured, nearest to a computer."""

from pathlib import Path

import pytest

from localspec.fit import machine_profile
from localspec.machine import gpu_catalog, published
from localspec.models import catalog


def nearest(
    gpu: str, model: str = "qwen3.8-27b", kind: str = "mtp"
) -> published.PublishedRow:
    found = published.find_nearest(model, machine_profile.with_gpu(gpu).devices, kind)
    assert found is not None
    return found


def test_every_row_is_of_a_known_model_and_card_and_has_a_speed_and_a_source() -> None:
    models = catalog.load().models
    cards = {gpu.name for gpu in gpu_catalog.load()}
    assert len(published.load()) > 400
    for row in published.load():
        assert row.model in models and row.source, row
        assert row.gpu in cards or (not row.gpu and row.cpu), row
        assert (row.plain or 0) > 0 or (row.speculative or 0) > 0, row
        assert row.describe().endswith(")")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            '{"model": "m", "gpu": 3, "source": "s"}',
            "gpu: Expected `str`, got `int`: 3",
        ),
        ('{"model": "m", "gpu": "g", "source": "s", "x": 1}', "unknown field `x`"),
        ('{"model": "m", "gpu": "g"}', "missing required field `source`"),
        ("{", "Expecting property name"),
    ],
)
def test_a_wrong_row_is_named_by_its_line_and_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, problem: str
) -> None:
    file = tmp_path / "published.jsonl"
    file.write_text(f'{{"model": "m", "gpu": "g", "source": "s"}}\n{row}\n')
    monkeypatch.setattr(published, "_FILE", file)
    with pytest.raises(ValueError, match=r"published\.jsonl, line 2: ") as raised:
        published.load.__wrapped__()
    assert problem in str(raised.value)


def test_the_same_card_and_draft_come_first() -> None:
    row = nearest("RTX 3090")
    assert (row.gpu, row.draft) == ("RTX 3090", "mtp")
    assert row.plain and row.speculative and row.plain < row.speculative
    assert "→" in row.describe() and "MTP" in row.describe()


def test_a_card_without_rows_gets_one_of_like_bandwidth_or_none() -> None:
    row = nearest("RTX 4080")
    bandwidths = {gpu.name: gpu.bandwidth for gpu in gpu_catalog.load()}
    assert 1 / 1.5 <= bandwidths[row.gpu] / bandwidths["RTX 4080"] <= 1.5
    devices = machine_profile.with_gpu("RTX 3090").devices
    assert published.find_nearest("demo-target", devices) is None
    assert published.find_nearest("qwen3.8-27b", ()) is None
    unnamed = machine_profile.with_vram(24).devices
    assert published.find_nearest("qwen3.8-27b", unnamed) is None


def on_cpu(reaches: float | None) -> published.PublishedRow | None:
    return published.find_nearest("llama-3.1-8b", (), cpu_reaches=reaches)


def test_a_computer_without_a_card_gets_a_cpu_that_reads_about_as_fast() -> None:
    small = on_cpu(15.0)
    assert small is not None
    assert small.cpu.endswith("N100")
    assert small.describe().startswith("Intel N100, Q4_K_M: 3.01 tok/s")
    desktop = on_cpu(34.0)
    assert desktop is not None
    assert (desktop.plain or 0) > 4
    assert on_cpu(900.0) is None, "no such CPU"
    assert on_cpu(None) is None


def test_names_of_cpus_are_shown_without_marks_and_clocks() -> None:
    cpus = {row.describe().split(",")[0] for row in published.load() if not row.gpu}
    assert {"Intel Core i7-8700", "AMD Ryzen 9 7950X"} <= cpus
