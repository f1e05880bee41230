"""A parent that is killed while its engine is busy: python parent.py PHASE MODEL.

PHASE: idle, load, decode, hang
"""

from __future__ import annotations

import os
import signal
import sys

from localspec.engine_process.client import EngineTimeouts
from localspec.protocol.events import Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand
from tests.engine_process.ends import start_failing


def main(phase: str, model: str) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    fault = ("decode", "hang") if phase == "hang" else ("never", "none")
    engine = start_failing(*fault, EngineTimeouts(), "real")
    print(engine.pid, flush=True)
    load = LoadCommand(model, None, ContextSettings(n_ctx=2048, n_threads=1))
    if phase == "idle":
        die()
    if phase == "load":
        engine._send(1, load)
        die()
    engine.load(load)
    for event in engine.generate(GenerateCommand("a" * 1200, max_tokens=800)):
        if isinstance(event, Round) and event.n == (phase == "hang"):
            die()


if __name__ == "__main__":
    main(*sys.argv[1:])
