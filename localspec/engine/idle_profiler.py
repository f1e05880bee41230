"""Measures a loaded pair, on command or when idle: thread counts and pass costs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from localspec.engine import pass_timing
from localspec.llama.context import InterruptFlag, LlamaContext
from localspec.llama.head_context import HeadContext
from localspec.machine.cpu_and_ram import (
    MAX_OTHER_LOAD,
    OtherCpuLoad,
    count_free_cpus,
    read_cpu_cores,
)
from localspec.protocol.wire import LoadCommand, MeasuredCosts
from localspec.spec.protocols import DecodeInterrupted

_WIDE_PASS = 8  # Width of the passes that represent verification and prompt reading.
_IDLE_SECONDS = 2.0
# Measurements in a row that other programs disturbed, before it is given up.
_MAX_DISTURBED = 3
_SLOWER_RATIO = 1.15
_MAX_SLOW_ANSWERS = 3  # In a row, slower than measured, before it is measured again.
_UNLIMITED = sys.maxsize
_ADAPT_SECONDS = 0.5  # Between looks at what other programs use.


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
        """`cpu_load` was started before the pair was loaded; the parent is left out.

        What it has found limits the threads from the beginning.
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
        self._max_threads = _UNLIMITED  # That other programs leave CPUs for.
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
            threads = None
            measured = pass_timing.measure_threads(target, draft, counts, width)
            for threads in measured:  # noqa: B007
                yield "comparing thread counts"
            if threads is not None:
                self._set_threads(*threads.best())
                self._threads_measured = True
        warm = target.captured_after
        times = None
        for times in pass_timing.measure_passes(
            target, draft, self._max_draft, seconds, warm
        ):
            self.costs = MeasuredCosts(times.t1(), times.verify_curve(), times.c())
            yield f"timing passes, width {max(times.verify)}"
        if times is not None:
            self._measured_ms = times.t1()

    def measure_when_idle(self) -> Iterator[MeasuredCosts | None]:
        """Measure if it is due; the last item is the result.

        It may be closed at every yield. Nothing is kept if it is closed or interrupted before its end, or if other
        programs used the CPUs meanwhile.
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
            is_kept = (cpu_load.read() or 0.0) <= MAX_OTHER_LOAD
            self._n_disturbed = 0 if is_kept else self._n_disturbed + 1
            self._is_due = not is_kept and self._n_disturbed < _MAX_DISTURBED
            if is_kept:
                yield self.costs
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
        """Whether passes after the text in memory leave it as it is."""
        if any(model.n_ctx - model.n_past <= _WIDE_PASS for model in self._models):
            return False
        if not self._target.n_past:
            return True
        if self._target.needs_checkpoints:
            return False
        # A head's memory is filled by the target's passes.
        draft = self._draft
        if draft is None:
            return True
        return isinstance(draft, LlamaContext) and not draft.is_recurrent

    def _set_threads(self, n: int, n_batch: int) -> None:
        self._threads = [(n, n_batch)] * len(self._models)
        self._apply_threads()

    def _apply_threads(self) -> None:
        for model, counts in zip(self._models, self._threads, strict=True):
            model.set_n_threads(*(min(n, self._max_threads) for n in counts))
