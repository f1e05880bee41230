"""Audio files that people send: their headers, checked before llama.cpp reads them.

llama.cpp decodes WAV, MP3 and FLAC. It believes what a header says of the length, and
takes the memory for it at once: a WAV of 100 bytes that claims four billion samples, or
an MP3 whose first frame does, would take 16 GB. So each file is checked here first, in
the process that received it and again in the engine. Nothing here decodes samples.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from localspec.errors import AudioError
from localspec.models.media_files import read_media_file
from localspec.models.pictures import compute_sha256
from localspec.sanitize import sanitize
from localspec.units import duration, size_limit

MAX_AUDIO_BYTES = 64 * 2**20
"""This is six minutes of a CD, and ten minutes of most other recordings."""
MAX_AUDIO_SECONDS = 10 * 60
"""Ten minutes are 15,000 rows at most, 25 a second.

llama.cpp computes the frequencies of a whole file at once, and cannot be stopped
meanwhile: ten minutes of audio take it 3 seconds on two busy cores.
"""
AUDIO_SUFFIXES = frozenset(
    (
        ".wav", ".wave", ".mp3", ".flac",
        ".aac", ".aif", ".aiff", ".m4a", ".oga", ".ogg", ".opus", ".wma",
    )
)  # fmt: skip
"""The suffixes of files that are taken for audio.

Some are of kinds that cannot be read: the error then names the kind.
"""
AudioKind = Literal["wav", "mp3", "flac"]
AUDIO_KINDS: tuple[AudioKind, ...] = ("wav", "mp3", "flac")

_MIN_RATE = 4_000
_MAX_RATE = 384_000
_MAX_CHANNELS = 8
_MAX_NAME = 100
SAVE_AUDIO_AS = "Save it as WAV, MP3 or FLAC."


class Audio(Struct, frozen=True):
    """What is known of an audio file without decoding it."""

    name: str  # For people: sanitized, and without its folder.
    sha256: str  # Of its bytes, in hexadecimal digits.
    kind: AudioKind
    seconds: float
    sample_rate: int
    n_bytes: int = 0


class AudioData(Struct, frozen=True):
    """An audio file that llama.cpp can decode, and its bytes."""

    audio: Audio
    data: bytes


def load_audio(path: Path) -> AudioData:
    """Raises NotFoundError, StorageError, or AudioError if it cannot be used."""
    return accept_audio(_read_file(path), path.name)


def accept_audio(data: bytes, name: str) -> AudioData:
    """Audio that was received. Raises AudioError."""
    return AudioData(check_audio(data, name), data)


def check_audio(data: bytes, name: str) -> Audio:
    """The header of a WAV, MP3 or FLAC file.

    Raises AudioError for anything else, for a file that is cut short, and for one that
    is too large or too long.
    """
    shown = _shown_name(name)
    if len(data) > MAX_AUDIO_BYTES:
        raise _too_many_bytes(len(data), shown)
    kind = find_audio_kind(data)
    if kind is None:
        raise _refuse_kind(data, shown)
    try:
        header = _READERS[kind](data)
        _check_header(header)
    except (IndexError, struct.error):
        raise AudioError(
            f"{shown} is incomplete: it ends too early.", "Copy or download it again."
        ) from None
    except _BadAudioError as error:
        raise AudioError(f"{shown} {error}.", SAVE_AUDIO_AS) from None
    if header.seconds > MAX_AUDIO_SECONDS:
        raise AudioError(
            f"{shown} is too long: {duration(header.seconds)}; audio may have "
            f"{duration(MAX_AUDIO_SECONDS)}.",
            "Cut it into parts.",
        )
    return Audio(
        name=shown,
        sha256=compute_sha256(data),
        kind=kind,
        seconds=round(header.seconds, 3),
        sample_rate=header.sample_rate,
        n_bytes=len(data),
    )


def find_audio_kind(data: bytes) -> AudioKind | None:
    """The kind that the first bytes show; None for what llama.cpp cannot decode."""
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return "wav"
    if data.startswith(b"fLaC"):
        return "flac"
    if data.startswith(b"ID3") or _read_mp3_frame(data, 0) is not None:
        return "mp3"
    return None


def is_audio_name(path: str) -> bool:
    """Whether a file with this name is taken for audio."""
    return Path(path).suffix.lower() in AUDIO_SUFFIXES


def remove_claims(data: bytes, kind: AudioKind) -> bytes:
    """The bytes for llama.cpp's decoder, without what it would believe of a length.

    Of a WAV only the format and the samples are left: its `fact` chunk may claim any
    number of samples. Of an MP3 the frames are left that `check_audio` has counted. A
    checked FLAC file claims no length that it may not have.
    """
    if kind == "mp3":
        return _join_mp3_frames(data)
    if kind == "flac":
        return data
    wav = _find_wav_parts(data)
    samples = memoryview(data)[wav.start : wav.end]
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(samples),
        b"WAVE",
        b"fmt ",
        16,
        wav.format_tag,
        wav.n_channels,
        wav.sample_rate,
        wav.sample_rate * wav.frame_bytes,
        wav.frame_bytes,
        wav.sample_bits,
        b"data",
        len(samples),
    )
    return b"".join((head, samples))


# --- kinds


class _BadAudioError(Exception):
    """What is wrong with a file; it continues its name."""


class _AudioHeader(Struct, frozen=True, kw_only=True):
    n_samples: int  # Of each channel.
    sample_rate: int
    n_channels: int

    @property
    def seconds(self) -> float:
        return self.n_samples / self.sample_rate


def _check_header(header: _AudioHeader) -> None:
    if not _MIN_RATE <= header.sample_rate <= _MAX_RATE:
        raise _BadAudioError(f"has {header.sample_rate:,} samples a second")
    if not 1 <= header.n_channels <= _MAX_CHANNELS:
        raise _BadAudioError(f"has {header.n_channels} channels")
    if header.n_samples < 1:
        raise _BadAudioError("has no sound")


_PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8")
_OTHER_KINDS: tuple[tuple[bytes, int, str], ...] = (
    (b"OggS", 0, "an Ogg file (Vorbis or Opus)"),
    (b"ftypM4A", 4, "an M4A file (AAC)"),
    (b"AIFF", 8, "an AIFF file"),
    (b"AIFC", 8, "an AIFF file"),
    (b"\xff\xf1", 0, "an AAC file"),
    (b"\xff\xf9", 0, "an AAC file"),
    (b"0&\xb2u", 0, "a WMA file"),
    (b"RF64", 0, "a WAV file for more than 4 GB"),
    (b"#!AMR", 0, "an AMR file"),
    (b"MThd", 0, "a MIDI file"),
)
"""First bytes at an offset, and what such a file is."""


def _refuse_kind(data: bytes, name: str) -> AudioError:
    """The error that names what a file is, if it is no audio that can be read."""
    if not data:
        return AudioError(f"{name} is empty.", "Send audio.")
    if data.startswith(_PICTURES):
        return AudioError(
            f"{name} is a picture, not audio.",
            "Attach it as a picture: /image in a chat, --image in run.",
        )
    for prefix, offset, what in _OTHER_KINDS:
        if data.startswith(prefix, offset):
            return AudioError(f"{name} is {what}, which cannot be read.", SAVE_AUDIO_AS)
    return AudioError(f"{name} is no audio file that can be read.", SAVE_AUDIO_AS)


def _shown_name(name: str) -> str:
    shown = sanitize(name, multiline=False)
    if len(shown) > _MAX_NAME:
        shown = f"{shown[: _MAX_NAME - 1]}…"
    return shown or "The audio"


def _too_many_bytes(n_bytes: int, name: str) -> AudioError:
    return AudioError(
        f"{name} has {n_bytes:,} bytes; audio may have {size_limit(MAX_AUDIO_BYTES)}.",
        "Cut it into parts, or save it as MP3.",
    )


def _read_file(path: Path) -> bytes:
    name = _shown_name(path.name)
    return read_media_file(
        path,
        name,
        n_max=MAX_AUDIO_BYTES,
        too_large=_too_many_bytes,
        is_folder=AudioError(
            f"{name} is a folder, not an audio file.", "Send a WAV, MP3 or FLAC."
        ),
    )


# --- WAV

_MAX_CHUNKS = 10_000
_PCM = 1
_FLOAT = 3
_A_LAW = 6
_MU_LAW = 7
_EXTENSIBLE = 0xFFFE
"""The format is the first two bytes of a longer name, 24 bytes after the tag."""
_WAV_BITS: Mapping[int, tuple[int, ...]] = {
    _PCM: (8, 16, 24, 32),
    _FLOAT: (32, 64),
    _A_LAW: (8,),
    _MU_LAW: (8,),
}
"""The bits that a sample may have, by format; no other format is read."""
_UNKNOWN_SIZE = 0xFFFFFFFF
"""The length of samples that a program wrote to a pipe: they go on to the file's end."""


class _WavParts(Struct, frozen=True):
    """The format of a WAV, and where its samples are."""

    format_tag: int
    n_channels: int
    sample_rate: int
    sample_bits: int
    start: int
    end: int

    @property
    def frame_bytes(self) -> int:
        """The bytes of one sample of each channel together."""
        return self.n_channels * self.sample_bits // 8


def _read_wav(data: bytes) -> _AudioHeader:
    wav = _find_wav_parts(data)
    n_samples = (wav.end - wav.start) // wav.frame_bytes
    return _AudioHeader(
        n_samples=n_samples,
        sample_rate=wav.sample_rate,
        n_channels=wav.n_channels,
    )


def _find_wav_parts(data: bytes) -> _WavParts:
    """Find the chunks `fmt ` and `data`.

    A file is a row of chunks: a name, four bytes of length, and the body, which takes an
    even number of bytes. Mostly `fmt ` is at byte 12 with a body of 16 bytes, so `data`
    is at 36 and the samples begin at 44.

    Raises _BadAudioError, or IndexError or struct.error at an early end.
    """
    at = 12
    format_at: int | None = None
    for _ in range(_MAX_CHUNKS):
        name, length = struct.unpack_from("<4sI", data, at)
        body = at + 8
        if name == b"data" and format_at is not None:
            return _make_wav_parts(data, format_at=format_at, start=body, length=length)
        if name == b"data":
            raise _BadAudioError("is damaged: its format is unknown")
        if name == b"fmt " and format_at is None:
            format_at = body
        at = body + length + length % 2
        if at >= len(data):
            raise IndexError
    raise _BadAudioError("is damaged: it has no sound")


def _make_wav_parts(
    data: bytes, *, format_at: int, start: int, length: int
) -> _WavParts:
    """The parts, with what `fmt ` at `format_at` says. Raises as `_find_wav_parts`."""
    tag, n_channels, rate, _, frame_bytes, bits = struct.unpack_from(
        "<HHIIHH", data, format_at
    )
    if tag == _EXTENSIBLE:
        (tag,) = struct.unpack_from("<H", data, format_at + 24)
    if bits not in _WAV_BITS.get(tag, ()):
        raise _BadAudioError("is a WAV of a rare kind, which cannot be read")
    if not n_channels or frame_bytes != n_channels * bits // 8:
        raise _BadAudioError("is damaged: its format contradicts itself")
    end = start + length
    if length == _UNKNOWN_SIZE:
        end = len(data)
    if end > len(data):
        raise IndexError
    return _WavParts(
        format_tag=tag,
        n_channels=n_channels,
        sample_rate=rate,
        sample_bits=bits,
        start=start,
        end=end,
    )


# --- MP3

_KILOBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
"""Kilobits a second by the number in a header of MPEG 1; 0 stands for any."""
_KILOBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""The same table for MPEG 2 and 2.5."""
_RATES = (44_100, 48_000, 32_000)
"""Samples a second of MPEG 1; MPEG 2 has half of them, and MPEG 2.5 a quarter."""
_MAX_GARBAGE = 64 * 2**10
"""Bytes between frames, such as tags in the middle; more of them are no MP3."""
_XING_OFFSETS = (13, 21, 36)
"""How many bytes after its beginning a first frame may say the number of frames."""
_CHECKSUM_BYTES = 2
"""In a frame with a checksum all that comes after the header is so much later."""


class _Mp3Frame(Struct, frozen=True, kw_only=True):
    n_bytes: int
    n_samples: int
    sample_rate: int
    n_channels: int

    def is_like(self, other: _Mp3Frame) -> bool:
        """Whether both are of one recording, as the decoder judges it."""
        has_same_length = self.n_samples == other.n_samples
        return has_same_length and self.sample_rate == other.sample_rate


def _read_mp3_frame(data: bytes, at: int) -> _Mp3Frame | None:
    """The header of a frame of layer III, four bytes; None if it is none.

    FF FB 90 64, say, is MPEG 1, 128 kilobits and 44,100 samples a second: a frame of
    1,152 samples takes 144 × 128,000 / 44,100 = 417 bytes.
    """
    head = data[at : at + 4]
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version = head[1] >> 3 & 3  # 3: MPEG 1; 2: MPEG 2; 0: MPEG 2.5.
    rate_index = head[2] >> 2 & 3
    bit_index = head[2] >> 4
    if version == 1 or rate_index == 3 or bit_index in (0, 15):
        return None
    rate = _RATES[rate_index]
    if version == 3:
        kilobits = _KILOBITS_1[bit_index]
        n_samples = 1152
    else:
        kilobits = _KILOBITS_2[bit_index]
        n_samples = 576
        rate //= 2
        if version == 0:
            rate //= 2
    n_channels = 2
    if head[3] >> 6 == 3:
        n_channels = 1
    padding = head[2] >> 1 & 1
    n_bytes = n_samples // 8 * kilobits * 1000 // rate + padding
    return _Mp3Frame(
        n_bytes=n_bytes,
        n_samples=n_samples,
        sample_rate=rate,
        n_channels=n_channels,
    )


def _read_mp3(data: bytes) -> _AudioHeader:
    """Count all frames: the header of a frame does not say how many there are.

    The first frame may say so (`_find_claimed_frames`). Then it has no sound, and fewer
    frames than it says mean that the file is cut short.
    """
    first: _Mp3Frame | None = None
    first_at = 0
    n_frames = 0
    for at, frame in _iter_mp3_frames(data):
        if first is None:
            first = frame
            first_at = at
        n_frames += 1
        if n_frames * frame.n_samples > MAX_AUDIO_SECONDS * frame.sample_rate:
            break  # It is too long already.
    if first is None:
        raise _BadAudioError("is damaged: it has no sound")
    n_claimed = _find_claimed_frames(data, first_at)
    if n_claimed is not None:
        n_frames -= 1  # The first says the length, and has no sound.
        if n_claimed > n_frames + 1:
            raise IndexError
    return _AudioHeader(
        n_samples=n_frames * first.n_samples,
        sample_rate=first.sample_rate,
        n_channels=first.n_channels,
    )


def _iter_mp3_frames(data: bytes) -> Iterator[tuple[int, _Mp3Frame]]:
    """The complete frames, and where each begins. Raises _BadAudioError.

    What is between frames is skipped, up to `_MAX_GARBAGE` bytes.
    """
    at = _find_id3_end(data)
    before: _Mp3Frame | None = None
    n_garbage = 0
    while at < len(data):
        frame = _read_mp3_frame(data, at)
        is_next = frame is not None and (before is None or frame.is_like(before))
        if frame is None or not is_next:
            end = data.find(b"\xff", at + 1)
            if end < 0:
                end = len(data)
            n_garbage += end - at
            at = end
        elif at + frame.n_bytes > len(data):
            return  # The recording was stopped inside a frame.
        elif before is None and not _has_next(data, at, frame):
            n_garbage += 1
            at += 1
        else:
            yield at, frame
            before = frame
            at += frame.n_bytes
        if n_garbage > _MAX_GARBAGE:
            raise _BadAudioError("is damaged: much of it is no sound")


def _has_next(data: bytes, at: int, frame: _Mp3Frame) -> bool:
    """Whether another frame follows, or the file ends: four bytes may look like one."""
    following = at + frame.n_bytes
    if following == len(data):
        return True
    other = _read_mp3_frame(data, following)
    return other is not None and other.is_like(frame)


def _find_id3_end(data: bytes) -> int:
    """The byte behind the tag at the beginning; 0 without a tag.

    The length of a tag has seven bits a byte: 00 00 02 01 is 2 × 128 + 1 = 257. With the
    ten bytes before it, such a tag ends at 267.
    """
    if not data.startswith(b"ID3"):
        return 0
    flags, *digits = struct.unpack_from("<BBBBB", data, 5)
    length = 0
    for digit in digits:
        length = length << 7 | digit & 0x7F
    end = 10 + length
    if flags & 0x10:
        end += 10  # A footer, which has the bytes of the header again.
    return end


def _find_claimed_frames(data: bytes, at: int) -> int | None:
    """How many frames the first says that there are; None if it says nothing.

    Which of the places counts depends on the frame's header; the largest number is
    taken.
    """
    claims: list[int] = []
    for mark in _find_claim_marks(data, at):
        (flags,) = struct.unpack_from(">I", data, mark + 4)
        if flags & 1:
            (n_frames,) = struct.unpack_from(">I", data, mark + 8)
            claims.append(n_frames)
    return max(claims, default=None)


def _find_claim_marks(data: bytes, at: int) -> list[int]:
    """Where the frame at `at` has a mark behind which the number of frames may be."""
    marks: list[int] = []
    for offset in _XING_OFFSETS:
        for checksum in (0, _CHECKSUM_BYTES):
            mark = at + offset + checksum
            if data[mark : mark + 4] in (b"Xing", b"Info"):
                marks.append(mark)
    return marks


def _join_mp3_frames(data: bytes) -> bytes:
    """The frames without what is between them, and with no claim but the first's.

    The decoder judges by rules of its own which frame is the first. It may be one that
    was garbage here, or, if the first cannot be decoded, any later one; and what that
    claims was not checked. 14 kB took 10 GB so.
    """
    frames: list[bytes] = []
    for at, frame in _iter_mp3_frames(data):
        end = at + frame.n_bytes
        if frames:
            frames.append(_remove_claim_marks(data[at:end]))
        else:
            frames.append(data[at:end])
    return b"".join(frames)


def _remove_claim_marks(frame: bytes) -> bytes:
    for mark in _find_claim_marks(frame, 0):
        frame = frame[:mark] + bytes(4) + frame[mark + 4 :]
    return frame


# --- FLAC

_STREAM_INFO_BYTES = 34
_MAX_BLOCKS = 1_000
_LAST_FRAME_BYTES = 2**20
"""The last frame is looked for in so many bytes; most have 16 kB at most."""
_FRAME_MARKS = (b"\xff\xf8", b"\xff\xf9")
"""How a frame begins: the first if all are of one length, else the second.

Frames of one length are numbered: 0, 1, 2. Other frames have the number of their first
sample: 0, 4096, 5000.
"""
_BLOCK_SIZE_BYTES = {6: 1, 7: 2}
"""Bytes that a frame's header has for the number of samples, by the code for it."""
_RATE_BYTES = {12: 1, 13: 2, 14: 2}
"""Bytes that a frame's header has for the sample rate, by the code for it."""


def _read_flac(data: bytes) -> _AudioHeader:
    """The header of a file with all of its frames.

    The first block has in eight bytes: 20 bits of sample rate, 3 of channels less 1, 5 of
    bits a sample less 1, and 36 of samples. The blocks after it are skipped.
    """
    block_samples, longest, numbers = struct.unpack_from(">HH6x8s", data, 8)
    bits = int.from_bytes(numbers, "big")
    rate = bits >> 44
    n_channels = (bits >> 41 & 7) + 1
    n_samples = bits & (1 << 36) - 1
    if data[4] & 0x7F or int.from_bytes(data[5:8], "big") != _STREAM_INFO_BYTES:
        raise _BadAudioError("is damaged: its first block is missing")
    if not n_samples:
        raise _BadAudioError("does not say how long it is")
    if not rate or block_samples < 16:
        raise _BadAudioError("is damaged: its format is unknown")
    frames = _find_flac_frames(data)
    last_number = (n_samples - 1) // block_samples
    if data[frames : frames + 2] == _FRAME_MARKS[1]:
        # The last frame has the longest's samples at most, so it begins here or later.
        last_number = max(n_samples - longest, 0)
    _check_flac_end(data, frames_at=frames, last_number=last_number)
    return _AudioHeader(n_samples=n_samples, sample_rate=rate, n_channels=n_channels)


def _find_flac_frames(data: bytes) -> int:
    """The byte at which the blocks end and the frames begin."""
    at = 4
    for _ in range(_MAX_BLOCKS):
        is_last = data[at] & 0x80
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "big")
        if is_last:
            if data[at : at + 2] not in _FRAME_MARKS:
                raise IndexError
            return at
    raise _BadAudioError("is damaged: it has no sound")


def _check_flac_end(data: bytes, *, frames_at: int, last_number: int) -> None:
    """Raise IndexError unless the last frame is there.

    Of a file that is cut short llama.cpp would decode what there is, and take silence
    for the rest. With 4,096 samples a frame, 100,000 samples have 25 frames: the last
    is number 24.
    """
    mark = data[frames_at : frames_at + 2]
    at = len(data)
    least = max(frames_at, len(data) - _LAST_FRAME_BYTES)
    while True:
        at = data.rfind(mark, least, at)
        if at < 0:
            raise IndexError
        number = _read_flac_number(data, at)
        if number is not None and number >= last_number:
            return


def _read_flac_number(data: bytes, at: int) -> int | None:
    """The number in a frame's header; None if it is no frame, by its checksum.

    A header is the mark (2 bytes), codes (2), the number (1 to 7), perhaps the number of
    samples and the sample rate, and the checksum (1) of all before it.
    """
    if at + 5 > len(data):
        return None
    codes = data[at + 2]
    end = _find_number_end(data, at + 4)
    number = _decode_number(data[at + 4 : end])
    end += _BLOCK_SIZE_BYTES.get(codes >> 4, 0)
    end += _RATE_BYTES.get(codes & 15, 0)
    if end >= len(data) or _crc8(data[at:end]) != data[end]:
        return None
    return number


def _find_number_end(data: bytes, at: int) -> int:
    """The byte behind a number that is written as UTF-8 writes characters.

    It has 1 byte below 80, else as many as the first byte has leading ones: C4 is
    11000100, so C4 80 has 2.
    """
    first = data[at]
    if first < 0x80:
        return at + 1
    n_bytes = 1
    while n_bytes < 8 and first & 0x80 >> n_bytes:
        n_bytes += 1
    return at + n_bytes


def _decode_number(encoded: bytes) -> int:
    """The number without the leading ones: C4 80 is 100, in hexadecimal digits."""
    if not encoded:
        return 0
    if len(encoded) == 1:
        return encoded[0]
    number = encoded[0] & 0x7F >> len(encoded)
    for byte in encoded[1:]:
        number = number << 6 | byte & 0x3F
    return number


def _crc8(data: bytes) -> int:
    """The checksum of a frame's header, by the polynomial x⁸ + x² + x + 1."""
    value = 0
    for byte in data:
        value ^= byte
        for _ in range(8):
            value <<= 1
            if value & 0x100:
                value ^= 0x107
    return value


_READERS: Mapping[AudioKind, Callable[[bytes], _AudioHeader]] = {
    "wav": _read_wav,
    "mp3": _read_mp3,
    "flac": _read_flac,
}
"""Each raises _BadAudioError, or IndexError or struct.error at an early end."""
