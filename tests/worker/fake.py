"""A scripted engine process: speaks the protocol, then fails as told.

python fake.py PHASE FAULT      PHASE: hello, load, prefill, decode, never
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

from localspec import children
from localspec.protocol import wire
from localspec.protocol.events import Finished, Plan, Prefill, Ready, Round, Times, Token

FLOOD = 100 * 1024 * 1024


def _flood() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(FLOOD // 1024):
        os.write(2, line)


def _abort() -> None:
    os.write(2, b"ggml.c:1234: GGML_ASSERT(n > 0) failed\n")
    os.kill(os.getpid(), signal.SIGABRT)


def _cuda() -> None:
    os.write(2, b"CUDA error: out of memory\n  current device: 0\n")
    os.kill(os.getpid(), signal.SIGABRT)


def _hang() -> None:
    while True:
        time.sleep(60)


class Fake:
    def __init__(self, phase: str, fault: str) -> None:
        self._out = children.private_stdout()
        self._phase, self._fault = phase, fault
        self._faults: dict[str, Callable[[], object]] = {
            "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
            "abort": _abort,
            "cuda": _cuda,
            "hang": _hang,
            "garbage": lambda: os.write(self._out, b"\xff\xfe not json at all\n"),
            "endless": lambda: [os.write(self._out, b"[" * 65536) for _ in range(200)],
            "flood": _flood,
            "exit": lambda: os._exit(3),
            "silent": lambda: os._exit(0),
            "none": lambda: None,
        }

    def say(self, number: int, answer: wire.Answer) -> None:
        os.write(self._out, wire.encode_answer(number, answer))

    def at(self, phase: str) -> None:
        if phase == self._phase:
            self._faults[self._fault]()

    def run(self) -> None:
        self.at("hello")
        self.say(0, wire.Hello(wire.PROTOCOL, os.getpid()))
        for line in sys.stdin.buffer:
            number, command = wire.decode_command(line)
            if isinstance(command, wire.Load):
                self.at("load")
                self.say(number, Ready({}, command.target, command.draft, (), {}, {}, 1.0))
                self.say(number, wire.Done())
            elif isinstance(command, wire.Generate):
                self.answer(number)
            elif isinstance(command, wire.Bye):
                return

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
        self.say(number, wire.Done())


if __name__ == "__main__":
    Fake(sys.argv[1], sys.argv[2]).run()
