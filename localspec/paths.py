"""Where the program's own files lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def data() -> Path:
    """Files that ship with the package: the demo pair."""
    return PACKAGE / "data"


def catalogue() -> Path:
    """models.yaml: beside the code in a wheel, at the top of the repository when editable."""
    inside = PACKAGE / "models.yaml"
    return inside if inside.exists() else PACKAGE.parent / "models.yaml"
