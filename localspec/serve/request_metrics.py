"""What the server is doing and has done: for the log, /metrics and the live board."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.protocol.events import Event, GenerationFinished, Prefill, Round
from localspec.protocol.round_totals import RoundTotals

RequestState = Literal["queued", "reading", "answering", "done", "cancelled", "failed"]
_KEPT_REQUESTS = 200


class PromptProgress(Struct, frozen=True):
    """How much of a prompt is read, and when. Times are of `time.monotonic`."""

    prefill: Prefill
    began: float
    read: float  # When `prefill` was received.

    def complete(self, now: float) -> PromptProgress:
        prefill = replace(self.prefill, done=self.prefill.total)
        return PromptProgress(prefill, self.began, read=now)


class RequestActivity(Struct):
    """The figures of a request that uses the engine. Times are of `time.monotonic`.

    It is kept for the board after the request has ended, so it holds no text.
    """

    number: int
    route: str
    state: RequestState = "queued"
    began: float = field(default_factory=time.monotonic)
    answer_began: float | None = None
    ended: float | None = None
    status: int = 0  # The HTTP status; 0 until it is known.
    prompt_tokens: int = 0
    reused_tokens: int = 0
    open_prompt: PromptProgress | None = None
    """Of the current choice. Its last event has the final numbers, so None after it."""
    totals: RoundTotals = field(default_factory=RoundTotals)

    def add(self, event: Event) -> None:
        now = time.monotonic()
        if isinstance(event, Prefill):
            self.state = "reading"
            began = self.open_prompt.began if self.open_prompt else now
            self.open_prompt = PromptProgress(event, began, read=now)
        elif isinstance(event, Round):
            if self.state == "reading" and self.open_prompt is not None:
                # The first pass has read the rest of the prompt.
                self.open_prompt = self.open_prompt.complete(now)
            self.state = "answering"
            if self.answer_began is None:
                self.answer_began = now
            self.totals.add(event)
        elif isinstance(event, GenerationFinished):
            self.open_prompt = None
            self.prompt_tokens += int(event.totals.get("prompt_tokens", 0))
            self.reused_tokens += int(event.totals.get("reused_tokens", 0))

    @property
    def seconds(self) -> float:
        return self._end_or_now - self.began

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token, which comes with the prompt."""
        if self.answer_began is None or self.totals.tokens < 2:
            return None
        seconds = self._end_or_now - self.answer_began
        if seconds <= 0:
            return None
        return (self.totals.tokens - 1) / seconds

    @property
    def _end_or_now(self) -> float:
        return time.monotonic() if self.ended is None else self.ended


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
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.longest = 0  # Tokens of the longest prompt with its answer.
        self.prompt_seconds = 0.0
        self.decode_seconds = 0.0
        self.finished_by_state: Counter[RequestState] = Counter()
        self.totals = RoundTotals()
        self._numbers = itertools.count(1)

    @property
    def n_processing(self) -> int:
        return len([each for each in self.running if each.state != "queued"])

    @property
    def n_waiting(self) -> int:
        return len([each for each in self.running if each.state == "queued"])

    @property
    def tokens_per_second(self) -> float | None:
        """Of the answers that have ended."""
        if not self.decode_seconds:
            return None
        n_running = sum(request.totals.tokens for request in self.running)
        return (self.totals.tokens - n_running) / self.decode_seconds

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
        if request.open_prompt is not None:
            # It was stopped, so the event with the final numbers will not come.
            prompt = request.open_prompt
            request.prompt_tokens += prompt.prefill.done
            request.reused_tokens += prompt.prefill.reused
            self.prompt_tokens += prompt.prefill.done
            self.reused_tokens += prompt.prefill.reused
            self.prompt_seconds += prompt.read - prompt.began
            self.decode_seconds += request.ended - prompt.read
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
        n_waiting = self.n_waiting
        totals = self.totals
        n_read = self.prompt_tokens - self.reused_tokens
        read_rate = 0.0
        if self.prompt_seconds:
            read_rate = n_read / self.prompt_seconds
        lines = []

        def add(name: str, meaning: str, value: float) -> None:
            lines.extend(_metric_head(name, meaning))
            lines.append(f"llamacpp:{name} {value:g}")

        add("prompt_tokens_total", "Prompt tokens read.", n_read)
        add(
            "prompt_tokens_cached_total",
            "Prompt tokens in the KV cache.",
            self.reused_tokens,
        )
        add("prompt_seconds_total", "Time of reading prompts.", self.prompt_seconds)
        add("tokens_predicted_total", "Tokens of answers.", totals.tokens)
        add(
            "tokens_predicted_seconds_total",
            "Time of writing answers.",
            self.decode_seconds,
        )
        add("n_decode_total", "Passes of the target.", totals.passes)
        add("requests_processing", "Requests that the engine works at.", n_running)
        add("requests_deferred", "Requests that wait.", n_waiting)
        add(
            "n_tokens_max",
            "Tokens of the longest prompt with its answer.",
            self.longest,
        )
        add("n_busy_slots_per_decode", "Answers per pass.", 1)
        add("prompt_tokens_seconds", "Prompt tokens read per second.", read_rate)
        add(
            "predicted_tokens_seconds",
            "Tokens of answers per second.",
            self.tokens_per_second or 0,
        )
        add(
            "spec_decode_num_drafts_total",
            "Passes that verified a draft.",
            totals.rounds,
        )
        add("spec_decode_num_draft_tokens_total", "Draft tokens.", totals.drafted)
        add(
            "spec_decode_num_accepted_tokens_total",
            "Accepted draft tokens.",
            totals.accepted,
        )
        name = "spec_decode_num_accepted_tokens_per_pos_total"
        lines += _metric_head(name, "Accepted draft tokens by place in the draft.")
        for position, counts in enumerate(totals.by_position):
            lines.append(f'llamacpp:{name}{{position="{position}"}} {counts.accepted}')
        return "".join(f"{line}\n" for line in lines)


def _metric_head(name: str, meaning: str) -> list[str]:
    kind = "counter" if name.endswith(("_total", "_max")) else "gauge"
    return [f"# HELP llamacpp:{name} {meaning}", f"# TYPE llamacpp:{name} {kind}"]
