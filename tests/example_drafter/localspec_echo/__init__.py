"""The row of the echo drafter in localspec's registry.

Every localspec process may read it, also for `--help`: it imports nothing large.
"""

from localspec.draft_kinds import DraftKind

KIND = DraftKind(
    name="echo",
    title="echo",
    factory="localspec_echo.drafter:make",
    needs="nothing",
    description="proposes the last token again",
)
