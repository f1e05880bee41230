"""Drafting across vocabularies: a draft model of any family drafts text.

`pairing.py` says which models can do it, `loading.py` prepares a loaded draft model, and
`drafter.py` drafts (docs/drafters.md). Every process of localspec imports this file.
"""

DRAFT_KINDS = ("localspec.extras.crossvocab.kind:KIND",)
