#!/usr/bin/env python3
"""Benchmarks: `scripts/bench/bench.py SUBCOMMAND [options]`.

Let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# the subcommands, and the package `tests`
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1])]
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

SUBCOMMANDS = (
    *(
        "advice",
        "auto",
        "chat",
        "commits",
        "copies",
        "counts",
        "examples",
        "loop",
        "pair",
        "peers",
        "pictures",
    ),
    *("published", "serve", "tui", "verifiers", "widths"),
)
"""Modules beside this file, each with `add_options(parser)` and `main(args)`."""


def describe(name: str) -> str:
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def main(words: Sequence[str]) -> int:
    if not words or words[0] not in SUBCOMMANDS:
        print(__doc__)
        for name in SUBCOMMANDS:
            print(f"{name:10} {describe(name)}")
        is_help = not words or words[0] in ("--help", "-h")
        return 0 if is_help else 2
    module = importlib.import_module(words[0])
    parser = argparse.ArgumentParser(
        prog=f"bench.py {words[0]}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_options(parser)
    from programs import BenchError  # noqa: PLC0415  late: `--help` without the package

    try:
        return int(module.main(parser.parse_args(words[1:])) or 0)
    except BenchError as error:
        print(f"bench.py {words[0]}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
