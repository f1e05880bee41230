"""Decodes a finished answer with the target alone, to replay or score its tokens.

It shares no code with drafting, verification and committing, so a replay can expose their bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import DecodeInterrupted, Draft, Logits
from localspec.engine.sampling import compute_distribution, gumbel_noise
from localspec.engine.token_probabilities import TokenProbabilities, score_tokens
from localspec.errors import UsageError
from localspec.protocol.wire import ReplayCommand, ReplayResult, SamplingParams


def replay_passes(
    target: PrefixCache, prompt: list[int], command: ReplayCommand, cancelled: Callable[[], bool]
) -> ReplayResult:
    """Decode the prompt into an empty memory, then the tokens in passes of the given widths.

    The memory is empty afterwards. If cancelled, returns the results so far. Raises UsageError.
    """
    widths, emitted = command.widths, command.emitted
    is_complete = len(widths) == len(emitted) and sum(emitted) + 1 == max(1, len(command.tokens))
    fits = all(0 < n <= width for width, n in zip(widths, emitted, strict=False))
    in_vocabulary = all(0 <= token < target.model.n_vocab for token in command.tokens)
    if not (is_complete and fits and in_vocabulary):
        raise UsageError("The passes and the tokens of this replay do not match.")
    scores: list[tuple[int, float, float, float]] = []
    target.model.truncate(0)
    try:
        if command.tokens:
            for index, row, recent in _replayed_rows(target, prompt, command, cancelled):
                scores.append(
                    _score_replayed(row, command.sampling, recent, index, command.tokens[index])
                )
    except DecodeInterrupted:
        pass
    finally:
        target.model.truncate(0)
    columns = zip(*scores, strict=True) if scores else ((),) * 4
    return ReplayResult(*columns)


def _replayed_rows(
    target: PrefixCache, prompt: list[int], command: ReplayCommand, cancelled: Callable[[], bool]
) -> Iterator[tuple[int, Logits, Sequence[int]]]:
    """For each token its position, the row of logits that decides it, and all tokens before it."""
    text, batch = list(prompt), target.model.n_batch
    for index, padding, emitted in _replay_schedule(command):
        target.rewind_to(text)
        for _ in target.prefill_until(text, batch - len(padding), cancelled):
            pass
        if cancelled():
            return
        uncached = text[target.n_cached :]
        # As many rows as in the original pass: the number of outputs affects the last bits.
        rows = target.decode([*uncached, *padding], len(padding) + 1)
        for i in range(emitted):
            yield index + i, rows[i], text
            text.append(command.tokens[index + i])


def _replay_schedule(command: ReplayCommand) -> Iterator[tuple[int, list[int], int]]:
    """Per pass: position of its first token, the tokens after the newest one, how many it emitted.

    Rejected draft tokens are unknown. A row depends only on the tokens up to its own, so they are
    replaced: by the answer's next tokens, then by its last token repeated.
    """
    yield 0, [], 1
    index = 1
    for width, emitted in zip(command.widths, command.emitted, strict=True):
        following = list(command.tokens[index : index + width - 1])
        n_missing = width - 1 - len(following)
        yield index, following + [command.tokens[-1]] * n_missing, emitted
        index += emitted


def _score_replayed(
    row: Logits, sampling: SamplingParams, text: Sequence[int], index: int, token: int
) -> tuple[int, float, float, float]:
    """A column of each field of `ReplayResult`."""
    n = sampling.history_length
    recent = list(text[-n:]) if n else []
    distribution = compute_distribution(row, sampling, recent)
    ids, probs, prob = distribution.ids, distribution.probs, distribution.prob(token)
    likelier = (probs > prob) | ((probs == prob) & (ids < token))
    noise = gumbel_noise(sampling.seed, index, ids)
    best = int(ids[(np.log(probs) + noise).argmax()])
    return best, prob, float(probs[ids < token].sum()), float(probs[likelier].sum())


def rescore(
    target: PrefixCache,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[TokenProbabilities, ...]]:
    """Yield the probabilities of an answer's tokens, at most `width` tokens per pass.

    The memory ends as after generating the answer: all tokens but the last. Ends early when
    cancelled.
    """
    model = target.model
    if len(prompt) + len(tokens) > model.n_ctx:
        raise UsageError("This prompt and answer do not fit into the context.")
    if not all(0 <= token < model.n_vocab for token in tokens):
        raise UsageError("The answer contains tokens that this model does not have.")
    if not tokens:
        return
    width = min(width, model.n_batch)
    target.rewind_to(prompt)
    try:
        for _ in target.prefill_until(prompt, model.n_batch - width + 1, cancelled):
            pass
        uncached: Sequence[int] = prompt[target.n_cached :]
        for start in range(0, len(tokens), width):
            if cancelled():
                return
            part = tokens[start : start + width]
            rows = target.decode([*uncached, *part[:-1]], len(part))
            yield score_tokens(rows, part, Draft())
            uncached = part[-1:]
    except DecodeInterrupted:
        return
