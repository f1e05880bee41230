"""Decodes a finished answer with the target alone, to replay or score its tokens.

`localspec verify` replays answers to find bugs in how they were made. So a replay uses
none of the code that drafts, verifies and commits. It also decodes with a batch and
positions of its own (`IndependentDecoder`), unless the target's memory can only return
to checkpoints (`CachedDecoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from localspec.errors import UsageError
from localspec.llama import library
from localspec.llama.context import LlamaContext
from localspec.llama.library import C
from localspec.protocol.wire import ReplayCommand, ReplayResult, SamplingParams
from localspec.spec import heartbeat
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.picture_ids import last_tokens
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import DecodeInterrupted, Draft, Logits
from localspec.spec.sampling import compute_distribution, gumbel_noise
from localspec.spec.token_probabilities import TokenProbabilities, score_tokens


def replay_passes(
    decoder: CachedDecoder | IndependentDecoder,
    n_vocab: int,
    prompt: list[int],
    command: ReplayCommand,
    *,
    constraint: OutputConstraint | None,
    cancelled: Callable[[], bool],
) -> ReplayResult:
    """Decode a prompt into an empty memory, then the tokens in passes of given widths.

    `constraint` is the grammar that the answer followed. Closes the decoder. If cancelled, returns the results so far. Raises UsageError.
    """
    scores: list[tuple[int, float, float, float]] = []
    try:
        _check_replay(command, n_vocab)
        if command.tokens:
            rows = _replayed_rows(decoder, prompt, command, cancelled)
            for index, row, text in rows:
                score = _score_replayed(
                    row,
                    command.sampling,
                    text,
                    constraint=constraint,
                    index=index,
                    token=command.tokens[index],
                )
                scores.append(score)
    except DecodeInterrupted:
        pass
    finally:
        decoder.close()
    columns = zip(*scores, strict=True) if scores else ((),) * 4
    return ReplayResult(*columns)


def _check_replay(command: ReplayCommand, n_vocab: int) -> None:
    """Raises UsageError."""
    widths = command.widths
    emitted = command.emitted
    n_tokens = max(1, len(command.tokens))
    is_complete = len(widths) == len(emitted) and sum(emitted) + 1 == n_tokens
    fits = all(0 < n <= width for width, n in zip(widths, emitted, strict=False))
    in_vocabulary = all(0 <= token < n_vocab for token in command.tokens)
    if not (is_complete and fits and in_vocabulary):
        raise UsageError("The passes and the tokens of this replay do not match.")


def _replayed_rows(
    decoder: CachedDecoder | IndependentDecoder,
    prompt: list[int],
    command: ReplayCommand,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[int, Logits, Sequence[int]]]:
    """Each token's position, the row that decides it, and all tokens before it."""
    text = list(prompt)
    for index, padding, emitted in _replay_schedule(command):
        # There are as many rows as in the original pass, because the number of outputs
        # affects the last bits.
        rows = decoder.decode(text, padding, cancelled)
        for i in range(emitted):
            yield index + i, rows[i], text
            text.append(command.tokens[index + i])


class CachedDecoder:
    """Decodes passes as rounds do, with the code of rounds."""

    def __init__(self, target: PrefixCache) -> None:
        self._target = target
        target.model.truncate(0)

    def decode(
        self, text: list[int], padding: list[int], cancelled: Callable[[], bool]
    ) -> Logits:
        target = self._target
        target.rewind_to(text)
        max_left = target.model.n_batch - len(padding)
        for _ in target.prefill_until(text, max_left, cancelled):
            pass
        if cancelled():
            raise DecodeInterrupted
        return target.decode([*text[target.n_cached :], *padding], len(padding) + 1)

    def close(self) -> None:
        self._target.model.truncate(0)


class IndependentDecoder:
    """Decodes passes of the widths that rounds have, with a batch and positions of its own.

    So a replay shows a wrong position, a stale cell, or a row of another token.
    """

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._memory = C.llama_get_memory(context.handle)
        self._n_done = 0  # Tokens of the text in the memory.
        context.truncate(0)
        C.llama_memory_clear(self._memory, True)
        self._batch = C.llama_batch_init(context.n_batch, 0, 1)

    def decode(
        self, text: list[int], padding: list[int], cancelled: Callable[[], bool]
    ) -> Logits:
        """The rows of the text's last token and of `padding`.

        Each text continues the one before, whose padding is removed from the memory. Of
        the first text all but the last batch is decoded before. Raises DecodeInterrupted.
        """
        if self._n_done:
            self._n_done = len(text) - 1
        size = self._context.n_batch
        while len(text) - self._n_done > size - len(padding):
            end = min(self._n_done + size, len(text) - 1)
            self._run(text[self._n_done : end], 0, cancelled)
            self._n_done = end
        last_batch = [*text[self._n_done :], *padding]
        rows = self._run(last_batch, len(padding) + 1, cancelled)
        self._n_done = len(text)
        return rows

    def _run(
        self, tokens: list[int], outputs: int, cancelled: Callable[[], bool]
    ) -> Logits:
        if cancelled():
            raise DecodeInterrupted
        C.llama_memory_seq_rm(self._memory, 0, self._n_done, -1)
        handle = self._context.handle
        batch = self._batch
        n = len(tokens)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = self._n_done + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= n - outputs
        result = C.llama_decode(handle, batch)
        if result != 0:
            raise library.decode_error(result)
        heartbeat.record_progress()
        shape = (self._context.n_vocab,)
        rows: list[Logits] = []
        for i in range(n - outputs, n):
            row = C.llama_get_logits_ith(handle, i)
            rows.append(np.ctypeslib.as_array(row, shape))
        return np.array(rows)

    def close(self) -> None:
        C.llama_memory_clear(self._memory, True)
        C.llama_batch_free(self._batch)


def _replay_schedule(command: ReplayCommand) -> Iterator[tuple[int, list[int], int]]:
    """For each pass: its first position, the tokens after the newest, the number emitted.

    Rejected draft tokens are not recorded. A row depends only on the tokens up to its
    own, so others take their place: the answer's next tokens, then its last one repeated.

    For example, the answer is "a b c d", and after the prompt's pass there were a pass of
    width 3 that emitted two tokens, and one of width 2 that emitted one. The passes are
    (0, [], 1) for "a", then (1, [b, c], 2) for "b" and "c", of which "c" stands for the
    rejected token in the batch "a b c", and (3, [d], 1) for "d".
    """
    yield 0, [], 1
    index = 1
    for width, emitted in zip(command.widths, command.emitted, strict=True):
        following = list(command.tokens[index : index + width - 1])
        n_missing = width - 1 - len(following)
        yield index, following + [command.tokens[-1]] * n_missing, emitted
        index += emitted


def _score_replayed(
    row: Logits,
    sampling: SamplingParams,
    text: Sequence[int],
    *,
    constraint: OutputConstraint | None,
    index: int,
    token: int,
) -> tuple[int, float, float, float]:
    """One value for each field of `ReplayResult`."""
    n_recent = sampling.history_length
    recent = last_tokens(text, n_recent)
    grammar = None
    if constraint is not None:
        grammar = constraint.state_after(text)
    distribution = compute_distribution(row, sampling, recent, grammar)
    ids = distribution.ids
    probs = distribution.probs
    probability = distribution.prob(token)
    has_smaller_id = ids < token
    # Of equally likely tokens, that with the smaller id counts as likelier.
    is_as_likely = np.logical_and(probs == probability, has_smaller_id)
    is_likelier = np.logical_or(probs > probability, is_as_likely)
    noise = gumbel_noise(sampling.seed, index, ids)
    best = int(ids[(np.log(probs) + noise).argmax()])
    below = float(probs[has_smaller_id].sum())
    above = float(probs[is_likelier].sum())
    return best, probability, below, above


def rescore(
    target: PrefixCache,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[TokenProbabilities, ...]]:
    """Yield the probabilities of an answer's tokens, at most `width` tokens per pass.

    The memory ends as after generating the answer: all tokens but the last. Ends early
    when cancelled. Raises UsageError.
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
        # A picture at the end of the prompt is left whole, and may fill the first pass.
        end = min(width, model.n_batch - len(uncached) + 1)
        start = 0
        while start < len(tokens):
            if cancelled():
                return
            part = tokens[start:end]
            rows = target.decode([*uncached, *part[:-1]], len(part))
            yield score_tokens(rows, part, Draft())
            uncached = part[-1:]
            start = end
            end += width
    except DecodeInterrupted:
        return
