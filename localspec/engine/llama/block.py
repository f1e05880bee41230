"""A DFlash or DSpark head's context: states in, then a whole block of guesses out in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.engine.llama import taps
from localspec.engine.llama.batch import Batch
from localspec.engine.llama.context import Llama
from localspec.engine.llama.head import Head
from localspec.engine.llama.library import C
from localspec.engine.protocols import Logits, States
from localspec.errors import EngineError
from localspec.models.heads import Form
from localspec.protocol.wire import ContextSettings


class Block(Head):
    """Its memory holds the target's states, one a token; a block stands behind them for a while.

    `size` and `first` are its form's.
    """

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        target: Llama,
        *,
        taken_width: int,
        form: Form,
    ) -> None:
        self._form = form
        super().__init__(path, settings, target, taken_width=taken_width)

    def _open(self, settings: ContextSettings) -> None:
        super()._open(settings)
        weights = self.weights
        self.size = min(self._form.size, self.n_batch)
        self.first = self._form.first
        self._mask = int(C.llama_vocab_mask(C.llama_model_get_vocab(weights.handle)))
        if not 0 <= self._mask < self.n_vocab:
            raise EngineError("The head has no mask token, which its blocks are made of.")
        self._read = Batch(self.n_batch)
        # Left on, it computes other guesses without an error.
        C.llama_set_causal_attn(self._context, self._form.causal)

    def inject(self, states: States) -> None:
        """Append the target's states, which the block attends to."""
        n = self._checked(states, self.taken_width)
        if self.n_past + n > self.n_ctx:
            raise EngineError(f"cannot take {n} states at {self.n_past} of {self.n_ctx}")
        self._taken.fill(states)
        self._taken.place(n, self.n_past, 0)
        self._pass(C.llama_decode, self._taken)
        self.n_past += n

    def guesses(self, last: int, n: int) -> tuple[Logits, States | None]:
        """Logits of the n tokens after `last`, and how sure the head is of each, if it says.

        The memory ends as it was; the rows hold until the next call.
        """
        rows = n + self.first
        if not 0 < rows <= self.size:
            raise EngineError(f"a block has {self.size} rows, not {rows}")
        past = self.n_past
        logits = self.read([last, *[self._mask] * (rows - 1)], rows)[self.first :]
        sure: States | None = None
        if self._form.confident:
            sure = taps.next_states(self._context, rows, self.width)[self.first :, 0].copy()
        self.forget(past)
        return logits, sure

    def read(self, tokens: Sequence[int], outputs: int, states: States | None = None) -> Logits:
        """Append rows of a block, tokens alone; all of them give logits, or none."""
        n = len(tokens)
        if self._context is None or states is not None:
            raise EngineError("A block has tokens alone.")
        if not 0 < n <= self.n_batch or self.n_past + n > self.n_ctx or not 0 <= outputs <= n:
            raise EngineError(f"cannot read {n} rows at {self.n_past} of {self.n_ctx}")
        return self._rows(tokens, outputs)
