"""Pictures and audio through libmtmd: a projector turns one into rows that a model reads.

What stands for a picture in a prompt is known from its width and height alone: tokens
(those around it, and between its tiles) and `ImageRows`. Its pixels are decoded and the
rows computed when a context reads them, which takes long: seconds on a CPU. Audio goes
the same way. It is known by the number of its samples, and each piece of it, of 30
seconds mostly, is what a tile is of a picture.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from localspec import install_hints
from localspec.errors import EngineError, Hint, ModelFileError, UsageError
from localspec.llama import library
from localspec.llama.library import LOG, C
from localspec.models.audio_files import SAVE_AUDIO_AS, find_audio_kind
from localspec.models.pictures import SAVE_PICTURE_AS
from localspec.models.projector_kinds import KINDS, ORDINARY
from localspec.sanitize import sanitize
from localspec.spec import heartbeat
from localspec.spec.picture_ids import list_row_ids, make_picture_id
from localspec.spec.protocols import DecodeInterrupted, HiddenStates

if TYPE_CHECKING:
    from localspec.llama.context import LlamaContext

Pixels = NDArray[np.uint8]
"""A picture's pixels, shape (height, width, 3)."""
LoadPixels = Callable[[], Pixels]
Samples = NDArray[np.float32]
"""Audio of one channel at the projector's rate, shape (samples,)."""
LoadSamples = Callable[[], Samples]

MAX_STATE_BYTES = 256 * 2**20
"""Rows of pictures that are kept in RAM; a picture of 1,024 rows has 16 MiB or so."""
_LEAST_ROWS = 70
"""The rows that llama.cpp makes of a small picture that must fit into one pass."""
_TILE_COST = 8
"""The RAM that a tile takes beside its rows, as a number of rows."""
_COST_PER_CELL = 16
"""How many rows of pictures that were sent are known, for each cell of the context.

A text that fits has no cell that costs more than 1 + `_TILE_COST`, so no picture of
the text that is read is forgotten. With M-RoPE a row takes 16 bytes: 4 MiB in all for a
context of 16,384.
"""
_LARGE_SIDE = 4096
"""The side of a picture in pixels of which any kind makes its most rows."""
_NODES_BETWEEN_CHECKS = 16
_PIECE_SECONDS = 30
"""The pieces in which most audio towers read; what is left over is a shorter one."""
_LEAST_PIECE = 0.1
"""Seconds of a piece: of a much shorter one some towers would make no row, and abort."""
_LOUDEST = 16.0
"""Samples are from -1 to 1; a file of floats may have any, even infinite ones."""
_N_AXES = 4
_NO_PROGRAMS = os.devnull.encode()
"""No folder: libmtmd finds no ffprobe there, which it would start on odd bytes."""


class ImageRows(Struct, frozen=True, eq=False, weakref=True):
    """The rows that a model reads in place of tokens, for a tile of a picture, or audio."""

    id: int
    """Its number in a text, even and at most -2; see `spec/picture_ids.py`."""
    picture: str
    """The key of its picture."""
    n_rows: int
    n_positions: int
    """How many positions after the first row the text behind the rows begins.

    With M-RoPE these are fewer than rows: a grid of 20 × 30 rows takes 30.
    """
    is_causal: bool
    """Whether a row attends to those before it alone; else all are read in one pass."""
    grid: NDArray[np.int32] | None
    """With M-RoPE, the position of each row in a picture at position 0: (axes, rows)."""
    moves: NDArray[np.int32] | None
    """With M-RoPE, 1 for each axis that moves with the picture, else 0: (axes, 1)."""
    load_states: Callable[[], HiddenStates]
    """The rows, shape (n_rows, width); computed if they are not in RAM.

    Raises EngineError, DecodeInterrupted.
    """

    @property
    def ids(self) -> list[int]:
        """What a text has in its place: a number for each row."""
        return list_row_ids(self.id, self.n_rows)

    def positions(self, start: int) -> NDArray[np.int32]:
        """The position of each row of a picture that begins at `start`: (axes, rows)."""
        if self.grid is None or self.moves is None:
            return np.arange(start, start + self.n_rows, dtype=np.int32)[np.newaxis]
        return self.grid + np.int32(start) * self.moves


PictureItems = Sequence[int | ImageRows]
"""What stands for a picture in a prompt: tokens, and rows."""


def join_items(items: PictureItems) -> list[int]:
    """The ids of a picture in a text."""
    ids: list[int] = []
    for item in items:
        if isinstance(item, ImageRows):
            ids += item.ids
        else:
            ids.append(item)
    return ids


class _KnownPicture(Struct, eq=False, weakref=True):
    """A picture or audio that was sent, and how its pixels or samples are had again."""

    key: str
    items: list[int | ImageRows]
    load: LoadPixels | LoadSamples

    @property
    def tiles(self) -> list[ImageRows]:
        return [item for item in self.items if isinstance(item, ImageRows)]

    @property
    def cost(self) -> int:
        """The RAM that it takes, as a number of rows."""
        return sum(rows.n_rows + _TILE_COST for rows in self.tiles)


class Projector:
    """A tower for pictures, audio or both, with its projector, for one loaded model."""

    def __init__(
        self,
        path: Path,
        target: LlamaContext,
        *,
        kind: str = "",
        on_gpu: bool = False,
        max_rows: int | None = None,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> None:
        """`kind` is the file's `projector_type`; `max_rows` limits a picture.

        Sets `target.pictures`. Raises ModelFileError, UsageError or EngineError.
        """
        self.path = path
        self.kind = kind
        self._target = target
        self._max_state_bytes = max_state_bytes
        self._numbers: dict[str, int] = {}
        """The number of the first rows of each picture that was ever sent, by its key.

        So a picture has the same ids when it comes again: a cache may hold them.
        """
        self._n_numbers = 0
        self._recent: OrderedDict[str, _KnownPicture] = OrderedDict()
        """The pictures that were sent last, the last one at the end."""
        self._cost = 0
        """The cost of the recent pictures together."""
        self._known: WeakValueDictionary[str, _KnownPicture] = WeakValueDictionary()
        """The recent ones, and those whose rows a context or a copy of it holds."""
        self._rows: WeakValueDictionary[int, ImageRows] = WeakValueDictionary()
        """The rows of the known pictures, by their id."""
        self._states: OrderedDict[str, dict[int, HiddenStates]] = OrderedDict()
        """The states of tiles by picture and id; the picture used last is at the end."""
        self._state_bytes = 0
        self.handle: Any = None
        self._limits = KINDS.get(kind, ORDINARY)
        if self._limits.why_refused:
            raise ModelFileError(
                f"{path.name} is a projector of a kind ({kind}) that cannot be used here.",
                Hint("Use {image_model=none}."),
            )
        self._mtmd = load_library()
        self._open(on_gpu=on_gpu, max_rows=max_rows)
        try:
            self._check_fit()
        except BaseException:
            self.close()
            raise
        target.pictures = self._rows

    @property
    def model_name(self) -> str:
        return sanitize(self._target.model.path.stem, multiline=False)

    @classmethod
    def open(
        cls,
        path: Path,
        target: LlamaContext,
        *,
        kind: str = "",
        on_gpu: bool = False,
        max_rows: int | None = None,
    ) -> Projector:
        return cls(path, target, kind=kind, on_gpu=on_gpu, max_rows=max_rows)

    def _open(self, *, on_gpu: bool, max_rows: int | None) -> None:
        target = self._target
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu = on_gpu
        params.print_timings = False
        params.warmup = False  # It would encode a large picture.
        params.n_threads = target.n_threads_batch
        limit = self._limits.limit_rows(
            on_gpu=on_gpu, n_batch=target.n_batch, limit=max_rows
        )
        if limit is not None:
            params.image_max_tokens = limit
            # A least number above the most makes rows without a limit.
            if self._limits.is_in_one_pass:
                params.image_min_tokens = min(limit, _LEAST_ROWS)
        # A graph has no other hook by which it can be stopped.
        self._callback = C.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._n_nodes = 0
        self._is_stopped = False
        self._progress_callback = self._mtmd.mtmd_progress_callback(self._on_progress)
        params.progress_callback = self._progress_callback
        LOG.clear()
        name = os.fsencode(self.path)
        self.handle = self._mtmd.mtmd_init_from_file(name, target.model.handle, params)
        heartbeat.record_progress()
        if not self.handle:
            raise self._load_error()
        self._has_axes = bool(self._mtmd.mtmd_decode_use_mrope(self.handle))
        self._width = int(C.llama_model_n_embd_inp(target.model.handle))
        self.sees = bool(self._mtmd.mtmd_support_vision(self.handle))
        self.hears = bool(self._mtmd.mtmd_support_audio(self.handle))
        self.sample_rate = 0
        """Samples a second of the audio that it hears."""
        if self.hears:
            self.sample_rate = int(self._mtmd.mtmd_get_audio_sample_rate(self.handle))

    def _load_error(self) -> ModelFileError:
        reasons = LOG.errors() or ["llama.cpp gave no reason"]
        reason = library.strip_function_names(reasons[-1])
        model = self._target.model.path.name
        return ModelFileError(
            f"{self.path.name} cannot be used as the projector of {model}: {reason}",
            Hint("Use the projector of this model, or {image_model=none}."),
        )

    def _check_fit(self) -> None:
        """Raise an error if it is another model's, or makes too many rows for a pass."""
        self.max_rows = 0
        """The rows of a large square picture, all tiles together."""
        if self.sees:
            for layout in self._check_marks(self._lay_out(_LARGE_SIDE, _LARGE_SIDE)):
                self._check_pass(layout)
                self.max_rows += layout.n_rows
        self.audio_rows = 0
        """The rows of 30 seconds of audio."""
        if self.hears:
            n_samples = _PIECE_SECONDS * self.sample_rate
            for layout in self._check_marks(self._lay_out_audio(n_samples)):
                self._check_pass(layout)
                self.audio_rows += layout.n_rows

    def _check_marks(self, items: Sequence[int | _Layout]) -> Iterator[_Layout]:
        """The layouts. Raises ModelFileError for a token that the model does not have."""
        vocabulary = self._target.vocabulary
        for item in items:
            if isinstance(item, _Layout):
                yield item
            elif item < 0 or not _is_mark(vocabulary, item):
                model = self._target.model.path.name
                raise ModelFileError(
                    f"{self.path.name} is a projector, but not one of {model}: the "
                    "vocabulary lacks what it writes around a picture or audio.",
                    Hint("Use the projector of this model, or {image_model=none}."),
                )

    def _check_pass(self, layout: _Layout) -> None:
        """Raise UsageError for a picture at which llama.cpp would abort."""
        n_batch = self._target.n_batch
        if not layout.is_causal and layout.n_rows > n_batch:
            raise UsageError(
                f"{self.path.name} makes {layout.n_rows:,} rows of a picture, which must "
                f"be read in one pass; a pass has {n_batch:,} here.",
                Hint("Use {image_model=none}, or a smaller picture."),
            )

    # --- what a picture is in a prompt

    def items(self, values: Pixels | Samples) -> list[int | ImageRows]:
        """What stands for a picture or audio in a prompt; equal ones have equal ids."""
        key = sha256(np.ascontiguousarray(values).data).hexdigest()
        if values.ndim == 1:
            samples = values.astype(np.float32, copy=False)
            return self.read_audio(key, len(samples), lambda: samples)
        pixels = values.astype(np.uint8, copy=False)
        height, width, _ = pixels.shape
        return self.read_picture(key, width, height, lambda: pixels)

    def read_picture(
        self, key: str, width: int, height: int, load_pixels: LoadPixels
    ) -> list[int | ImageRows]:
        """What stands for a picture in a prompt, by its size alone.

        `key` is its identity, such as the hash of its file. `load_pixels` is called when
        the rows are computed, also later; the pixels have this `width` and `height`.
        Raises UsageError for a picture that llama.cpp cannot read.
        """
        return self._remember(
            f"{key} {width} {height}", load_pixels, lambda: self._lay_out(width, height)
        )

    def read_audio(
        self, key: str, n_samples: int, load_samples: LoadSamples
    ) -> list[int | ImageRows]:
        """What stands for audio in a prompt, by the number of its samples alone.

        `key` and `load_samples`: as those of `read_picture`. Raises UsageError.
        """
        return self._remember(
            f"{key} audio {n_samples}",
            load_samples,
            lambda: self._lay_out_audio(n_samples),
        )

    def _remember(
        self,
        key: str,
        load: LoadPixels | LoadSamples,
        lay_out: Callable[[], list[int | _Layout]],
    ) -> list[int | ImageRows]:
        known = self._known.get(key)
        if known is None:
            known = self._add_picture(key, lay_out(), load)
        known.load = load
        if key not in self._recent:
            self._recent[key] = known
            self._cost += known.cost
        self._recent.move_to_end(key)
        while self._cost > self._max_cost and len(self._recent) > 1:
            _, oldest = self._recent.popitem(last=False)
            self._cost -= oldest.cost
        return known.items

    @property
    def n_recent(self) -> int:
        """How many of the pictures that were read last it knows in any case."""
        return len(self._recent)

    @property
    def _max_cost(self) -> int:
        return _COST_PER_CELL * self._target.n_ctx

    def _add_picture(
        self,
        key: str,
        layouts: Sequence[int | _Layout],
        load: LoadPixels | LoadSamples,
    ) -> _KnownPicture:
        known = _KnownPicture(key, [], load)
        for each in layouts:
            if isinstance(each, _Layout):
                self._check_pass(each)
        number = self._numbers.get(key)
        if number is None:
            number = self._n_numbers
            self._numbers[key] = number
            self._n_numbers += len(
                [each for each in layouts if isinstance(each, _Layout)]
            )
        for each in layouts:
            if isinstance(each, _Layout):
                known.items.append(self._add_rows(known, number, each))
                number += 1
            else:
                known.items.append(each)
        self._known[key] = known
        return known

    def _add_rows(
        self, known: _KnownPicture, number: int, layout: _Layout
    ) -> ImageRows:
        picture_id = make_picture_id(number)

        def load_states() -> HiddenStates:
            return self._load_states(known, picture_id)

        rows = ImageRows(
            picture_id,
            known.key,
            n_rows=layout.n_rows,
            n_positions=layout.n_positions,
            is_causal=layout.is_causal,
            grid=layout.grid,
            moves=layout.moves,
            load_states=load_states,
        )
        self._rows[picture_id] = rows
        return rows

    def count(self, width: int, height: int) -> int:
        """How many cells a picture of this size takes, with the tokens around it."""
        n_cells = 0
        for item in self._lay_out(width, height):
            if isinstance(item, _Layout):
                n_cells += item.n_rows
            else:
                n_cells += 1
        return n_cells

    def _lay_out(self, width: int, height: int) -> list[int | _Layout]:
        """The tokens and rows of a picture of this size. Raises UsageError."""
        return self._lay_out_bitmap(self._make_bitmap(width, height, None))

    def _lay_out_audio(self, n_samples: int) -> list[int | _Layout]:
        """The tokens and rows of audio of this length. Raises UsageError."""
        return self._lay_out_bitmap(self._make_audio_bitmap(n_samples, None))

    def _lay_out_bitmap(self, bitmap: _Bitmap) -> list[int | _Layout]:
        items: list[int | _Layout] = []
        with self._chunks(bitmap) as chunks:
            for chunk in chunks:
                items += self._read_chunk(chunk)
        return items

    def _read_chunk(self, chunk: Any) -> list[int | _Layout]:
        mtmd = self._mtmd
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            n_tokens = ctypes.c_size_t()
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(
                chunk, ctypes.byref(n_tokens)
            )
            return [int(tokens[i]) for i in range(n_tokens.value)]
        n_rows = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        grid: NDArray[np.int32] | None = None
        moves: NDArray[np.int32] | None = None
        kind = mtmd.mtmd_input_chunk_get_type(chunk)
        if self._has_axes and kind == mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO:
            # Rows of audio follow each other on all axes, as tokens do.
            grid = np.tile(np.arange(n_rows, dtype=np.int32), (_N_AXES, 1))
            moves = np.ones((_N_AXES, 1), np.int32)
        elif self._has_axes:
            grid = self._positions_at(chunk, start=0, n_rows=n_rows)
            # The axes t, y and x of a picture that begins one later are one larger. The
            # axis z stays 0, so `moves` is 1, 1, 1, 0.
            later = self._positions_at(chunk, start=1, n_rows=n_rows)
            moves = (later - grid)[:, :1].copy()
        layout = _Layout(
            n_rows=n_rows,
            n_positions=int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            is_causal=not mtmd.mtmd_decode_use_non_causal(self.handle, chunk),
            grid=grid,
            moves=moves,
        )
        return [layout]

    def _positions_at(
        self, chunk: Any, *, start: int, n_rows: int
    ) -> NDArray[np.int32]:
        """The axes t, y, x and z of each row, in the order of a batch."""
        mtmd = self._mtmd
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        positions = (mtmd.mtmd_decoder_pos * n_rows)()
        mtmd.mtmd_helper_image_get_decoder_pos(image, start, positions)
        rows = [(each.t, each.y, each.x, each.z) for each in positions]
        return np.array(rows, np.int32).T

    def _make_bitmap(self, width: int, height: int, pixels: Pixels | None) -> _Bitmap:
        """A picture for libmtmd; without pixels it has only its size."""
        data = None
        if pixels is not None:
            pixels = np.ascontiguousarray(pixels)
            data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        handle = self._mtmd.mtmd_bitmap_init(width, height, data)
        return _Bitmap(handle, f"A picture of {width:,} × {height:,} pixels")

    def _make_audio_bitmap(self, n_samples: int, samples: Samples | None) -> _Bitmap:
        """Audio for libmtmd; without samples it has only its length."""
        data = None
        if samples is not None:
            samples = np.ascontiguousarray(samples, np.float32)
            data = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        handle = self._mtmd.mtmd_bitmap_init_from_audio(n_samples, data)
        seconds = n_samples / max(self.sample_rate, 1)
        return _Bitmap(handle, f"Audio of {seconds:.2f} s")

    @contextmanager
    def _chunks(self, bitmap: _Bitmap) -> Iterator[list[Any]]:
        """The chunks of a bitmap, valid in the block, which frees it.

        Raises UsageError for a picture that llama.cpp cannot scale.
        """
        mtmd = self._mtmd
        marker = mtmd.mtmd_default_marker()
        text = mtmd.mtmd_input_text(marker, len(marker), False, True)
        output = mtmd.mtmd_input_chunks_init()
        try:
            bitmaps = (ctypes.c_void_p * 1)(bitmap.handle)
            LOG.clear()
            code = mtmd.mtmd_tokenize(
                self.handle, output, ctypes.byref(text), bitmaps, 1
            )
            if code:
                reasons = LOG.errors() or [f"code {code}"]
                reason = sanitize(reasons[-1], multiline=False)
                raise UsageError(
                    f"{bitmap.description} cannot be read: {reason}",
                    "Send another file, or change its size.",
                )
            heartbeat.record_progress()
            n = mtmd.mtmd_input_chunks_size(output)
            yield [mtmd.mtmd_input_chunks_get(output, i) for i in range(n)]
        finally:
            mtmd.mtmd_input_chunks_free(output)
            mtmd.mtmd_bitmap_free(bitmap.handle)

    # --- rows

    def unencoded(self, tokens: Sequence[int], start: int = 0) -> list[ImageRows]:
        """The rows in `tokens[start:]` that have no states in RAM yet, each once."""
        found: dict[int, ImageRows] = {}
        for token in tokens[start:]:
            rows = self._rows.get(token)
            if rows is not None and not self._is_encoded(rows):
                found[rows.id] = rows
        return list(found.values())

    def _is_encoded(self, rows: ImageRows) -> bool:
        return rows.id in self._states.get(rows.picture, ())

    def _load_states(self, known: _KnownPicture, picture_id: int) -> HiddenStates:
        states = self._states.get(known.key)
        if states is None or picture_id not in states:
            states = self._encode_picture(known)
        self._states.move_to_end(known.key)
        return states[picture_id]

    def _encode_picture(self, known: _KnownPicture) -> dict[int, HiddenStates]:
        """Compute all tiles of a picture that are not in RAM.

        Tiles that were done before an interruption are kept.
        """
        if self.handle is None:
            raise EngineError("The projector is closed.")
        if self._target.is_interrupted():
            raise DecodeInterrupted
        tiles = iter(known.tiles)
        with self._chunks(self._load_bitmap(known)) as chunks:
            for chunk in chunks:
                for layout in self._read_chunk(chunk):
                    if not isinstance(layout, _Layout):
                        continue
                    rows = next(tiles, None)
                    if rows is None or rows.n_rows != layout.n_rows:
                        raise EngineError("the picture has another size than before")
                    done = self._states.get(known.key, {})
                    if rows.id not in done:
                        self._keep(known.key, rows.id, self._encode_chunk(chunk, rows))
        return self._states[known.key]

    def _load_bitmap(self, known: _KnownPicture) -> _Bitmap:
        """The whole picture or audio, decoded."""
        values = known.load()
        if values.ndim == 1:
            samples = values.astype(np.float32, copy=False)
            return self._make_audio_bitmap(len(samples), samples)
        pixels = values.astype(np.uint8, copy=False)
        height, width, _ = pixels.shape
        return self._make_bitmap(width, height, pixels)

    def _encode_chunk(self, chunk: Any, rows: ImageRows) -> HiddenStates:
        mtmd = self._mtmd
        self._is_stopped = False
        LOG.begin_stoppable_pass(lambda: self._is_stopped)
        code = mtmd.mtmd_encode_chunk(self.handle, chunk)
        LOG.end_stoppable_pass(is_stopped=self._is_stopped)
        heartbeat.record_progress()
        if self._is_stopped:
            raise DecodeInterrupted  # libmtmd takes what is computed so far for all.
        if code:
            reasons = LOG.errors() or [f"code {code}"]
            reason = library.strip_function_names(reasons[-1])
            raise EngineError(f"A picture cannot be read: {reason}")
        address = mtmd.mtmd_get_output_embd(self.handle)
        shape = (rows.n_rows, self._width)
        return np.ctypeslib.as_array(address, shape).copy()

    def _keep(self, key: str, picture_id: int, states: HiddenStates) -> None:
        """Keep rows in RAM; the pictures that were not used the longest go."""
        self._states.setdefault(key, {})[picture_id] = states
        self._states.move_to_end(key)
        self._state_bytes += states.nbytes
        while self._state_bytes > self._max_state_bytes and len(self._states) > 1:
            _, oldest = self._states.popitem(last=False)
            self._state_bytes -= sum(each.nbytes for each in oldest.values())

    def _on_progress(self, share: float, _data: Any) -> bool:
        heartbeat.record_load(self.path.name, share)
        return True  # False would cancel loading.

    def _on_node(self, _tensor: Any, is_question: bool, _data: Any) -> bool:
        """ggml's callback for the nodes of a graph.

        With `is_question`, it returns whether to observe the next node. After a node that
        was observed, it returns whether to go on. Nodes that are not observed are
        computed together, so only every 16th is.
        """
        if is_question:
            self._n_nodes += 1
            return self._n_nodes % _NODES_BETWEEN_CHECKS == 0
        heartbeat.record_progress()
        self._is_stopped = self._target.is_interrupted()
        return not self._is_stopped

    # --- pixels and samples

    def decode(self, data: bytes, orientation: int = 1) -> Pixels:
        """The pixels of a JPEG, PNG, GIF (its first picture) or BMP, turned upright.

        `orientation` is that of EXIF, 1 to 8. Check the header before: a picture takes
        six bytes a pixel here. Raises UsageError.
        """
        mtmd = self._mtmd
        if not data.startswith(_SIGNATURES):
            raise UsageError("This is no picture that can be read.", SAVE_PICTURE_AS)
        with self._decoded(data) as bitmap:
            if not bitmap or mtmd.mtmd_bitmap_is_audio(bitmap):
                raise UsageError("The picture is damaged.", SAVE_PICTURE_AS)
            width = mtmd.mtmd_bitmap_get_nx(bitmap)
            height = mtmd.mtmd_bitmap_get_ny(bitmap)
            rgb = mtmd.mtmd_bitmap_get_data(bitmap)
            pixels = np.ctypeslib.as_array(rgb, (height, width, 3))
            # A copy, in the order of rows: libmtmd frees the pixels.
            return np.array(turn_upright(pixels, orientation), order="C")

    def decode_audio(self, data: bytes) -> Samples:
        """The samples of a WAV, MP3 or FLAC: one channel, at the projector's rate.

        Check the header before, and remove what it claims (`models/audio_files.py`).
        Raises UsageError.
        """
        mtmd = self._mtmd
        if find_audio_kind(data) is None:
            raise UsageError("This is no audio that can be read.", SAVE_AUDIO_AS)
        with self._decoded(data) as bitmap:
            if not bitmap or not mtmd.mtmd_bitmap_is_audio(bitmap):
                raise UsageError("The audio is damaged.", SAVE_AUDIO_AS)
            n_bytes = mtmd.mtmd_bitmap_get_n_bytes(bitmap)
            if not n_bytes:
                raise UsageError("The audio has no sound.", SAVE_AUDIO_AS)
            raw = mtmd.mtmd_bitmap_get_data(bitmap)
            decoded = np.ctypeslib.as_array(raw, (n_bytes,)).view(np.float32)
            # A copy: libmtmd frees the samples.
            samples = np.nan_to_num(decoded, posinf=_LOUDEST, neginf=-_LOUDEST)
            heartbeat.record_progress()
        np.clip(samples, -_LOUDEST, _LOUDEST, out=samples)
        return pad_audio(samples, self.sample_rate)

    @contextmanager
    def _decoded(self, data: bytes) -> Iterator[Any]:
        """A file as libmtmd decodes it, valid in the block; None if it cannot."""
        mtmd = self._mtmd
        options = mtmd.mtmd_helper_init_opt_default()
        options.video_params.ffmpeg_bin_dir = _NO_PROGRAMS
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        LOG.begin_stoppable_pass(lambda: True)
        found = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
            self.handle, buffer, len(data), False, options
        )
        # That it finds no ffprobe says nothing: the error below says what is wrong.
        LOG.end_stoppable_pass(is_stopped=True)
        try:
            if found.video_ctx:
                yield None
            else:
                yield found.bitmap
        finally:
            if found.bitmap:
                mtmd.mtmd_bitmap_free(found.bitmap)
            if found.video_ctx:
                mtmd.mtmd_helper_video_free(found.video_ctx)

    def close(self) -> None:
        """Must be called before the target is closed, whose vocabulary it uses."""
        if self.handle:
            self._mtmd.mtmd_free(self.handle)
        self.handle = None
        self._states.clear()
        self._state_bytes = 0


class _Bitmap(Struct, frozen=True):
    """A picture or audio as libmtmd has it, and how an error names it."""

    handle: Any
    description: str


class _Layout(Struct, frozen=True, eq=False):
    """The sizes of `ImageRows`."""

    n_rows: int
    n_positions: int
    is_causal: bool
    grid: NDArray[np.int32] | None
    moves: NDArray[np.int32] | None


def _is_mark(vocabulary: Any, token: int) -> bool:
    """Whether a token may stand around a picture.

    A word that the vocabulary lacks is spelled in letters instead.
    """
    if not vocabulary.text_piece(token).strip():
        return True  # A control token, or a line end.
    return bool(vocabulary.token_text(token).startswith((b"<", b"[")))


_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")


def pad_audio(samples: Samples, sample_rate: int) -> Samples:
    """The samples, with silence behind them if their last piece would be too short.

    At 16,000 samples a second a piece has 480,000: of 480,001 one is left over, and
    becomes 1,600, a tenth of a second.
    """
    n_left = len(samples) % (_PIECE_SECONDS * sample_rate)
    n_least = int(_LEAST_PIECE * sample_rate)
    if 0 < n_left < n_least:
        return np.pad(samples, (0, n_least - n_left))
    return samples


def turn_upright(pixels: Pixels, orientation: int) -> Pixels:
    """A view of the pixels as the camera was held, by EXIF's number of it (1 to 8).

    The numbers from 5 on exchange width and height. With 6, say, the camera was held
    upright, turned to the left: its first row is the right column of the scene.
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


@cache
def load_library() -> Any:
    """llama_cpp.mtmd_cpp, whose log goes where llama.cpp's does. Raises EngineError."""
    # Its library must use the libllama that is loaded.
    own_folder = os.environ.get("LLAMA_CPP_LIB_PATH")
    if own_folder:
        os.environ.setdefault("MTMD_CPP_LIB", own_folder)
    try:
        mtmd = importlib.import_module("llama_cpp.mtmd_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise EngineError(
            f"This build of llama.cpp cannot read pictures: {sanitize(str(error), multiline=False)}",
            f"Reinstall it: {install_hints.reinstall_llama_cpp()}",
        ) from error
    mtmd.mtmd_helper_log_set(LOG.callback, None)
    return mtmd
