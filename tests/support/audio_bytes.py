"""Files of audio, made byte by byte: whole ones, and hostile ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MP3_HEAD = bytes((0xFF, 0xFB, 0x90, 0x64))
"""MPEG 1, layer III, 128 kilobits, 44,100 samples a second, two channels."""
MP3_FRAME = 417
MP3_SAMPLES = 1152
MP3_RATE = 44_100


def chunk(name: bytes, body: bytes) -> bytes:
    padding = b"\0" * (len(body) % 2)
    return name + struct.pack("<I", len(body)) + body + padding


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wav_format(
    tag: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16
) -> bytes:
    frame = channels * bits // 8
    numbers = (tag, channels, rate, rate * frame, frame, bits)
    return chunk(b"fmt ", struct.pack("<HHIIHH", *numbers))


def silent_mp3(n_frames: int, claimed: int | None = None, tag: bytes = b"") -> bytes:
    """Frames of silence; `claimed`: the number that a frame before them says."""
    frame = _MP3_HEAD + b"\0" * (MP3_FRAME - len(_MP3_HEAD))
    first = b""
    if claimed is not None:
        said = b"Xing" + struct.pack(">II", 1, claimed)
        first = frame[:36] + said + frame[36 + len(said) :]
    return tag + first + frame * n_frames


def claiming_mp3s(claimed: int) -> dict[str, bytes]:
    """Files of 20 frames, of which one that is not the first, for us, claims a number."""
    claim = silent_mp3(0, claimed)
    frames = silent_mp3(20)
    # A frame without the sound of others before it that it names cannot be decoded.
    undecodable = _MP3_HEAD + b"\xff" * 2 + b"\0" * (MP3_FRAME - len(_MP3_HEAD) - 2)
    two_marks = claim[:13] + b"Info" + claim[17:]
    return {
        "a frame with garbage behind it": claim + b"\0" * 4 + frames,
        "a frame behind one that cannot be decoded": undecodable + claim + frames,
        "a frame in the middle": frames + claim + frames,
        "a mark behind another one": two_marks + frames,
    }


def id3_tag(n_bytes: int) -> bytes:
    """A tag that has a text of this length."""
    digits = bytes(n_bytes >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\0\0" + digits + b"\0" * n_bytes


def flac(samples: NDArray[np.int16], rate: int = 16_000, block: int = 1024) -> bytes:
    """The file of one channel of 16 bits, without compression."""
    n = len(samples)
    numbers = rate << 44 | 15 << 36 | n
    info = struct.pack(">HH6x8s16x", block, block, numbers.to_bytes(8, "big"))
    head = b"fLaC" + bytes((0x80,)) + len(info).to_bytes(3, "big") + info
    frames = [
        _flac_frame(samples[start : start + block], start // block)
        for start in range(0, n, block)
    ]
    return head + b"".join(frames)


def _flac_frame(samples: NDArray[np.int16], number: int) -> bytes:
    n = len(samples)
    # The length is in 16 bits behind the number; one channel of 16 bits.
    head = bytes((0xFF, 0xF8, 0x70, 0x08)) + _number(number) + struct.pack(">H", n - 1)
    head += bytes((_crc(head, bits=8, polynomial=0x07),))
    verbatim = bytes((0x02,))
    body = head + verbatim + samples.astype(">i2").tobytes()
    return body + struct.pack(">H", _crc(body, bits=16, polynomial=0x8005))


def _number(value: int) -> bytes:
    """As UTF-8 writes characters."""
    return chr(value).encode()


def _crc(data: bytes, *, bits: int, polynomial: int) -> int:
    value = 0
    top = 1 << bits - 1
    mask = (1 << bits) - 1
    for byte in data:
        value ^= byte << bits - 8
        for _ in range(8):
            is_set = value & top
            value = value << 1 & mask
            if is_set:
                value ^= polynomial
    return value


def loud(n: int, seed: int = 0) -> NDArray[np.int16]:
    """Noise."""
    rng = np.random.default_rng(seed)
    return rng.integers(-20_000, 20_000, n).astype(np.int16)


def hostile_files() -> dict[str, tuple[bytes, str]]:
    """By name: the bytes, and a part of what is said of them."""
    samples = b"\1\2" * 800
    whole = riff(wav_format(), chunk(b"data", samples))
    flac_file = flac(loud(5000))
    huge = bytearray(flac_file)
    huge[21:26] = b"\x0f\xff\xff\xff\xff"  # The samples that it claims.
    long_wav = riff(wav_format(rate=4000, bits=8), chunk(b"data", b"\0" * 8_000_000))
    cases: Sequence[tuple[str, bytes, str]] = (
        ("nothing", b"", "is empty"),
        ("text", b"What is said here is not audio at all.", "is no audio file"),
        ("picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 60, "is a picture, not audio"),
        ("ogg", b"OggS" + b"\0" * 60, "is an Ogg file"),
        ("m4a", b"\0\0\0\x20ftypM4A " + b"\0" * 60, "is an M4A file"),
        ("wav without chunks", b"RIFF\0\0\0\0WAVE", "ends too early"),
        ("wav without a format", riff(chunk(b"data", samples)), "format is unknown"),
        ("wav cut in half", whole[: len(whole) // 2], "ends too early"),
        ("wav of no samples", riff(wav_format(), chunk(b"data", b"")), "has no sound"),
        ("wav of ADPCM", riff(wav_format(2, bits=4), chunk(b"data", samples)), "rare"),
        (
            "wav of no channels",
            riff(wav_format(channels=0), chunk(b"data", samples)),
            "contradicts itself",
        ),
        (
            "wav of 300 channels",
            riff(wav_format(channels=300), chunk(b"data", samples * 9)),
            "has 300 channels",
        ),
        (
            "wav of one sample a second",
            riff(wav_format(rate=1), chunk(b"data", samples)),
            "has 1 samples a second",
        ),
        ("wav of 33 minutes", long_wav, "is too long: 33 min 20 s"),
        ("wav of empty chunks", riff(*[chunk(b"junk", b"")] * 20_000), "has no sound"),
        ("mp3 tag alone", id3_tag(100), "has no sound"),
        ("mp3 that claims more", silent_mp3(20, 2_000_000_000), "ends too early"),
        ("mp3 of noise", silent_mp3(5) + b"\1" * 100_000, "much of it is no sound"),
        ("mp3 of an hour", silent_mp3(140_000 // 2), "is too long"),
        ("flac cut in half", flac_file[: len(flac_file) // 2], "ends too early"),
        ("flac that claims 68 billion samples", bytes(huge), "ends too early"),
        ("flac header alone", flac_file[:42], "ends too early"),
    )
    return {name: (data, said) for name, data, said in cases}
