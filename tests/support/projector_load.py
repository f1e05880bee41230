"""Loads a projector beside its model, and begins to read a picture; a process of its own.

    python -m tests.support.projector_load MODEL PROJECTOR

prints by how many bytes the process has grown: with the projector's weights, and then
with the buffer of the largest picture. The picture is left after some layers: those
behind them use the same buffer, and all of them take a minute.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil
from msgspec.structs import replace

from localspec.llama.context import LlamaContext
from localspec.llama.images import ImageRows, Projector
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import reader
from localspec.models.projector_kinds import projector_kind
from localspec.spec.protocols import DecodeInterrupted
from tests.support.sessions import SETTINGS

_SIDE = 1056
"""Of the picture in pixels: it becomes the most rows."""
_N_CHECKS = 8
"""libmtmd asks at every 16th node whether to go on; a layer has about 30."""


class _Patience:
    """Says that the picture is interrupted, after some questions."""

    def __init__(self) -> None:
        self._n_asked = 0

    def __call__(self) -> bool:
        self._n_asked += 1
        return self._n_asked > _N_CHECKS


def _measure() -> int:
    n_bytes: int = psutil.Process().memory_info().rss
    return n_bytes


def measure_growth(model: Path, path: Path) -> tuple[int, int]:
    """Bytes of the weights, and of the buffer."""
    role = ModelRole(replace(SETTINGS, n_ctx=1024, n_ubatch=512), 8, 0)
    kind = projector_kind(reader.read(path))
    pixels = np.zeros((_SIDE, _SIDE, 3), np.uint8) + np.uint8(1)
    with closing(LlamaContext(model, role)) as context:
        context.decode([1, 2, 3], 1)
        before = _measure()
        with closing(Projector.open(path, context, kind=kind)) as projector:
            loaded = _measure()
            items = projector.items(pixels)
            rows = next(each for each in items if isinstance(each, ImageRows))
            context.is_interrupted = _Patience()
            with suppress(DecodeInterrupted):
                rows.load_states()
            return loaded - before, _measure() - loaded


if __name__ == "__main__":
    print(*measure_growth(Path(sys.argv[1]), Path(sys.argv[2])))
