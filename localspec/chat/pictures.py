"""The pictures and audio of a chat session: their bytes, and files for the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from localspec.chat import picture_sources
from localspec.chat.conversation import PictureAttachment, Turn
from localspec.errors import LocalspecError, UsageError
from localspec.models.audio_files import AudioData, is_audio_name, load_audio
from localspec.models.pictures import (
    PICTURE_FILES,
    PictureData,
    accept_picture,
    load_picture,
)
from localspec.units import about_duration, count, count_tokens

PictureReader = Callable[[str], bytes | None]
"""Gives the bytes of a picture by its hash; None if they are not there."""


PictureLoader = Callable[[], Sequence[PictureAttachment]]
"""Reads a file, or the clipboard. It may wait, and raise LocalspecError."""
_MAX_TOLD = 5
"""Files whose errors are told, if many cannot be attached."""


class LoadedPictures(Struct, frozen=True):
    """What could be read of several files, and why the others could not."""

    pictures: tuple[PictureAttachment, ...]
    problem: LocalspecError | None = None


def load_each(loaders: Iterable[PictureLoader]) -> LoadedPictures:
    """Run each of the loaders: one that fails takes nothing from the others.

    Of `a.png broken.png no.png` the first is attached, and the problem names the two
    others.
    """
    pictures: list[PictureAttachment] = []
    errors: list[LocalspecError] = []
    for load in loaders:
        try:
            pictures += load()
        except LocalspecError as error:
            errors.append(error)
    return LoadedPictures(tuple(pictures), _join_errors(errors))


def _join_errors(errors: Sequence[LocalspecError]) -> LocalspecError | None:
    """One error that says what all of them say; None if there is none."""
    if not errors:
        return None
    if len(errors) == 1:
        return errors[0]
    messages = [error.message for error in errors[:_MAX_TOLD]]
    n_more = len(errors) - _MAX_TOLD
    if n_more > 0:
        messages.append(f"{count(n_more, 'more file')} cannot be attached.")
    return UsageError(" ".join(messages))


def no_pictures(_: str) -> bytes | None:
    """A reader of a place that has none."""
    return None


class PictureCost(Struct, frozen=True):
    """What a picture takes of the context, and how long the model reads it."""

    n_rows: int
    seconds: float | None = None  # None: unknown.

    @property
    def text(self) -> str:
        """`1,020 tokens, about 16 s to read`."""
        tokens = count_tokens(self.n_rows)
        about = about_duration(self.seconds)
        return f"{tokens}, {about} to read" if about else tokens


def add_costs(costs: Sequence[PictureCost]) -> PictureCost:
    """What several pictures cost; the seconds are unknown if those of one are."""
    n_rows = sum(cost.n_rows for cost in costs)
    known = [cost.seconds for cost in costs if cost.seconds is not None]
    if len(known) < len(costs):
        return PictureCost(n_rows)
    return PictureCost(n_rows, sum(known))


class ChatPictures:
    """The pictures and audio that were attached in this session, or are in its saved chat.

    A private chat is nowhere else, so what was attached stays in memory.
    """

    def __init__(self, read_saved: PictureReader = no_pictures) -> None:
        """`read_saved` reads the history."""
        self._read_saved = read_saved
        self._attached: dict[str, bytes] = {}
        self._n_pasted = 0

    def load(self, paths: Iterable[Path]) -> list[PictureAttachment]:
        """Read files. Raises as `models.pictures.load_picture`."""
        return [self.add(load_picture(path)) for path in paths]

    def load_audio(self, paths: Iterable[Path]) -> list[PictureAttachment]:
        """Read audio files. Raises as `models.audio_files.load_audio`."""
        return [self.add_audio(load_audio(path)) for path in paths]

    def load_any(self, paths: Iterable[Path]) -> list[PictureAttachment]:
        """Read pictures and audio files, which are told apart by their names."""
        attached: list[PictureAttachment] = []
        for path in paths:
            if is_audio_name(path.name):
                attached.append(self.add_audio(load_audio(path)))
            else:
                attached.append(self.add(load_picture(path)))
        return attached

    def paste(self) -> list[PictureAttachment]:
        """Take the picture in the clipboard. Raises as `read_clipboard`."""
        data = picture_sources.read_clipboard()
        self._n_pasted += 1
        return [self.add(accept_picture(data, f"pasted-{self._n_pasted}.png"))]

    def add(self, picture: PictureData) -> PictureAttachment:
        header = picture.picture
        self._attached[header.sha256] = picture.data
        width, height = header.shown_size
        return PictureAttachment(
            name=header.name,
            sha256=header.sha256,
            kind=header.kind,
            width=width,
            height=height,
        )

    def add_audio(self, audio: AudioData) -> PictureAttachment:
        header = audio.audio
        self._attached[header.sha256] = audio.data
        return PictureAttachment(
            name=header.name,
            sha256=header.sha256,
            kind=header.kind,
            seconds=header.seconds,
        )

    def read(self, sha256: str) -> bytes | None:
        """The bytes of a picture; None if they were lost, or cannot be read now."""
        attached = self._attached.get(sha256)
        if attached is not None:
            return attached
        try:
            return self._read_saved(sha256)
        except LocalspecError:
            return None

    def write_files(self, turns: Iterable[Turn]) -> dict[str, str]:
        """The files of the turns' pictures, by hash, for an engine to read.

        A picture that was lost has none. Raises StorageError.
        """
        paths: dict[str, str] = {}
        for turn in turns:
            for picture in turn.all_pictures:
                if picture.sha256 in paths:
                    continue
                data = self.read(picture.sha256)
                if data is not None:
                    paths[picture.sha256] = str(PICTURE_FILES.put(data))
        return paths
