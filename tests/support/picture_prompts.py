"""Opens tiny models that see, and makes prompts of texts and pictures for them."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from localspec.llama.batch import LlamaBatch
from localspec.llama.context import LlamaContext
from localspec.llama.images import Pixels, Projector, Samples, join_items
from localspec.llama.library import C, get_logits_address
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import reader
from localspec.models.projector_kinds import projector_kind
from localspec.protocol.wire import ContextSettings
from localspec.spec.picture_ids import split_at_pictures, without_pictures
from localspec.spec.protocols import Logits
from tests.support.sessions import SETTINGS
from tests.support.vision_models import VisionModels, noise

PICTURE_SETTINGS: ContextSettings = replace(SETTINGS, n_ctx=1024, n_ubatch=512)
SMALL = noise(40, 40, seed=1)
WIDE = noise(150, 60, seed=2)
TALL = noise(50, 110, seed=3)
PICTURES = (SMALL, WIDE, TALL)
Part = str | Pixels | Samples
"""A text, a picture, or audio at the projector's rate."""


class SeeingModel(Struct, frozen=True):
    """A model and its projector."""

    context: LlamaContext
    projector: Projector

    def prompt(self, *parts: Part) -> list[int]:
        """The ids of a prompt: each text is tokenized alone, the first with BOS."""
        ids: list[int] = []
        vocabulary = self.context.vocabulary
        for i, part in enumerate(parts):
            if isinstance(part, str):
                ids += vocabulary.tokenize(part, add_special=i == 0)
            else:
                if i == 0:
                    ids += vocabulary.tokenize("")
                ids += join_items(self.projector.items(part))
        return ids

    def read(self, ids: Sequence[int]) -> Logits:
        """The logits after a text, of which the memory holds the first cells."""
        passes: list[Sequence[int]] = []
        for part in split_at_pictures(ids[self.context.n_past :]):
            n = self.context.n_batch
            passes += [part[i : i + n] for i in range(0, len(part), n)]
        *first, last = passes
        for part in first:
            self.context.decode(part, 0)
        row: Logits = self.context.decode(last, 1)[0].copy()
        return row

    def read_anew(self, ids: Sequence[int]) -> Logits:
        self.context.truncate(0)
        return self.read(ids)

    def read_by_libmtmd(self, *parts: Part) -> tuple[list[int], int, Logits]:
        """What libmtmd's own code makes of the whole prompt.

        The tokens, with -1 for rows of pictures; the position behind them; and the
        logits after the last. The memory is empty afterwards.
        """
        ids, position, row = self._prefill_by_libmtmd(*parts)
        C.llama_memory_clear(self.context._memory, True)
        return ids, position, row

    def generate_by_libmtmd(self, n_tokens: int, *parts: Part) -> list[int]:
        """The greedy tokens after a prompt that libmtmd read, one a pass."""
        _, position, row = self._prefill_by_libmtmd(*parts)
        batch = LlamaBatch(1)
        tokens = [int(row.argmax())]
        while len(tokens) < n_tokens:
            batch.set_tokens(tokens[-1:])
            batch.set_rows(1, n_past=position, outputs=1)
            assert C.llama_decode(self.context.handle, batch.struct) == 0
            position += 1
            tokens.append(int(self._last_row().argmax()))
        C.llama_memory_clear(self.context._memory, True)
        return tokens

    def _last_row(self) -> Logits:
        address = get_logits_address(self.context.handle)
        pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        row: Logits = np.ctypeslib.as_array(pointer, (self.context.n_vocab,)).copy()
        return row

    def _prefill_by_libmtmd(self, *parts: Part) -> tuple[list[int], int, Logits]:
        mtmd = self.projector._mtmd
        marker = mtmd.mtmd_default_marker()
        pictures = [part for part in parts if not isinstance(part, str)]
        text = b"".join(
            part.encode() if isinstance(part, str) else marker for part in parts
        )
        bitmaps = [_make_bitmap(mtmd, each) for each in pictures]
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        output = mtmd.mtmd_input_chunks_init()
        source = mtmd.mtmd_input_text(text, len(text), True, True)
        code = mtmd.mtmd_tokenize(
            self.projector.handle, output, ctypes.byref(source), array, len(bitmaps)
        )
        assert code == 0
        self.context.truncate(0)
        C.llama_memory_clear(self.context._memory, True)
        ids: list[int] = []
        n_past = ctypes.c_int32(0)
        n_chunks = mtmd.mtmd_input_chunks_size(output)
        for i in range(n_chunks):
            chunk = mtmd.mtmd_input_chunks_get(output, i)
            ids += _chunk_ids(mtmd, chunk)
            code = mtmd.mtmd_helper_eval_chunk_single(
                self.projector.handle,
                self.context.handle,
                chunk,
                n_past.value,
                0,
                self.context.n_batch,
                i == n_chunks - 1,
                ctypes.byref(n_past),
            )
            assert code == 0
        row = self._last_row()
        mtmd.mtmd_input_chunks_free(output)
        for bitmap in bitmaps:
            mtmd.mtmd_bitmap_free(bitmap)
        return ids, n_past.value, row


def _make_bitmap(mtmd: Any, pixels: Pixels | Samples) -> Any:
    if pixels.ndim == 1:
        samples = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return mtmd.mtmd_bitmap_init_from_audio(len(pixels), samples)
    height, width, _ = pixels.shape
    data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return mtmd.mtmd_bitmap_init(width, height, data)


def _chunk_ids(mtmd: Any, chunk: Any) -> list[int]:
    if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
        return [-1] * int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
    n_tokens = ctypes.c_size_t()
    tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n_tokens))
    return [int(tokens[i]) for i in range(n_tokens.value)]


@contextmanager
def seeing_model(
    models: VisionModels,
    kind: str,
    *,
    outputs: int = 8,
    snapshots: int = 0,
    settings: ContextSettings = PICTURE_SETTINGS,
    load_mtp: bool = False,
    **projector: Any,
) -> Iterator[SeeingModel]:
    files = models[kind]
    role = ModelRole(settings, outputs, snapshots, load_mtp=load_mtp)
    with closing(LlamaContext(files.model, role)) as context:
        projector.setdefault("kind", projector_kind(reader.read(files.projector)))
        made = Projector(files.projector, context, **projector)
        with closing(made):
            yield SeeingModel(context, made)


def shown_ids(ids: Sequence[int]) -> list[int]:
    """The ids as llama.cpp's programs write them, with -1 for rows of pictures."""
    return [max(token, -1) for token in ids]


def picture_places(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Where each picture begins and ends."""
    places: list[tuple[int, int]] = []
    for i, token in enumerate(ids):
        if token < -1 and token % 2 == 0:
            end = i + 1
            while end < len(ids) and ids[end] == token - 1:
                end += 1
            places.append((i, end))
    return places


def count_text(ids: Sequence[int]) -> int:
    return len(without_pictures(ids))
