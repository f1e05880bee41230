"""How fast this CPU computes with each weight type, and the process that converts files.

The process is `localspec.engine.conversion_child`: llama.cpp aborts on some files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from localspec import child_process, data_files
from localspec.errors import EngineError
from localspec.lazy_dataclass import dataclass
from localspec.machine import installed_llama_cpp
from localspec.machine.cpu_and_ram import MAX_OTHER_LOAD, read_cpu_name
from localspec.models.gguf.parser import GGML_TYPES
from localspec.sanitize import sanitize

TIMED_TYPES = (
    "Q4_0", "IQ4_NL", "Q4_1", "Q4_K", "MXFP4", "Q5_K", "Q6_K", "Q8_0", "BF16", "F16",
)  # fmt: skip
"""By bits; the types that ggml has special kernels for on some CPUs, and the common ones."""
TIMED_WEIGHTS = 92_274_688  # Weights of the two layers that are timed.
_FILE = "cpu-types.json"
_NUMBERS = {name: number for number, (name, *_) in GGML_TYPES.items()}


@dataclass(frozen=True, slots=True)
class TypeSpeed:
    """Milliseconds of a pass over `TIMED_WEIGHTS` weights of one type, by its width in tokens."""

    name: str
    pass_ms: Mapping[int, float]

    @property
    def bits(self) -> float:
        _, elements, n_bytes = GGML_TYPES[_NUMBERS[self.name]]
        return 8 * n_bytes / elements

    @property
    def write_ms(self) -> float:
        return self.pass_ms[1]

    @property
    def read_ms(self) -> float:
        """Per token of a prompt."""
        return self.pass_ms[256] / 256

    @property
    def verify_curve(self) -> dict[int, float]:
        """Cost of a pass by width, in passes of one token."""
        return {n: ms / self.write_ms for n, ms in self.pass_ms.items() if n <= 8}


def time_types(names: Sequence[str] = TIMED_TYPES) -> Iterator[TypeSpeed]:
    """Time each type, about 2 s each; keep the results unless other programs used the CPUs.

    Raises EngineError.
    """
    found, loads = read_types(), []
    for name, reply in zip(
        names, run([{"op": "time", "type_number": _NUMBERS[name]} for name in names]), strict=True
    ):
        loads.append(reply["other_load"])
        found[name] = TypeSpeed(name, {int(n): ms for n, ms in reply["pass_ms"].items()})
        yield found[name]
    if max(loads) <= MAX_OTHER_LOAD:
        types = {name: dict(speed.pass_ms) for name, speed in found.items()}
        data_files.write_json(_FILE, {"of": _environment(), "types": types})


def read_types() -> dict[str, TypeSpeed]:
    """As last timed with this CPU and llama.cpp, by name; empty before."""
    body = data_files.read_json(_FILE)
    try:
        if body["of"] != _environment():
            return {}
        types = {
            str(name): TypeSpeed(name, {int(width): float(value) for width, value in ms.items()})
            for name, ms in body["types"].items()
        }
        return {name: speed for name, speed in types.items() if speed.read_ms > 0}
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}


def _environment() -> list[str | int]:
    return [read_cpu_name(), installed_llama_cpp.version(), installed_llama_cpp.library_bytes()]


def run(requests: Sequence[Mapping[str, Any]]) -> Generator[Any, None, None]:
    """Yield of each request the shares that are done, as floats, and then its result.

    Closing the generator ends the process. Raises EngineError.
    """
    parent = str(child_process.parent_pid_for_child())
    command = (sys.executable, "-P", "-m", "localspec.engine.conversion_child", parent)
    try:
        process = child_process.start(command)
    except OSError as error:
        raise EngineError(f"No process can be started: {error.strerror}.") from error
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"".join(json.dumps(each).encode() + b"\n" for each in requests))
        n_left = len(requests)
        while n_left:
            if not (line := process.stdout.readline()):
                raise EngineError("llama.cpp ended without a result.", "The file may be damaged.")
            reply = json.loads(line)
            if "failed" in reply:
                raise EngineError(sanitize(str(reply["failed"]), multiline=False))
            n_left -= "result" in reply
            yield reply.get("progress", reply.get("result"))
    except OSError as error:
        raise EngineError(f"llama.cpp's process ended: {error.strerror}.") from error
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
