"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.household import Household
from tests.support.fake_hub import FakeHub
from tests.support.zoo import Zoo


@pytest.fixture
def house(zoo: Zoo, tmp_path: Path) -> Iterator[Household]:
    with FakeHub() as hub:
        yield Household(hub, zoo, tmp_path / "house")
