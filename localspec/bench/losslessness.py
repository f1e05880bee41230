"""Checks that speculating changes nothing here: equal answers, and samples of the right law."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from localspec.bench.answers import Engine, Stoppable, Stopped
from localspec.bench.equality import Way, compare
from localspec.bench.openings import OPENINGS
from localspec.bench.uniformity import Amount, Sample, draw
from localspec.bench.verdict import MODES, Doing, Equality, Finding, Part, Sampled, Widths
from localspec.protocol.wire import Probe, Sampling, VerifyMode

_LEAST_PROMPTS = 2
_SEEDS_A_MODE = 1_000_000
_CONFIRMING = 5_000
"""Added to the seeds of a sample that looks again."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to look at."""

    seconds: float = 20.0
    """For each part; a slow machine does the least of it and takes longer."""
    tokens: int = 64
    """Of an answer."""
    prompts: Sequence[str] = OPENINGS
    least: int = 200
    """Tokens to sample of each way of verifying."""


def check(
    engine: Engine,
    *,
    draft: bool,
    effort: Effort | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Finding]:
    """Everything, part by part; whoever stops listening keeps what was found.

    `draft`: whether there is a draft model.  Ends early, within an answer, once `stopped`.  Raises
    what the engine raised, or died of.
    """
    with suppress(Stopped):
        yield from _parts(Stoppable(engine, stopped), draft, effort or Effort())


def _parts(engine: Engine, draft: bool, effort: Effort) -> Iterator[Finding]:
    yield Doing("widths", "measuring how far passes of different widths disagree")
    for _ in engine.probe(Probe(seconds=1.0, difference=True)):
        pass
    measured = engine.measured
    yield Widths((measured.difference if measured else None) or 0.0)
    yield from _equal(engine, "greedy", Sampling(temperature=0), _ways(draft), effort)
    yield from _equal(engine, "seeded", Sampling(temperature=0.8), _ways(draft)[::2], effort)
    for n, verify in enumerate(MODES):
        yield from _sampled(engine, verify, draft, effort, (n + 1) * _SEEDS_A_MODE)


def _ways(draft: bool) -> list[Way]:
    """Fixed lengths, in passes of different widths, and as the controller likes."""
    if not draft:
        return [Way("lookup", 5), Way("lookup", 2), Way("auto")]
    return [Way("model", 5), Way("model", 2), Way("auto"), Way("lookup", 5)]


def _equal(
    engine: Engine, part: Part, sampling: Sampling, ways: Sequence[Way], effort: Effort
) -> Iterator[Finding]:
    began = time.monotonic()
    kind = "temperature 0" if part == "greedy" else "the same seed"
    for n, text in enumerate(effort.prompts):
        over = _over(time.monotonic() - began, effort.seconds)
        if n >= _LEAST_PROMPTS and over > 1:
            return
        share = max(n / len(effort.prompts), min(n / _LEAST_PROMPTS, over))
        yield Doing(part, f"{kind}: prompt {n + 1} of {len(effort.prompts)}", min(share, 1.0))
        seeded = Sampling(sampling.temperature, seed=n)
        yield Equality(part, compare(engine, ways, n, text, seeded, tokens=effort.tokens))


def _sampled(
    engine: Engine, verify: VerifyMode, draft: bool, effort: Effort, seed: int
) -> Iterator[Finding]:
    """One sample; a second with other seeds where a test alarms, which then decides."""
    amount = Amount(effort.least, answer=effort.tokens, seconds=effort.seconds)
    spec = "model" if draft else "lookup"
    for again in (False, True):
        sample = Sample(verify, again=again)
        began = time.monotonic()
        for _ in draw(engine, sample, spec, effort.prompts, amount, seed + again * _CONFIRMING):
            over = _over(time.monotonic() - began, effort.seconds)
            share = max(sample.tokens / amount.most, min(sample.tokens / effort.least, over))
            what = f"sampling, {verify}: {sample.tokens} tokens"
            yield Doing("sampled", what, min(share, 1.0), verify)
            if sample.impossible:
                yield Sampled(sample)
                return
        yield Sampled(sample)
        if not sample.bent(len(MODES)):
            return


def _over(elapsed: float, seconds: float) -> float:
    """How much of the time for a part is over; more than 1 where it is all."""
    return elapsed / seconds if seconds else 2.0
