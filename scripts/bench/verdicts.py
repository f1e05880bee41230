"""Prints the fit of every pair of the catalogue on twelve machines, as JSON.

Run it before and after a change of the estimates, and compare:

    python scripts/bench/verdicts.py > before.json
    python scripts/bench/verdicts.py > after.json
    python scripts/bench/verdicts.py --compare before.json after.json

It needs no network, no model file and no GPU: every shape is the catalogue's, every GPU
is simulated.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from localspec.fit import machine_profile, speed, suggestions
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.suggestions import SuggestionCriteria
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.models import catalog
from localspec.models.catalog import CatalogPair

GIB = 1 << 30
RAM_GIB = 32
GPUS = (
    ("RTX 4060", 8.0),
    ("RTX 3060", 12.0),
    ("RTX 4080", 16.0),
    ("RTX 3090", 24.0),
    ("RTX 5090", 32.0),
    ("RX 7600", 8.0),
    ("RX 7900 XTX", 24.0),
    ("M1 Max", 32.0),
    ("M4 Pro", 48.0),
    ("Ryzen AI Max+ 395", 128.0),
)
"""Names in gpus.yaml, and memory in GiB; beside them two computers without a GPU."""


def computer_without_gpu(ram_gib: int) -> MachineProfile:
    cpu = Device(
        "CPU",
        kind="cpu",
        free=(ram_gib - 4) * GIB,
        total=ram_gib * GIB,
        unified=True,
    )
    return MachineProfile((), cpu, speed.from_devices((), speed.TYPICAL_CPU_SPEED))


def list_machines() -> dict[str, MachineProfile]:
    machines = {
        "CPU, 16 GiB": computer_without_gpu(16),
        "CPU, 64 GiB": computer_without_gpu(64),
    }
    base = computer_without_gpu(RAM_GIB)
    for name, vram_gib in GPUS:
        spec = gpu_catalog.find(name)
        machine = machine_profile.with_catalog_gpu(base, spec, vram_gib)
        machines[f"{name}, {vram_gib:g} GiB"] = machine
    return machines


def describe(pair: CatalogPair, machine: MachineProfile) -> dict[str, Any]:
    found = suggestions.assess_pair(
        pair, machine, SuggestionCriteria("chat"), searches=True
    )
    if found is None:
        return {"verdict": "unknown size"}
    if found.plan is None:
        return {"verdict": found.verdict, "bytes": found.bytes}
    fit = found.plan
    settings = fit.load.target_settings
    return {
        "verdict": fit.verdict,
        "needed": {each.device.name: each.needed for each in fit.all_fits},
        "compute": {
            each.device.name: each.target.compute + each.draft.compute
            for each in fit.all_fits
        },
        "speed": [fit.speed.plain, fit.speed.speculative],
        "settings": {
            "draft": fit.load.draft,
            "draft_max": fit.load.draft_max,
            "ctx": settings.n_ctx,
            "kv": settings.kv_type,
            "gpu_layers": settings.n_gpu_layers,
            "cpu_moe": settings.cpu_moe,
            "draft_gpu_layers": fit.load.draft_settings.n_gpu_layers,
            "swa_full": settings.swa_full,
        },
    }


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Prints how many fits have changed, and the changed ones."""
    changes: Counter[str] = Counter()
    for name in before.keys() | after.keys():
        old = before.get(name, {})
        new = after.get(name, {})
        if old.get("verdict") != new.get("verdict"):
            changes["verdict"] += 1
            print(f"{name}: {old.get('verdict')} → {new.get('verdict')}")
        elif old.get("settings") != new.get("settings"):
            changes["settings"] += 1
            old_settings = old.get("settings") or {}
            new_settings = new.get("settings") or {}
            changed = {}
            for key, value in old_settings.items():
                if value != new_settings.get(key):
                    changed[key] = [value, new_settings.get(key)]
            print(f"{name}: {changed}")
        elif old.get("needed") != new.get("needed"):
            changes["memory alone"] += 1
        if old.get("speed") != new.get("speed"):
            changes["speed"] += 1
    print(f"{len(after)} fits, changed: {dict(changes)}")


def main() -> None:
    if sys.argv[1:2] == ["--compare"]:
        _, _, before, after = sys.argv
        compare(
            json.loads(Path(before).read_text()), json.loads(Path(after).read_text())
        )
        return
    fits = {}
    for name, machine in list_machines().items():
        for pair in catalog.load().pairs.values():
            fits[f"{pair.id} on {name}"] = describe(pair, machine)
    print(json.dumps(fits, indent=1))


if __name__ == "__main__":
    main()
