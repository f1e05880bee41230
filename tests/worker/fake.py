"""A scripted engine process: speaks the protocol, then fails as told.

python fake.py PARENT PHASE FAULT      PHASE: hello, load, probe, replay, prefill, decode, never
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields

from localspec import children
from localspec.protocol import wire
from localspec.protocol.events import Finished, Plan, Prefill, Ready, Round, Times, Token
from tests.worker.faults import faults

MEASURED = wire.Measured(2.0, {"1": 1.0, "4": 1.5})
REPLAYED = wire.Replayed(**{part.name: (1,) for part in fields(wire.Replayed)})


class Fake:
    def __init__(self, phase: str, fault: str) -> None:
        self._out = children.private_stdout()
        self._phase, self._fault = phase, faults(self._out)[fault]

    def say(self, number: int, answer: wire.Answer) -> None:
        os.write(self._out, wire.encode_answer(number, answer))

    def at(self, phase: str) -> None:
        if phase == self._phase:
            self._fault()

    def run(self) -> None:
        self.at("hello")
        self.say(0, wire.Hello(wire.PROTOCOL, os.getpid()))
        for line in sys.stdin.buffer:
            number, command = wire.decode_command(line)
            if isinstance(command, wire.Bye):
                return
            self.carry_out(number, command)
            if not isinstance(command, wire.Stop):
                self.say(number, wire.Done())

    def carry_out(self, number: int, command: wire.Command) -> None:
        if isinstance(command, wire.Load):
            self.at("load")
            self.say(number, Ready({}, command.target, command.draft, (), {}, {}, 1.0))
        elif isinstance(command, wire.Probe):
            self.say(number, Plan("probing", "scripted"))
            self.at("probe")
            self.say(number, MEASURED)
        elif isinstance(command, wire.Replay):
            self.at("replay")
            self.say(number, REPLAYED)
        elif isinstance(command, wire.Generate):
            self.answer(number)

    def answer(self, number: int) -> None:
        self.say(number, Plan("on", "scripted"))
        self.say(number, Prefill(0, 4, 0))
        self.at("prefill")
        for n, word in enumerate(("one ", "two ", "three ", "four")):
            if n == 2:
                self.at("decode")
            token = Token(n, word, "plain")
            self.say(number, Round(n, None, "", 0, 0, (token,), Times(0, 1, 0)))
        self.say(number, Finished("length"))


if __name__ == "__main__":
    children.settle(int(sys.argv[1]))
    Fake(sys.argv[2], sys.argv[3]).run()
