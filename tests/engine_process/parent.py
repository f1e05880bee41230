"""A parent that dies while its engine is busy.

python parent.py fake|real idle|load|prefill|decode|hang SIGNAL MODEL
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from localspec.engine_process.client import EngineProcess
from localspec.protocol.events import Event, Prefill, Round
from localspec.protocol.wire import ContextSettings, GenerateCommand, LoadCommand


def command(engine: str, phase: str) -> list[str]:
    script = Path(__file__).with_name("fake.py" if engine == "fake" else "faulty.py")
    fault = ("decode", "hang") if phase == "hang" else ("never", "none")
    return [sys.executable, str(script), str(os.getpid()), *fault]


def reached(phase: str, event: Event) -> bool:
    last = 1 if phase == "hang" else 0
    return (
        isinstance(event, Prefill)
        if phase == "prefill"
        else (isinstance(event, Round) and event.n == last)
    )


def main(engine: str, phase: str, how: str, model: str) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.Signals[how])

    worker = EngineProcess(lambda: command(engine, phase))
    print(worker.pid, flush=True)
    load = LoadCommand(model, None, ContextSettings(n_ctx=2048, n_threads=1))
    if phase == "idle":
        die()
    if phase == "load":
        worker._send(1, load)
        die()
    worker.load(load)
    for event in worker.generate(GenerateCommand("a" * 1200, max_tokens=800)):
        if reached(phase, event):
            die()


if __name__ == "__main__":
    main(*sys.argv[1:])
