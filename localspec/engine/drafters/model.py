"""Guess with a smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.drafters import Needs
from localspec.engine.drafters.chain import Chain
from localspec.engine.protocols import Draft, Gauge, Logits
from localspec.engine.reader import Reader


class ModelDrafter:
    """The draft model is never run over the verified batch: it catches up when asked again.

    What it read and the text did not become is forgotten by common prefix; what it has not read
    rides along in the first batch of its next draft (algorithms.md 1.6).
    """

    def __init__(self, reader: Reader, needs: Needs) -> None:
        self._reader = reader
        self._cancelled = needs.cancelled
        self._chain = Chain(needs, "model", reader.model.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        reader, model = self._reader, self._reader.model
        limit = min(limit, model.n_ctx - len(tokens) - len(ahead))
        if limit <= 0:
            return Draft(reason="the draft's context is full")
        before = model.seconds
        reader.align(tokens)
        unread = [*tokens[reader.n_read :], *ahead]
        if max(unread, default=0) >= model.n_vocab:  # unknown to the draft
            return Draft()
        for _ in reader.skim(tokens, model.n_batch - len(ahead), self._cancelled):
            pass
        if self._cancelled():
            return Draft()

        def row(guess: int | None) -> tuple[Logits, None]:
            fresh = [*tokens[reader.n_read :], *ahead] if guess is None else [guess]
            return reader.read(fresh, 1)[0], None

        draft = self._chain.grow(tokens, ahead, limit, gauge, row)
        return replace(draft, seconds=model.seconds - before)


def make(needs: Needs) -> ModelDrafter:
    if needs.reader is None:
        raise KeyError("model")
    return ModelDrafter(needs.reader, needs)
