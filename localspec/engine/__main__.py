"""The child process: commands in on stdin, events out on stdout, one JSON object a line."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec import children, errors
from localspec.engine import pulse
from localspec.protocol import wire

if TYPE_CHECKING:
    from localspec.engine.session import Session

_BEAT = 1.0


class Child:
    """Carries out one command after another; `stop` and the end of stdin overtake."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = os.fdopen(commands, "rb")
        self._answers = answers
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[int, wire.Command]] = queue.SimpleQueue()
        self._engine: Session | None = None
        self._current = 0
        self._newest = 0
        """Number of the newest command that was heard."""
        self._stopped = 0
        """Number of the newest command that was to stop."""

    def run(self) -> None:
        self._say(0, wire.Hello(wire.PROTOCOL, os.getpid()))
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        while True:
            number, command = self._queue.get()
            if isinstance(command, wire.Bye):
                return
            pulse.beat()
            self._current = number
            try:
                for event in self._carry_out(command):
                    self._say(number, event)
                    self._heed_stop()
            except errors.LocalspecError as error:
                self._say(number, wire.Failed(errors.code(error), error.message, error.hint))
            else:
                self._say(number, wire.Done())
            self._current = 0

    def _carry_out(self, command: wire.Command) -> Iterator[wire.Answer]:
        # Late: the handshake need not wait for llama.cpp.
        from localspec.engine.session import Session  # noqa: PLC0415

        if isinstance(command, wire.Load):
            self._close()
            self._engine = Session(command)
            yield self._engine.ready
        elif self._engine is None:
            raise errors.UsageError("Nothing is loaded.", "Load a pair first.")
        elif isinstance(command, wire.Generate):
            yield from self._engine.generate(command)
            yield from self._engine.measured()
        elif isinstance(command, wire.Probe):
            yield from self._engine.probe(command)
        elif isinstance(command, wire.Replay):
            yield self._engine.replay(command)
        elif isinstance(command, wire.Render):
            yield self._engine.render(command)
        elif isinstance(command, wire.Count):
            yield self._engine.count(command)
        elif isinstance(command, wire.Inspect):
            yield from self._engine.inspect(command)

    def _heed_stop(self) -> None:
        """A stop may have come before its answer began."""
        if self._engine is not None and 0 < self._current <= self._stopped:
            self._engine.stop()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _listen(self) -> None:
        """Read commands until the parent is gone; then end, whatever llama.cpp is doing."""
        for line in self._commands:
            try:
                number, command = wire.decode_command(line)
            except ValueError as error:
                print(f"localspec: not a command: {error}", file=sys.stderr, flush=True)
                os._exit(70)
            if isinstance(command, wire.Stop):
                self._stopped = self._newest
                self._heed_stop()
            else:
                self._newest = number
                self._queue.put((number, command))
        os._exit(0)

    def _beat(self) -> None:
        while True:
            time.sleep(_BEAT)
            if self._current:
                self._say(self._current, wire.Alive(round(pulse.still_for(), 1)))

    def _say(self, number: int, answer: wire.Answer) -> None:
        data = memoryview(wire.encode_answer(number, answer))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._answers, data) :]
            except OSError:  # nobody listens any more
                os._exit(0)


def main() -> None:
    children.settle(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    answers = children.private_stdout()
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no library reads our commands
    Child(commands, answers).run()
    os._exit(0)  # llama.cpp's destructors are slow and cannot matter any more


if __name__ == "__main__":
    main()
