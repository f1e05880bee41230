"""What a load says of itself."""

import pytest

from localspec.protocol.wire import LoadProgress
from localspec.report.load_progress import describe_load

HALF = LoadProgress("reading", "big\x1b[31m.gguf", 0.5)


@pytest.mark.parametrize(
    ("progress", "seconds", "shown"),
    [
        (None, 0.0, "waiting"),
        (LoadProgress("planning"), 0.4, "choosing settings that fit"),
        (LoadProgress("checking", "big.gguf"), 3.2, "checking the file   3 s"),
        (LoadProgress("starting"), 75.0, "starting the engine   1 min 15 s"),
        (HALF, 0.0, f"reading big   {'█' * 10}{' ' * 10}   50 %"),
        (
            LoadProgress("reading", "SmolLM2-135M-Instruct.Q4_1.gguf", 0.5),
            0.0,
            f"reading SmolLM2 135M   {'█' * 10}{' ' * 10}   50 %",
        ),
        (
            LoadProgress("preparing", "big.gguf", 1.0),
            2.0,
            "preparing the context   2 s",
        ),
    ],
)
def test_a_phase_is_named_with_its_time(
    progress: LoadProgress | None, seconds: float, shown: str
) -> None:
    assert describe_load(progress, seconds) == shown
