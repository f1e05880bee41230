"""An engine process that fails on purpose: a scripted one, or the real one.

    python failing_engine.py PARENT scripted|real PHASE FAULT

A phase is hello, load, probe, replay, prefill, decode or never; the real engine has
decode and never. A scripted pair whose file begins with "gpu" is on a GPU.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator

from msgspec.structs import fields

from localspec import child_process
from localspec.engine.__main__ import CommandServer
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.protocol import events, wire

MEASURED = wire.MeasuredCosts(2.0, {"1": 1.0, "4": 1.5})
REPLAYED = wire.ReplayResult(**{part.name: (1,) for part in fields(wire.ReplayResult)})
EXITS = {
    "kill": ("oom-system", 11), "segv": ("signal SIGSEGV", 9), "abort": ("assert", 9),
    "cuda": ("oom-gpu", 11), "garbage": ("protocol", 9), "deep": ("protocol", 9),
    "endless": ("protocol", 9), "disk": ("exit 1", 8), "exit": ("exit 3", 9),
    "silent": ("exit 0", 9), "hang": ("hang", 9),
}  # fmt: skip
"""By fault: `EngineExit.how`, and the exit code."""


def make_faults(out: int) -> dict[str, Callable[[], object]]:
    """`out` is the real stdout."""

    def die(number: int, log: bytes = b"") -> None:
        os.write(2, log)
        os.kill(os.getpid(), number)

    def hang() -> None:
        os.write(2, b"about to hang\n")
        while True:
            signal.pause()

    def beat(busy: float, seconds: int, *, ends: bool) -> None:
        """Heartbeats of the first answer, as if it stood still for so long."""
        for stuck in range(0, seconds, 10):
            os.write(
                out, wire.encode_output(2, wire.HeartbeatReply(float(stuck), busy))
            )
        if not ends:
            hang()

    def write_to_full_disk() -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(b"x")

    stuck = wire.HeartbeatReply(900.0, 0.0)
    other_version = wire.HelloReply(wire.PROTOCOL_VERSION + 1, os.getpid())
    return {
        "kill": lambda: die(signal.SIGKILL),
        "segv": lambda: die(signal.SIGSEGV),
        "abort": lambda: die(
            signal.SIGABRT, b"ggml.c:1234: GGML_ASSERT(n > 0) failed\n"
        ),
        "cuda": lambda: die(
            signal.SIGABRT, b"CUDA error: out of memory\n  current device: 0\n"
        ),
        "hang": hang,
        "compiles": lambda: beat(0.4, 900, ends=True),
        "compiles for ever": lambda: beat(0.4, 2000, ends=False),
        "deadlock": lambda: beat(0.001, 300, ends=False),
        "compiles until killed": lambda: beat(0.4, 60, ends=False),
        "garbage": lambda: os.write(out, b"\xff\xfe not json at all\n"),
        "deep": lambda: os.write(out, b"[" * 60_000 + b"\n"),
        "endless": lambda: [os.write(out, b"[" * 65536) for _ in range(200)],
        "disk": write_to_full_disk,
        "bug": lambda: 1 // 0,
        "flood": lambda: [os.write(2, b"x" * 1023 + b"\n") for _ in range(8192)],
        "late heartbeat": lambda: os.write(out, wire.encode_output(1, stuck)),
        "exit": lambda: os._exit(3),
        "newer": lambda: os.write(out, wire.encode_output(0, other_version)),
        "silent": lambda: os._exit(0),
        "none": lambda: None,
    }


class ScriptedEngine:
    """Speaks the protocol, without a model."""

    def __init__(self, out: int, phase: str, fault: str) -> None:
        self._out = out
        self._phase = phase
        self._fault = make_faults(out)[fault]

    def _say(self, number: int, output: wire.EngineOutput) -> None:
        os.write(self._out, wire.encode_output(number, output))

    def _enter(self, phase: str) -> None:
        if phase == self._phase:
            self._fault()

    def run(self) -> None:
        self._enter("hello")
        self._say(0, wire.HelloReply(wire.PROTOCOL_VERSION, os.getpid()))
        for line in sys.stdin.buffer:
            number, command = wire.decode_command(line)
            for output in self._outputs(command):
                self._say(number, output)
            if not isinstance(command, wire.StopCommand):
                self._say(number, wire.DoneReply())

    def _outputs(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        if isinstance(command, wire.LoadCommand):
            self._enter("load")
            devices: tuple[str, ...] = ("CPU",)
            if command.target.startswith("gpu"):
                devices = ("a GPU", "CPU")
            yield events.EngineReady(
                engine={},
                model=command.target,
                draft=command.draft,
                devices=devices,
                settings={},
                memory={},
                load_ms=1.0,
            )
        elif isinstance(command, wire.ProbeCommand):
            yield events.SpeculationPlan("probing", "scripted")
            self._enter("probe")
            yield MEASURED
        elif isinstance(command, wire.ReplayCommand):
            self._enter("replay")
            yield REPLAYED
        elif isinstance(command, wire.GenerateCommand):
            yield events.Prefill(0, 4, 0)
            self._enter("prefill")
            for n, word in enumerate(("one ", "two ", "three ", "four")):
                if n == 2:
                    self._enter("decode")
                yield events.Round(
                    n=n,
                    source=None,
                    reason="",
                    drafted=0,
                    accepted=0,
                    tokens=(events.Token(n, word, "plain"),),
                    ms=events.RoundTimes(draft=0, verify=1, host=0),
                )
            yield events.GenerationFinished("length")


class FailingServer(CommandServer):
    """The real engine, which fails after its third round."""

    def __init__(self, out: int, phase: str, fault: str) -> None:
        super().__init__(os.dup(0), out)
        if phase == "never":
            fault = "none"
        self._fault = make_faults(out)[fault]

    def _run_command(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        for output in super()._run_command(command):
            yield output
            if isinstance(output, events.Round) and output.n == 2:
                self._fault()


if __name__ == "__main__":
    OtherCpuLoad.read = lambda _: 0.0  # type: ignore[method-assign,assignment]  # as in tests/conftest.py
    child_process.set_up_child(int(sys.argv[1]))
    make = ScriptedEngine if sys.argv[2] == "scripted" else FailingServer
    make(child_process.take_over_stdout(), *sys.argv[3:]).run()
    os._exit(0)
