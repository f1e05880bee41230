"""Weight types are timed on the CPU, whatever else the computer has."""

from pathlib import Path
from typing import Any

import pytest

from localspec.engine import type_timing_child
from localspec.llama.library import C


def test_a_gpu_does_not_compute_the_wide_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By default llama.cpp gives it passes of 32 tokens and more, their weights in RAM."""
    offloads = []
    create = C.llama_init_from_model

    def record(model: Any, params: Any) -> Any:
        offloads.append(bool(params.op_offload))
        return create(model, params)

    monkeypatch.setattr(C, "llama_init_from_model", record)

    request = {"type_number": 2, "path": str(tmp_path / "layers.gguf")}
    found = type_timing_child.answer(request, lambda _: None)

    assert set(found) == {"pass_ms", "other_load"}
    assert set(found["pass_ms"]) == {1, 2, 4, 8, 256}
    assert found["other_load"] >= 0
    assert 0 < found["pass_ms"][1] < found["pass_ms"][256]
    assert offloads == [False]
