"""The engine process: commands on stdin, events on stdout, one JSON object per line."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec import child_process, errors
from localspec.engine import heartbeat
from localspec.protocol import wire

if TYPE_CHECKING:
    from localspec.engine.session import Session

_HEARTBEAT_SECONDS = 1.0


class CommandServer:
    """Runs commands in order. `stop` and the end of stdin take effect at once."""

    def __init__(self, commands: int, outputs: int) -> None:
        self._commands = os.fdopen(commands, "rb")
        self._outputs = outputs
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[int, wire.EngineCommand]] = queue.SimpleQueue()
        self._session: Session | None = None
        self._current = 0
        self._newest_number = 0
        """Number of the newest command received."""
        self._stop_up_to = 0
        """Commands up to this number were asked to stop."""

    def run(self) -> None:
        self._send(0, wire.HelloReply(wire.PROTOCOL_VERSION, os.getpid()))
        threading.Thread(target=self._read_commands, daemon=True).start()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        while True:
            number, command = self._queue.get()
            if isinstance(command, wire.ByeCommand):
                return
            heartbeat.record_progress()
            self._current = number
            try:
                for event in self._run_command(command):
                    self._send(number, event)
                    self._apply_stop()
            except errors.LocalspecError as error:
                self._send(
                    number, wire.FailureReply(errors.error_code(error), error.message, error.hint)
                )
            else:
                self._send(number, wire.DoneReply())
            self._current = 0

    def _run_command(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        # Imported here so that the handshake does not wait for llama.cpp.
        from localspec.engine.session import Session  # noqa: PLC0415

        if isinstance(command, wire.LoadCommand):
            self._close_session()
            self._session = Session(command)
            yield self._session.ready
        elif self._session is None:
            raise errors.UsageError("No model is loaded.", "Load a model first.")
        elif isinstance(command, wire.GenerateCommand):
            yield from self._session.generate(command)
            yield from self._session.measured_costs()
        elif isinstance(command, wire.ProbeCommand):
            yield from self._session.probe(command)
        elif isinstance(command, wire.ReplayCommand):
            yield self._session.replay(command)
        elif isinstance(command, wire.RenderCommand):
            yield self._session.render(command)
        elif isinstance(command, wire.CountCommand):
            yield self._session.count(command)
        elif isinstance(command, wire.InspectCommand):
            yield from self._session.inspect(command)

    def _apply_stop(self) -> None:
        """Stop the current command if a stop arrived for it, perhaps before it began."""
        if self._session is not None and 0 < self._current <= self._stop_up_to:
            self._session.stop()

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _read_commands(self) -> None:
        """Read commands until the parent closes stdin; then exit, even inside llama_decode."""
        for line in self._commands:
            try:
                number, command = wire.decode_command(line)
            except ValueError as error:
                print(f"localspec: not a command: {error}", file=sys.stderr, flush=True)
                os._exit(70)
            if isinstance(command, wire.StopCommand):
                self._stop_up_to = self._newest_number
                self._apply_stop()
            else:
                self._newest_number = number
                self._queue.put((number, command))
        os._exit(0)

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(_HEARTBEAT_SECONDS)
            if self._current:
                self._send(
                    self._current, wire.HeartbeatReply(round(heartbeat.seconds_since_progress(), 1))
                )

    def _send(self, number: int, output: wire.EngineOutput) -> None:
        data = memoryview(wire.encode_output(number, output))
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._outputs, data) :]
            except OSError:  # the parent has closed the pipe
                os._exit(0)


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    outputs = child_process.take_over_stdout()
    commands = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # so that no library reads the commands
    CommandServer(commands, outputs).run()
    os._exit(0)  # skips llama.cpp's slow destructors


if __name__ == "__main__":
    main()
