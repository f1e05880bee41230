"""Prepares a loaded draft model for drafting across vocabularies."""

from __future__ import annotations

from pathlib import Path

from localspec.engine.chat_prompt import PromptBuilder
from localspec.engine.loaded_pair import PreparedDraft
from localspec.extras.crossvocab.drafter import SpelledVocabulary, VocabularyMap
from localspec.extras.crossvocab.token_bytes import read_token_bytes
from localspec.llama.context import LlamaContext
from localspec.models.gguf import reader


def prepare(
    target_path: Path, target: LlamaContext, draft_path: Path, draft: LlamaContext
) -> PreparedDraft:
    """What the drafter needs: the map of both vocabularies, and the draft's own prompts."""
    vocabularies = VocabularyMap(
        _spelled_vocabulary(target_path, target), _spelled_vocabulary(draft_path, draft)
    )
    template = draft.model.chat_template()
    return PreparedDraft(vocabularies, PromptBuilder(draft.vocabulary, template))


def _spelled_vocabulary(path: Path, context: LlamaContext) -> SpelledVocabulary:
    metadata = reader.read(path).tokenizer
    vocabulary = context.vocabulary
    bos: tuple[int, ...] = ()
    if vocabulary.add_bos:
        bos = (vocabulary.bos,)
    return SpelledVocabulary(
        tokens=read_token_bytes(metadata),
        tokenize=vocabulary.tokenize_plain,
        bos=bos,
        eog=tuple(sorted(metadata.eog_ids)),
    )
