"""The llama.cpp context of a draft head: tokens and hidden states in, logits out.

A head must be closed before its target: the head's graph uses the target's weights.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from localspec.errors import EngineError
from localspec.llama import hidden_states
from localspec.llama.batch import LlamaBatch
from localspec.llama.context import LlamaContext, OpenContext
from localspec.llama.library import C, get_logits_address
from localspec.llama.model import LlamaModel
from localspec.machine import llama_params
from localspec.machine.device import HOST
from localspec.machine.llama_params import ModelRole
from localspec.models.draft_heads import BlockFormat
from localspec.models.gguf import architectures
from localspec.protocol.wire import ContextSettings
from localspec.spec.protocols import HiddenStates, Logits

MAX_ROWS = llama_params.HEAD_BATCH  # Maximum rows per pass.


class HeadContext(OpenContext):
    """The context of an EAGLE-3 or MTP head; an `AutoregressiveHead`.

    Each row is a token and a hidden state of `width`. An EAGLE-3 head computes these
    from the target's states, of `target_width`, by `encode`; an MTP head (`is_mtp`)
    takes them as they are. Without a path the MTP layers are in the target's file; of
    several, one drafts after the other, each from the states of those before it
    (common/speculative.cpp). A Gemma 4 assistant is an MTP head without a KV cache: its
    rows read the target's, and all of a draft are at its end.
    """

    def __init__(
        self,
        path: Path | None,
        settings: ContextSettings,
        target: LlamaContext,
        *,
        target_width: int,
        is_mtp: bool = False,
    ) -> None:
        hidden_states.require_functions()
        self._target = target
        self._shares_target_file = path is None
        self._is_mtp = is_mtp or self._shares_target_file
        self.model = target.model
        if path is not None:
            self.model = LlamaModel(path, settings, with_mtp=is_mtp)
        self.reads_target_memory = self.model.architecture in architectures.ASSISTANTS
        try:
            if self._is_mtp and self.model.n_mtp_layers < 1:  # llama.cpp would abort
                raise EngineError("The model has no MTP layer.")
            self.vocabulary = self.model.vocabulary
            self.n_vocab: int = self.vocabulary.n_tokens
            self.width: int = (
                self.model.n_embd_out if self._is_mtp else self.model.n_embd
            )
            if self._is_mtp and target_width != self.width:
                raise EngineError(
                    f"the MTP layer takes no hidden states of width {target_width}"
                )
            self.target_width = target_width
            self._open(settings)
        except BaseException:
            self.close()
            raise

    def _open(self, settings: ContextSettings) -> None:
        role = ModelRole(replace(settings, n_ubatch=MAX_ROWS), MAX_ROWS, 0)
        params = llama_params.context_params(
            C, self.model.handle, role, self._target.n_ctx
        )
        params.ctx_other = self._target.handle
        if self._is_mtp:
            params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
        self._open_context(params)
        # The last argument: only rows that give logits have hidden states.
        set_states = hidden_states.load_function("llama_set_embeddings_nextn")
        set_states(self.handle, True, True)
        # An EAGLE-3 head is one layer, and so is an assistant. Each of several MTP layers
        # drafts one token.
        self._n_layers = 1
        if self._is_mtp and not self.reads_target_memory:
            self._n_layers = self.model.n_mtp_layers
        self.max_draft = self.n_ctx
        if self._n_layers > 1:
            self.max_draft = self._n_layers
        # With several layers: the draft's rows, which come after `_n_text` rows.
        self._drafted: list[tuple[int, HiddenStates]] = []
        self._n_text = 0
        self._token_batch = LlamaBatch(self.n_batch, width=self.width)
        self._n_outputs = 0
        axes = self.model.n_position_axes
        self._state_batch = LlamaBatch(
            self.n_batch, tokens=False, width=self.target_width, axes=axes
        )

    def encode(self, states: HiddenStates) -> HiddenStates:
        """The method of `AutoregressiveHead`; returns a copy.

        The head's memory does not change.
        """
        n = self._check_states(states, self.target_width)
        if self._is_mtp:
            return states
        self._state_batch.set_hidden_states(states)
        # Positions continue the memory's, although the encoder does not use them.
        self._state_batch.set_rows(n, n_past=self.n_past, outputs=n)
        self._run(C.llama_encode, self._state_batch, C.llama_synchronize)
        return hidden_states.read_nextn_states(self.handle, n, self.width).copy()

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        """The method of `AutoregressiveHead`.

        Without `states` zeros are used, for time measurements.
        """
        if states is None:
            states = np.zeros((len(tokens), self.width), np.float32)
        n = self._check_states(states, self.width)
        if n != len(tokens) or self.n_past + n > self.n_ctx or not 0 <= outputs <= n:
            raise EngineError(
                f"cannot decode {len(tokens)} rows at {self.n_past} of {self.n_ctx}"
            )
        self._token_batch.set_hidden_states(states)
        start = self.n_past
        self._drafted = []
        # Each layer has keys and values of its own.
        for layer in range(self._n_layers - 1, 0, -1):
            self._decode_layer(layer, tokens, 0, start)
        rows = self._decode_layer(0, tokens, outputs, start)
        self._n_text = self.n_past
        return rows

    def continue_draft(self, token: int) -> Logits:
        """The method of `AutoregressiveHead`.

        With several MTP layers, layer 0 has drafted the first token. The second is
        drafted by layer 1, which reads one row, the third by layer 2, which reads two
        rows: each layer has its own keys and values, so the whole draft is decoded again.
        """
        state = self.last_hidden_state()
        if self._n_layers == 1:
            return self.decode([token], 1, state)
        self._drafted.append((token, state))
        layer = len(self._drafted)
        tokens = [token for token, _ in self._drafted]
        states = [state for _, state in self._drafted]
        self._token_batch.set_hidden_states(np.concatenate(states))
        return self._decode_layer(layer, tokens, 1, self._n_text)

    def _decode_layer(
        self, layer: int, tokens: Sequence[int], outputs: int, start: int
    ) -> Logits:
        """The rows of the batch at `start`, where other layers' rows may be."""
        self.truncate(start)
        hidden_states.load_function("llama_set_nextn_layer_offset")(self.handle, layer)
        return self._decode_rows(tokens, outputs)

    def _decode_rows(self, tokens: Sequence[int], outputs: int) -> Logits:
        n = len(tokens)
        # llama.cpp aborts on unknown ids. The target's padding tokens, which occur in no
        # text, may be beyond this vocabulary: the head reads token 0 instead.
        known = list(tokens)
        for i, token in enumerate(tokens):
            if not 0 <= token < self.n_vocab:
                known[i] = 0
        self._token_batch.set_tokens(known)
        # All rows give logits, or none: the graph ignores the output flags and returns
        # the first rows.
        self._n_outputs = n if outputs else 0
        position = self.n_past
        if self.reads_target_memory:
            self.n_past = self._target.n_past
            position = self._target.position(self.n_past)
        self._token_batch.set_rows(n, n_past=position, outputs=self._n_outputs)
        self._run(C.llama_decode, self._token_batch, C.llama_synchronize)
        self.n_past += n
        if not outputs:
            return np.empty((0, self.n_vocab), np.float32)
        address = get_logits_address(self.handle)
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (n, self.n_vocab))[n - outputs :]

    def last_hidden_state(self) -> HiddenStates:
        """A copy of the last row's hidden state, the input of the next; (1, width)."""
        rows = hidden_states.read_nextn_states(self.handle, self._n_outputs, self.width)
        return rows[-1:].copy()

    def _check_states(self, states: HiddenStates, width: int) -> int:
        n = len(states)
        if self.handle is None:
            raise EngineError("The head is closed.")
        if not 0 < n <= self.n_batch or states.shape[1] != width:
            raise EngineError(f"the head takes no states of shape {states.shape}")
        return n

    def memory_bytes(self) -> int:
        return 0 if self.reads_target_memory else super().memory_bytes()

    def truncate(self, n_past: int) -> None:
        if n_past >= self.n_past or self.reads_target_memory:
            return
        if not C.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            C.llama_memory_clear(self._memory, True)
            n_past = 0
        self.n_past = n_past

    def memory_by_device(self) -> dict[str, int]:
        """Bytes by device."""
        used = self.model.memory_with_context(
            self._buffers, self.n_batch, shared=self._shares_target_file
        )
        used[HOST] += 4 * self.n_batch * self.width
        return used

    def close(self) -> None:
        """Must be called before the target is closed."""
        super().close()
        if not self._shares_target_file:
            self.model.close()


class BlockHeadContext(HeadContext):
    """The context of a DFlash or DSpark head; a `BlockHead`.

    Its memory holds one target state per token. A drafted block is appended and removed
    again.
    """

    def __init__(
        self,
        path: Path,
        settings: ContextSettings,
        target: LlamaContext,
        *,
        target_width: int,
        form: BlockFormat,
    ) -> None:
        self._form = form
        super().__init__(path, settings, target, target_width=target_width)

    def _open(self, settings: ContextSettings) -> None:
        super()._open(settings)
        self.block_size = min(self._form.size, self.n_batch)
        self.first_draft_row = self._form.first_row
        self.top_k = self._form.top_k
        vocabulary = C.llama_model_get_vocab(self.model.handle)
        self._mask_token = int(C.llama_vocab_mask(vocabulary))
        if not 0 <= self._mask_token < self.n_vocab:
            raise EngineError("The head has no mask token.")
        self._token_batch = LlamaBatch(self.n_batch)
        if self._form.top_k:
            # All rows hold a part of the lattice, and none has logits.
            set_states = hidden_states.load_function("llama_set_embeddings_nextn")
            set_states(self.handle, True, False)
        # The wrong setting gives other tokens, and no error.
        C.llama_set_causal_attn(self.handle, self._form.is_causal)

    def inject(self, states: HiddenStates) -> None:
        n = self._check_states(states, self.target_width)
        if self.n_past + n > self.n_ctx:
            raise EngineError(
                f"cannot append {n} states at {self.n_past} of {self.n_ctx}"
            )
        self._state_batch.set_hidden_states(states)
        self._state_batch.set_rows(n, n_past=self.n_past, outputs=0)
        self._run(C.llama_decode, self._state_batch, C.llama_synchronize)
        self.n_past += n

    def draft_block(self, last: int, n: int) -> tuple[Logits, HiddenStates | None]:
        """The method of `BlockHead`; the memory does not change.

        The rows are valid until the next call.
        """
        rows = n + self.first_draft_row
        if not 0 < rows <= self.block_size:
            raise EngineError(f"a block has {self.block_size} rows, not {rows}")
        n_past = self.n_past
        top_k = self._form.top_k
        tokens = [last, *[self._mask_token] * (rows - 1)]
        if top_k:
            # Each row of hidden states is a row of the lattice (see `BlockHead.top_k`),
            # but for the first: it is the text's last token, which is known.
            self.decode(tokens, 0)
            lattice = hidden_states.read_nextn_states(self.handle, rows, self.width)
            lattice = lattice[1:, : top_k * (top_k + 1)].copy()
            self.truncate(n_past)
            return lattice, None
        logits = self.decode(tokens, rows)[self.first_draft_row :]
        confidences: HiddenStates | None = None
        if self._form.has_confidence:
            states = hidden_states.read_nextn_states(self.handle, rows, self.width)
            confidences = states[self.first_draft_row :, 0].copy()
        self.truncate(n_past)
        return logits, confidences

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        """Append the tokens of a block, without states.

        Either all rows give logits, or none.
        """
        n = len(tokens)
        if self.handle is None:
            raise EngineError("The head is closed.")
        if states is not None:
            raise EngineError("A block takes tokens without hidden states.")
        has_room = 0 < n <= self.n_batch and self.n_past + n <= self.n_ctx
        if not has_room or not 0 <= outputs <= n:
            raise EngineError(
                f"cannot decode {n} rows at {self.n_past} of {self.n_ctx}"
            )
        return self._decode_rows(tokens, outputs)
