"""What the installation is doing and how long it will take, read from its log."""

import os
import re

COMPILE_CORE_SECONDS = 480
"""What compiling llama.cpp costs: four minutes on two cores."""
DOWNLOAD_SECONDS = 60

COMPILING = "compiling llama.cpp"
PHASES = (
    (r"Installing build dependencies|Preparing metadata", "preparing the build"),
    (r"Building (wheel for )?llama.cpp.python", COMPILING),
    (r"^Installing collected packages|^Prepared \d+ package", "installing"),
)
"""What pip and uv write when a phase begins, and our words for it."""


def progress(elapsed: float, text: str) -> str:
    """How long it has taken, how long it will take where that is known, and what is going on."""
    begun, phase = max(
        (
            (found.start(), words)
            for sign, words in PHASES
            for found in re.finditer(sign, text, re.M)
        ),
        default=(0, "fetching packages"),
    )
    if phase != COMPILING:
        return f"{clock(elapsed)}, {phase}"
    about, share = max(first_time_seconds(), elapsed), ""
    if steps := re.findall(r"^ *\[(\d+)/(\d+)\]", text[begun:], re.M):
        step, count = map(int, steps[-1])
        share = f" ({step} of {count})"
        about = elapsed + (1 - step / count) * first_time_seconds()
    return f"{clock(elapsed)} of about {clock(about)}, {phase}{share}"


def first_time_note() -> str:
    cores = os.cpu_count() or 1
    minutes = max(1, round(first_time_seconds() / 60))
    return f"; with llama.cpp to compile, once, about {minutes} min on {cores} cores"


def first_time_seconds() -> float:
    return DOWNLOAD_SECONDS + COMPILE_CORE_SECONDS / (os.cpu_count() or 1)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
