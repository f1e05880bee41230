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


def progress(elapsed: float, text: str) -> str:
    """Elapsed time, estimated total time while compiling, and the phase."""
    begun, phase = max(
        (
            (match.start(), name)
            for pattern, name in PHASES
            for match in re.finditer(pattern, text, re.M)
        ),
        default=(0, "downloading packages"),
    )
    if phase != COMPILING:
        return f"{clock(elapsed)}, {phase}"
    total, share = max(estimate_seconds(), elapsed), ""
    if steps := re.findall(r"^ *\[(\d+)/(\d+)\]", text[begun:], re.M):
        step, count = map(int, steps[-1])
        share = f" ({step} of {count})"
        total = elapsed + (1 - step / count) * estimate_seconds()
    return f"{clock(elapsed)} of about {clock(total)}, {phase}{share}"


def compile_note() -> str:
    cores = os.cpu_count() or 1
    minutes = max(1, round(estimate_seconds() / 60))
    return f" and compiling llama.cpp; only the first time, about {minutes} min on {cores} cores"


def estimate_seconds() -> float:
    return DOWNLOAD_SECONDS + COMPILE_CORE_SECONDS / (os.cpu_count() or 1)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
