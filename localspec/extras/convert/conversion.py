"""Converts a model's file to another weight type, with llama.cpp's quantizer.

The copy is compared with its source on what the source writes. It gets its name when it
is complete, so an interrupted conversion leaves no file under that name.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from localspec import data_files
from localspec.data_files import FileLock
from localspec.errors import EngineError, LocalspecError, StorageError, UsageError
from localspec.extras.convert.child_requests import (
    ChildRequest,
    CompareRequest,
    Comparison,
    QuantizedFile,
    QuantizeRequest,
)
from localspec.machine import (
    background_process,
    installed_llama_cpp,
    type_speeds,
)
from localspec.machine.background_process import OnProcessStart
from localspec.machine.type_speeds import TypeSpeed
from localspec.models import draft_heads, model_names
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import FILE_TYPES, GGML_TYPES
from localspec.models.local_files import inventory
from localspec.models.reference import parse_file_name
from localspec.paths import DataFile
from localspec.protocol.events import Notice
from localspec.protocol.json_values import from_json, to_plain
from localspec.sanitize import sanitize
from localspec.temporary_files import unnamed_file
from localspec.units import gb

MAX_DIVERGENCE = 0.05
"""`auto` keeps no copy whose mean divergence from its source is larger, in nats.

The limit is our choice.
"""
_NEED_IMATRIX = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M", "IQ3_XXS", "IQ3_XS", "Q2_K_S",
)  # fmt: skip
_EXPERTS_ONLY = "MXFP4"
"""llama.cpp's quantizer gives this type to experts only, and Q8_0 to other weights."""
_FILE_TYPE_OF = {"Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
"""The file type of these weight types; the others have the same name as their file type."""
_AS_PRECISE = {"Q4_1": "Q4_K", "Q5_1": "Q5_K"}
"""Types that keep what a source's type keeps, with fewer bits.

Both have a scale and a minimum for 32 weights. Those of Q4_1 are in F16, those of Q4_K in
6 bits. The copy of SmolLM2 differs by 0.05 nats, one in Q4_0 by 0.21 (docs/benchmarks.md).
"""
_NUMBERS = {name: number for number, name in FILE_TYPES.items() if name != "NVFP4"}
"""llama.cpp's numbers of the file types that its quantizer writes: it refuses NVFP4."""
STARTER_TYPE = "Q8_0"
"""The type of the packaged model's copy on a CPU.

It reads 2.2 and writes 1.2 times as fast as the original's Q4_1, verifies four tokens in
the time of two, and differs by 0.004 nats. Q4_K_M is no faster, and a copy in it answers
the app's first example wrongly (docs/benchmarks.md).
"""
_SIZE_MARGIN = 1.12  # Some tensors get more bits than the type has.
_NEARLY_FULL = 1 << 20  # A disk with at most so many free bytes counts as full.
_MIN_GAIN = 1.3  # A conversion is suggested if it reads or writes so much faster.

_CHILD = "localspec.extras.convert.conversion_child"
ORIGIN_KEY = "localspec.converted_from"
_HINT = "A copy, compared with the original: localspec convert"

Progress = tuple[str, float]
"""What is being done, and the share of it that is done."""
ResultT = TypeVar("ResultT", QuantizedFile, Comparison)


class ComparisonTrial(Struct, frozen=True):
    """How a copy is compared with its source, and what it must reach to be kept."""

    texts: Sequence[str]  # The source continues them.
    n_tokens: int  # How many tokens are compared, of all texts together.
    max_divergence: float = inf  # Nats.


class ConvertedModel(Struct, frozen=True):
    path: Path
    type: str
    size: int
    comparison: Comparison | None
    is_kept: bool = True


class Source(Struct, frozen=True):
    """A model's file that can be converted."""

    path: Path
    header: Header

    @property
    def stem(self) -> str:
        """The file's name without its type."""
        name = parse_file_name(self.path.name)
        return name.stem.removesuffix(name.tag or "").rstrip("-._") or name.stem


def open_source(path: Path) -> Source:
    """Raises ModelFileError, or UsageError for a file that is no model."""
    reader.check_loadable(path)
    header = reader.read_model(path)
    if draft_heads.is_head(header):
        raise UsageError(
            f"{path.name} is a draft head, not a model.", "Convert its model."
        )
    if header.has_trimmed_vocabulary:
        raise UsageError(
            f"The vocabulary of {path.name} is trimmed.", "Convert its source first."
        )
    return Source(path, header)


def check_type(source: Source, name: str) -> str:
    """The file type of a typed name. Raises UsageError."""
    kind = _FILE_TYPE_OF.get(name.upper(), name.upper())
    if kind in _NEED_IMATRIX:
        raise UsageError(
            f"{kind} needs an importance matrix, which localspec does not compute.",
            "Download a file of this type, or choose Q3_K_M or IQ4_NL.",
        )
    if kind not in _NUMBERS:
        known = ", ".join(kind for kind in _NUMBERS if kind not in _NEED_IMATRIX)
        raise UsageError(
            f"There is no type {sanitize(name, multiline=False)}.", f"Types: {known}."
        )
    if kind == _EXPERTS_ONLY and not source.header.is_moe:
        raise UsageError(
            f"{kind} is for mixtures of experts.", "Choose Q4_K_M or IQ4_NL."
        )
    if kind == source.header.quantization:
        raise UsageError(
            f"{source.path.name} is {kind} already.", "Choose another type."
        )
    return kind


def rank_types(header: Header, speeds: Sequence[TypeSpeed]) -> list[str]:
    """File types that this CPU computes faster than the source's, the fastest first.

    None has fewer bits than the source, counted in whole bits, but for `_AS_PRECISE`. For
    a source of Q4_1 (5.0 bits) Q8_0 and Q4_K (4.5 bits) are possible, Q4_0 (4.5 bits) is
    not. Speeds are those of a turn of a chat.
    """
    own_type = header.main_type
    own_bits = int(_bits(own_type))
    own_ms = next((speed.turn_ms for speed in speeds if speed.name == own_type), inf)
    usable: list[TypeSpeed] = []
    for speed in speeds:
        is_writable = speed.name != _EXPERTS_ONLY or header.is_moe
        is_faster = speed.turn_ms < own_ms
        is_precise = (
            int(speed.bits) >= own_bits or _AS_PRECISE.get(own_type) == speed.name
        )
        if is_writable and is_faster and is_precise:
            usable.append(speed)
    usable.sort(key=lambda speed: speed.turn_ms)
    return [_FILE_TYPE_OF.get(speed.name, speed.name) for speed in usable]


def suggest_conversion(header: Header) -> str:
    """What `convert` would gain on this CPU, by the timed types, or "".

    It is empty if the gain is small, and for a file that is a copy itself.
    """
    speeds = type_speeds.read_types()
    own = speeds.get(header.main_type)
    if own is None or ORIGIN_KEY in header.keys:
        return ""
    for kind in rank_types(header, list(speeds.values())):
        speed = speeds[type_speeds.weight_type(kind)]
        gain = speed.describe_gain(own, _MIN_GAIN)
        if gain:
            return f"{kind} {gain} as fast on this CPU as {own.name}"
    return ""


def suggest_once(path: Path, header: Header) -> Notice | None:
    """A notice of `suggest_conversion`; None if this model's was shown before."""
    if _is_listed(DataFile.SUGGESTED_CONVERSIONS, path):
        return None
    gain = suggest_conversion(header)
    if not gain:
        return None
    _add_to_list(DataFile.SUGGESTED_CONVERSIONS, path)
    return Notice("info", "convert", f"{gain}.", f"{_HINT} {shlex.quote(str(path))}")


def convert(
    source: Source,
    kind: str,
    out: Path,
    trial: ComparisonTrial | None = None,
    *,
    on_start: OnProcessStart = lambda _: None,
) -> Generator[Progress, None, ConvertedModel]:
    """Write a copy of `source`: yields the progress, and returns the copy.

    Without `trial` the copy is not compared with its source. No file is left by a copy
    that fails the trial, nor if the generator is closed early. `on_start` receives each
    process. Raises EngineError, StorageError, UsageError.
    """
    if out.exists():
        raise UsageError(
            f"{out.name} exists already.", "Choose another --out, or remove it."
        )
    _make_folder(out.parent)
    with unnamed_file(out) as (partial, give_name):
        size = yield from _quantize(source, kind, out, partial, on_start=on_start)
        comparison = None
        is_kept = True
        if trial is not None:
            request = CompareRequest(
                source=str(source.path),
                copy=partial,
                texts=list(trial.texts),
                n_tokens=trial.n_tokens,
            )
            comparison = yield from _run_child(
                request, Comparison, "comparing with the source", on_start
            )
            is_kept = comparison.divergence <= trial.max_divergence
        if is_kept:
            give_name()
    return ConvertedModel(
        path=out, type=kind, size=size, comparison=comparison, is_kept=is_kept
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        shown = sanitize(str(folder), multiline=False)
        message = f"The folder {shown} cannot be made: {error.strerror}."
        raise StorageError(message, "Move away what has its name.") from error


def _quantize(
    source: Source, kind: str, out: Path, partial: str, *, on_start: OnProcessStart
) -> Generator[Progress, None, int]:
    """Write the copy to `partial`, on the disk of `out`; returns its size in bytes."""
    needed = int(source.header.parameters * _bits(kind) / 8 * _SIZE_MARGIN)
    free = shutil.disk_usage(out.parent).free
    if free < needed:
        raise StorageError(
            f"The copy needs about {gb(needed)}; {gb(free)} are free in {out.parent}.",
            "Free disk space, or choose another --out.",
        )
    request = QuantizeRequest(
        source=str(source.path),
        out=partial,
        origin=source.path.name,
        file_type=_NUMBERS[kind],
    )
    try:
        written = yield from _run_child(
            request, QuantizedFile, f"converting to {kind}", on_start
        )
    except EngineError as error:
        if shutil.disk_usage(out.parent).free > _NEARLY_FULL:
            raise
        message = f"The disk became full while {out.name} was written."
        raise StorageError(
            message, f"It needs about {gb(needed)} in {out.parent}."
        ) from error
    return written.n_bytes


def _bits(kind: str) -> float:
    """Bits of a weight of a weight type, or of most weights of a file type.

    Most of Q4_K_M is Q4_K, which is its name without the last part; most of IQ3_M is
    IQ3_S.
    """
    bits_by_type = {type_.name: type_.bits for type_ in GGML_TYPES.values()}
    base = kind.rpartition("_")[0]
    for name in (kind, base):
        if name in bits_by_type:
            return bits_by_type[name]
    return bits_by_type[f"{base}_S"]


def _run_child(
    request: ChildRequest, result: type[ResultT], what: str, on_start: OnProcessStart
) -> Generator[Progress, None, ResultT]:
    """Run one request in a process: yields the progress of `what`, returns the result."""
    running = background_process.run(_CHILD, [to_plain(request)], on_start)
    with closing(running) as replies:
        for reply in replies:
            if isinstance(reply, dict):
                return from_json(result, reply)
            yield what, reply
    raise AssertionError("the last reply is a result")


# --- The packaged model's copy


class PackagedCopy(Struct, frozen=True):
    """The copy of a packaged model that CPUs compute faster, made or not."""

    source: Source
    type: str
    path: Path


def find_faster_copy(path: Path) -> PackagedCopy | None:
    """The copy that a packaged model is to have on this computer, made or not.

    None for every other file, where a GPU computes, and where LOCALSPEC_STARTER_TYPE is
    `own`; that variable may also name another type.
    """
    chosen = os.environ.get("LOCALSPEC_STARTER_TYPE", STARTER_TYPE)
    if chosen == "own" or inventory.find_packaged(path) is None:
        return None
    if installed_llama_cpp.find_gpu_backends():
        return None
    try:
        source = open_source(path)
        kind = check_type(source, chosen)
    except (LocalspecError, OSError):
        return None
    copy = inventory.converted_folder() / f"{source.stem}-{kind}.gguf"
    return PackagedCopy(source, kind, copy)


def choose_faster_copy(path: Path, notify: Callable[[Notice], None] | None) -> Path:
    """The faster copy of a packaged model if it has been made, else the file itself.

    Loading never waits for the conversion: beside a busy program it takes minutes at
    its low priority. `make_faster_copy` makes the copy while nobody waits. The first
    load that uses the copy says so; without `notify` nothing is loaded.
    """
    copy = find_faster_copy(path)
    if copy is None or not copy.path.is_file():
        return path
    if notify is not None and not _is_listed(DataFile.USED_COPIES, copy.path):
        _add_to_list(DataFile.USED_COPIES, copy.path)
        name = model_names.name_files([path])[path]
        message = (
            f"{name} answers faster from now on: a copy that suits this CPU "
            "was made while nothing was asked."
        )
        notify(Notice("info", "converted", message))
    return copy.path


def make_faster_copy(path: Path, on_start: OnProcessStart) -> None:
    """Convert a packaged model unless that is done; a task of IDLE_TASKS.

    A conversion that is ended leaves no file and begins again at the next idle moment.
    While another localspec converts it, this one does nothing: two of them would take
    each other's time. Raises ChecksumError, EngineError, StorageError, UsageError.
    """
    copy = find_faster_copy(path)
    if copy is None or copy.path.exists():
        return
    lock = take_lock()
    if lock is None:
        return
    with closing(lock):
        if copy.path.exists():  # The other one has just made it.
            return
        inventory.verify_packaged(path)
        for _ in convert(copy.source, copy.type, copy.path, on_start=on_start):
            pass


def take_lock() -> FileLock | None:
    """None while another localspec converts. Raises StorageError."""
    file = DataFile.CONVERSION_LOCK.path
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return data_files.lock(file)
    except OSError as error:
        shown = sanitize(str(file), multiline=False)
        message = f"{shown} cannot be locked: {error.strerror}."
        raise StorageError(message, "Move away what has its name.") from error


# --- Lists of models for which a notice was shown, so that it is shown once


def _is_listed(file: DataFile, path: Path) -> bool:
    return str(path) in data_files.read_list(file, str)


def _add_to_list(file: DataFile, path: Path) -> None:
    listed = data_files.read_list(file, str)
    data_files.write_json(file, [*listed, str(path)])
