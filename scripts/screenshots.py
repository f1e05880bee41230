#!/usr/bin/env python3
"""Make the README's picture from a real run of the demo pair.

.venv/bin/python scripts/screenshots.py [--out docs/run.svg]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "import os\nimport sys\n\ndef main():\n    parser = argparse"
ARGUMENTS = ["run", "demo", "--max-tokens", "72", "--seed", "3", "--temperature", "0.7"]
SHOWN = ["--tokens", "--stats"]


def run() -> str:
    """Everything the run shows, colours included, in the order a person sees it."""
    done = subprocess.run(
        [sys.executable, "-m", "localspec", *ARGUMENTS, *SHOWN, "-p", PROMPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "FORCE_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        cwd=ROOT,
        check=True,
    )
    return done.stdout.decode("utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "run.svg")
    args = parser.parse_args()
    console = Console(record=True, width=100, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    shown = " ".join(ARGUMENTS + SHOWN)
    console.print(Text(f"$ scripts/run {shown} < prompt.py", style="dim"))
    console.print(Text().append(PROMPT, style="dim").append_text(Text.from_ansi(run())))
    console.save_svg(str(args.out), title="localspec", unique_id="localspec-run")
    print(args.out)


if __name__ == "__main__":
    main()
