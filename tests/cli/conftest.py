"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.household import Household
from tests.fakehub import FakeHub
from tests.zoo import Zoo


@pytest.fixture
def house(zoo: Zoo, tmp_path: Path) -> Iterator[Household]:
    with FakeHub() as hub:
        yield Household(hub, zoo, tmp_path / "house")
