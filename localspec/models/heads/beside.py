"""Heads that lie beside their models, and the word that one is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.models import header
from localspec.models.header import Header
from localspec.models.heads.forms import NAMES
from localspec.models.heads.judging import judge

PREFIXES = ("mtp-", "eagle3-", "dspark-", "dflash-")
"""How the files of heads begin that lie beside their targets; the best first."""


def beside(path: Path, target: Header) -> Path | None:
    """The head in a model's folder that fits it: eagle3-…, as repositories name them.

    A download that came later may lie in the folder of a later commit.
    """
    for prefix in PREFIXES:
        for folder in _folders(path):
            for found in sorted(folder.glob(f"{prefix}*.gguf")):
                if fits(target, found):
                    return found
    return None


def _folders(path: Path) -> Iterator[Path]:
    """The file's own; of one in the hub's cache those of the repository's other commits too."""
    yield path.parent
    if path.parent.parent.name == "snapshots":
        yield from sorted(path.parent.parent.iterdir())


def fits(target: Header, path: Path) -> bool:
    """Whether a file is a head for this model."""
    try:
        header.check(path)
        return judge(target, header.read(path), path).compatible
    except (LocalspecError, OSError):
        return False


def found(kind_: str, name: str) -> str:
    """That a head is used though nobody named it, in a line."""
    what = f"the {NAMES[kind_]} head {name} beside it"
    if kind_ == "mtp":
        what = "a layer of its own that predicts further tokens (MTP)"
    return clean(f"Guesses come from {what}. Without: --draft none.", multiline=False)
