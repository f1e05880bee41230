"""Test parameters of which only some run by default; all with --long."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

LONG = (pytest.mark.long,)


def often(values: Mapping[str, Any] | Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters from `values`; those not named in `quick` need --long."""
    named = values if isinstance(values, Mapping) else {name: name for name in values}
    assert set(quick) <= set(named)
    return [
        pytest.param(value, id=name, marks=() if name in quick else LONG)
        for name, value in named.items()
    ]
