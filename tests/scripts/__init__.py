"""Tests of scripts/: its folders are on the import path, as when a script is run."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / folder) for folder in (".", "bench", "train")]
