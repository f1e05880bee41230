"""A scripted engine process: speaks the protocol, then fails as told.

python fake.py PARENT PHASE FAULT      PHASE: hello, load, probe, replay, prefill, decode, never

A pair whose file begins with "gpu" is on a GPU.
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields

from localspec import child_process
from localspec.protocol import wire
from localspec.protocol.events import (
    EngineReady,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
)
from tests.engine_process.faults import faults

MEASURED = wire.MeasuredCosts(2.0, {"1": 1.0, "4": 1.5})
REPLAYED = wire.ReplayResult(**{part.name: (1,) for part in fields(wire.ReplayResult)})


class Fake:
    def __init__(self, phase: str, fault: str) -> None:
        self._out = child_process.take_over_stdout()
        self._phase, self._fault = phase, faults(self._out)[fault]

    def say(self, number: int, answer: wire.EngineOutput) -> None:
        os.write(self._out, wire.encode_output(number, answer))

    def at(self, phase: str) -> None:
        if phase == self._phase:
            self._fault()

    def run(self) -> None:
        self.at("hello")
        self.say(0, wire.HelloReply(wire.PROTOCOL_VERSION, os.getpid()))
        for line in sys.stdin.buffer:
            number, command = wire.decode_command(line)
            if isinstance(command, wire.ByeCommand):
                return
            self.carry_out(number, command)
            if not isinstance(command, wire.StopCommand):
                self.say(number, wire.DoneReply())

    def carry_out(self, number: int, command: wire.EngineCommand) -> None:
        if isinstance(command, wire.LoadCommand):
            self.at("load")
            devices = ("a GPU", "CPU") if command.target.startswith("gpu") else ("CPU",)
            ready = EngineReady({}, command.target, command.draft, devices, {}, {}, 1.0)
            self.say(number, ready)
        elif isinstance(command, wire.ProbeCommand):
            self.say(number, SpeculationPlan("probing", "scripted"))
            self.at("probe")
            self.say(number, MEASURED)
        elif isinstance(command, wire.ReplayCommand):
            self.at("replay")
            self.say(number, REPLAYED)
        elif isinstance(command, wire.GenerateCommand):
            self.answer(number)

    def answer(self, number: int) -> None:
        self.say(number, SpeculationPlan("on", "scripted"))
        self.say(number, Prefill(0, 4, 0))
        self.at("prefill")
        for n, word in enumerate(("one ", "two ", "three ", "four")):
            if n == 2:
                self.at("decode")
            token = Token(n, word, "plain")
            self.say(number, Round(n, None, "", 0, 0, (token,), RoundTimes(0, 1, 0)))
        self.say(number, GenerationFinished("length"))


if __name__ == "__main__":
    child_process.set_up_child(int(sys.argv[1]))
    Fake(sys.argv[2], sys.argv[3]).run()
