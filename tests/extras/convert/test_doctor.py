"""`localspec doctor` suggests a conversion that makes a model faster."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.doctor import checks
from localspec.extras.convert import conversion
from localspec.models.gguf import reader
from tests.doctor.test_checks import by_id
from tests.support.zoo import Zoo


def test_a_slow_type_is_named(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(zoo["target"], folder / "slow.gguf")
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(folder))
    assert "slow-type" not in by_id(checks.check_models()), "nothing is timed"
    gain = "F16 reads 2.0 × as fast"
    monkeypatch.setattr(conversion, "suggest_conversion", lambda _: gain)

    found = by_id(checks.check_models())["slow-type"]

    assert found.what == f"slow.gguf: {gain}"
    assert found.fix == f"localspec convert {folder / 'slow.gguf'}"
    header = conversion.open_source(folder / "slow.gguf").header
    copied = replace(header, keys={**header.keys, conversion.ORIGIN_KEY: "slow.gguf"})
    monkeypatch.setattr(reader, "read", lambda _: copied)
    assert "slow-type" not in by_id(checks.check_models()), "it has a copy"
