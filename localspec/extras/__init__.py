"""Features that the core works without: each folder here is one of them.

A folder joins the tables of the core by attributes of its `__init__.py` that are named
like the table: `COMMANDS`, for example, is a tuple of rows of the table in
`localspec/command_table.py`. The rows are data; the code behind them is named by an
import path (`module:name`), so that listing the features imports none of it. A folder
that is deleted takes its rows with it.

docs/architecture.md lists the tables, what a row is and where the core uses it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def rows(table: str) -> list[Any]:
    """The rows that all features add to a table, in the order of the folders' names."""
    found: list[Any] = []
    features = Path(__path__[0])
    for folder in sorted(features.iterdir()):
        # Importing `pkgutil` would take longer than the rest of this function. A deleted
        # feature may have left a folder with files of Python's cache.
        if (folder / "__init__.py").is_file():
            feature = importlib.import_module(f"{__name__}.{folder.name}")
            found += getattr(feature, table, ())
    return found


def load(table: str) -> list[Any]:
    """The objects of a table each of whose rows is an import path."""
    return [load_object(path) for path in rows(table)]


def load_object(path: str) -> Any:
    """The object of an import path, `module:name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
