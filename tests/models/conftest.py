"""Fixtures of the hub's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.downloads import Downloader
from tests.support.fake_hub import FakeHub


@pytest.fixture
def downloader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Downloader]:
    """A hub with one file, and an empty cache.

    Bodies come from a second origin, as on the real hub, unless the parameter is False.
    """
    with FakeHub(cdn=getattr(request, "param", True)) as hub:
        yield Downloader(hub, tmp_path / "hub")
