"""Test parameters of which only some run by default; all with --long."""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

LONG = (pytest.mark.long,)


def often(
    values: Mapping[str, Any] | Iterable[str], quick: Collection[str]
) -> list[Any]:
    """Parameters from `values`; those not named in `quick` need --long."""
    named = values if isinstance(values, Mapping) else {name: name for name in values}
    assert set(quick) <= set(named)
    return [
        pytest.param(value, id=name, marks=() if name in quick else LONG)
        for name, value in named.items()
    ]


def bulk(quick: int, everything: int) -> int:
    """How many random cases to try: all of them where LOCALSPEC_TEST_BULK is set."""
    return everything if os.environ.get("LOCALSPEC_TEST_BULK") else quick
