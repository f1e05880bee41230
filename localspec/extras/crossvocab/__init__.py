"""Drafting across vocabularies: a draft model of any family drafts text.

`pairing.py` says which models can do it, `loading.py` prepares a loaded draft model, and
`drafter.py` drafts (docs/drafters.md). This file is read by every process of localspec.
"""

from localspec.draft_kinds import DraftKind

DRAFT_KINDS = (
    DraftKind(
        name="crossvocab",
        title="model with another vocabulary",
        factory="localspec.extras.crossvocab.drafter:make",
        needs="other-vocabulary",
        panel_word="draft (text)",
        pairing="localspec.extras.crossvocab.pairing:check",
        verdict="cross-vocabulary",
        verdict_title="another vocabulary",
        loader="localspec.extras.crossvocab.loading:prepare",
        # Its last token and the one before, which token healing compares.
        n_output_rows=2,
    ),
)
