"""Overlapped drafting: the draft model drafts on while the target verifies.

`drafter.py` drafts, `branches.py` makes room for it when a draft model is loaded;
`options.py` has its option, `verification.py` refuses what it cannot go with. This file
is read by every process of localspec.
"""

DRAFT_OVERLAPS = ("localspec.extras.overlapped.drafter:DraftOverlap",)
DRAFT_ROLES = ("localspec.extras.overlapped.branches:add_branches",)
SPECULATION_OPTIONS = ("localspec.extras.overlapped.options:OVERLAP",)
OPTION_CHECKS = ("localspec.extras.overlapped.verification:check_options",)
