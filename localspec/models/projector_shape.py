"""What a projector (mmproj) takes: its weights, and the buffer of its largest picture.

llama.cpp counts both without loading a file (`mtmd_get_memory_usage`), but for the small
picture that it warms up with, and the buffer grows with the first larger one. So it
follows from a rule, which the tests compare with llama.cpp's count:

    The buffer holds, for each patch of the picture, one layer's feed-forward part and
    three copies of the patch: patches × (n_ff + 3 × n_embd) × 4 bytes. With a gate, the
    part is there three times, beside four copies: 3 × n_ff + 4 × n_embd. A mask of
    windows has 6 bytes for each pair of patches: 1.5 GiB for 4,096 rows of 4 patches.

Example: the tower of Gemma 3 has 4,304 + 3 × 1,152 = 7,760 floats a patch, and 64 × 64
patches: 4,096 × 7,760 × 4 bytes = 121 MiB.

What llama.cpp does not count, a process of its own has shown: on a CPU the input of the
widest product is copied in 16 bits, 4,096 × 4,304 × 2 bytes = 34 MiB in this example, and
on any device the scaled picture is there in floats, 896 × 896 × 3 × 4 bytes = 9 MiB.
"""

from __future__ import annotations

from msgspec import Struct

from localspec.models.gguf.header import Header
from localspec.models.projector_kinds import (
    ORDINARY,
    ProjectorKind,
    audio_kind,
    find_kind,
)

_FLOAT = 4
_HALF = 2
_PHOTO_PIXELS = 12_000_000  # Of a telephone's photograph.
_BYTES_PER_PIXEL = 6  # While it is decoded: the decoder's copy, and the picture.
_COLOURS = 3
_MASK_BYTES = 6  # In float32, and in float16 for flash attention.
_AUDIO_POSITIONS = 1500  # Of 30 seconds, the piece that an audio tower computes.
_AUDIO_FRAMES = 3000
"""Of such a piece, before convolutions halve them; rows of two minutes without layers."""
_CONFORMER_CONVOLUTION = "a.conv1d.0.weight"
_KERNEL = 9  # Frames and mel bins of a convolution: 3 × 3.
_UNREAD_COMPUTE_SHARE = 0.14
_UNREAD_COMPUTE_SHARE_GPU = 0.56
"""The buffer of a projector of which only the size is known, by its weights.

Those of Qwen3.5 9B's: 121 and 485 MiB beside 876, for 1,024 and 4,096 rows.
"""
_UNREAD_WORK_SHARE = 0.04  # Of the same projector on a CPU: 34 MiB.


class ProjectorShape(Struct, frozen=True):
    """The numbers of a projector that its memory depends on."""

    weights: int
    n_embd: int = 0  # 0: only the size of the file is known.
    patch_width: int = 0  # Floats of a patch while a layer computes it.
    work_width: int = 0  # Numbers of a patch before the widest product.
    patch_pixels: int = 0  # Pixels of a patch.
    patches: int = 0
    """Of every picture, or of a tile; 0 if they grow with the picture."""
    patches_per_row: int = 1
    kind: ProjectorKind = ORDINARY
    row_width: int = 0  # Floats of a row, as the model reads it.
    audio_bytes: int = 0  # The buffer of a piece of audio.

    @property
    def is_coarse(self) -> bool:
        """Only the size of its file is known: every text says "about"."""
        return not self.n_embd

    def rows(self, *, on_gpu: bool, n_batch: int, limit: int | None = None) -> int:
        """The most rows that a picture becomes.

        `n_batch`: the widest pass of the model; `limit`: the user's.
        """
        if self.kind.most_rows:
            rows = self.kind.limit_rows(on_gpu=on_gpu, n_batch=n_batch, limit=limit)
            assert rows is not None
            return rows
        return self.patches // self.patches_per_row

    def compute_bytes(self, rows: int, *, on_gpu: bool) -> int:
        """The buffer of a picture of so many rows."""
        if self.is_coarse:
            share = _UNREAD_COMPUTE_SHARE_GPU if on_gpu else _UNREAD_COMPUTE_SHARE
            return int(self.weights * share)
        patches = self._count_patches(rows)
        width = self.patch_width
        mask = 0
        if self.kind.has_window_mask:
            mask = patches * patches * _MASK_BYTES
        return _FLOAT * patches * width + mask + self.audio_bytes

    def work_bytes(self, rows: int, *, on_gpu: bool) -> int:
        """What a CPU takes beside the buffer, for a picture of so many rows."""
        if on_gpu:
            return 0
        if self.is_coarse:
            return int(self.weights * _UNREAD_WORK_SHARE)
        return _HALF * self._count_patches(rows) * self.work_width

    def decoding_bytes(self, rows: int) -> int:
        """In RAM, while a photograph is decoded and its rows wait for the model."""
        scaled = self._count_patches(rows) * self.patch_pixels * _COLOURS * _FLOAT
        decoded = _PHOTO_PIXELS * _BYTES_PER_PIXEL
        return decoded + scaled + rows * self.row_width * _FLOAT

    def _count_patches(self, rows: int) -> int:
        return self.patches or rows * self.patches_per_row


def from_size(n_bytes: int) -> ProjectorShape:
    """Of a projector that is not here, of which the catalogue knows the size."""
    return ProjectorShape(n_bytes)


def from_header(projector: Header) -> ProjectorShape:
    """Raises ArithmeticError or ValueError if the numbers are inconsistent."""
    kind = find_kind(projector)
    n_embd = _number(projector, "vision.embedding_length")
    n_ff = _number(projector, "vision.feed_forward_length")
    audio_embd = _number(projector, "audio.embedding_length")
    patch = _number(projector, "vision.patch_size")
    merge = kind.merge
    for key in ("vision.spatial_merge_size", "vision.projector.scale_factor"):
        merge = _number(projector, key) or merge
    if kind.is_merged_first:
        patch *= merge
        merge = 1
    patch_width = n_ff + 3 * n_embd
    if projector.has_tensor("v.blk.0.ffn_gate.weight"):
        patch_width = 3 * n_ff + 4 * n_embd
    if kind.is_merged_first:
        # There are no layers: the widest are the colours of a patch, and their norm.
        patch_width = max(patch_width, 2 * _COLOURS * patch * patch)
    work_width = max(n_ff, n_embd)
    if kind.is_merged_first:
        work_width = max(work_width, _COLOURS * patch * patch)
    patches = 0
    if not kind.most_rows and patch:
        patches = (_number(projector, "vision.image_size") // patch) ** 2
    return ProjectorShape(
        weights=projector.weight_bytes,
        n_embd=n_embd or audio_embd,
        patch_width=patch_width,
        work_width=work_width,
        patch_pixels=patch * patch,
        patches=patches,
        patches_per_row=merge * merge,
        kind=kind,
        row_width=_number(projector, "vision.projection_dim"),
        audio_bytes=_count_audio_bytes(projector),
    )


def _count_audio_bytes(projector: Header) -> int:
    """The buffer of a piece of audio; 0 if it does not hear.

    A tower like Whisper's has 1,500 positions, which take what patches take. One that
    begins with convolutions over 3,000 frames of 128 mel bins (Gemma 4 E4B) has 64 ×
    1,500 numbers of 128 channels behind the first, and nine of each are copied in 16 bits
    for a quarter of the places of the second: 49 MB and 55 MB. Without layers (Gemma 4
    12B) the samples are there three times, beside two copies of the rows.
    """
    kind = audio_kind(projector)
    n_embd = _number(projector, "audio.embedding_length")
    if not kind or not n_embd:
        return 0
    if kind == "gemma4ua":
        n_out = _number(projector, "audio.projection_dim")
        return _FLOAT * _AUDIO_FRAMES * (3 * n_embd + 2 * n_out)
    n_ff = _number(projector, "audio.feed_forward_length")
    layer = _FLOAT * _AUDIO_POSITIONS * (n_ff + 3 * n_embd)
    convolution = projector.tensors_by_name.get(_CONFORMER_CONVOLUTION)
    if convolution is None or len(convolution.shape) != 4:
        return layer
    channels = convolution.shape[-1]
    places = _number(projector, "audio.num_mel_bins") // 2 * _AUDIO_FRAMES // 2
    frames = 2 * _number(projector, "audio.num_mel_bins") * _AUDIO_FRAMES
    copies = places // 4 * channels * _KERNEL * _HALF
    return max(layer // 2, _FLOAT * (places * channels + frames) + copies)


def _number(projector: Header, key: str) -> int:
    """0 if the file does not say it."""
    value = projector.keys.get(f"clip.{key}")
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value
