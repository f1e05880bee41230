"""The child process that compiles an untrusted JSON Schema, with limits.

It reads a JSON array on stdin: the schema, and then outlines of the alternatives of
`oneOf`, if they are too long to be compared elsewhere. It exits with 0 unless it
exceeds the limits, or alternatives overlap. A schema that cannot be used for another
reason does not fail here.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from contextlib import suppress
from pathlib import Path

from localspec import child_process
from localspec.errors import GrammarError
from localspec.spec.constraints import grammars
from localspec.spec.constraints.deep_stack import run_with_deep_stack

_MAX_MEMORY = 256 * 1024 * 1024
"""Bytes of address space beyond what the libraries and the stack take."""
_MAX_CPU_SECONDS = 1


class _ByteTokenizer:
    """256 tokens of a byte each, and an end: enough to compile a grammar."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return list(data)


def main() -> None:
    child_process.set_up_child(int(sys.argv[1]))
    # Under a limit of memory no thread with such a stack could be started.
    run_with_deep_stack(_check)


def _check() -> None:
    import llguidance  # noqa: PLC0415  optional

    schema, *outlines = json.loads(sys.stdin.buffer.read())
    tokenizer = llguidance.LLTokenizer(_ByteTokenizer(), n_vocab=257, eos_token=[256])
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        child_process.limit_resources(address_space=used + _MAX_MEMORY)
    child_process.limit_resources(cpu_seconds=_MAX_CPU_SECONDS)
    try:
        grammars.check_outlines(outlines)
    except GrammarError:
        os._exit(grammars.EXIT_OVERLAP)
    with suppress(ValueError):
        grammars.make_matcher(tokenizer, grammars.schema_to_grammar(schema))
    os._exit(0)


if __name__ == "__main__":
    main()
