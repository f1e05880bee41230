"""Overlapped drafting: the draft model drafts on while the target verifies.

`drafter.py` drafts. `branches.py` makes space for it when a draft model is loaded.
`options.py` has its option, and `verification.py` refuses verification methods that
exclude it. Every process of localspec imports this file.
"""

DRAFT_OVERLAPS = ("localspec.extras.overlapped.drafter:DraftOverlap",)
DRAFT_ROLES = ("localspec.extras.overlapped.branches:add_branches",)
SPECULATION_OPTIONS = ("localspec.extras.overlapped.options:OVERLAP",)
OPTION_CHECKS = ("localspec.extras.overlapped.verification:check_options",)
