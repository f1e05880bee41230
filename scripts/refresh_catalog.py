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
_ALWAYS_REPLACED = ("about", "bytes", "sha256", "revision")
"""Values that would be wrong of another file; `about` is an estimated size."""
_ID = re.compile(r"  - id: (\S+)\Z")
_KEY = re.compile(r"    ([a-z0-9]+): ")


class FileLister(Protocol):
    """What is needed of a hub's client."""

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
    ids = options.ids or list(models)
    wanted = [models[id_] for id_ in ids]
    facts, problems = ask_hub(HubClient(options.endpoint), wanted)
    after = put_facts(before, facts)
    changed_lines = set(after.splitlines()) - set(before.splitlines())
    for line in [*sorted(changed_lines), *problems]:
        print(line)
    print(f"{len(facts)} files found, {len(problems)} problems")
    if options.write:
        path.write_text(after, encoding="utf-8")
        catalog.load(path)
    return 1 if problems else 0


def ask_hub(
    hub: FileLister, models: Iterable[CatalogModel]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The facts of each model by its id, and a line for each that has none."""
    facts: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    for model in models:
        try:
            if model.repo:
                facts[model.id] = _find_facts(hub.list_files(model.repo), model.file)
        except LocalspecError as error:
            problems.append(f"{model.id}: {error.message} {error.hint}")
    return facts, problems


def _find_facts(listing: RepoInfo, file: str) -> dict[str, str]:
    """What a repository says of a file, as values of `KEYS`. Raises LocalspecError.

    A file of several parts has no hash of its own, and so no revision either.
    """
    parts = choose_files(listing.files, file=file)
    if parts[0].path != file:
        raise NotFoundError(f"The first part is called {parts[0].path}.")
    facts = {"bytes": str(sum(part.size for part in parts))}
    if parts[0].sha256 and len(parts) == 1:
        facts |= {"sha256": parts[0].sha256, "revision": listing.revision}
    if listing.licence:
        facts["licence"] = listing.licence
    return facts


def put_facts(text: str, facts: Mapping[str, Mapping[str, str]]) -> str:
    """Put the facts after each model's `file`, in place of the old ones.

    A licence that the hub does not have stays. With a new size for model `a`:

          - id: a                 - id: a
            file: a.gguf            file: a.gguf
            bytes: 10               bytes: 12
            licence: mit            licence: mit
    """
    lines: list[str] = []
    own_facts: Mapping[str, str] = {}  # Of the model whose lines these are.
    for line in text.splitlines():
        is_in_entry = line.startswith("  ") and not line.startswith("  - ")
        if not is_in_entry:
            entry = _ID.match(line)
            own_facts = facts.get(entry[1], {}) if entry else {}
        found = _KEY.match(line)
        key = found[1] if found else ""
        if own_facts and (key in own_facts or key in _ALWAYS_REPLACED):
            continue
        lines.append(line)
        if key == "file":
            lines += [
                f"    {name}: {own_facts[name]}" for name in KEYS if name in own_facts
            ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
