"""A config.toml of one's own, and what is read from it."""

from pathlib import Path

import pytest

from localspec import config


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def changed_values(view: config.EffectiveConfig) -> dict[str, object]:
    """The settings and keys that differ from the defaults."""
    settings = view.settings.items()
    changed = {
        key: one.current for key, one in settings if one.current != one.option.default
    }
    return changed | {f"keys.{id_}": keys for id_, keys in view.key_bindings.items()}
