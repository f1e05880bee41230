"""The demo's heads compute what torch did, and the bundled models stay small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.engine.drafters.block_head import BlockHeadRunner
from localspec.paths import package_data_dir
from tests.support.fitted_heads import opened

STEP = 16
"""Tokens that the target reads at once."""
DEMO = package_data_dir() / "demo"
BUNDLED = sorted(
    path for path in DEMO.glob("demo-*.gguf") if path.stem not in ("demo-target", "demo-draft")
)
STORED = [
    path for head in BUNDLED if (path := Path(__file__).with_name(f"{head.stem}.npz")).exists()
]
"""What torch computed with a head, stored when it was trained."""
MOST = {"demo": 24_000_000, "starter": 14_000_000}
"""Bytes of the bundled models by folder."""


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_bundled_head_computes_what_torch_did(path: Path) -> None:
    stored = np.load(path)
    ids, pair = (
        stored["ids"].tolist(),
        opened(DEMO / "demo-target.gguf", DEMO / f"{path.stem}.gguf"),
    )
    head_runner, differences = pair.followed(), []
    try:
        for cut, wanted in zip(stored["cuts"].tolist(), stored["logits"], strict=True):
            pair.target.truncate(0)
            for start in range(0, cut, STEP):
                pair.target.decode(ids[start : min(start + STEP, cut)], 0)
            assert head_runner.is_ready(ids[: cut + 1])
            for row, theirs in zip(rows(head_runner, ids[cut], wanted), wanted, strict=True):
                assert row.argmax() == theirs.argmax()
                differences.append(np.abs(row - theirs.astype(np.float32)).mean())
    finally:
        pair.close()
    # One row in nine or so of EAGLE-3 strays further; why is not known.
    assert np.median(differences) < 0.05
    assert max(differences) < 0.5


def rows(
    head_runner: Any, following: int, wanted: NDArray[np.float16]
) -> list[NDArray[np.float32]]:
    """Logits of as many greedy guesses."""
    if isinstance(head_runner, BlockHeadRunner):
        return list(head_runner.draft_block(following, len(wanted))[0].copy())
    found = [head_runner.first_logits(following).copy()]
    return found + [head_runner.next_logits(int(row.argmax())).copy() for row in wanted[:-1]]


def test_the_bundled_models_stay_small() -> None:
    for folder, most in MOST.items():
        files = (package_data_dir() / folder).glob("*.gguf")
        assert 0 < sum(path.stat().st_size for path in files) <= most, folder
