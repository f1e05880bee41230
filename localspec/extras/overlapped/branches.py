"""Room in a draft model's context for the outcomes that are drafted for at once."""

from __future__ import annotations

from msgspec.structs import replace

from localspec.machine.llama_params import ModelRole
from localspec.protocol.wire import LoadCommand

N_BRANCHES = 5
"""Outcomes of a round for which drafts may be made at once."""


def add_branches(role: ModelRole, load: LoadCommand) -> ModelRole:
    """The role of a draft model, with a sequence for each outcome if drafting may overlap.

    It may if the user says so; otherwise if target and draft use different devices.
    """
    may_overlap = load.overlap
    if may_overlap is None:
        target = load.target_settings
        draft = load.draft_settings
        is_remote = bool(target.remote_hosts)
        may_overlap = is_remote or target.n_gpu_layers != draft.n_gpu_layers
    if not may_overlap:
        return role
    n_outputs = max(role.n_outputs_max, N_BRANCHES + 1)
    return replace(role, n_branches=N_BRANCHES, n_outputs_max=n_outputs)
