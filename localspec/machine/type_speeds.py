"""How fast this CPU computes with each weight type.

The types are timed in a process of their own, `localspec.engine.type_timing_child`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Annotated, Any

from msgspec import Meta, Struct

from localspec import data_files
from localspec.errors import EngineError
from localspec.machine import background_process, device_detection, installed_llama_cpp
from localspec.machine.background_process import OnProcessStart
from localspec.machine.cpu_and_ram import is_busy, read_cpu_name
from localspec.models.gguf.parser import GGML_TYPES
from localspec.paths import DataFile
from localspec.protocol.json_values import from_json
from localspec.temporary_files import TemporaryFolder

TIMED_TYPES = (
    "Q4_0", "IQ4_NL", "Q4_1", "Q4_K", "MXFP4", "Q5_K", "Q6_K", "Q8_0", "BF16", "F16",
)  # fmt: skip
"""The types that ggml has special kernels for on some CPUs, and the common ones.

They are in the order of their bits.
"""
TIMED_WEIGHTS = 92_274_688  # Weights of the two layers that are timed.
_CHILD = "localspec.engine.type_timing_child"
_PROMPT_WIDTH = 256  # Tokens of the pass that stands for the reading of a prompt.
_MIN_PASS_MS = 1e-3
_MAX_PASS_MS = 1e7
"""Limits of a pass over `TIMED_WEIGHTS`: a thousand times beyond any CPU."""
_TIME_TOLERANCE = 3.0
"""How far a time may be from what the pass of one token allows, as a factor."""
# Tokens of a turn of a chat, which weighs reading and writing.
_READ = 300
_WRITTEN = 200
_NUMBERS = {type_.name: number for number, type_ in GGML_TYPES.items()}


class TypeSpeed(Struct, frozen=True):
    """The times of passes over `TIMED_WEIGHTS` weights of one type."""

    name: str
    pass_ms: Mapping[int, float]
    """Milliseconds by the number of tokens in the pass."""
    is_disturbed: bool = False
    """Whether other programs used the CPUs meanwhile, so that the times say little."""

    @property
    def bits(self) -> float:
        return GGML_TYPES[_NUMBERS[self.name]].bits

    @property
    def write_ms(self) -> float:
        return self.pass_ms[1]

    @property
    def read_ms(self) -> float:
        """Per token of a prompt."""
        return self.pass_ms[_PROMPT_WIDTH] / _PROMPT_WIDTH

    @property
    def turn_ms(self) -> float:
        """A turn of a chat."""
        return _READ * self.read_ms + _WRITTEN * self.write_ms

    def describe_gain(self, other: TypeSpeed, least: float) -> str:
        """What is at least `least` times as fast as with the other type.

        For example "reads 1.8 × and writes 1.3 ×"; empty if neither is.
        """
        gains = {
            "reads": other.read_ms / self.read_ms,
            "writes": other.write_ms / self.write_ms,
        }
        described = [f"{what} {x:.1f} ×" for what, x in gains.items() if x >= least]
        return " and ".join(described)

    @property
    def verify_curve(self) -> dict[int, float]:
        """Cost of a pass by width, in passes of one token."""
        return {n: ms / self.write_ms for n, ms in self.pass_ms.items() if n <= 8}


def time_types(
    names: Sequence[str] = TIMED_TYPES,
    on_start: OnProcessStart = lambda _: None,
    *,
    until_disturbed: bool = False,
) -> Iterator[TypeSpeed]:
    """Time each type, about 1 s each.

    The times are stored unless they are disturbed: other programs used the CPUs, or
    the times contradict each other. With `until_disturbed`, the first such type is the
    end. Raises EngineError.
    """
    if not names:
        return
    with _start_timing(names, on_start) as replies:
        for name, reply in zip(names, replies, strict=True):
            pass_ms = {int(width): ms for width, ms in reply["pass_ms"].items()}
            is_plausible = _has_plausible_times(pass_ms)
            is_disturbed = is_busy(reply["other_load"]) or not is_plausible
            speed = TypeSpeed(name, pass_ms, is_disturbed=is_disturbed)
            if not is_disturbed:
                _store(speed)
            elif until_disturbed:
                return
            yield speed


def _has_plausible_times(pass_ms: Mapping[int, float]) -> bool:
    """Whether the passes can have run under one load.

    A pass of n tokens reads the weights once, as a pass of one does, and computes at
    most as much as n passes. So its time is between those two, but for a factor of
    `_TIME_TOLERANCE`. If one token takes 12 ms, eight take from 4 to 288 ms.
    """
    one = pass_ms[1]
    for width, ms in pass_ms.items():
        if not one / _TIME_TOLERANCE <= ms <= one * width * _TIME_TOLERANCE:
            return False
    return True


@contextmanager
def _start_timing(
    names: Sequence[str], on_start: OnProcessStart
) -> Iterator[Iterator[Any]]:
    """The replies of a process that times types, for as long as this lasts.

    It writes layers of each type to a file. Its folder is made here, because the
    process is killed as soon as somebody waits for the computer. Raises EngineError.
    """
    try:
        folder = TemporaryFolder("types")
    except OSError as error:
        message = f"No temporary folder can be made: {error.strerror}."
        raise EngineError(message) from error
    path = str(folder.path / "layers.gguf")
    requests = [{"type_number": _NUMBERS[name], "path": path} for name in names]
    replies = background_process.run(_CHILD, requests, on_start)
    with closing(folder), closing(replies):
        yield replies


def _store(speed: TypeSpeed) -> None:
    """Add a type to those that are stored."""
    types = {name: dict(stored.pass_ms) for name, stored in read_types().items()}
    types[speed.name] = dict(speed.pass_ms)
    data_files.write_json(DataFile.TYPE_SPEEDS, {"of": _environment(), "types": types})


def time_missing_types(on_start: OnProcessStart) -> None:
    """Time the types that were not timed yet, where a CPU computes.

    Ends at the first type that other programs disturb.
    """
    missing = missing_types()
    if missing and not device_detection.detect_devices().devices:
        for _ in time_types(missing, on_start, until_disturbed=True):
            pass


def missing_types() -> list[str]:
    """Those that were not timed with this CPU and llama.cpp."""
    found = read_types()
    return [name for name in TIMED_TYPES if name not in found]


def weight_type(quantization: str) -> str:
    """The type of most weights of a file, if it is timed: Q4_K of UD-Q4_K_XL.

    Empty for a type that is not timed.
    """
    name = quantization.upper().removeprefix("UD-")
    for timed in TIMED_TYPES:
        if name == timed or name.startswith(f"{timed}_"):
            return timed
    return ""


class _StoredTimes(Struct, frozen=True):
    of: list[str | int]  # The CPU and the build, as `_environment`.
    types: dict[str, Any]


_PassWidth = Annotated[int, Meta(ge=1)]
_PassMs = Annotated[float, Meta(ge=_MIN_PASS_MS, le=_MAX_PASS_MS)]


def read_types() -> dict[str, TypeSpeed]:
    """As last timed with this CPU and llama.cpp, by name; empty before.

    A type with times that no CPU needs is left out, so that it is timed again.
    """
    stored = data_files.read_json(DataFile.TYPE_SPEEDS, _StoredTimes)
    if stored is None or stored.of != _environment():
        return {}
    speeds = {}
    for name, times in stored.types.items():
        speed = _parse_speed(name, times)
        if speed is not None:
            speeds[name] = speed
    return speeds


def _parse_speed(name: str, times: Any) -> TypeSpeed | None:
    """None for an unknown type, and for times that no CPU needs.

    Speeds are divided by these times, so they must not be zero.
    """
    try:
        pass_ms = from_json(dict[_PassWidth, _PassMs], times)
    except ValueError:
        return None
    if name not in _NUMBERS or not {1, _PROMPT_WIDTH} <= pass_ms.keys():
        return None
    if not _has_plausible_times(pass_ms):
        return None
    return TypeSpeed(name, pass_ms)


def _environment() -> list[str | int]:
    return [
        read_cpu_name(),
        installed_llama_cpp.version(),
        installed_llama_cpp.library_bytes(),
    ]
