"""The real engine process, made to fail in the middle of real work.

python faulty.py PARENT PHASE FAULT      PHASE: load, probe, replay, prefill, decode, never
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from localspec import children
from localspec.engine.__main__ import Child
from localspec.protocol import wire
from localspec.protocol.events import Plan, Prefill, Round
from tests.worker.faults import faults


class Faulty(Child):
    def __init__(self, commands: int, answers: int, phase: str, fault: str) -> None:
        super().__init__(commands, answers)
        self._phase, self._fault = phase, faults(answers)[fault]

    def _carry_out(self, command: wire.Command) -> Iterator[wire.Answer]:
        for answer in super()._carry_out(command):
            phase = _phase(command, answer)
            if phase == self._phase == "load":  # before it is said to have gone well
                self._fault()
            yield answer
            if phase == self._phase != "load":
                self._fault()


def _phase(command: wire.Command, answer: wire.Answer) -> str:
    if isinstance(command, wire.Load):
        return "load"
    if isinstance(command, wire.Probe):
        return "probe" if isinstance(answer, Plan) else ""
    if isinstance(answer, Prefill):
        return "prefill" if answer.done else ""
    return "decode" if isinstance(answer, Round) and answer.n == 2 else ""


if __name__ == "__main__":
    children.settle(int(sys.argv[1]))
    answers, commands = children.private_stdout(), os.dup(0)
    Faulty(commands, answers, sys.argv[2], sys.argv[3]).run()
    os._exit(0)
