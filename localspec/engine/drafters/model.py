"""Guess with a smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.drafters import Needs
from localspec.engine.protocols import Draft, Law
from localspec.engine.reader import Reader
from localspec.engine.sampling import InvalidNumbersError, law


class ModelDrafter:
    """The draft model is never run over the verified batch: it catches up when asked again.

    What it read and the text did not become is forgotten by common prefix; what it has not read
    rides along in the first batch of its next draft (algorithms.md 1.6).
    """

    def __init__(self, reader: Reader, needs: Needs) -> None:
        self._reader = reader
        self._needs = needs
        self._n_vocab = min(reader.model.n_vocab, needs.n_vocab)

    def propose(self, tokens: Sequence[int], limit: int) -> Draft:
        model = self._reader.model
        limit = min(limit, model.n_ctx - len(tokens))
        if limit <= 0:
            return Draft()
        before = model.seconds
        self._reader.align(tokens)
        if max(tokens[self._reader.n_read :], default=0) >= model.n_vocab:  # unknown to the draft
            return Draft()
        for _ in self._reader.skim(tokens, model.n_batch, self._needs.cancelled):
            pass
        if self._needs.cancelled():
            return Draft()
        guessed: list[int] = []
        laws: list[Law] = []
        fresh = tokens[self._reader.n_read :]
        for i in range(limit):
            logits = self._reader.read(fresh, 1)[0]
            if len(logits) > self._n_vocab:
                logits = logits[: self._n_vocab]
            try:
                laws.append(law(logits, self._needs.sampling, self._recent(tokens, guessed)))
            except InvalidNumbersError:  # a broken draft costs speed, never the answer
                break
            token = self._needs.verifier.guess(laws[-1], len(tokens) - self._needs.start + i)
            guessed.append(token)
            if self._needs.is_end(token):
                break
            fresh = [token]
        return Draft(guessed, laws, "model", model.seconds - before)

    def _recent(self, tokens: Sequence[int], guessed: list[int]) -> Sequence[int]:
        sampling = self._needs.sampling
        if sampling.repeat_penalty == 1.0:
            return ()
        return [*tokens[-sampling.repeat_last_n :], *guessed]


def make(needs: Needs) -> ModelDrafter:
    if needs.reader is None:
        raise KeyError("model")
    return ModelDrafter(needs.reader, needs)
