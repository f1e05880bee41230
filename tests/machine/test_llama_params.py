"""Experts of some layers stay on the CPU, as llama.cpp's log shows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec.llama.library import LOG, C
from localspec.machine import llama_params
from localspec.protocol.wire import ALL_LAYERS, ContextSettings
from tests.support import families
from tests.support.families import FAMILIES

N_LAYERS = 12
N_MATRICES = 3  # Of a layer's experts.


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "moe.gguf"
    shape = replace(FAMILIES["qwen3moe"].small, layers=N_LAYERS)
    families.write_ghost(shape, "Q8_0", path)
    return path


@pytest.fixture
def overridden() -> Iterator[list[str]]:
    """Lines of llama.cpp's log about tensors that an override places."""
    lines: list[str] = []

    @C.llama_log_callback  # type: ignore[untyped-decorator]
    def read(level: int, text: bytes, _: Any) -> None:
        if b"blk." in text and b"overrid" in text:
            lines.append(text.decode())

    C.llama_log_set(read, None)
    yield lines
    C.llama_log_set(LOG.callback, None)


@pytest.mark.parametrize("n", [0, 1, 3, 11, N_LAYERS, ALL_LAYERS])
def test_experts_of_first_layers_are_placed(
    mixture: Path, overridden: list[str], n: int
) -> None:
    """Layer 11 is none of the first two, though its number begins with 1."""
    settings = ContextSettings(cpu_moe=n)
    params = llama_params.model_params(C, settings)
    model = C.llama_model_load_from_file(os.fsencode(mixture), params.params)
    C.llama_model_free(model)
    layers = {line.partition("blk.")[2].partition(".")[0] for line in overridden}
    n_layers = N_LAYERS if n == ALL_LAYERS else n
    assert (
        layers == set(map(str, range(n_layers)))
        and len(overridden) == N_MATRICES * n_layers
    )
