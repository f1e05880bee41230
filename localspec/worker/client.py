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

from localspec import children, errors
from localspec.protocol import wire
from localspec.protocol.events import Dead, Event, Place, Ready
from localspec.worker import crashes, ending
from localspec.worker.lines import Lines
from localspec.worker.log import Log

Told = TypeVar("Told", wire.Replayed, wire.Rendered, wire.Counted)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds without a sign of life before a process counts as hung."""

    hello: float = 30
    load: float = 600
    answer: float = 120
    stop: float = 5
    word: float = 30
    """After which a person is told that it still goes on."""


def _command() -> list[str]:
    parent = str(children.parent_of_child())
    return [sys.executable, "-P", "-m", "localspec.engine", parent]


class Worker:
    """An engine in a process of its own; one command at a time, from one thread at a time.

    `stop` may be called from a signal handler or another thread.
    """

    def __init__(
        self,
        start: Callable[[], Sequence[str]] = _command,
        patience: Patience | None = None,
    ) -> None:
        self._patience = patience or Patience()
        self._number = 0
        self._dead: Dead | None = None
        self._pair = ""
        """What stands for the loaded pair among those that crash."""
        self._files: ending.Files = {}
        """Those of the pair, as they were when it was loaded."""
        self._told: wire.Answer | None = None
        """The answer of a command that has one."""
        self._places: list[Place] = []
        self.measured: wire.Measured | None = None
        """What the engine last said of the pair's costs."""
        self._pipe = threading.Lock()
        self._stop_wanted = False
        self._stopping = False
        """Whether the command in progress is to end."""
        self._answers: queue.SimpleQueue[tuple[int, wire.Answer | None]] = queue.SimpleQueue()
        try:
            self._process = children.start(start())
        except OSError as error:
            raise ending.not_started(error) from error
        self._log = Log(self.pid)
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._hear, self._drain)
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
        return self._dead is None and self._process.poll() is None

    # --- what whoever runs a pair calls ---------------------------------------------------

    def load(self, load: wire.Load) -> Ready:
        """Load a pair.  Raises what the engine raised, or what it died of."""
        self._pair = crashes.key(load)
        self._files = ending.looked_at(load.target, load.draft)
        for event in self._carry_out(load, self._patience.load):
            if isinstance(event, Ready):
                self.ready = event
            elif isinstance(event, Dead):
                raise ending.error(event)
        return self.ready

    def generate(self, request: wire.Generate) -> Iterator[Event]:
        """The events of an answer; the last is `Dead` where the process ended."""
        try:
            yield from self._carry_out(request, self._patience.answer)
        except (GeneratorExit, KeyboardInterrupt):
            if self._dead is None:
                self._abandon()
            raise
        if self._dead is None:
            crashes.forget(self._pair)

    def probe(self, probe: wire.Probe) -> Iterator[Event]:
        """Measure what passes cost; the progress, then `measured` is known.

        Raises what the engine raised, or what it died of.
        """
        for event in self._carry_out(probe, self._patience.answer):
            if isinstance(event, Dead):
                raise ending.error(event)
            yield event

    def replay(self, replay: wire.Replay) -> wire.Replayed:
        """Feed an answer to the target alone.  Raises as `probe` does."""
        return self._ask(replay, wire.Replayed, self._patience.load)

    def render(self, render: wire.Render) -> wire.Rendered:
        """A chat as the text that the model would read.  Raises as `probe` does."""
        return self._ask(render, wire.Rendered, self._patience.answer)

    def count(self, count: wire.Count) -> int:
        """The tokens of a text, or of a chat's prompt.  Raises as `probe` does."""
        return self._ask(count, wire.Counted, self._patience.answer).tokens

    def inspect(self, inspect: wire.Inspect) -> tuple[Place, ...]:
        """What the target gives to an answer's tokens; the first of them only, where stopped.

        Raises as `probe` does.
        """
        self._places = []
        for event in self._carry_out(inspect, self._patience.answer):
            if isinstance(event, Dead):
                raise ending.error(event)
        return tuple(self._places)

    def stop(self) -> None:
        """End the answer after the llama_decode in progress, a long one on the CPU within it.

        An engine that has not got anywhere for long, or says nothing, is ended.
        """
        self._stop_wanted = self._stopping = True
        self._answers.put((-1, None))  # whoever waits is to look at its patience again
        self._send_stop()

    def close(self) -> None:
        """End the process and wait for it."""
        self._send(0, wire.Bye())
        children.kill(self._process, grace=1.0)
        for thread in self._threads:
            thread.join(timeout=5)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    # --- one command --------------------------------------------------------------------

    def _ask(self, command: wire.Command, kind: type[Told], patience: float) -> Told:
        """The one answer of a command."""
        self._told = None
        for event in self._carry_out(command, patience):
            if isinstance(event, Dead):
                raise ending.error(event)
        if not isinstance(self._told, kind):
            raise ending.error(self._end(ending.protocol))
        return self._told

    def _carry_out(self, command: wire.Command, patience: float) -> Iterator[Event]:
        if self._dead is not None:
            yield self._dead
            return
        self._number += 1
        self._stopping = False
        self._send(self._number, command)
        word = self._patience.word
        while True:
            answer = self._next(self._number, patience, word=word)
            word = math.inf if answer is ending.SLOW else word
            if isinstance(answer, wire.Done):
                return
            if isinstance(answer, wire.Failed):
                raise errors.by_code(answer.code, answer.message, answer.hint)
            if isinstance(answer, wire.Measured):
                self.measured = answer
            elif isinstance(answer, wire.Replayed | wire.Rendered | wire.Counted):
                self._told = answer
            elif isinstance(answer, wire.Inspected):
                self._places += answer.places
            elif not isinstance(answer, wire.Hello | wire.Alive):
                yield answer
            if isinstance(answer, Dead):
                return

    def _next(
        self, number: int, patience: float, stuck: float | None = None, word: float = math.inf
    ) -> wire.Answer:
        """The next answer to this command; `Dead` where none will come.

        Waits `patience` seconds for a line, and lets the engine be `stuck` for as many; SLOW
        where it has not got anywhere for `word` seconds.
        """
        limit, own = patience if stuck is None else stuck, self._patience
        while True:
            quiet = min(patience, word)
            if self._stopping:
                quiet, limit = min(quiet, own.stop), min(limit, own.word + own.stop)
            try:
                told, answer = self._answers.get(timeout=quiet)
            except queue.Empty:
                slow = word < patience and not self._stopping
                return ending.SLOW if slow else self._end(ending.hang)
            if (
                isinstance(answer, wire.Alive)
                and told == number
                and answer.stuck > min(limit, word)
            ):
                return ending.SLOW if answer.stuck <= limit else self._end(ending.hang)
            if isinstance(answer, Dead):
                answer = self._bury(answer)
            if answer is not None and (told == number or self._dead is not None):
                return answer

    def _handshake(self) -> None:
        answer = self._next(0, self._patience.hello)
        if isinstance(answer, Dead):
            raise ending.error(answer)
        if not isinstance(answer, wire.Hello):
            raise ending.error(self._end(ending.protocol))
        if answer.protocol != wire.PROTOCOL:
            raise ending.error(self._end(ending.another_version))

    def _send(self, number: int, command: wire.Command) -> None:
        """A process that is gone says so on its other pipe."""
        with self._pipe:
            self._write(wire.encode_command(number, command))
        self._send_stop()

    def _send_stop(self) -> None:
        """Send a wanted stop, unless a command is on its way just now: it goes after that.

        So a signal handler never waits for the very code that it interrupted.
        """
        while self._stop_wanted and self._pipe.acquire(blocking=False):
            try:
                self._stop_wanted = False
                self._write(wire.encode_command(0, wire.Stop()))
            finally:
                self._pipe.release()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        rest = memoryview(line)
        with suppress(OSError, ValueError):
            while rest:  # a signal may cut a write short
                rest = rest[self._process.stdin.write(rest) or 0 :]

    def _abandon(self) -> None:
        """An answer is not wanted any more: stop it, and let what still comes pass by."""
        self.stop()
        until = time.monotonic() + self._patience.stop
        while (left := until - time.monotonic()) > 0:
            answer = self._next(self._number, left, self._patience.stop)
            if isinstance(answer, wire.Done | wire.Failed | Dead):
                return
        self._end(ending.hang)

    def _end(self, why: Callable[[Sequence[str]], Dead]) -> Dead:
        self._process.kill()
        self._process.wait()
        self._threads[1].join(timeout=2)
        return self._bury(why(list(self._log.lines)))

    def _bury(self, dead: Dead) -> Dead:
        dead = ending.of_files(dead, self._files)
        self._dead = dead
        self._log.keep([f"localspec: this engine ended: {dead.how}"])
        if self._pair:
            crashes.record(self._pair, dead.how)
        return dead

    # --- the two threads ----------------------------------------------------------------

    def _hear(self) -> None:
        """Answers into the queue; the last is how it ended."""
        assert self._process.stdout is not None
        reader = Lines(self._process.stdout, wire.LONGEST_LINE)
        try:
            for line in reader:
                self._answers.put(wire.decode_answer(line))
        except (ValueError, RecursionError):
            self._process.kill()
            self._process.wait()
            self._answers.put((0, ending.protocol(list(self._log.lines))))
            return
        try:
            code = self._process.wait(timeout=self._patience.stop)
        except subprocess.TimeoutExpired:  # it closed its stdout and lives on
            self._process.kill()
            code = None
        self._threads[1].join(timeout=2)  # its last words
        self._answers.put((0, ending.classify(code, list(self._log.lines))))

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._log.drain(self._process.stderr)
