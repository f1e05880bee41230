"""What the target alone says of an answer's tokens, in passes of given widths.

No drafting, verifying or committing: only reading, so that a bug in those shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.engine.near_ties import decision_margin, pick_coupled_token
from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import DecodeInterrupted, Distribution, Draft, Logits
from localspec.engine.sampling import compute_distribution
from localspec.engine.token_probabilities import TokenProbabilities, score_tokens
from localspec.errors import UsageError
from localspec.protocol.wire import ReplayCommand, ReplayResult, SamplingParams


def replay_passes(
    target: PrefixCache, prompt: list[int], command: ReplayCommand, cancelled: Callable[[], bool]
) -> ReplayResult:
    """Read the prompt into an empty memory, then the tokens pass by pass; the memory ends empty.

    Without tokens nothing is read, so the next answer starts as from fresh.  Where it was
    cancelled, what is known by then.
    """
    _check_replay(command, target)
    found = _ReplayScores()
    target.model.truncate(0)
    try:
        if command.tokens:
            for place, row, recent in _replayed_rows(target, prompt, command, cancelled):
                found.add(row, command.sampling, recent, place, command.tokens[place])
    except DecodeInterrupted:
        pass
    finally:
        target.model.truncate(0)
    return found.to_result()


def _replayed_rows(
    target: PrefixCache, prompt: list[int], command: ReplayCommand, cancelled: Callable[[], bool]
) -> Iterator[tuple[int, Logits, Sequence[int]]]:
    """For each token its place, the row of logits that it follows from, and all before it."""
    text, batch = list(prompt), target.model.n_batch
    for place, padding, emitted in _replay_schedule(command):
        target.rewind_to(text)
        for _ in target.prefill_until(text, batch - len(padding), cancelled):
            pass
        if cancelled():
            return
        fresh = text[target.n_cached :]
        # As many rows as the real pass asked for: the output's shape is part of the computation.
        rows = target.decode([*fresh, *padding], len(padding) + 1)
        for i in range(emitted):
            yield place + i, rows[i], text
            text.append(command.tokens[place + i])


def _replay_schedule(command: ReplayCommand) -> Iterator[tuple[int, list[int], int]]:
    """Each pass: the place of its first token, what is read beside the newest, how many count.

    Guesses that were rejected are not known.  A row depends on the tokens up to its own only, so
    any others do: the answer's next, then its last again and again.
    """
    yield 0, [], 1
    place = 1
    for width, emitted in zip(command.widths, command.emitted, strict=True):
        following = list(command.tokens[place : place + width - 1])
        rest = width - 1 - len(following)
        yield place, following + [command.tokens[-1]] * rest, emitted
        place += emitted


@dataclass
class _ReplayScores:
    best: list[int] = field(default_factory=list)
    margin: list[float] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    below: list[float] = field(default_factory=list)
    above: list[float] = field(default_factory=list)

    def add(
        self, row: Logits, sampling: SamplingParams, text: Sequence[int], index: int, token: int
    ) -> None:
        recent = list(text[-sampling.repeat_last_n :]) if sampling.repeat_penalty != 1.0 else []
        said = compute_distribution(row, sampling, recent)
        best = pick_coupled_token(said, sampling, index)
        mine = said.prob(token)
        self.best.append(best)
        self.margin.append(decision_margin(row, sampling, recent, index, best))
        self.probability.append(mine)
        self.below.append(float(said.probs[said.ids < token].sum()))
        self.above.append(_mass_above(said, token, mine))

    def to_result(self) -> ReplayResult:
        return ReplayResult(
            tuple(self.best),
            tuple(self.margin),
            tuple(self.probability),
            tuple(self.below),
            tuple(self.above),
        )


def _mass_above(distribution: Distribution, token: int, prob: float) -> float:
    likelier = (distribution.probs > prob) | (
        (distribution.probs == prob) & (distribution.ids < token)
    )
    return float(distribution.probs[likelier].sum())


def _check_replay(command: ReplayCommand, target: PrefixCache) -> None:
    widths, emitted = command.widths, command.emitted
    whole = len(widths) == len(emitted) and sum(emitted) + 1 == max(1, len(command.tokens))
    fits = all(0 < n <= width for width, n in zip(widths, emitted, strict=False))
    known = all(0 <= token < target.model.n_vocab for token in command.tokens)
    if not (whole and fits and known):
        raise UsageError("These passes and tokens do not fit together.")


# --- Reads an answer once more, for what the target gives to each of its tokens.


def rescore(
    target: PrefixCache,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[TokenProbabilities, ...]]:
    """Insights of at most `width` tokens a pass, in order; fewer of them where it is cancelled.

    The memory is cut to the prompt and ends with the answer, all but its last token, as after
    writing it.
    """
    model = target.model
    if len(prompt) + len(tokens) > model.n_ctx:
        raise UsageError("This prompt and answer do not fit into the context.")
    if not all(0 <= token < model.n_vocab for token in tokens):
        raise UsageError("These tokens are not the model's.")
    try:
        yield from _rescore_passes(target, prompt, tokens, min(width, model.n_batch), cancelled)
    except DecodeInterrupted:
        return


def _rescore_passes(
    target: PrefixCache,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[TokenProbabilities, ...]]:
    if not tokens:
        return
    target.rewind_to(prompt)
    for _ in target.prefill_until(prompt, target.model.n_batch - width + 1, cancelled):
        pass
    fresh: Sequence[int] = prompt[target.n_cached :]
    for start in range(0, len(tokens), width):
        if cancelled():
            return
        part = tokens[start : start + width]
        rows = target.decode([*fresh, *part[:-1]], len(part))
        yield score_tokens(rows, part, Draft())
        fresh = part[-1:]
