"""The row of drafting across vocabularies in the registry of kinds of draft."""

from localspec.draft_kinds import DraftKind

KIND = DraftKind(
    name="crossvocab",
    title="model with another vocabulary",
    factory="localspec.extras.crossvocab.drafter:make",
    needs="other-vocabulary",
    panel_word="draft (text)",
    pairing="localspec.extras.crossvocab.pairing:check",
    verdict="cross-vocabulary",
    verdict_title="another vocabulary",
    loader="localspec.extras.crossvocab.loading:prepare",
    # The logits after the last two tokens: a longer token may replace the last one
    # (`_draw_longer` in drafter.py).
    n_output_rows=2,
)
