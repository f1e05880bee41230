"""Measures a loaded pair, on command or when idle: thread counts and pass costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from localspec.engine import pass_timing
from localspec.engine.pass_timing import ThreadTimes
from localspec.llama.context import InterruptFlag, LlamaContext
from localspec.llama.head_context import HeadContext
from localspec.machine.cpu_and_ram import (
    OtherCpuLoad,
    count_free_cpus,
    is_busy,
    read_cpu_cores,
)
from localspec.protocol.wire import LoadCommand, MeasuredCosts
from localspec.spec.protocols import DecodeInterrupted

_WIDE_PASS = 8  # Width of the passes that represent verification and prompt reading.
_IDLE_SECONDS = 2.0  # Duration of a measurement between commands.
_MAX_DISTURBED = 3
"""After so many measurements in a row that other programs disturbed, it is given up."""
_SLOWER_RATIO = 1.15
_MAX_SLOW_ANSWERS = 3
"""After so many answers in a row that were slower than measured by `_SLOWER_RATIO`, it is
measured again.
"""
_UNLIMITED = sys.maxsize
_ADAPT_SECONDS = 0.5
"""So long after the last time, it is checked again what other programs use."""


class PairProfiler:
    """Measures one pair, and knows whether that is due.

    It is due at the first load of a pair, and again when answers have become slower for
    a while.
    """

    def __init__(
        self,
        load: LoadCommand,
        target: LlamaContext,
        draft: LlamaContext | HeadContext | None,
        max_draft: int,
        cpu_load: OtherCpuLoad,
    ) -> None:
        """`cpu_load` has measured other programs while the pair was loaded.

        Its result limits the threads from the beginning.
        """
        self._target = target
        self._draft = draft
        self._max_draft = max_draft
        measured = load.measured
        self._may_choose_threads = load.target_settings.n_threads is None
        self._threads_measured = False
        self._may_measure_when_idle = load.measure_when_idle
        self._is_due = load.measure_when_idle
        self._measured_ms = measured.t1_ms if measured else None
        self._n_slow_answers = 0
        self._n_disturbed = 0
        self.costs: MeasuredCosts | None = None
        """The pass costs of the last measurement."""
        self.interrupt = InterruptFlag()
        """Ends a measurement between commands, within a pass."""
        self._models = [model for model in (target, draft) if model is not None]
        self._threads = [
            (model.n_threads, model.n_threads_batch) for model in self._models
        ]
        """Each model's threads, for one-token and for wider passes, if nothing else runs."""
        self._max_threads = _UNLIMITED
        """So many CPUs do other programs leave free."""
        if self._may_choose_threads:
            if measured and measured.threads and measured.threads_batch:
                self._threads_measured = True
                self._set_threads(measured.threads, measured.threads_batch)
            elif load.threads is not None:
                self._set_threads(*load.threads)
        self._limit_threads(count_free_cpus(cpu_load.read()))
        self._cpu_load = OtherCpuLoad(os.getpid())
        self._adapt_at = 0.0
        self._cpu_load.start()

    @property
    def threads(self) -> int:
        return self._threads[0][0]

    @property
    def threads_batch(self) -> int | None:
        """None unless thread counts were compared."""
        return self._threads[0][1] if self._threads_measured else None

    def adapt_threads(self, *, between_answers: bool = False) -> None:
        """Leave CPUs to other programs that keep them busy; call it between passes.

        If a thread has to wait for its CPU, the others wait for it at every node of the
        graph, spinning (libgomp, 300,000 times), and two engines take seconds for a
        token. The text does not depend on the number of threads, but for rounding in a
        long context. Between answers CPUs are given back, but none are taken away:
        what the other programs do then may be waiting for an answer.
        """
        now = time.monotonic()
        if now < self._adapt_at and not between_answers:
            return
        self._adapt_at = now + _ADAPT_SECONDS
        share = self._cpu_load.read()
        if share is not None:
            n = count_free_cpus(share)
            if between_answers:
                n = max(n, self._max_threads)
            self._limit_threads(n)

    def _limit_threads(self, n: int) -> None:
        if n != self._max_threads:
            self._max_threads = n
            self._apply_threads()

    def measure(self, seconds: float) -> Iterator[str]:
        """Measure, and use the best thread counts.

        Yields what is measured, after every pass. Passes continue the texts in memory
        and are removed again.
        """
        target = self._target
        draft = self._draft
        self._limit_threads(_UNLIMITED)
        if self._may_choose_threads:
            counts = read_cpu_cores().thread_counts()
            width = min(self._max_draft + 1, _WIDE_PASS)
            thread_times: ThreadTimes | None = None
            measured = pass_timing.measure_threads(target, draft, counts, width)
            for times_so_far in measured:
                thread_times = times_so_far
                yield "comparing thread counts"
            if thread_times is not None:
                self._set_threads(*thread_times.best())
                self._threads_measured = True
        for pass_times in pass_timing.measure_passes(
            target,
            draft,
            longest=self._max_draft,
            seconds=seconds,
            warm=target.captured_after,
        ):
            self.costs = MeasuredCosts(
                t1_ms=pass_times.t1(),
                curve=pass_times.verify_curve(),
                c=pass_times.c(),
            )
            yield f"timing passes, width {max(pass_times.verify)}"
        if self.costs is not None:
            self._measured_ms = self.costs.t1_ms

    def measure_when_idle(self) -> Iterator[MeasuredCosts | None]:
        """Measure if it is due: yields None after each pass, and the costs at the end.

        It may be closed at every yield. Nothing is kept if it is closed or interrupted
        before its end, or if other programs used the CPUs meanwhile.
        """
        if not self._is_due or not self._can_restore_memory():
            return
        before = self._threads
        max_threads = self._max_threads
        was_measured = self._threads_measured
        is_kept = False
        cpu_load = OtherCpuLoad(os.getpid())
        cpu_load.start()
        for model in self._models:
            model.watch(self.interrupt)
        try:
            for _ in self.measure(_IDLE_SECONDS):
                yield None
            is_kept = not is_busy(cpu_load.read())
            if is_kept:
                self._n_disturbed = 0
                self._is_due = False
                yield self.costs
            else:
                self._n_disturbed += 1
                self._is_due = self._n_disturbed < _MAX_DISTURBED
        except DecodeInterrupted:
            return
        finally:
            for model in self._models:
                model.watch(None)
            if not is_kept:
                self._threads = before
                self._max_threads = max_threads
                self._apply_threads()
                self._threads_measured = was_measured

    def record_answer(self, plain_ms: float) -> None:
        """Measure again soon if several answers were slower than the measurement says."""
        expected_ms = self._measured_ms
        if expected_ms is not None and plain_ms > _SLOWER_RATIO * expected_ms:
            self._n_slow_answers += 1
        else:
            self._n_slow_answers = 0
        if self._n_slow_answers >= _MAX_SLOW_ANSWERS:
            self._n_slow_answers = 0
            self._is_due = self._may_measure_when_idle

    def empty_memories(self) -> None:
        for model in self._models:
            model.truncate(0)

    def _can_restore_memory(self) -> bool:
        """Whether passes after the text in memory leave it as it is.

        They need free cells, and memories that can be truncated. A head's memory cannot
        be restored: the target's passes fill it.
        """
        for model in self._models:
            n_free = model.n_ctx - model.n_past
            if n_free <= _WIDE_PASS:
                return False
        if not self._target.n_past:
            return True  # There is no text to keep.
        if self._target.needs_checkpoints:
            return False
        draft = self._draft
        if draft is None:
            return True
        return isinstance(draft, LlamaContext) and not draft.is_recurrent

    def _set_threads(self, n: int, n_batch: int) -> None:
        self._threads = [(n, n_batch)] * len(self._models)
        self._apply_threads()

    def _apply_threads(self) -> None:
        limit = self._max_threads
        for model, (n, n_batch) in zip(self._models, self._threads, strict=True):
            model.set_n_threads(min(n, limit), min(n_batch, limit))
