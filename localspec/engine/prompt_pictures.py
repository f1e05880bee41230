"""Reads the pictures and audio of a prompt: from files to the ids of rows.

A message names its audio files among its pictures: which one a file is, its bytes tell.
Here both are called pictures where they are alike.
"""

from __future__ import annotations

import base64
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from localspec.errors import AudioError, Hint, LocalspecError, PictureError, UsageError
from localspec.llama.images import (
    MAX_STATE_BYTES,
    ImageRows,
    Pixels,
    Projector,
    Samples,
    join_items,
)
from localspec.models.audio_files import (
    MAX_AUDIO_BYTES,
    Audio,
    check_audio,
    find_audio_kind,
    remove_claims,
)
from localspec.models.gguf.header import Header
from localspec.models.pictures import (
    Picture,
    check_picture,
    compute_sha256,
)
from localspec.models.projector_kinds import audio_kind, find_kind
from localspec.protocol.events import PictureReading, Thumbnail
from localspec.protocol.wire import PictureRef, PictureSpeed
from localspec.sanitize import sanitize

_THUMBNAIL_WIDTH = 48
_THUMBNAIL_HEIGHT = 32
_FLOPS_OF_A_CORE = 55e9
"""What a core of a usual CPU computes in a second, in a projector of 16 bits."""


class PromptPictures:
    """Turns the pictures of prompts into ids, with the loaded projector.

    A picture is known by its hash. Its header says which ids it has; its pixels are
    decoded when the target, or `encode` before it, needs its rows. Audio is decoded
    also to know how many samples it has, which is quick.
    """

    def __init__(
        self,
        projector: Projector,
        timer: PictureTimer,
        audio_timer: PictureTimer | None = None,
    ) -> None:
        self._projector = projector
        self._timer = timer
        self._audio_timer = audio_timer or PictureTimer("", None)
        self._pictures: OrderedDict[str, SentPicture] = OrderedDict()
        """By hash: those whose headers were read, the last at the end.

        They are as many as the projector keeps.
        """
        self._decoded: tuple[str, Pixels] | None = None
        """The pixels of the picture that is read next, by its hash."""

    @property
    def measured_speed(self) -> PictureSpeed | None:
        return self._timer.measured

    def list_ids(self, ref: PictureRef) -> list[int]:
        """What stands for a picture in a prompt.

        Raises PictureError or AudioError if its file cannot be used, or not by this
        model.
        """
        sent = self._pictures.get(ref.sha256)
        if sent is None:
            sent = self._receive(ref)
        try:
            items = self._read_items(sent)
        except UsageError as error:
            raise _name_file(sent.header, error) from error
        self._pictures[ref.sha256] = structs.replace(sent, items=items)
        self._pictures.move_to_end(ref.sha256)
        while len(self._pictures) > self._projector.n_recent:
            self._pictures.popitem(last=False)
        return join_items(items)

    def _receive(self, ref: PictureRef) -> SentPicture:
        """A file that was not sent before, or long ago."""
        header, data = self._load(ref)
        model = self._projector.model_name
        if isinstance(header, Picture):
            if not self._projector.sees:
                raise PictureError(
                    f"{model} does not see pictures: {header.name} cannot be read.",
                    Hint("Use a model that sees."),
                )
            return SentPicture(ref, header, [])
        if not self._projector.hears:
            raise AudioError(
                f"{model} does not hear: {header.name} cannot be read.",
                Hint("Use a model that hears."),
            )
        return SentPicture(ref, header, [], n_samples=len(self._decode(header, data)))

    def _read_items(self, sent: SentPicture) -> list[int | ImageRows]:
        """Raises UsageError."""
        ref = sent.ref
        if isinstance(sent.header, Picture):
            width, height = sent.header.shown_size
            return self._projector.read_picture(
                ref.sha256, width, height, partial(self._load_pixels, ref)
            )
        return self._projector.read_audio(
            ref.sha256, sent.n_samples, partial(self._load_samples, ref)
        )

    def encode(self, tokens: Sequence[int], n_cached: int) -> Iterator[PictureReading]:
        """Compute the rows of the pictures behind the first `n_cached` cells of a text.

        Yields before each. Of very many pictures the last are left to the target: the
        projector keeps the rows of some, and would forget the first before they are
        read. Raises PictureError, AudioError, DecodeInterrupted, or what the projector raises.
        """
        unread = {rows.id for rows in self._projector.unencoded(tokens, n_cached)}
        pictures = [each for each in self._pictures.values() if each.has_any(unread)]
        pictures.sort(key=lambda each: tokens.index(each.rows[0].id))
        n_bytes = 0
        try:
            for n, picture in enumerate(pictures, 1):
                yield self._describe(picture, n, len(pictures))
                n_bytes += self._encode(picture, unread)
                if n_bytes > MAX_STATE_BYTES // 2:
                    return
        finally:
            self._decoded = None

    def expect_seconds(self, tokens: Sequence[int]) -> float | None:
        """About how long the pictures of a text take to read; None if it is unknown.

        Those whose rows are in RAM take no time.
        """
        unread = {rows.id for rows in self._projector.unencoded(tokens)}
        total = 0.0
        for picture in self._pictures.values():
            n_rows = sum(rows.n_rows for rows in picture.rows if rows.id in unread)
            if not n_rows:
                continue
            seconds = self._find_timer(picture).expect(n_rows)
            if seconds is None:
                return None
            total += seconds
        return round(total, 2)

    def _find_timer(self, picture: SentPicture) -> PictureTimer:
        if isinstance(picture.header, Audio):
            return self._audio_timer
        return self._timer

    def _describe(self, picture: SentPicture, n: int, of: int) -> PictureReading:
        if isinstance(picture.header, Audio):
            return PictureReading(
                n=n,
                of=of,
                rows=len(join_items(picture.items)),
                sha256=picture.ref.sha256,
                seconds=picture.header.seconds,
                seconds_expected=self._audio_timer.expect(picture.n_rows),
            )
        pixels = self._load_pixels(picture.ref)
        self._decoded = (picture.ref.sha256, pixels)
        height, width = pixels.shape[:2]
        return PictureReading(
            n=n,
            of=of,
            rows=len(join_items(picture.items)),
            width=width,
            height=height,
            sha256=picture.ref.sha256,
            seconds_expected=self._timer.expect(picture.n_rows),
            thumbnail=make_thumbnail(pixels),
        )

    def _encode(self, picture: SentPicture, unread: set[int]) -> int:
        """Returns the bytes of what was computed."""
        began = time.perf_counter()
        n_rows = 0
        n_bytes = 0
        for rows in picture.rows:
            if rows.id not in unread:
                continue
            try:
                n_bytes += rows.load_states().nbytes
            except UsageError as error:  # Of a few pixels in width, say.
                raise _name_file(picture.header, error) from error
            n_rows += rows.n_rows
        self._find_timer(picture).record(n_rows, time.perf_counter() - began)
        return n_bytes

    def _load_pixels(self, ref: PictureRef) -> Pixels:
        if self._decoded is not None and self._decoded[0] == ref.sha256:
            pixels = self._decoded[1]
            self._decoded = None
            return pixels
        header, data = self._load(ref)
        assert isinstance(header, Picture)  # The bytes are those of the hash.
        try:
            return self._projector.decode(data, header.orientation)
        except UsageError as error:
            raise _name_file(header, error) from error

    def _load_samples(self, ref: PictureRef) -> Samples:
        header, data = self._load(ref)
        assert isinstance(header, Audio)  # The bytes are those of the hash.
        return self._decode(header, data)

    def _decode(self, header: Audio, data: bytes) -> Samples:
        try:
            return self._projector.decode_audio(remove_claims(data, header.kind))
        except UsageError as error:
            raise _name_file(header, error) from error

    def _load(self, ref: PictureRef) -> tuple[Picture | Audio, bytes]:
        """The header and the bytes, checked again: this process decodes them."""
        name = sanitize(ref.name, multiline=False)
        try:
            with Path(ref.path).open("rb") as file:
                data = file.read(MAX_AUDIO_BYTES + 1)
        except (OSError, ValueError):
            message = f"{name or _NO_NAME} is gone: its file cannot be read any more."
            raise _FILE_ERRORS[ref.kind](message, "Send it again.") from None
        if compute_sha256(data) != ref.sha256:
            message = f"{name or _NO_NAME} has changed since it was sent."
            raise _FILE_ERRORS[ref.kind](message, "Send it again.")
        is_audio = find_audio_kind(data) is not None
        # To a model that does not hear, a sound is no picture.
        if is_audio and (ref.kind == "audio" or self._projector.hears):
            return check_audio(data, name), data
        return check_picture(data, name), data


_NO_NAME = "The picture"
_NO_AUDIO_NAME = "The audio"
_FILE_ERRORS: Mapping[str, type[LocalspecError]] = {
    "picture": PictureError,
    "audio": AudioError,
}
"""The error about a file, by the kind that its message says."""


def _name_file(header: Picture | Audio, error: UsageError) -> LocalspecError:
    """The error with the file's name: "photo.jpg is damaged."."""
    message = f"{header.name}: {error.message}"
    for beginning in (_NO_NAME, _NO_AUDIO_NAME):
        if error.message.startswith(beginning):
            message = header.name + error.message.removeprefix(beginning)
    if isinstance(header, Audio):
        return AudioError(message, error.hint)
    return PictureError(message, error.hint)


class SentPicture(Struct, frozen=True, eq=False):
    """A picture or audio of a prompt, and what stands for it there."""

    ref: PictureRef
    header: Picture | Audio
    items: Sequence[int | ImageRows]
    n_samples: int = 0  # Those of audio, at the projector's rate.

    @property
    def rows(self) -> list[ImageRows]:
        return [item for item in self.items if isinstance(item, ImageRows)]

    @property
    def n_rows(self) -> int:
        return sum(rows.n_rows for rows in self.rows)

    def has_any(self, ids: set[int]) -> bool:
        return any(rows.id in ids for rows in self.rows)


def make_thumbnail(pixels: NDArray[np.uint8]) -> Thumbnail:
    """A small copy, of the same shape within 48 × 32 pixels.

    Each of its pixels is the mean of some pixels of the picture: of 16 at most, which
    are spread evenly over its part, so that a large picture takes no longer.
    """
    height, width = pixels.shape[:2]
    scale = min(_THUMBNAIL_WIDTH / width, _THUMBNAIL_HEIGHT / height, 1.0)
    small_width = max(1, round(width * scale))
    small_height = max(1, round(height * scale))
    rows = _sample_places(height, small_height)
    columns = _sample_places(width, small_width)
    sampled = pixels[rows.ravel()][:, columns.ravel()]
    shape = (small_height, rows.shape[1], small_width, columns.shape[1], 3)
    means = sampled.reshape(shape).mean(axis=(1, 3))
    rgb = base64.b64encode(means.round().astype(np.uint8).tobytes()).decode("ascii")
    return Thumbnail(small_width, small_height, rgb)


def _sample_places(length: int, n: int) -> NDArray[np.intp]:
    """For each of `n` parts of a length four places in it, spread evenly.

    Of a length of 16 and two parts: [[1, 3, 5, 7], [9, 11, 13, 15]].
    """
    places = (np.arange(4 * n) + 0.5) * length / (4 * n)
    return places.astype(np.intp).reshape(n, 4)


class PictureTimer:
    """How long a picture, or audio, of so many rows takes: measured, or estimated."""

    def __init__(
        self,
        projector: str,
        estimate: float | None,
        *,
        measured: PictureSpeed | None = None,
    ) -> None:
        """`projector` identifies it and its device; `estimate` are seconds of a row.

        `measured` is what earlier runs saw, maybe of another projector.
        """
        self._projector = projector
        self._estimate = estimate
        self.measured: PictureSpeed | None = None
        if measured is not None and measured.projector == projector:
            self.measured = measured

    def expect(self, rows: int) -> float | None:
        """Seconds; None if nothing is known."""
        seconds_per_row = self._estimate
        if self.measured is not None:
            seconds_per_row = self.measured.row_ms / 1e3
        if seconds_per_row is None:
            return None
        return round(rows * seconds_per_row, 2)

    def record(self, rows: int, seconds: float) -> None:
        if rows:
            row_ms = round(seconds * 1e3 / rows, 4)
            self.measured = PictureSpeed(self._projector, row_ms)


class TowerSizes(Struct, frozen=True):
    """What of a projector's header the work for a picture depends on."""

    n_layer: int
    n_embd: int
    layer_parameters: int  # The parameters of all layers together.
    patches_per_row: int

    @classmethod
    def from_header(cls, header: Header) -> TowerSizes:
        def key(name: str, default: int) -> int:
            value: Any = header.keys.get(f"clip.vision.{name}")
            return value if isinstance(value, int) and value > 0 else default

        n_parameters = 0
        for tensor in header.tensors:
            if tensor.name.startswith("v.blk."):
                n_parameters += tensor.n_elements
        merged = find_kind(header).merge
        for name in ("spatial_merge_size", "projector.scale_factor"):
            merged = key(name, merged)
        return cls(
            n_layer=key("block_count", 1),
            n_embd=key("embedding_length", 1),
            layer_parameters=n_parameters,
            patches_per_row=merged * merged,
        )

    def seconds_per_row(self, *, n_threads: int) -> float:
        """An estimate for a CPU: 2 operations a parameter and patch, and attention.

        A projector of 400 million parameters whose rows are 4 patches each, on 8
        cores: 4 × 2 × 400e6 / (8 × 55e9) is 7 ms a row, and 7 s for 1,000 rows.
        Attention over 4,000 patches adds about a tenth.
        """
        attention = 4 * self.n_layer * _USUAL_PATCHES * self.n_embd
        operations = self.patches_per_row * (2 * self.layer_parameters + attention)
        return operations / (_FLOPS_OF_A_CORE * max(n_threads, 1))


_USUAL_PATCHES = 1024
_AUDIO_POSITIONS = 1500
"""Positions of 30 seconds in a tower like Whisper's; a conformer has one a row."""


def estimate_audio_row(header: Header, *, rows: int, n_threads: int) -> float | None:
    """Seconds of a row of audio on a CPU, where 30 seconds become so many rows.

    The tower of Qwen2-Audio has 630 million parameters in its layers: 2 × 630e6 × 1,500
    operations and a fifth of that for attention are 5 s on 8 cores, and 7 ms for each of
    750 rows.
    """
    if not rows:
        return None
    n_parameters = 0
    for tensor in header.tensors:
        if tensor.name.startswith("a.blk."):
            n_parameters += tensor.n_elements
    positions = _AUDIO_POSITIONS
    attention = 0
    if audio_kind(header) == "gemma4a":
        positions = rows
    else:
        n_embd = header.keys.get("clip.audio.embedding_length")
        n_layer = header.keys.get("clip.audio.block_count")
        if isinstance(n_embd, int) and isinstance(n_layer, int):
            attention = 4 * n_layer * positions * n_embd
    operations = positions * (2 * n_parameters + attention)
    return operations / (_FLOPS_OF_A_CORE * max(n_threads, 1)) / rows
