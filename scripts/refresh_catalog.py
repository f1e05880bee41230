#!/usr/bin/env python3
"""Updates sizes, hashes and licences in models.yaml from the hub; needs the network.

Only values change, line by line, so comments and order stay. Without --write it only
prints the changes. A missing file is reported with the files that its repository has
now.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from localspec.errors import LocalspecError, NotFoundError
from localspec.models import catalog
from localspec.models.catalog import CatalogModel
from localspec.models.hub.client import HubClient, RepoInfo
from localspec.models.reference import choose_files

ROOT = Path(__file__).resolve().parent.parent
KEYS = ("bytes", "sha256", "revision", "licence")
_ID = re.compile(r"  - id: (\S+)\Z")
_KEY = re.compile(r"    ([a-z0-9]+): ")


class Lists(Protocol):
    def list_files(self, repo: str) -> RepoInfo: ...


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="of models; default: all")
    parser.add_argument("--write", action="store_true", help="change models.yaml")
    parser.add_argument("--endpoint", help="another hub")
    options = parser.parse_args()
    path = ROOT / "models.yaml"
    before = path.read_text(encoding="utf-8")
    models = catalog.load(path).models
    wanted = [models[id_] for id_ in options.ids] if options.ids else models.values()
    facts, problems = asked(HubClient(options.endpoint), wanted)
    after = written(before, facts)
    for line in (
        *sorted(set(after.splitlines()) - set(before.splitlines())),
        *problems,
    ):
        print(line)
    print(f"{len(facts)} files found, {len(problems)} problems")
    if options.write:
        path.write_text(after, encoding="utf-8")
        catalog.load(path)
    return 1 if problems else 0


def asked(
    hub: Lists, models: Iterable[CatalogModel]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Values by model id, and the problems."""
    facts: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for model in models:
        try:
            if model.repo:
                facts[model.id] = _of(hub.list_files(model.repo), model.file)
        except LocalspecError as error:
            problems.append(f"{model.id}: {error.message} {error.hint}")
    return facts, problems


def _of(listing: RepoInfo, file: str) -> dict[str, str]:
    parts = choose_files(listing.files, file=file)
    if parts[0].path != file:
        raise NotFoundError(f"The first part is called {parts[0].path}.")
    facts = {"bytes": str(sum(part.size for part in parts))}
    if parts[0].sha256 and len(parts) == 1:
        facts |= {"sha256": parts[0].sha256, "revision": listing.revision}
    if listing.licence:
        facts["licence"] = listing.licence
    return facts


def written(text: str, facts: Mapping[str, Mapping[str, str]]) -> str:
    """Puts the values after each entry's `file`; keeps a licence that the hub lacks."""
    lines: list[str] = []
    said: Mapping[str, str] = {}
    for line in text.splitlines():
        if line.startswith("  - ") or not line.startswith("  "):
            entry = _ID.match(line)
            said = facts.get(entry[1], {}) if entry else {}
        found = _KEY.match(line)
        key = found[1] if found else ""
        if said and (key in said or key in ("about", "bytes", "sha256", "revision")):
            continue
        lines.append(line)
        if key == "file":
            lines += [f"    {name}: {said[name]}" for name in KEYS if name in said]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
