"""Heads: files that guess for one model, by its hidden states."""

from localspec.models.heads.beside import beside, fits, found
from localspec.models.heads.forms import (
    NAMES,
    RUN,
    Form,
    Target,
    drafting,
    form,
    is_head,
    kind,
    layers,
    named,
    of,
    own,
    predicts,
    runs,
)
from localspec.models.heads.judging import check, judge, misfit

__all__ = [
    "NAMES",
    "RUN",
    "Form",
    "Target",
    "beside",
    "check",
    "drafting",
    "fits",
    "form",
    "found",
    "is_head",
    "judge",
    "kind",
    "layers",
    "misfit",
    "named",
    "of",
    "own",
    "predicts",
    "runs",
]
