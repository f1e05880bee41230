"""The glossary of the help screen: ten terms, the same as in docs/glossary.md."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "Target": "the model you chat with. It decides every token of the answer.",
    "Draft model": (
        "a small model that proposes the next tokens for the target. It needs the same "
        "vocabulary. What it proposes are draft tokens."
    ),
    "Head": (
        "a draft model in miniature that reads the target's hidden states instead of the text "
        "(EAGLE-3, MTP, DFlash, DSpark)."
    ),
    "Prompt lookup": (
        "draft tokens without a draft model: what followed the same words earlier in the text "
        "is proposed again."
    ),
    "Acceptance rate": (
        "accepted draft tokens divided by all draft tokens. A rejected one costs time and "
        "never changes the text."
    ),
    "Tokens per pass": (
        "the tokens that one pass of the target gives on average. Plain decoding gives 1."
    ),
    "Verification method": (
        "the rule by which draft tokens are accepted or rejected (coupled, rejection, block, "
        "match)."
    ),
    "Lossless": (
        "speculation does not change what the target writes: the same tokens at temperature "
        "0, the same probabilities above it."
    ),
    "Context": (
        "the tokens that the model can read at once: system prompt, earlier turns, and the answer."
    ),
    "KV cache": (
        "the model's memory of the tokens it has read. It grows with the context and takes "
        "GPU memory."
    ),
}
