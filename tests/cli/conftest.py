"""What the tests of commands share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub
from tests.support.installation import Installation
from tests.support.zoo import Zoo


@pytest.fixture
def computer(zoo: Zoo, tmp_path: Path) -> Iterator[Installation]:
    with FakeHub() as hub:
        yield Installation(hub, zoo, tmp_path / "computer")
