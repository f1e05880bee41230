"""The real engine process, made to fail in the middle of real work.

python faulty.py PARENT PHASE FAULT      PHASE: load, probe, replay, prefill, decode, never
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from localspec import child_process
from localspec.engine.__main__ import CommandServer
from localspec.protocol import wire
from localspec.protocol.events import Prefill, Round, SpeculationPlan
from tests.engine_process.faults import faults


class Faulty(CommandServer):
    def __init__(self, commands: int, answers: int, phase: str, fault: str) -> None:
        super().__init__(commands, answers)
        self._phase, self._fault = phase, faults(answers)[fault]

    def _run_command(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        for answer in super()._run_command(command):
            phase = _phase(command, answer)
            if phase == self._phase == "load":  # before it is said to have gone well
                self._fault()
            yield answer
            if phase == self._phase != "load":
                self._fault()


def _phase(command: wire.EngineCommand, answer: wire.EngineOutput) -> str:
    if isinstance(command, wire.LoadCommand):
        return "load"
    if isinstance(command, wire.ProbeCommand):
        return "probe" if isinstance(answer, SpeculationPlan) else ""
    if isinstance(answer, Prefill):
        return "prefill" if answer.done else ""
    return "decode" if isinstance(answer, Round) and answer.n == 2 else ""


if __name__ == "__main__":
    child_process.set_up_child(int(sys.argv[1]))
    answers, commands = child_process.take_over_stdout(), os.dup(0)
    Faulty(commands, answers, sys.argv[2], sys.argv[3]).run()
    os._exit(0)
