"""The engine process: commands on stdin, events on stdout, one JSON object per line."""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from localspec import child_process, errors, install_hints
from localspec.protocol import wire
from localspec.protocol.events import Round
from localspec.spec import heartbeat

if TYPE_CHECKING:
    from localspec.engine.session import Session

_HEARTBEAT_SECONDS = 1.0
_MAX_HELD_SECONDS = 0.03
"""A round that comes sooner than this after the last line waits for the next one.

A line wakes the parent, which takes a core from the next pass: with 12 ms a token on two
cores, .3 ms of each. Nobody sees 30 ms. If the next round takes long, a heartbeat sends
what waits.
"""
_LOAD_REPORT_SECONDS = 0.1
_IDLE_SECONDS = 0.3  # Seconds without a command after which nobody waits.
_END_OF_MEASURING = object()


def _import_session() -> type[Session]:
    # The import comes late, so that the handshake does not wait for llama.cpp.
    try:
        from localspec.engine.session import Session  # noqa: PLC0415
    except AttributeError as error:  # Only another llama-cpp-python has that function.
        raise errors.EngineError(
            f"llama.cpp cannot be used: {error}",
            f"Reinstall it: {install_hints.reinstall_llama_cpp()}",
        ) from error
    return Session


def _to_error(failure: Exception) -> errors.LocalspecError:
    if isinstance(failure, errors.LocalspecError):
        return failure
    traceback.print_exception(failure)  # Standard error is the engine's log.
    if isinstance(failure, OSError):
        hint = "Free disk space or raise your disk quota, then run it again."
        return errors.StorageError(
            f"The engine cannot use the disk: {failure.strerror}.", hint
        )
    return errors.EngineError(
        f"Internal error: {type(failure).__name__}.",
        errors.Hint("{verbose} shows where it happened."),
    )


def _log(message: str) -> None:
    print(f"localspec: {message}", file=sys.stderr, flush=True)


class CommandServer:
    """Runs commands in order. `stop` and the end of stdin take effect at once."""

    def __init__(self, commands: int, outputs: int) -> None:
        self._commands = os.fdopen(commands, "rb")
        self._outputs = outputs
        self._lock = threading.Lock()
        self._held = bytearray()  # Lines that wait for the next one.
        self._sent_at = -math.inf
        self._queue: queue.SimpleQueue[tuple[int, wire.EngineCommand]] = (
            queue.SimpleQueue()
        )
        self._session: Session | None = None
        self._current = 0
        self._newest_number = 0  # Number of the newest command received.
        self._is_measuring = False
        """A measurement runs between commands; the next command interrupts it."""
        self._arrival_lock = threading.Lock()
        """Keeps an interruption that is meant for a measurement from the next command."""
        self._load_reported_at = -math.inf
        self._stop_up_to = 0  # Commands up to this number were asked to stop.

    def run(self) -> None:
        self._send(0, wire.HelloReply(wire.PROTOCOL_VERSION, os.getpid()))
        threading.Thread(target=self._read_commands, daemon=True).start()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        # The parent prepares its first command meanwhile, which raises the error again.
        with suppress(errors.LocalspecError):
            _import_session()
        while True:
            number, command = self._next_command()
            heartbeat.record_progress()
            self._current = number
            try:
                for event in self._run_command(command):
                    self._send(number, event)
                    self._apply_stop()
            except Exception as failure:  # It ends one command, not the process.
                self._send_failure(number, _to_error(failure))
            else:
                self._send(number, wire.DoneReply())
            self._current = 0

    def _next_command(self) -> tuple[int, wire.EngineCommand]:
        """Wait for a command; meanwhile measure the pair if that is due."""
        if self._session is not None:
            with suppress(queue.Empty):
                return self._queue.get(timeout=_IDLE_SECONDS)
            self._measure_until_command(self._session)
        return self._queue.get()

    def _measure_until_command(self, session: Session) -> None:
        measuring = session.measure_when_idle()
        with self._arrival_lock:
            self._is_measuring = True
        try:
            with closing(measuring):
                while self._queue.empty():
                    step = next(measuring, _END_OF_MEASURING)
                    if step is _END_OF_MEASURING:
                        break
        except Exception as error:  # The next command will meet it too.
            _log(f"measuring failed: {error}")
        finally:
            with self._arrival_lock:
                self._is_measuring = False

    def _run_command(self, command: wire.EngineCommand) -> Iterator[wire.EngineOutput]:
        if isinstance(command, wire.LoadCommand):
            if self._session is not None:
                self._session.close()
                self._session = None
            heartbeat.watch_loads(self._report_load)
            self._session = _import_session()(command)
            yield self._session.ready
        elif self._session is None:
            raise errors.UsageError("No model is loaded.", "Load a model first.")
        else:
            yield from self._session.run(command)

    def _report_load(self, file: str, share: float) -> None:
        """Send how far a load is, but not for each of some thousand tensors."""
        now = time.monotonic()
        if share < 1 and now - self._load_reported_at < _LOAD_REPORT_SECONDS:
            return
        self._load_reported_at = now
        phase: wire.LoadPhase = "reading" if share < 1 else "preparing"
        self._send(self._current, wire.LoadProgress(phase, file, round(share, 3)))

    def _send_failure(self, number: int, error: errors.LocalspecError) -> None:
        template = ""
        if isinstance(error.hint, errors.Hint):
            template = error.hint.template
        reply = wire.FailureReply(
            error.code, error.message, error.hint, template, param=error.param or ""
        )
        self._send(number, reply)

    def _apply_stop(self) -> None:
        """Stop the current command if a stop arrived for it, perhaps before it began."""
        if self._session is not None and 0 < self._current <= self._stop_up_to:
            self._session.stop()

    def _read_commands(self) -> None:
        """Read commands until the parent closes stdin; then exit.

        The process exits even inside llama_decode.
        """
        for line in self._commands:
            try:
                number, command = wire.decode_command(line)
            except ValueError as error:
                _log(f"not a command: {error}")
                os._exit(70)
            if isinstance(command, wire.StopCommand):
                self._stop_up_to = self._newest_number
                self._apply_stop()
            else:
                with self._arrival_lock:
                    self._newest_number = number
                    self._queue.put((number, command))
                    if self._is_measuring and self._session is not None:
                        self._session.stop()
        os._exit(0)

    def _send_heartbeats(self) -> None:
        at = time.monotonic()
        cpu_seconds = time.process_time()
        while True:
            time.sleep(_HEARTBEAT_SECONDS)
            now = time.monotonic()
            cpu_now = time.process_time()
            busy = (cpu_now - cpu_seconds) / (now - at)
            at = now
            cpu_seconds = cpu_now
            number = self._current
            # A command that arrived during a measurement waits for a pass of that.
            if self._is_measuring and not self._queue.empty():
                number = self._newest_number
            if number:
                stuck = heartbeat.seconds_since_progress()
                self._send(number, wire.HeartbeatReply(round(stuck, 1), round(busy, 2)))

    def _send(self, number: int, output: wire.EngineOutput) -> None:
        """Raises UsageError if the line is longer than the parent accepts."""
        line = wire.encode_output(number, output)
        if len(line) > wire.MAX_LINE_BYTES:
            raise errors.UsageError("The result is too long.", "Shorten the text.")
        with self._lock:
            self._held += line
            now = time.monotonic()
            may_wait = isinstance(output, Round)
            if may_wait and now - self._sent_at < _MAX_HELD_SECONDS:
                return
            self._sent_at = now
            self._write_held()

    def _write_held(self) -> None:
        data = memoryview(bytes(self._held))
        self._held.clear()
        try:
            while data:
                data = data[os.write(self._outputs, data) :]
        except OSError:  # The parent has closed the pipe.
            os._exit(0)


def main() -> None:
    parent_pid = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    child_process.set_up_child(parent_pid)
    outputs = child_process.take_over_stdout()
    commands = os.dup(0)
    # No library may read the commands.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    CommandServer(commands, outputs).run()
    os._exit(0)  # This skips llama.cpp's slow destructors.


if __name__ == "__main__":
    main()
