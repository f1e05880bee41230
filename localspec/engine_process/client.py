"""Runs an engine process: sends commands, receives events, and notices a hang or exit."""

from __future__ import annotations

import math
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from localspec import child_process, errors
from localspec.engine_process import exit_causes
from localspec.engine_process.engine_log import EngineLog, read_batches
from localspec.machine import remote_devices
from localspec.protocol import wire
from localspec.protocol.events import (
    EngineExit,
    EngineReady,
    Event,
    Notice,
    PictureReading,
    TokenScore,
)

_SingleReply = (
    wire.ReplayResult | wire.CountResult | wire.DraftScore | wire.TokenizeResult
)
ReplyT = TypeVar("ReplyT", bound=_SingleReply)


class EngineTimeouts(Struct, frozen=True):
    """Seconds without progress before a process counts as hung."""

    handshake: float = 30
    load: float = 600
    answer: float = 120
    stop: float = 5
    slow_notice: float = 30
    """Seconds after which a notice shows that the engine is still computing."""
    remote_check: float = 5
    """Seconds without progress after which remote hosts are asked for a sign of life."""
    compiling: float = 1800
    """Replaces the others while a GPU's driver may compile its programs.

    That takes long and shows no progress.
    """


_BUSY_CORES = 0.05
"""An engine without progress that uses so many CPU seconds a second is computing.

A deadlock uses none.
"""
_BUSY_SECONDS = 30
"""The engine counts as computing for so long after such a heartbeat, because other
programs may have taken the cores meanwhile.
"""


class EngineProcess:
    """An engine process; runs one command at a time, from one thread at a time.

    `stop` may be called from a signal handler or another thread.
    """

    def __init__(
        self,
        start: Callable[[], Sequence[str]] = child_process.engine_command,
        timeouts: EngineTimeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or EngineTimeouts()
        self._command_number = 0
        self._exit: EngineExit | None = None
        self._remote_hosts: tuple[str, ...] = ()
        self._hosts_checked_at = 0.0
        self._has_gpu = False
        self._busy_at = -math.inf
        self._file_stats: exit_causes.FileStats = {}
        """Stats of the pair's files when they were loaded."""
        self._projector = ""  # The file by which the target sees, if it does.
        self._is_reading_picture = False
        """Whether the last event says that the engine reads a picture now."""
        self._reply: wire.EngineOutput | None = None
        """The reply of a command that has exactly one."""
        self._token_scores: list[TokenScore] = []
        self._on_load_progress: Callable[[wire.LoadProgress], None] = lambda _: None
        self.measured: wire.MeasuredCosts | None = None
        """The newest measured costs of the pair."""
        self._write_lock = threading.Lock()
        self._stop_requested = False
        self._is_stopping = False  # Whether the command in progress was asked to stop.
        self._outputs: queue.SimpleQueue[tuple[int, wire.EngineOutput | None]] = (
            queue.SimpleQueue()
        )
        try:
            self._process = child_process.start(start())
        except OSError as error:
            raise exit_causes.start_error(error) from error
        self._log = EngineLog(self.pid)
        # The thread of the outputs waits for the log's, so the log's is started first.
        stderr = self._process.stderr
        assert stderr is not None
        self._log_thread = threading.Thread(
            target=self._log.drain, args=(stderr,), daemon=True
        )
        self._output_thread = threading.Thread(target=self._read_outputs, daemon=True)
        self._log_thread.start()
        self._output_thread.start()
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

    def load(
        self,
        load: wire.LoadCommand,
        on_progress: Callable[[wire.LoadProgress], None] = lambda _: None,
    ) -> EngineReady:
        """Load a pair. Raises the engine's error, or that of its exit."""
        self._on_load_progress = on_progress
        projector = load.projector.path if load.projector is not None else None
        self._file_stats = exit_causes.stat_files(load.target, load.draft, projector)
        self._projector = projector or ""
        self._remote_hosts = load.target_settings.remote_hosts
        ready: EngineReady | None = None
        for event in self._run_or_raise(load, self._timeouts.load):
            if isinstance(event, EngineReady):
                ready = event
        if ready is None:
            raise exit_causes.exit_error(self._kill(exit_causes.PROTOCOL_ERROR))
        self.ready = ready
        self._has_gpu = len(ready.devices) > 1
        return ready

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        """The events of an answer; the last is `EngineExit` if the process exited.

        Closing the iterator early stops the answer.
        """
        return self._run_command(request, self._timeouts.answer)

    def probe(self, probe: wire.ProbeCommand) -> Iterator[Event]:
        """Measure pass costs: yields the progress, then sets `measured`.

        Raises the engine's error, or that of its exit.
        """
        return self._run_or_raise(probe, self._timeouts.answer)

    def replay(self, replay: wire.ReplayCommand) -> wire.ReplayResult:
        """Decode an answer with the target alone. Raises as `probe` does."""
        return self._request(replay, wire.ReplayResult, self._timeouts.load)

    def count(self, count: wire.CountCommand) -> wire.CountResult:
        """The number of tokens of a text, or of a chat's prompt.

        Raises as `probe` does.
        """
        return self._request(count, wire.CountResult, self._timeouts.answer)

    def tokenize(self, tokenize: wire.TokenizeCommand) -> wire.TokenizeResult:
        """The tokens of a text. Raises as `probe` does."""
        return self._request(tokenize, wire.TokenizeResult, self._timeouts.answer)

    def score_draft(self, command: wire.ScoreDraftCommand) -> wire.DraftScore:
        """Compare the draft with a recorded answer. Raises as `probe` does."""
        return self._request(command, wire.DraftScore, self._timeouts.load)

    def inspect(self, inspect: wire.InspectCommand) -> tuple[TokenScore, ...]:
        """Scores of an answer's tokens, the first ones if stopped.

        Raises as `probe` does.
        """
        self._token_scores = []
        for _ in self._run_or_raise(inspect, self._timeouts.answer):
            pass
        return tuple(self._token_scores)

    def stop(self) -> None:
        """Stop the answer after the llama_decode in progress.

        A long one on the CPU is aborted. An engine that makes no progress or does not
        respond is killed.
        """
        self._stop_requested = True
        self._is_stopping = True
        # This wakes `_next_output`, whose timeouts are shorter now.
        self._outputs.put((-1, None))
        self._send_pending_stop()

    def close(self) -> None:
        """End the process and wait for it.

        Writes nothing: it exits when its stdin closes.
        """
        child_process.terminate(self._process, grace_seconds=1.0)
        for thread in (self._output_thread, self._log_thread):
            thread.join(timeout=5)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _request(
        self, command: wire.EngineCommand, reply_type: type[ReplyT], timeout: float
    ) -> ReplyT:
        """Run a command with exactly one reply."""
        self._reply = None
        for _ in self._run_or_raise(command, timeout):
            pass
        if not isinstance(self._reply, reply_type):
            raise exit_causes.exit_error(self._kill(exit_causes.PROTOCOL_ERROR))
        return self._reply

    def _run_or_raise(
        self, command: wire.EngineCommand, timeout: float
    ) -> Iterator[Event]:
        """Like `_run_command`; raises the error of an exit."""
        for event in self._run_command(command, timeout):
            if isinstance(event, EngineExit):
                raise exit_causes.exit_error(event)
            yield event

    def _run_command(
        self, command: wire.EngineCommand, timeout: float
    ) -> Iterator[Event]:
        if self._exit is not None:
            yield self._exit
            return
        self._command_number += 1
        number = self._command_number
        self._is_stopping = False
        self._is_reading_picture = False
        self._on_start(command)
        self._send(number, command)
        slow_after = self._timeouts.slow_notice
        try:
            while True:
                output = self._next_output(number, timeout, slow_after=slow_after)
                if isinstance(output, wire.DoneReply):
                    break
                if output in (exit_causes.SLOW_NOTICE, exit_causes.COMPILING_NOTICE):
                    slow_after = math.inf  # The notice is shown once.
                event = self._keep_reply(output)
                if event is not None:
                    yield event
                if isinstance(output, EngineExit):
                    return
        except (GeneratorExit, KeyboardInterrupt):
            if self._exit is None and isinstance(command, wire.GenerateCommand):
                self._cancel_generation()
            raise
        self._on_done(command)

    def _keep_reply(self, output: wire.EngineOutput) -> Event | None:
        """Return an event; keep another reply. Raises the engine's error."""
        if isinstance(output, wire.FailureReply):
            hint = output.hint
            if output.hint_template:
                hint = errors.Hint(output.hint_template)
            failure = errors.from_code(output.code, output.message, hint)
            failure.param = output.param or None
            raise failure
        if isinstance(output, wire.MeasuredCosts):
            self.measured = output
        elif isinstance(output, wire.LoadProgress):
            self._on_load_progress(output)
        elif isinstance(output, _SingleReply):
            self._reply = output
        elif isinstance(output, wire.InspectResult):
            self._token_scores += output.places
        elif not isinstance(output, wire.CommandReply):
            self._is_reading_picture = isinstance(output, PictureReading)
        return None if isinstance(output, wire.CommandReply) else output

    def _on_start(self, command: wire.EngineCommand) -> None:
        """Called before a command is sent; for subclasses."""

    def _on_done(self, command: wire.EngineCommand) -> None:
        """Called after a command that the engine has completed; for subclasses."""

    def _next_output(
        self,
        number: int,
        timeout: float,
        stuck_timeout: float | None = None,
        slow_after: float = math.inf,
    ) -> wire.EngineOutput:
        """The next output of this command; an `EngineExit` if there will be none.

        The engine is killed after `timeout` seconds without a line, or `stuck_timeout`
        seconds without progress, unless a GPU's driver may compile. Returns a notice
        after `slow_after` seconds without progress.
        """
        timeouts = self._timeouts
        limit = timeout if stuck_timeout is None else stuck_timeout
        while True:
            quiet = min(timeout, slow_after)
            if self._is_stopping:
                quiet = min(quiet, timeouts.stop)
                limit = min(limit, timeouts.slow_notice + timeouts.stop)
            try:
                output_number, output = self._outputs.get(timeout=quiet)
            except queue.Empty:
                if slow_after < timeout and not self._is_stopping:
                    return self._slow_notice()
                return self._kill(exit_causes.HANG)
            if isinstance(output, wire.HeartbeatReply) and output_number == number:
                if self._is_hung(output, limit):
                    return self._kill(exit_causes.HANG)
                if output.stuck > slow_after:
                    return self._slow_notice()
            if isinstance(output, EngineExit):
                output = self._record_exit(output)
            is_own = output_number == number or self._exit is not None
            if output is not None and is_own:
                return output

    def _slow_notice(self) -> Notice:
        if self._has_gpu:
            return exit_causes.COMPILING_NOTICE
        return exit_causes.SLOW_NOTICE

    def _is_hung(self, heartbeat: wire.HeartbeatReply, limit: float) -> bool:
        """Whether the engine has made no progress for too long.

        While a GPU's driver may compile it may take longer, unless it was asked to stop.
        """
        now = time.monotonic()
        if heartbeat.busy >= _BUSY_CORES:
            self._busy_at = now
        is_busy = now - self._busy_at < _BUSY_SECONDS
        if self._has_gpu and is_busy and not self._is_stopping:
            limit = max(limit, self._timeouts.compiling)
        if heartbeat.stuck > limit:
            return True
        since = min(heartbeat.stuck, now - self._hosts_checked_at)
        if not self._remote_hosts or since < self._timeouts.remote_check:
            return False
        self._hosts_checked_at = now
        # llama.cpp would wait for ever for a computer that is gone.
        silent = remote_devices.source().find_silent(self._remote_hosts)
        return len(silent) > 0

    def _handshake(self) -> None:
        output = self._next_output(0, self._timeouts.handshake)
        if isinstance(output, EngineExit):
            raise exit_causes.exit_error(output)
        if not isinstance(output, wire.HelloReply):
            raise exit_causes.exit_error(self._kill(exit_causes.PROTOCOL_ERROR))
        if output.protocol != wire.PROTOCOL_VERSION:
            raise exit_causes.exit_error(self._kill(exit_causes.VERSION_MISMATCH))

    def _send(self, number: int, command: wire.EngineCommand) -> None:
        with self._write_lock:
            self._write(wire.encode_command(number, command))
        self._send_pending_stop()

    def _send_pending_stop(self) -> None:
        """Send a requested stop.

        While a command is being written, `_send` does it afterwards. So a signal handler
        never waits for the code that it interrupted.
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
        with suppress(OSError, ValueError):  # `_read_outputs` reports an exit.
            while remaining:  # A signal may interrupt a write.
                n_written = self._process.stdin.write(remaining) or 0
                remaining = remaining[n_written:]

    def _cancel_generation(self) -> None:
        """Stop the answer and discard its remaining output."""
        self.stop()
        until = time.monotonic() + self._timeouts.stop
        seconds_left = self._timeouts.stop
        while seconds_left > 0:
            output = self._next_output(
                self._command_number, seconds_left, stuck_timeout=self._timeouts.stop
            )
            if isinstance(output, wire.DoneReply | wire.FailureReply | EngineExit):
                return
            seconds_left = until - time.monotonic()
        self._kill(exit_causes.HANG)

    def _kill(self, cause: EngineExit) -> EngineExit:
        self._process.kill()
        self._process.wait()
        self._log_thread.join(timeout=2)
        return self._record_exit(replace(cause, log=tuple(self._log.last_lines)))

    def _record_exit(self, engine_exit: EngineExit) -> EngineExit:
        engine_exit = exit_causes.blame_changed_file(engine_exit, self._file_stats)
        if self._remote_hosts:
            source = remote_devices.source()
            engine_exit = source.explain_exit(engine_exit, self._remote_hosts)
        if self._is_reading_picture:
            engine_exit = exit_causes.blame_projector(engine_exit, self._projector)
        self._exit = engine_exit
        self._log.append([f"localspec: this engine ended: {engine_exit.how}"])
        return engine_exit

    def _read_outputs(self) -> None:
        """Thread: put outputs into the queue; the last is an `EngineExit`."""
        assert self._process.stdout is not None
        try:
            for lines in read_batches(self._process.stdout, wire.MAX_LINE_BYTES):
                for line in lines:
                    self._outputs.put(wire.decode_output(line))
        except (ValueError, RecursionError):
            self._process.kill()
            self._process.wait()
            log = tuple(self._log.last_lines)
            self._outputs.put((0, replace(exit_causes.PROTOCOL_ERROR, log=log)))
            return
        try:
            code = self._process.wait(timeout=self._timeouts.stop)
        except subprocess.TimeoutExpired:  # it closed its stdout but is still running
            self._process.kill()
            code = None
        self._log_thread.join(timeout=2)  # for its last log lines
        cause = exit_causes.classify_exit(code, list(self._log.last_lines))
        self._outputs.put((0, cause))
