"""The installation's progress line, computed from its log."""

import os
import re

COMPILE_CORE_SECONDS = 480
"""For compiling llama.cpp: four minutes on two cores."""
DOWNLOAD_SECONDS = 60

COMPILING = "compiling llama.cpp"
PHASES = (
    (r"Installing build dependencies|Preparing metadata", "preparing the build"),
    (r"Building (wheel for )?llama.cpp.python", COMPILING),
    (r"^Installing collected packages|^Prepared \d+ package", "installing"),
)
"""Pattern in pip's or uv's log -> the phase that it starts."""


def progress(
    elapsed: float, text: str, core_seconds: int | None = COMPILE_CORE_SECONDS
) -> str:
    """Elapsed time, estimated total time while compiling, and the phase.

    `core_seconds`: for compiling; None if not measured.
    """
    start, phase = find_phase(text)
    if phase != COMPILING:
        return f"{clock(elapsed)}, {phase}"
    expected = None if core_seconds is None else estimate_seconds(core_seconds)
    steps = re.findall(r"^ *\[(\d+)/(\d+)\]", text[start:], re.M)
    if steps:
        step, count = map(int, steps[-1])
        phase = f"{phase} ({step} of {count})"
        if expected is not None:
            expected = elapsed + (1 - step / count) * expected
    if expected is None:
        return f"{clock(elapsed)}, {phase}"
    return f"{clock(elapsed)} of about {clock(max(expected, elapsed))}, {phase}"


def find_phase(text: str) -> tuple[int, str]:
    """The phase that began last, and where in the log it begins."""
    last_start = 0
    last_phase = "downloading packages"
    for pattern, phase in PHASES:
        for match in re.finditer(pattern, text, re.M):
            if match.start() >= last_start:
                last_start = match.start()
                last_phase = phase
    return last_start, last_phase


def compile_note() -> str:
    return f" and compiling llama.cpp; only the first time, {compile_time(COMPILE_CORE_SECONDS)}"


def compile_time(core_seconds: int | None) -> str:
    if core_seconds is None:
        return "which takes longer than for the CPU; how long was not measured"
    minutes = max(1, round(estimate_seconds(core_seconds) / 60))
    return f"about {minutes} min on {os.cpu_count() or 1} cores"


def estimate_seconds(core_seconds: int) -> float:
    return DOWNLOAD_SECONDS + core_seconds / (os.cpu_count() or 1)


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
