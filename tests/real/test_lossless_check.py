"""`localspec verify` on real types: real pairs are lossless, planted faults are found.

Passes of one and of several tokens differ by rounding for Q4_K_M and BF16, and not for
Q8_0.
"""

import ctypes
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as C  # noqa: N812  as elsewhere
import pytest

from localspec.bench.lossless_check import (
    VERIFY_PROMPTS,
    LosslessMeasurement,
    VerifyEffort,
)
from localspec.llama.context import LlamaContext
from tests.bench.test_lossless_check import drop_row, rewind_one_too_few
from tests.support.long_cases import LONG, often
from tests.support.sessions import InProcess, loaded

TYPES = {
    "Q4_K_M": C.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q8_0": C.LLAMA_FTYPE_MOSTLY_Q8_0,
    "BF16": C.LLAMA_FTYPE_MOSTLY_BF16,
}
EFFORT = VerifyEffort(
    seconds_per_part=0,
    tokens_per_answer=16,
    prompts=VERIFY_PROMPTS[:1],
    min_sampled_tokens=32,
)


def truncate_one_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LlamaContext.truncate

    def truncate(context: LlamaContext, n_past: int) -> None:
        n_kept = n_past + 1 if n_past > 0 else 0
        real(context, n_kept)

    monkeypatch.setattr(LlamaContext, "truncate", truncate)


@pytest.fixture(scope="module", params=often(TYPES.keys(), ["Q4_K_M"]))
def model(
    request: pytest.FixtureRequest,
    smollm: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path: Path = tmp_path_factory.mktemp("types") / f"{request.param}.gguf"
    params = C.llama_model_quantize_default_params()
    params.ftype = TYPES[request.param]
    params.allow_requantize = True
    params.nthread = 2
    code = C.llama_model_quantize(
        os.fsencode(smollm), os.fsencode(path), ctypes.byref(params)
    )
    assert code == 0
    return path


def measured(
    model: Path, draft: Path, plant: Callable[[], None] = lambda: None
) -> str | None:
    measurement = LosslessMeasurement(EFFORT)
    with loaded(model, draft) as session:
        plant()
        for _ in measurement.run(InProcess(session)):
            if measurement.report.divergences:
                break
    return measurement.report.verdict


def test_a_real_pair_is_lossless(model: Path, truncated_smollm: Path) -> None:
    assert measured(model, truncated_smollm) == "lossless"


FAULTS = (drop_row, rewind_one_too_few, truncate_one_too_few)


def fault_cases() -> list[Any]:
    """One fault in each type, and each fault in one type; small models have them all."""
    cases: list[Any] = []
    for type_name, fault in product(TYPES, FAULTS):
        if type_name != "Q4_K_M" and fault is not drop_row:
            continue
        is_quick = type_name == "Q4_K_M" and fault is drop_row
        marks = () if is_quick else LONG
        case_id = f"{type_name}-{fault.__name__}"
        cases.append(pytest.param(type_name, fault, id=case_id, marks=marks))
    return cases


@pytest.mark.parametrize(("model", "plant"), fault_cases(), indirect=["model"])
def test_a_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    model: Path,
    truncated_smollm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert measured(model, truncated_smollm, lambda: plant(monkeypatch)) == "divergent"
