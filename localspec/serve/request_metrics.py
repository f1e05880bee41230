"""What the server is doing and has done: for the log, /metrics and the live board."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.chat.answer import GeneratedAnswer
from localspec.protocol.events import Event, GenerationFinished, Prefill, Round
from localspec.protocol.round_totals import RoundTotals

RequestState = Literal["queued", "reading", "answering", "done", "cancelled", "failed"]
_KEPT_REQUESTS = 200


class RequestActivity(Struct):
    """One request that uses the engine. Times are of `time.monotonic`."""

    number: int
    route: str
    state: RequestState = "queued"
    began: float = field(default_factory=time.monotonic)
    answer_began: float | None = None
    ended: float | None = None
    status: int = 0  # The HTTP status; 0 until it is known.
    prompt_tokens: int = 0
    reused_tokens: int = 0
    open_answer: tuple[Prefill, float, float] | None = None
    """Before its end: the last Prefill, and the times of the first and the last one."""
    totals: RoundTotals = field(default_factory=RoundTotals)
    # Of the current choice.
    answer: GeneratedAnswer = field(default_factory=GeneratedAnswer)

    def add(self, event: Event) -> None:
        if isinstance(event, Prefill):
            self.state = "reading"
            now = time.monotonic()
            began = self.open_answer[1] if self.open_answer else now
            self.open_answer = (event, began, now)
        elif isinstance(event, Round):
            if self.state == "reading" and self.open_answer is not None:
                prefill, began, _ = self.open_answer  # this pass read the rest of it
                self.open_answer = (
                    replace(prefill, done=prefill.total),
                    began,
                    time.monotonic(),
                )
            self.state = "answering"
            self.answer_began = self.answer_began or time.monotonic()
            self.totals.add(event)
        elif isinstance(event, GenerationFinished):
            self.open_answer = None
            self.prompt_tokens += int(event.totals.get("prompt_tokens", 0))
            self.reused_tokens += int(event.totals.get("reused_tokens", 0))

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def tokens_per_second(self) -> float | None:
        if self.answer_began is None or self.totals.tokens < 2:
            return None
        seconds = (self.ended or time.monotonic()) - self.answer_began
        return (self.totals.tokens - 1) / seconds if seconds > 0 else None


class ServerActivity:
    """The running and the latest requests, and sums over all answers.

    One thread changes it; others may read it meanwhile.
    """

    def __init__(
        self, on_end: Callable[[RequestActivity], None] = lambda _: None
    ) -> None:
        self.on_end = on_end
        self.began = time.time()
        self.running: list[RequestActivity] = []  # In the order of the queue.
        self.finished: deque[RequestActivity] = deque(maxlen=_KEPT_REQUESTS)
        self.prompt_tokens = self.reused_tokens = 0
        self.longest = 0  # Tokens of the longest prompt with its answer.
        self.prompt_seconds = self.decode_seconds = 0.0
        self.finished_by_state: Counter[RequestState] = Counter()
        self.totals = RoundTotals()
        self._numbers = itertools.count(1)

    @property
    def n_processing(self) -> int:
        return sum(request.state != "queued" for request in self.running)

    @property
    def tokens_per_second(self) -> float | None:
        """Of the answers that have ended."""
        n_tokens = self.totals.tokens - sum(
            request.totals.tokens for request in self.running
        )
        return n_tokens / self.decode_seconds if self.decode_seconds else None

    def begin(self, route: str) -> RequestActivity:
        request = RequestActivity(next(self._numbers), route)
        self.running.append(request)
        return request

    def end(self, request: RequestActivity, state: RequestState, status: int) -> None:
        """Does nothing for a request that has ended before."""
        if request.ended is not None:
            return
        request.state = state
        request.status = status
        request.ended = time.monotonic()
        if request.open_answer is not None:  # Stopped: its last event will not come.
            prefill, began, read = request.open_answer
            for sums in (request, self):
                sums.prompt_tokens += prefill.done
                sums.reused_tokens += prefill.reused
            self.prompt_seconds += read - began
            self.decode_seconds += request.ended - read
        self.running.remove(request)
        self.finished.append(request)
        self.finished_by_state[state] += 1
        self.on_end(request)

    def add(self, event: Event) -> None:
        """Add an event of any answer to the sums."""
        if isinstance(event, Round):
            self.totals.add(event)
        elif isinstance(event, GenerationFinished) and event.totals:
            totals = event.totals
            self.longest = max(self.longest, totals["prompt_tokens"] + totals["tokens"])
            self.prompt_tokens += totals["prompt_tokens"]
            self.reused_tokens += totals["reused_tokens"]
            self.prompt_seconds += totals["timings"]["prefill_ms"] / 1e3
            self.decode_seconds += totals["timings"]["decode_ms"] / 1e3

    def metrics(self) -> str:
        """In Prometheus' text format, with the names of llama.cpp."""
        n_running = self.n_processing
        totals = self.totals
        decode_seconds = self.decode_seconds
        n_read = self.prompt_tokens - self.reused_tokens
        read_rate = n_read / (self.prompt_seconds or math.inf)
        write_rate = self.tokens_per_second
        metrics = (
            ("prompt_tokens_total", "Prompt tokens read.", n_read),
            (
                "prompt_tokens_cached_total",
                "Prompt tokens in the KV cache.",
                self.reused_tokens,
            ),
            ("prompt_seconds_total", "Time of reading prompts.", self.prompt_seconds),
            ("tokens_predicted_total", "Tokens of answers.", totals.tokens),
            (
                "tokens_predicted_seconds_total",
                "Time of writing answers.",
                decode_seconds,
            ),
            ("n_decode_total", "Passes of the target.", totals.passes),
            ("requests_processing", "Requests that the engine works at.", n_running),
            ("requests_deferred", "Requests that wait.", len(self.running) - n_running),
            (
                "n_tokens_max",
                "Tokens of the longest prompt with its answer.",
                self.longest,
            ),
            ("n_busy_slots_per_decode", "Answers per pass.", 1),
            ("prompt_tokens_seconds", "Prompt tokens read per second.", read_rate),
            (
                "predicted_tokens_seconds",
                "Tokens of answers per second.",
                write_rate or 0,
            ),
            (
                "spec_decode_num_drafts_total",
                "Passes that verified a draft.",
                totals.rounds,
            ),
            ("spec_decode_num_draft_tokens_total", "Draft tokens.", totals.drafted),
            (
                "spec_decode_num_accepted_tokens_total",
                "Accepted draft tokens.",
                totals.accepted,
            ),
        )
        lines = []
        for name, meaning, value in metrics:
            lines += [*_metric_head(name, meaning), f"llamacpp:{name} {value:g}"]
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        lines += _metric_head(name, "Accepted draft tokens by place in the draft.")
        for position, counts in enumerate(totals.by_position):
            lines.append(f'llamacpp:{name}{{position="{position}"}} {counts.accepted}')
        return "\n".join([*lines, ""])


def _metric_head(name: str, meaning: str) -> list[str]:
    kind = "counter" if name.endswith(("_total", "_max")) else "gauge"
    return [f"# HELP llamacpp:{name} {meaning}", f"# TYPE llamacpp:{name} {kind}"]
