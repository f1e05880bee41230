"""Tests of the features that the core works without, a folder each.

A folder whose feature drafts has a file `law_drafters.py`: its drafters pass the laws
of every drafter (`tests/spec/laws.py`).
"""

import importlib
import importlib.util
import pkgutil
from typing import Any


def law_drafters(table: str) -> dict[str, Any]:
    """What all folders add to a table of drafters, such as `GUESSERS`."""
    found: dict[str, Any] = {}
    for folder in pkgutil.iter_modules(__path__):
        name = f"{__name__}.{folder.name}.law_drafters"
        if folder.ispkg and importlib.util.find_spec(name):
            found |= getattr(importlib.import_module(name), table, {})
    return found
