"""The first three models that are advised for sixteen computers, for chat and for code.

    bench.py advice [--use chat]

Every computer is simulated, with 32 GB of DDR5 beside a GPU that has its own memory.
The speeds are the middles of the estimates, without and with the draft.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

from turns import table

from localspec.fit import machine_profile, suggestion_groups
from localspec.fit.machine_profile import MachineProfile, SimulatedHardware
from localspec.fit.suggestion_groups import AdviceGroup, AdvisedPair
from localspec.fit.suggestions import SuggestionCriteria
from localspec.units import middle

DESKTOP = "Ryzen 7 7700, DDR5-5600"
DESKTOP_RAM = 32.0
USES = ("chat", "code")


class Computer(NamedTuple):
    gpu: str = ""
    cpu: str = DESKTOP
    ram: float = DESKTOP_RAM

    @property
    def title(self) -> str:
        return self.gpu or f"{self.cpu}, {self.ram:g} GB"

    def simulate(self) -> MachineProfile:
        if not self.gpu:
            hardware = SimulatedHardware(cpu=self.cpu, ram=self.ram)
            return machine_profile.simulate(hardware)
        alone = SimulatedHardware(gpu=self.gpu)
        machine = machine_profile.simulate(alone)
        if machine.devices[0].unified:
            return machine
        hardware = SimulatedHardware(gpu=self.gpu, cpu=self.cpu, ram=self.ram)
        return machine_profile.simulate(hardware)


COMPUTERS = (
    Computer("RTX 4060 8"),
    Computer("RTX 3060 12"),
    Computer("RTX 4060 Ti 16"),
    Computer("RTX 3090"),
    Computer("RTX 5090"),
    Computer("RTX A6000"),
    Computer("RX 7900 XTX"),
    Computer("Arc B580"),
    Computer("M4 16"),
    Computer("M4 24"),
    Computer("M4 32"),
    Computer("M4 Pro 48"),
    Computer("M4 Max 64"),
    Computer("M4 Max 128"),
    Computer(cpu="i5-12400, DDR4-3200", ram=16.0),
    Computer(cpu=DESKTOP),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--use", choices=USES, help="only this use")


def main(args: argparse.Namespace) -> int:
    uses: tuple[str, ...] = USES
    if args.use:
        uses = (args.use,)
    for use in uses:
        print(f"\n{use}\n")
        print(table(list(list_rows(use))))
    return 0


def list_rows(use: str) -> Iterator[list[str]]:
    yield ["computer", "first", "second", "third"]
    for computer in COMPUTERS:
        advised = suggestion_groups.advise(computer.simulate(), SuggestionCriteria(use))
        best = [each for each in advised.pairs if each.group is AdviceGroup.BEST]
        named = [describe(each) for each in best[:3]]
        named += ["–"] * (3 - len(named))
        yield [computer.title, *named]


def describe(advised: AdvisedPair) -> str:
    """Such as "Gemma 4 31B: 36 → 53"."""
    plan = advised.suggestion.plan
    if plan is None or plan.speed.plain is None:
        return advised.name
    speeds = f"{middle(plan.speed.plain):.0f}"
    if plan.load.draft and plan.speed.speculative:
        speeds += f" → {middle(plan.speed.speculative):.0f}"
    return f"{advised.name}: {speeds}"
