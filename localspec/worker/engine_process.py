"""One engine process: commands to it, events from it, and its end as an event."""

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
    """Seconds without a sign of life before a process counts as hung."""

    handshake: float = 30
    load: float = 600
    answer: float = 120
    stop: float = 5
    slow_notice: float = 30
    """After which a person is told that it still goes on."""


def _engine_command() -> list[str]:
    parent = str(child_process.parent_pid_for_child())
    return [sys.executable, "-P", "-m", "localspec.engine", parent]


class EngineProcess:
    """An engine in a process of its own; one command at a time, from one thread at a time.

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
        """What stands for the loaded pair among those that crash."""
        self._file_stats: crashes.FileStats = {}
        """Those of the pair, as they were when it was loaded."""
        self._reply: wire.EngineOutput | None = None
        """The answer of a command that has one."""
        self._token_scores: list[TokenScore] = []
        self.measured: wire.MeasuredCosts | None = None
        """What the engine last said of the pair's costs."""
        self._write_lock = threading.Lock()
        self._stop_requested = False
        self._is_stopping = False
        """Whether the command in progress is to end."""
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
        """Whether it can be given commands, as far as is known."""
        return self._exit is None and self._process.poll() is None

    # --- what whoever runs a pair calls ---------------------------------------------------

    def load(self, load: wire.LoadCommand) -> EngineReady:
        """Load a pair.  Raises what the engine raised, or what it died of."""
        self._pair_key = crashes.pair_key(load)
        self._file_stats = crashes.stat_files(load.target, load.draft)
        for event in self._run_command(load, self._timeouts.load):
            if isinstance(event, EngineReady):
                self.ready = event
            elif isinstance(event, EngineExit):
                raise crashes.exit_error(event)
        return self.ready

    def generate(self, request: wire.GenerateCommand) -> Iterator[Event]:
        """The events of an answer; the last is `Dead` where the process ended."""
        try:
            yield from self._run_command(request, self._timeouts.answer)
        except (GeneratorExit, KeyboardInterrupt):
            if self._exit is None:
                self._cancel_generation()
            raise
        if self._exit is None:
            crashes.forget(self._pair_key)

    def probe(self, probe: wire.ProbeCommand) -> Iterator[Event]:
        """Measure what passes cost; the progress, then `measured` is known.

        Raises what the engine raised, or what it died of.
        """
        for event in self._run_command(probe, self._timeouts.answer):
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
            yield event

    def replay(self, replay: wire.ReplayCommand) -> wire.ReplayResult:
        """Feed an answer to the target alone.  Raises as `probe` does."""
        return self._request(replay, wire.ReplayResult, self._timeouts.load)

    def render(self, render: wire.RenderCommand) -> wire.RenderResult:
        """A chat as the text that the model would read.  Raises as `probe` does."""
        return self._request(render, wire.RenderResult, self._timeouts.answer)

    def count(self, count: wire.CountCommand) -> int:
        """The tokens of a text, or of a chat's prompt.  Raises as `probe` does."""
        return self._request(count, wire.CountResult, self._timeouts.answer).tokens

    def inspect(self, inspect: wire.InspectCommand) -> tuple[TokenScore, ...]:
        """What the target gives to an answer's tokens; the first of them only, where stopped.

        Raises as `probe` does.
        """
        self._token_scores = []
        for event in self._run_command(inspect, self._timeouts.answer):
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
        return tuple(self._token_scores)

    def stop(self) -> None:
        """End the answer after the llama_decode in progress, a long one on the CPU within it.

        An engine that has not got anywhere for long, or says nothing, is ended.
        """
        self._stop_requested = self._is_stopping = True
        self._outputs.put((-1, None))  # whoever waits is to look at its patience again
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

    # --- one command --------------------------------------------------------------------

    def _request(
        self, command: wire.EngineCommand, reply_type: type[ReplyT], timeout: float
    ) -> ReplyT:
        """The one answer of a command."""
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
        word = self._timeouts.slow_notice
        while True:
            answer = self._next_output(self._command_number, timeout, slow_after=word)
            word = math.inf if answer is crashes.SLOW_NOTICE else word
            if isinstance(answer, wire.DoneReply):
                return
            if isinstance(answer, wire.FailureReply):
                raise errors.from_code(answer.code, answer.message, answer.hint)
            if isinstance(answer, wire.MeasuredCosts):
                self.measured = answer
            elif isinstance(answer, wire.ReplayResult | wire.RenderResult | wire.CountResult):
                self._reply = answer
            elif isinstance(answer, wire.InspectResult):
                self._token_scores += answer.places
            elif not isinstance(answer, wire.HelloReply | wire.HeartbeatReply):
                yield answer
            if isinstance(answer, EngineExit):
                return

    def _next_output(
        self,
        number: int,
        timeout: float,
        stuck_timeout: float | None = None,
        slow_after: float = math.inf,
    ) -> wire.EngineOutput:
        """The next answer to this command; `Dead` where none will come.

        Waits `patience` seconds for a line, and lets the engine be `stuck` for as many; SLOW
        where it has not got anywhere for `word` seconds.
        """
        limit, own = timeout if stuck_timeout is None else stuck_timeout, self._timeouts
        while True:
            quiet = min(timeout, slow_after)
            if self._is_stopping:
                quiet, limit = min(quiet, own.stop), min(limit, own.slow_notice + own.stop)
            try:
                told, answer = self._outputs.get(timeout=quiet)
            except queue.Empty:
                slow = slow_after < timeout and not self._is_stopping
                return crashes.SLOW_NOTICE if slow else self._kill(crashes.hang_exit)
            if (
                isinstance(answer, wire.HeartbeatReply)
                and told == number
                and answer.stuck > min(limit, slow_after)
            ):
                return (
                    crashes.SLOW_NOTICE if answer.stuck <= limit else self._kill(crashes.hang_exit)
                )
            if isinstance(answer, EngineExit):
                answer = self._record_exit(answer)
            if answer is not None and (told == number or self._exit is not None):
                return answer

    def _handshake(self) -> None:
        answer = self._next_output(0, self._timeouts.handshake)
        if isinstance(answer, EngineExit):
            raise crashes.exit_error(answer)
        if not isinstance(answer, wire.HelloReply):
            raise crashes.exit_error(self._kill(crashes.protocol_exit))
        if answer.protocol != wire.PROTOCOL_VERSION:
            raise crashes.exit_error(self._kill(crashes.version_mismatch_exit))

    def _send(self, number: int, command: wire.EngineCommand) -> None:
        """A process that is gone says so on its other pipe."""
        with self._write_lock:
            self._write(wire.encode_command(number, command))
        self._send_pending_stop()

    def _send_pending_stop(self) -> None:
        """Send a wanted stop, unless a command is on its way just now: it goes after that.

        So a signal handler never waits for the very code that it interrupted.
        """
        while self._stop_requested and self._write_lock.acquire(blocking=False):
            try:
                self._stop_requested = False
                self._write(wire.encode_command(0, wire.StopCommand()))
            finally:
                self._write_lock.release()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        rest = memoryview(line)
        with suppress(OSError, ValueError):
            while rest:  # a signal may cut a write short
                rest = rest[self._process.stdin.write(rest) or 0 :]

    def _cancel_generation(self) -> None:
        """An answer is not wanted any more: stop it, and let what still comes pass by."""
        self.stop()
        until = time.monotonic() + self._timeouts.stop
        while (left := until - time.monotonic()) > 0:
            answer = self._next_output(self._command_number, left, self._timeouts.stop)
            if isinstance(answer, wire.DoneReply | wire.FailureReply | EngineExit):
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

    # --- the two threads ----------------------------------------------------------------

    def _read_outputs(self) -> None:
        """Answers into the queue; the last is how it ended."""
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
        except subprocess.TimeoutExpired:  # it closed its stdout and lives on
            self._process.kill()
            code = None
        self._threads[1].join(timeout=2)  # its last words
        self._outputs.put((0, crashes.classify_exit(code, list(self._log.last_lines))))

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._log.drain(self._process.stderr)
