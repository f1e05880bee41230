"""Fixtures of the hub's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.downloads import Desk
from tests.support.fake_hub import FakeHub


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """A hub with one file and an empty cache; bodies come from a second origin, as on
    the real hub, unless the parameter is False.
    """
    with FakeHub(cdn=getattr(request, "param", True)) as hub:
        yield Desk(hub, tmp_path / "hub")
