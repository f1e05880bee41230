"""Hostile pictures and projectors against the real engine process, which lives on."""

import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec.engine_process.client import EngineProcess
from localspec.errors import LocalspecError, ModelFileError, PictureError
from localspec.protocol import wire
from localspec.protocol.events import (
    EngineExit,
    GenerationFinished,
    PictureReading,
    Prefill,
)
from tests.support.picture_bytes import (
    empty_png,
    jpeg,
    jpeg_header,
    png,
    png_chunk,
    png_header,
    shades,
)
from tests.support.vision_models import VisionModels

SMALL = wire.ContextSettings(n_ctx=1024, n_threads=1, n_ubatch=128)
GREEDY = wire.SamplingParams(temperature=0)
GOOD = png(shades(40, 30))
HALF_JPEG = jpeg(shades(40, 40))
FAULTS: dict[str, bytes] = {
    "no bytes": b"",
    "one byte": b"x",
    "text": b"hello " * 50,
    "WebP": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(60),
    "TIFF": b"II*\0" + bytes(60),
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500),
    "AVIF": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(500),
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
    "PDF": b"%PDF-1.7\n" + bytes(300),
    "MP4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(900),
    "WAV": b"RIFF\x24\0\0\0WAVEfmt " + bytes(60),
    "FF E0": b"\xff\xe0" + bytes(50),
    "JPEG, first half": HALF_JPEG[: len(HALF_JPEG) // 2],
    "JPEG, 100 bytes": HALF_JPEG[:100],
    "JPEG without pixels": jpeg_header(64, 64) + b"\xff\xda\0\x02\xff\xd9",
    "PNG, first half": GOOD[: len(GOOD) // 2],
    "PNG, header only": png_header(200, 200) + png_chunk(b"IEND", b""),
    "PNG of 20,000 x 20,000": png_header(20_000, 20_000)
    + png_chunk(b"IDAT", b"")
    + png_chunk(b"IEND", b""),
    "PNG of 40,000 x 30,000": png_header(40_000, 30_000) + png_chunk(b"IEND", b""),
    "PNG with wrong pixels": GOOD.replace(b"IDAT", b"IDAT" + b"\0" * 9, 1),
    "GIF without pixels": b"GIF89a\x09\0\x09\0\0\0\0\x2c"
    + bytes(4)
    + b"\x09\0\x09\0\0\x02\x01\xff\0\x3b",
}


@pytest.fixture
def engine(vision_models: VisionModels) -> Iterator[EngineProcess]:
    files = vision_models["gemma3"]
    with closing(EngineProcess()) as process:
        process.load(
            wire.LoadCommand(
                str(files.model),
                target_settings=SMALL,
                projector=wire.ProjectorSettings(str(files.projector)),
            )
        )
        yield process


def ask(folder: Path, data: bytes, name: str = "photo.png") -> wire.GenerateCommand:
    sha256 = hashlib.sha256(data).hexdigest()
    path = folder / sha256
    path.write_bytes(data)
    picture = wire.PictureRef(str(path), sha256, name)
    question = wire.ChatMessage("user", "hi", images=(picture,))
    return wire.GenerateCommand(messages=(question,), sampling=GREEDY, max_tokens=4)


def test_every_fault_is_answered_and_the_engine_lives(
    engine: EngineProcess, tmp_path: Path
) -> None:
    for fault, data in FAULTS.items():
        request = ask(tmp_path, data)

        with pytest.raises(PictureError, match=r"photo\.png") as failure:
            list(engine.generate(request))
        with suppress(LocalspecError):  # Its header may be right.
            assert engine.count(request.to_count()).tokens > 0

        assert failure.value.hint, fault
        assert engine.alive, fault

    end = list(engine.generate(ask(tmp_path, GOOD)))[-1]
    assert isinstance(end, GenerationFinished)


def test_no_other_program_is_started_for_odd_bytes(
    vision_models: VisionModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libmtmd starts ffprobe and ffmpeg from PATH on what it cannot decode."""
    traces = tmp_path / "traces"
    traces.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("ffprobe", "ffmpeg"):
        program = programs / name
        program.write_text(f"#!/bin/sh\ntouch {traces}/{name}\n", errors="strict")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    files = vision_models["gemma3"]
    with closing(EngineProcess()) as process:
        process.load(
            wire.LoadCommand(
                str(files.model),
                target_settings=SMALL,
                projector=wire.ProjectorSettings(str(files.projector)),
            )
        )
        for data in FAULTS.values():
            with pytest.raises(PictureError):
                list(process.generate(ask(tmp_path, data)))

    assert list(traces.iterdir()) == []


def test_a_large_picture_is_read_in_bounded_memory(
    engine: EngineProcess, tmp_path: Path
) -> None:
    end = list(engine.generate(ask(tmp_path, empty_png(8000, 5000))))[-1]

    assert isinstance(end, GenerationFinished)
    assert end.reason in ("length", "eog")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_an_engine_that_is_killed_while_it_reads_a_picture_is_told(
    engine: EngineProcess, tmp_path: Path
) -> None:
    events = []
    # A short answer would have ended before the signal comes.
    request = replace(ask(tmp_path, GOOD), max_tokens=900)
    for event in engine.generate(request):
        events.append(event)
        if isinstance(event, PictureReading):
            os.kill(engine.pid, signal.SIGKILL)

    end = events[-1]
    assert isinstance(end, EngineExit)
    assert end.how == "oom-system"
    assert "mmproj" not in end.hint
    assert not engine.alive


@pytest.mark.parametrize(
    ("how", "is_blamed"),
    [
        ("assert", True),
        ("signal SIGABRT", True),
        ("signal SIGSEGV", True),
        ("oom-system", False),
        ("hang", False),
    ],
)
def test_a_crash_while_a_picture_is_read_names_the_projector(
    engine: EngineProcess, how: str, is_blamed: bool
) -> None:
    engine._keep_reply(PictureReading(n=1, of=1, rows=16, width=40, height=30))

    end = engine._record_exit(EngineExit(how))

    assert ("mmproj-gemma3.gguf" in end.hint) == is_blamed


def test_a_crash_behind_a_picture_is_not_blamed_on_the_projector(
    engine: EngineProcess,
) -> None:
    engine._keep_reply(PictureReading(n=1, of=1, rows=16, width=40, height=30))
    engine._keep_reply(Prefill(done=0, total=20, reused=0))

    end = engine._record_exit(EngineExit("assert"))

    assert "mmproj" not in end.hint


def test_a_broken_projector_fails_the_load_and_not_the_process(
    vision_models: VisionModels, tmp_path: Path
) -> None:
    files = vision_models["gemma3"]
    broken = tmp_path / "mmproj-broken.gguf"
    data = files.projector.read_bytes()
    broken.write_bytes(data.replace(b"head_count\4\0\0\0\2", b"head_count\4\0\0\0\3"))
    with closing(EngineProcess()) as process:
        load = wire.LoadCommand(
            str(files.model),
            target_settings=SMALL,
            projector=wire.ProjectorSettings(str(broken)),
        )

        with pytest.raises(ModelFileError, match=r"mmproj-broken\.gguf"):
            process.load(load)

        assert process.alive
        assert process.load(wire.LoadCommand(str(files.model), target_settings=SMALL))
