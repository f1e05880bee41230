"""Reads an answer once more, for what the target gives to each of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.engine.insight import Insight, look
from localspec.engine.protocols import Draft, Interrupted
from localspec.engine.reader import Reader
from localspec.errors import UsageError


def reread(
    target: Reader,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[Insight, ...]]:
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
        yield from _passes(target, prompt, tokens, min(width, model.n_batch), cancelled)
    except Interrupted:
        return


def _passes(
    target: Reader,
    prompt: list[int],
    tokens: Sequence[int],
    width: int,
    cancelled: Callable[[], bool],
) -> Iterator[tuple[Insight, ...]]:
    if not tokens:
        return
    target.align(prompt)
    for _ in target.skim(prompt, target.model.n_batch - width + 1, cancelled):
        pass
    fresh: Sequence[int] = prompt[target.n_read :]
    for start in range(0, len(tokens), width):
        if cancelled():
            return
        part = tokens[start : start + width]
        rows = target.read([*fresh, *part[:-1]], len(part))
        yield look(rows, part, Draft())
        fresh = part[-1:]
