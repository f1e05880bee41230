"""Pictures are compared only where they were made: one Python minor version, one Textual."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

MADE_WITH = ((3, 11), "8.2.8")
"""Python and Textual (exact in pyproject.toml)."""
HERE = (sys.version_info[:2], version("textual"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    pictures = [item for item in items if item.get_closest_marker("pictures")]
    if HERE == MADE_WITH or not pictures:
        return
    made_with = "Python {}.{} and Textual {}".format(*MADE_WITH[0], MADE_WITH[1])
    if config.getoption("--snapshot-update"):
        raise pytest.UsageError(f"Pictures are accepted with {made_with} only.")
    for item in pictures:
        item.add_marker(pytest.mark.skip(reason=f"pictures are compared with {made_with}"))
