"""Guess with a smaller model that shares the target's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.drafters import Needs
from localspec.engine.protocols import Draft, Gauge, Law, Logits
from localspec.engine.reader import Reader
from localspec.engine.sampling import InvalidNumbersError, confidence, law


class ModelDrafter:
    """The draft model is never run over the verified batch: it catches up when asked again.

    What it read and the text did not become is forgotten by common prefix; what it has not read
    rides along in the first batch of its next draft (algorithms.md 1.6).
    """

    def __init__(self, reader: Reader, needs: Needs) -> None:
        self._reader = reader
        self._needs = needs
        self._n_vocab = min(reader.model.n_vocab, needs.n_vocab)
        self._read = self._read_and_keep if needs.keep_rows else reader.read
        self._rows: list[Logits] = []

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        model = self._reader.model
        limit = min(limit, model.n_ctx - len(tokens) - len(ahead))
        if limit <= 0:
            return Draft()
        before = model.seconds
        self._reader.align(tokens)
        unread = [*tokens[self._reader.n_read :], *ahead]
        if max(unread, default=0) >= model.n_vocab:  # unknown to the draft
            return Draft()
        for _ in self._reader.skim(tokens, model.n_batch - len(ahead), self._needs.cancelled):
            pass
        if self._needs.cancelled():
            return Draft()
        guessed, laws = self._guesses(tokens, limit, ahead, gauge)
        rows = self._kept(len(guessed)) if self._needs.keep_rows else None
        return Draft(guessed, laws, "model", model.seconds - before, rows=rows)

    def _guesses(
        self, tokens: Sequence[int], limit: int, ahead: Sequence[int], gauge: Gauge | None
    ) -> tuple[list[int], list[Law]]:
        guessed: list[int] = []
        laws: list[Law] = []
        place = len(tokens) - self._needs.start + len(ahead)
        fresh = [*tokens[self._reader.n_read :], *ahead]
        for i in range(limit):
            logits = self._read(fresh, 1)[0]
            if len(logits) > self._n_vocab:
                logits = logits[: self._n_vocab]
            try:
                said = law(logits, self._needs.sampling, self._recent(tokens, [*ahead, *guessed]))
            except InvalidNumbersError:  # a broken draft costs speed, never the answer
                break
            if gauge is not None and not gauge.wanted(confidence(logits, said)):
                break
            token = self._needs.verifier.guess(said, place + i)
            laws.append(said)
            guessed.append(token)
            if self._needs.is_end(token) or (gauge is not None and not gauge.more(token)):
                break
            fresh = [token]
        return guessed, laws

    def _read_and_keep(self, tokens: Sequence[int], outputs: int) -> Logits:
        rows = self._reader.read(tokens, outputs)
        self._rows.append(rows[0, : self._n_vocab].copy())
        return rows

    def _kept(self, n: int) -> list[Logits]:
        """The rows of this draft's `n` guesses; the last one read may have led to none."""
        rows, self._rows = self._rows[:n], []
        return rows

    def _recent(self, tokens: Sequence[int], guessed: list[int]) -> Sequence[int]:
        sampling = self._needs.sampling
        if sampling.repeat_penalty == 1.0:
            return ()
        return [*tokens[-sampling.repeat_last_n :], *guessed]


def make(needs: Needs) -> ModelDrafter:
    if needs.reader is None:
        raise KeyError("model")
    return ModelDrafter(needs.reader, needs)
