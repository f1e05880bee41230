"""The engine process as the parent sees it: commands, events, timeouts and its exit."""

from __future__ import annotations

import math
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from localspec import child_process, errors
from localspec.protocol import wire
from localspec.protocol.events import EngineExit, EngineReady, Event, TokenScore
from localspec.worker import crashes
from localspec.worker.engine_log import EngineLog, PipeLines

ReplyT = TypeVar("ReplyT", wire.ReplayResult, wire.RenderResult, wire.CountResult)


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Seconds without progress before a process counts as hung."""

    handshake: float = 30
    load: float = 600
    answer: float = 120
    stop: float = 5
    slow_notice: float = 30
    """Seconds after which a notice shows that the engine is still computing."""


def _engine_command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.engine", parent]


class EngineProcess:
    """An engine process; runs one command at a time, from one thread at a time.

    `stop` may be called from a signal handler or another thread.
    """

    def __init__(
        self,
        start: Callable[[], Sequence[str]] = _engine_command,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or EngineTimeouts()
        self._command_number = 0
        self._exit: EngineExit | None = None
        self._pair_key = ""
        """Key of the loaded pair in the crash record."""
        self._file_stats: crashes.FileStats = {}
        """Stats of the pair's files when they were loaded."""
        self._reply: wire.EngineOutput | None = None
        """The reply of a command with exactly one."""
        self._token_scores: list[TokenScore] = []
        self.measured: wire.MeasuredCosts | None = None
        """The newest measured costs of the pair."""
        self._write_lock = threading.Lock()
        self._stop_requested = False
        self._is_stopping = False
        """Whether the command in progress was asked to stop."""
        self._outputs: queue.SimpleQueue[tuple[int, wire.EngineOutput | None]] = queue.SimpleQueue()
        try:
            self._process = child_process.start(start())
        except OSError as error:
            raise crashes.start_error(error) from error
        self._log = EngineLog(self.pid)
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._read_outputs, self._read_stderr)
        ]
        for thread in self._threads:
            thread.start()
        try:
            self._handshake()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running and accepts commands."""
        return self._exit is None and self._process.poll() is None

    def load(self, load: wire.LoadCommand) -> EngineReady:
        """Load a pair. Raises the engine's error, or that of its exit."""
        self._pair_key = crashes.pair_key(load)
        self._file_stats = crashes.stat_files(load.target, load.draft)
        for event in self._run_command(load, self._timeouts.load):
            if isinstance(event, EngineReady):
                self.ready = event
            elif isinstance(event, EngineExit):
                raise crashes.exit_error(event)
        return self.ready

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        """The events of an answer; the last is `EngineExit` if the process exited."""
        try:
            yield from self._run_command(request, self._timeouts.answer)
        except (GeneratorExit, KeyboardInterrupt):
            if self._exit is None:
                self._cancel_generation()
            raise
        if self._exit is None:
            crashes.forget(self._pair_key)

    def probe(self, probe: wire.ProbeCommand) -> Iterator[Event]:
        """Measure pass costs: yields the progress, then sets `measured`.

        Raises the engine's error, or that of its exit.
        """
        for event in self._run_command(probe, self._timeouts.answer):
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
            yield event

    def replay(self, replay: wire.ReplayCommand) -> wire.ReplayResult:
        """Decode an answer with the target alone. Raises as `probe` does."""
        return self._request(replay, wire.ReplayResult, self._timeouts.load)

    def render(self, render: wire.RenderCommand) -> wire.RenderResult:
        """The prompt text of a chat. Raises as `probe` does."""
        return self._request(render, wire.RenderResult, self._timeouts.answer)

    def count(self, count: wire.CountCommand) -> int:
        """The number of tokens of a text, or of a chat's prompt. Raises as `probe` does."""
        return self._request(count, wire.CountResult, self._timeouts.answer).tokens

    def inspect(self, inspect: wire.InspectCommand) -> tuple[TokenScore, ...]:
        """Scores of an answer's tokens, the first ones if stopped. Raises as `probe` does."""
        self._token_scores = []
        for event in self._run_command(inspect, self._timeouts.answer):
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
        return tuple(self._token_scores)

    def stop(self) -> None:
        """Stop the answer after the llama_decode in progress; a long one on the CPU is aborted.

        An engine that makes no progress or does not respond is killed.
        """
        self._stop_requested = self._is_stopping = True
        self._outputs.put((-1, None))  # wakes `_next_output`, whose timeouts are shorter now
        self._send_pending_stop()

    def close(self) -> None:
        """End the process and wait for it."""
        self._send(0, wire.ByeCommand())
        child_process.terminate(self._process, grace_seconds=1.0)
        for thread in self._threads:
            thread.join(timeout=5)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _request(
        self, command: wire.EngineCommand, reply_type: type[ReplyT], timeout: float
    ) -> ReplyT:
        """Run a command with exactly one reply."""
        self._reply = None
        for event in self._run_command(command, timeout):
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
        if not isinstance(self._reply, reply_type):
            raise crashes.exit_error(self._kill(crashes.protocol_exit))
        return self._reply

    def _run_command(self, command: wire.EngineCommand, timeout: float) -> Iterator[Event]:
        if self._exit is not None:
            yield self._exit
            return
        self._command_number += 1
        self._is_stopping = False
        self._send(self._command_number, command)
        slow_after = self._timeouts.slow_notice
        while True:
            output = self._next_output(self._command_number, timeout, slow_after=slow_after)
            slow_after = math.inf if output is crashes.SLOW_NOTICE else slow_after
            if isinstance(output, wire.DoneReply):
                return
            if isinstance(output, wire.FailureReply):
                raise errors.from_code(output.code, output.message, output.hint)
            if isinstance(output, wire.MeasuredCosts):
                self.measured = output
            elif isinstance(output, wire.ReplayResult | wire.RenderResult | wire.CountResult):
                self._reply = output
            elif isinstance(output, wire.InspectResult):
                self._token_scores += output.places
            elif not isinstance(output, wire.HelloReply | wire.HeartbeatReply):
                yield output
            if isinstance(output, EngineExit):
                return

    def _next_output(
        self,
        number: int,
        timeout: float,
        stuck_timeout: float | None = None,
        slow_after: float = math.inf,
    ) -> wire.EngineOutput:
        """The next output of this command; an `EngineExit` if there will be none.

        The engine is killed after `timeout` seconds without a line, or `stuck_timeout` seconds
        without progress. Returns SLOW_NOTICE after `slow_after` seconds without progress.
        """
        limit, timeouts = timeout if stuck_timeout is None else stuck_timeout, self._timeouts
        while True:
            quiet = min(timeout, slow_after)
            if self._is_stopping:
                quiet = min(quiet, timeouts.stop)
                limit = min(limit, timeouts.slow_notice + timeouts.stop)
            try:
                output_number, output = self._outputs.get(timeout=quiet)
            except queue.Empty:
                is_slow = slow_after < timeout and not self._is_stopping
                return crashes.SLOW_NOTICE if is_slow else self._kill(crashes.hang_exit)
            if (
                isinstance(output, wire.HeartbeatReply)
                and output_number == number
                and output.stuck > min(limit, slow_after)
            ):
                return (
                    crashes.SLOW_NOTICE if output.stuck <= limit else self._kill(crashes.hang_exit)
                )
            if isinstance(output, EngineExit):
                output = self._record_exit(output)
            if output is not None and (output_number == number or self._exit is not None):
                return output

    def _handshake(self) -> None:
        output = self._next_output(0, self._timeouts.handshake)
        if isinstance(output, EngineExit):
            raise crashes.exit_error(output)
        if not isinstance(output, wire.HelloReply):
            raise crashes.exit_error(self._kill(crashes.protocol_exit))
        if output.protocol != wire.PROTOCOL_VERSION:
            raise crashes.exit_error(self._kill(crashes.version_mismatch_exit))

    def _send(self, number: int, command: wire.EngineCommand) -> None:
        with self._write_lock:
            self._write(wire.encode_command(number, command))
        self._send_pending_stop()

    def _send_pending_stop(self) -> None:
        """Send a requested stop; while a command is being written, `_send` does it afterwards.

        So a signal handler never waits for the code that it interrupted.
        """
        while self._stop_requested and self._write_lock.acquire(blocking=False):
            try:
                self._stop_requested = False
                self._write(wire.encode_command(0, wire.StopCommand()))
            finally:
                self._write_lock.release()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        remaining = memoryview(line)
        with suppress(OSError, ValueError):  # `_read_outputs` reports an exit
            while remaining:  # a signal may interrupt a write
                remaining = remaining[self._process.stdin.write(remaining) or 0 :]

    def _cancel_generation(self) -> None:
        """Stop the answer and discard its remaining output."""
        self.stop()
        until = time.monotonic() + self._timeouts.stop
        while (left := until - time.monotonic()) > 0:
            output = self._next_output(self._command_number, left, self._timeouts.stop)
            if isinstance(output, wire.DoneReply | wire.FailureReply | EngineExit):
                return
        self._kill(crashes.hang_exit)

    def _kill(self, make_exit: Callable[[Sequence[str]], EngineExit]) -> EngineExit:
        self._process.kill()
        self._process.wait()
        self._threads[1].join(timeout=2)
        return self._record_exit(make_exit(list(self._log.last_lines)))

    def _record_exit(self, engine_exit: EngineExit) -> EngineExit:
        engine_exit = crashes.blame_changed_file(engine_exit, self._file_stats)
        self._exit = engine_exit
        self._log.append([f"localspec: this engine ended: {engine_exit.how}"])
        if self._pair_key:
            crashes.record(self._pair_key, engine_exit.how)
        return engine_exit

    def _read_outputs(self) -> None:
        """Thread: put outputs into the queue; the last is an `EngineExit`."""
        assert self._process.stdout is not None
        reader = PipeLines(self._process.stdout, wire.MAX_LINE_BYTES)
        try:
            for line in reader:
                self._outputs.put(wire.decode_output(line))
        except (ValueError, RecursionError):
            self._process.kill()
            self._process.wait()
            self._outputs.put((0, crashes.protocol_exit(list(self._log.last_lines))))
            return
        try:
            code = self._process.wait(timeout=self._timeouts.stop)
        except subprocess.TimeoutExpired:  # it closed its stdout but is still running
            self._process.kill()
            code = None
        self._threads[1].join(timeout=2)  # for its last log lines
        self._outputs.put((0, crashes.classify_exit(code, list(self._log.last_lines))))

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._log.drain(self._process.stderr)
