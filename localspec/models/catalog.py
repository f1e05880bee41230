"""The pairs of models.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localspec import paths
from localspec.errors import UsageError

_LARGEST = 1_000_000
_FIELDS = {"id", "title", "use", "target", "draft", "spec", "why", "licence"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, its draft, and how to run them."""

    id: str
    title: str
    target: Path
    draft: Path | None
    use: str = "chat"
    spec: str = "auto"
    why: str = ""
    licence: str = "unknown"


class _Loader(yaml.SafeLoader):
    """Safe loading without aliases: a few lines of them can stand for 10^10 values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def load(path: Path | None = None) -> dict[str, Pair]:
    """Pairs by id, in the file's order.  Raises UsageError where the file is damaged."""
    path = path or paths.catalogue()
    try:
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} is too large for a catalogue.", "Keep it under 1 MB.")
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        entries = document["pairs"]
        pairs = {pair.id: pair for pair in map(_pair, entries)}
        if len(pairs) < len(entries):
            raise ValueError("an id stands there twice")
        return pairs
    except OSError as error:
        what = f"The catalogue {path} cannot be read: {error.strerror}."
        raise UsageError(what, "Install localspec again.") from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"The catalogue {path} is damaged: {_line(error)}.", "Mend it.") from error


def _pair(entry: dict[str, Any]) -> Pair:
    unknown = set(entry) - _FIELDS
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r}")
    draft = entry.get("draft")
    texts = {k: str(entry[k]) for k in ("use", "spec", "why", "licence") if k in entry}
    return Pair(
        id=str(entry["id"]),
        title=str(entry["title"]),
        target=_file(entry["target"]),
        draft=None if draft is None else _file(draft),
        **texts,
    )


def _file(entry: dict[str, Any]) -> Path:
    """Only bundled files so far: a plain name inside the package's data."""
    name = str(entry["bundled"])
    if Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is not a plain file name")
    return paths.data() / "demo" / name


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
