"""Serialised states of a context's cache: checkpoints, and prompts that a second context reads.

ggml's CPU has a tiled attention for wide passes, only if keys and values are both f16 (ops.cpp,
`use_tiled`). With such a cache, passes of one token differ from wider ones (docs/benchmarks.md), so
the context's own cache has keys in q8_0. A long prompt at the start of the text is therefore read
by a second context with a cache in f16, whose state (llama-kv-cache.cpp, `state_write`) is
converted and copied.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from localspec.engine.llama import library
from localspec.engine.llama.hidden_states import HiddenStateSource
from localspec.engine.llama.library import C
from localspec.engine.llama.model import LlamaModel
from localspec.engine.protocols import HiddenStates
from localspec.errors import EngineError, OutOfMemoryError
from localspec.lazy_dataclass import dataclass
from localspec.machine import llama_params
from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import ContextSettings

KV_TYPE = "q8_0/f16"
"""The cache that is worth a second context."""
MIN_TOKENS = 384
"""Shorter prompts are not read faster."""
_MIN_SHARE = 5
"""Up to a fifth of a text that the main cache has already is read again."""
_MAX_CACHE_BYTES = 256 << 20
"""Of the second context's cache, as estimated; longer texts go on in the main one. It does not
depend on the free memory, so that a prompt is read in the same way every time."""
_PASS_WIDTH = 256
"""Tokens; wider passes are slower: llama.cpp takes cells by 256, more of which are masked then."""
_MEMORY_FACTOR = 2
"""Memory that the second context needs, in caches: it is copied in the end."""

_F16, _Q8_0 = 1, 8
_BLOCK, _BLOCK_BYTES = 32, 34
_CELL_BYTES = 12
"""Of a position, the number of sequences (1) and the sequence."""
_SEQUENCE_HEADER_BYTES = 8
"""Magic number and sequence."""
_PAIR, _ROW = struct.Struct("<2I"), struct.Struct("<IQ")
"""Two numbers; type and bytes of a layer's rows."""
_ROTATIONS = (64, 128, 256, 512)
"""Sizes of the matrices with which llama.cpp may rotate keys (`build_input_k_rot`)."""
_MAX_DIFFERENCE = 3
"""Of q8_0 values, which range up to 127, between passes of different widths."""

Bytes = NDArray[np.uint8]
Rows = tuple[int, Bytes]
"""Type, and rows of shape (cells, bytes), of a layer's keys or values."""


def can_read_prompts(model: LlamaModel, settings: ContextSettings) -> bool:
    """Whether a `PromptReader` suits the model and its cache."""
    is_slow = settings.kv_type == KV_TYPE and settings.flash_attn != "off"
    return is_slow and not model.is_recurrent and model.n_position_axes == 1


class PromptReader:
    """Reads the beginning of a text in a second context, which exists only meanwhile."""

    def __init__(self, model: LlamaModel, role: ModelRole, main: Any, on_abort: Any) -> None:
        """`main`: the llama_context that gets what was read; its cache is of KV_TYPE.

        `on_abort`: llama.cpp's abort callback.
        """
        f16 = replace(role.settings, kv_type="f16")
        # Two rows, none of which is used: with one, llama_params takes no full sliding window.
        self._role = replace(role, settings=f16, n_outputs_max=min(2, role.n_outputs_max))
        self._model, self._main, self._on_abort = model, main, on_abort
        self._token_bytes = model.kv_bytes(1, "f16")
        self._handle: Any = None
        self._n_planned = self._n_ctx = 0
        self._rotations: tuple[int, ...] = ()
        """Of the main context's keys, by section; empty: not known yet."""
        self._states: HiddenStateSource | None = None
        self.tokens: list[int] = []
        """That the second context holds; the main one is empty then."""

    def plan(self, n_kept: int, n: int) -> int:
        """How many of n_kept tokens to keep of a text of n, which is read next.

        A text that hardly begins with what the cache has is read as by a new process.
        """
        if self.tokens and n_kept == len(self.tokens):  # reading was interrupted: it goes on
            return n_kept
        if n < MIN_TOKENS or n_kept > n // _MIN_SHARE:
            self._n_planned = 0
            return n_kept
        self.free()
        self._n_planned, self.tokens = n, []
        return 0

    def accepts(self, n_past: int, n: int) -> bool:
        """Whether the next n tokens of a text with n_past belong here."""
        if n_past == 0:
            return self._n_planned >= n
        return n_past == len(self.tokens) and n_past + n <= self._n_ctx

    def decode(
        self,
        batch: Any,
        tokens: Sequence[int],
        threads: int,
        source: HiddenStateSource | None,
    ) -> int:
        """Append the tokens, which `batch` holds; return llama_decode's code.

        `source` provides the hidden states of the main context. Raises LocalspecError without
        memory for the second one, or if this llama.cpp stores caches in another way.
        """
        if not self.tokens:
            self._open(len(tokens), source)
        C.llama_set_n_threads(self._handle, threads, threads)
        self._rotations = self._rotations or self._find_rotations(tokens[0])
        result = int(C.llama_decode(self._handle, batch))
        self.tokens += tokens
        if result != 0:
            del self.tokens[C.llama_memory_seq_pos_max(C.llama_get_memory(self._handle), 0) + 1 :]
        return result

    def hidden_states(self, n: int) -> HiddenStates:
        """Of the n tokens of the last decode."""
        assert self._states is not None
        return self._states.states(n)

    def _open(self, n: int, source: HiddenStateSource | None) -> None:
        n = max(n, min(self._n_planned, int(_MAX_CACHE_BYTES / self._token_bytes)))
        self.free()
        if psutil.virtual_memory().available < _MEMORY_FACTOR * n * self._token_bytes:
            raise OutOfMemoryError(
                "Not enough memory for a second context.", "Use a smaller --ctx."
            )
        params = llama_params.context_params(C, self._model.handle, self._role, n)
        params.n_ubatch = min(params.n_ubatch, _PASS_WIDTH)
        self._handle, _ = library.open_context(self._model.handle, self._model.path, params)
        C.llama_set_abort_callback(self._handle, self._on_abort, None)
        self._n_ctx = C.llama_n_ctx(self._handle)
        self._states = source.of_context(self._handle) if source is not None else None

    def _find_rotations(self, token: int) -> tuple[int, ...]:
        """By the keys that both contexts have of the first token; both are empty then."""
        tokens = (ctypes.c_int32 * 1)(token)
        states = []
        for context in (self._handle, self._main):
            result = C.llama_decode(context, C.llama_batch_get_one(tokens, 1))
            states.append(CacheState.parse(_save_state(context)) if result == 0 else None)
            C.llama_memory_clear(C.llama_get_memory(context), True)
        mine, its = states
        rotations = mine.find_rotations(its) if mine is not None and its is not None else ()
        if not rotations:
            raise EngineError("The KV cache of this llama.cpp cannot be converted.")
        return rotations

    def move(self) -> bool:
        """Move what was read to the main context, and free the second one.

        False if that fails; the main one is empty then.
        """
        data = _save_state(self._handle)
        self.free()
        state = CacheState.parse(data)
        if state is None or not _load_state(self._main, state.quantize(data, self._rotations)):
            C.llama_memory_clear(C.llama_get_memory(self._main), True)
            return False
        self.tokens = []
        return True

    def free(self) -> None:
        if self._handle:
            C.llama_free(self._handle)
        self._handle, self._states, self._n_planned, self._n_ctx = None, None, 0, 0


def _save_state(context: Any) -> Bytes:
    """The state of all, after room for a sequence's header."""
    n = _SEQUENCE_HEADER_BYTES + int(C.llama_state_get_size(context))
    # np.empty asks for huge pages: new ones of 50 MB may take 100 ms, in a virtual machine.
    data = np.frombuffer(bytearray(n), np.uint8)
    state = data[_SEQUENCE_HEADER_BYTES:]
    n_state = C.llama_state_get_data(context, _pointer(state), len(state))
    return data[: _SEQUENCE_HEADER_BYTES + n_state]


def _load_state(context: Any, data: Bytes) -> bool:
    """Load sections, after room for the header, into an empty context as a sequence's state.

    Loading a whole state would let llama.cpp overwrite the oldest cells of a sliding window next.
    """
    empty = np.empty(int(C.llama_state_seq_get_size(context, 0)), np.uint8)
    C.llama_state_seq_get_data(context, _pointer(empty), len(empty), 0)
    data[:_SEQUENCE_HEADER_BYTES] = empty[:_SEQUENCE_HEADER_BYTES]
    return bool(C.llama_state_seq_set_data(context, _pointer(data), len(data), 0) == len(data))


def _pointer(data: Bytes) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


@dataclass(frozen=True, slots=True)
class CacheSection:
    """The cache of all layers of a kind in a serialised state; windowed ones have their own."""

    header: Bytes
    keys: tuple[Rows, ...]
    values: Bytes
    """As they are, with their own headers."""

    @classmethod
    def parse(cls, data: Bytes, at: int) -> tuple[CacheSection, int]:
        """The section, and where it ends. Raises ValueError or struct.error if it is another kind.

        That is one with several streams or transposed values.
        """
        n_streams, n_cells = _PAIR.unpack_from(data.data, at)
        keys_at = at + _PAIR.size + n_cells * _CELL_BYTES + _PAIR.size
        is_transposed, n_layers = _PAIR.unpack_from(data.data, keys_at - _PAIR.size)
        if n_streams != 1 or n_cells == 0 or is_transposed:
            raise ValueError
        keys, values_at = _parse_rows(data, keys_at, n_layers, n_cells)
        _, end = _parse_rows(data, values_at, n_layers, n_cells)
        return cls(data[at:keys_at], keys, data[values_at:end]), end

    def find_rotation(self, actual: CacheSection) -> int:
        """The rotation with which the first token's keys become those of `actual`.

        Raises ValueError if there is none.
        """
        kinds = {kind for kind, _ in self.keys}, {kind for kind, _ in actual.keys}
        if kinds == ({_F16}, {_Q8_0}) and len(self.keys) == len(actual.keys):
            row = self.keys[0][1][0].view(np.float16)
            blocks = actual.keys[0][1][0].reshape(-1, _BLOCK_BYTES)
            for rotation in (0, *(n for n in _ROTATIONS if len(row) % n == 0)):
                found = _quantize(row, rotation)
                if found.shape == blocks.shape and _are_close(found, blocks):
                    return rotation
        raise ValueError

    def quantized(self, rotation: int) -> Iterator[Bytes]:
        """Its bytes with keys in q8_0, which llama.cpp stores rotated (`attn_rot_k`)."""
        yield self.header
        for _, rows in self.keys:
            blocks = _quantize(rows.view(np.float16), rotation)
            yield np.frombuffer(_ROW.pack(_Q8_0, blocks.size // len(rows)), np.uint8)
            yield blocks.reshape(-1)
        yield self.values


def _parse_rows(data: Bytes, at: int, n_layers: int, n_cells: int) -> tuple[tuple[Rows, ...], int]:
    """The rows of each layer, and where they end."""
    found = []
    for _ in range(n_layers):
        kind, row_bytes = _ROW.unpack_from(data.data, at)
        at += _ROW.size
        found.append((kind, data[at : at + n_cells * row_bytes].reshape(n_cells, row_bytes)))
        at += n_cells * row_bytes
    return tuple(found), at


@dataclass(frozen=True, slots=True)
class CacheState:
    """The serialised state of a context with one sequence."""

    sections: tuple[CacheSection, ...]

    @classmethod
    def parse(cls, data: Bytes) -> CacheState | None:
        """None if the state is of another kind. Its arrays are views of `data` (`_save_state`)."""
        try:
            at, sections = _SEQUENCE_HEADER_BYTES, []
            at += 4 + int(_PAIR.unpack_from(data.data, at)[0])  # the architecture
            while at < len(data):
                section, at = CacheSection.parse(data, at)
                sections.append(section)
        except (ValueError, struct.error):
            return None
        return cls(tuple(sections))

    def find_rotations(self, actual: CacheState) -> tuple[int, ...]:
        """Of each section, as in `CacheSection`; empty if one has none."""
        try:
            pairs = zip(self.sections, actual.sections, strict=True)
            return tuple(mine.find_rotation(its) for mine, its in pairs)
        except ValueError:
            return ()

    def quantize(self, data: Bytes, rotations: Sequence[int]) -> Bytes:
        """Write the sections with keys in q8_0 over `data`, which was parsed; return what is left.

        They are shorter, so nothing is overwritten before it is read; more memory takes time.
        """
        at = _SEQUENCE_HEADER_BYTES
        for section, rotation in zip(self.sections, rotations, strict=True):
            for piece in section.quantized(rotation):
                data[at : at + len(piece)] = piece
                at += len(piece)
        return data[:at]


def _quantize(rows: NDArray[np.float16], rotation: int) -> Bytes:
    """Blocks of shape (n, 34), as `quantize_row_q8_0_ref` of ggml-quants.c.

    Computed on columns, where every step of numpy has long contiguous rows; the rotation as the
    Kronecker product of two smaller ones.
    """
    columns = rows.reshape(-1, rotation or _BLOCK).T.astype(np.float32, order="C")
    if rotation:
        outer = 1 << (rotation.bit_length() - 1) // 2
        columns = _hadamard(outer) @ columns.reshape(outer, -1)
        columns = _hadamard(rotation // outer) @ columns.reshape(outer, rotation // outer, -1)
    blocks = columns.reshape(-1, _BLOCK, rows.size // (rotation or _BLOCK))
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    blocks *= np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)[:, None]
    out = np.empty((blocks.shape[2], len(blocks), _BLOCK_BYTES), np.uint8)
    out[..., :2] = scales.T.astype(np.float16)[..., None].view(np.uint8)
    out[..., 2:] = np.rint(blocks, out=blocks).astype(np.int8).view(np.uint8).transpose(2, 0, 1)
    return out.reshape(-1, _BLOCK_BYTES)


def _are_close(a: Bytes, b: Bytes) -> bool:
    values = a[:, 2:].view(np.int8).astype(np.int16) - b[:, 2:].view(np.int8)
    scales, others = (np.ascontiguousarray(blocks[:, :2]).view(np.float16) for blocks in (a, b))
    return np.allclose(scales, others, rtol=0.02) and bool(np.abs(values).max() <= _MAX_DIFFERENCE)


@cache
def _hadamard(n: int) -> NDArray[np.float32]:
    """As `ggml_gen_hadamard`: orthonormal, and its own inverse."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(n))


_MAX_CHECKPOINTS = 32
_MAX_CHECKPOINT_BYTES = 256 * 2**20
"""Of all checkpoints, in RAM."""
_PARTIAL_STATE = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


@dataclass(frozen=True, slots=True)
class ContextCheckpoint:
    n_past: int
    data: Any
    """The state as llama.cpp serialised it."""
    head_state: HiddenStates | None
    """The head's hidden state at this point."""


class ContextCheckpoints:
    """Saved states of a context whose memory cannot be truncated (recurrent, sliding window).

    The oldest is dropped when there are too many. llama.cpp's server has context checkpoints too.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._checkpoints: list[ContextCheckpoint] = []

    def save(self, n_past: int, state: HiddenStates | None) -> None:
        """Save the memory, which holds n_past tokens; without effect if llama.cpp cannot."""
        self.drop_after(n_past)
        if self._checkpoints and self._checkpoints[-1].n_past == n_past:
            return
        size = C.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL_STATE)
        if not 0 < size <= _MAX_CHECKPOINT_BYTES:
            return
        data = (ctypes.c_uint8 * size)()
        if C.llama_state_seq_get_data_ext(self._context, data, size, 0, _PARTIAL_STATE) != size:
            return
        self._checkpoints.append(ContextCheckpoint(n_past, data, state))
        while (
            len(self._checkpoints) > _MAX_CHECKPOINTS
            or sum(len(c.data) for c in self._checkpoints) > _MAX_CHECKPOINT_BYTES
        ):
            del self._checkpoints[0]

    def drop_after(self, n_past: int) -> None:
        """Drop the checkpoints beyond n_past tokens."""
        while self._checkpoints and self._checkpoints[-1].n_past > n_past:
            self._checkpoints.pop()

    def restore(self) -> ContextCheckpoint | None:
        """Restore the last checkpoint; None if there is none or llama.cpp cannot restore it."""
        if not self._checkpoints:
            return None
        checkpoint, memory = self._checkpoints[-1], C.llama_get_memory(self._context)
        size = len(checkpoint.data)
        read = C.llama_state_seq_set_data_ext(
            self._context, checkpoint.data, size, 0, _PARTIAL_STATE
        )
        if read == size and C.llama_memory_seq_rm(memory, 0, checkpoint.n_past, -1):
            return checkpoint
        self._checkpoints.clear()
        return None
