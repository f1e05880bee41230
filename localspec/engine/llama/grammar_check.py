"""The child process that parses an untrusted grammar: GBNF on stdin, llama.cpp's errors on stderr.

It exits with 0 if llama.cpp can use the grammar, with 1 if not; anything else is a crash.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path

from localspec import child_process

_MAX_MEMORY = 512 * 1024 * 1024
"""Bytes of address space beyond what llama.cpp itself takes."""
_MAX_CPU_SECONDS = 2


def _limit_resources() -> None:
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        child_process.limit_resources(address_space=used + _MAX_MEMORY)
    child_process.limit_resources(cpu_seconds=_MAX_CPU_SECONDS)


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    from localspec.engine.llama.library import C  # noqa: PLC0415  before the limits

    text = sys.stdin.buffer.read()
    _limit_resources()
    is_valid = bool(C.llama_sampler_init_grammar(None, text, b"root"))
    os._exit(0 if is_valid else 1)


if __name__ == "__main__":
    main()
