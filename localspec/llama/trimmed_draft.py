"""The context of a draft model with a trimmed vocabulary.

It takes the embeddings of tokens and returns the logits of all of them: see
`localspec.models.gguf.trimmed_vocabulary`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.errors import ModelFileError
from localspec.llama.batch import LlamaBatch
from localspec.llama.context import LlamaContext
from localspec.llama.library import C
from localspec.machine.ggml import GgmlLibrary
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import trimmed_vocabulary
from localspec.models.gguf.header import Header
from localspec.models.gguf.trimmed_vocabulary import TrimmedSection
from localspec.spec.protocols import Logits

_F32 = 0  # ggml's number of this type, whose rows need no conversion.


class EmbeddingBatch(LlamaBatch):
    """A llama_batch that takes tokens and holds their embeddings.

    The table of embeddings stays in the file, of which the system reads what is used.
    """

    def __init__(self, n: int, path: Path, part: TrimmedSection, scale: float) -> None:
        super().__init__(n, tokens=False, width=part.width)
        # A row is the embedding of a token as it is in the file, mostly quantised.
        self._rows = np.memmap(
            path,
            np.uint8,
            mode="r",
            offset=part.rows_at,
            shape=(part.n_tokens, part.row_bytes),
        )
        self._to_float = None
        if part.type != _F32:
            traits = GgmlLibrary(C._lib).get_type_traits(part.type).contents
            self._to_float = traits.to_float
        self._scale = np.float32(scale)

    def set_tokens(self, tokens: Sequence[int]) -> None:
        for row, token in zip(self._states, tokens, strict=False):
            source = self._rows[token]
            if self._to_float is None:
                row[:] = source.view(np.float32)
            else:
                self._to_float(source.ctypes.data, row.ctypes.data, len(row))
        self._states[: len(tokens)] *= self._scale


class TrimmedDraftContext(LlamaContext):
    """A draft model that reads all tokens, and drafts those that it has rows for.

    The logits of the others are -inf.
    """

    def __init__(self, path: Path, role: ModelRole, header: Header) -> None:
        """Raises as `LlamaContext`."""
        n = header.tokenizer.n_tokens
        self._part = trimmed_vocabulary.find_section(header, n)
        ids = np.fromfile(path, np.int32, self._part.n_kept, offset=self._part.ids_at)
        if len(ids) < self._part.n_kept or ids.min() < 0 or ids.max() >= n:
            raise ModelFileError(
                f"{path.name} has a damaged vocabulary.", "Make it again."
            )
        self.kept_ids = ids.astype(np.int64)
        self._scale = 1.0
        if header.architecture == "gemma3":
            # llama.cpp scales the embeddings of tokens, but not those that it is given.
            self._scale = math.sqrt(self._part.width)
        super().__init__(path, role)

    def _open(self, role: ModelRole) -> None:
        self.n_vocab = self._part.n_tokens
        super()._open(role)
        self._batch = EmbeddingBatch(
            self.n_batch, self.model.path, self._part, self._scale
        )
        self._all_logits = np.full(
            (self._max_outputs, self.n_vocab), -np.inf, np.float32
        )

    def _view_logits(self, address: int, outputs: int) -> Logits:
        """Rows as wide as the whole vocabulary, with the model's logits in their places."""
        rows: Logits = self._all_logits[:outputs]
        rows[:, self.kept_ids] = super()._view_logits(address, outputs)
        return rows
