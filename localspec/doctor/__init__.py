"""Diagnoses this installation; each finding has a line to type and often a repair action.

Checks change nothing and open no socket; `repairs.py` holds the actions a person can confirm.
`checks.py` runs every check. This module exports what every start needs.
"""

from localspec.doctor.findings import Finding
from localspec.doctor.llama_build import dismiss, find_unused_gpu

__all__ = ["Finding", "dismiss", "find_unused_gpu"]
