"""A draft with a trimmed vocabulary reads as its source does."""

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from msgspec.structs import replace

from localspec.errors import LocalspecError, ModelFileError
from localspec.extras.make_draft import layer_subset
from localspec.llama.context import LlamaContext
from localspec.llama.trimmed_draft import TrimmedDraftContext
from localspec.machine.llama_params import ModelRole
from localspec.models.gguf import architectures, reader, trimmed_vocabulary
from tests.support import head_targets, tinygguf
from tests.support.sessions import SETTINGS, loaded, say, say_like_plain
from tests.support.tinygguf import Model
from tests.support.zoo import Zoo

ROLE = ModelRole(replace(SETTINGS, n_ctx=256), 6, 0, n_branches=2)


def trimmed(source: Path) -> Path:
    """A copy with every third token, then the first ones."""
    path = source.with_name(f"trimmed-{source.name}")
    header = reader.read(source)
    used = Counter(dict.fromkeys(range(3, header.tokenizer.n_tokens, 3), 1))
    kept = trimmed_vocabulary.choose_tokens(header.tokenizer, used, 96)
    all_layers = range(header.n_layer)
    layer_subset.copy_layers(source, path, all_layers, kept_tokens=kept)
    reader.check_loadable(path)
    return path


OTHER_TYPES = ("F32", "Q4_0")
MODELS = (*sorted(architectures.TRIMMING_VOCABULARY), "tied", *OTHER_TYPES)
"""Architectures, and forms of a llama."""


def make_model(name: str) -> Model:
    if name in architectures.TRIMMING_VOCABULARY:
        model = head_targets.target(name)
        if name == "gemma2":  # always tied
            del model.tensors["output.weight"]
        return model
    kind = Kind.Q8_0
    if name in OTHER_TYPES:
        kind = Kind[name]
    return replace(tinygguf.llama(0, tied=name == "tied"), kind=kind)


@pytest.mark.parametrize("name", MODELS)
def test_its_rows_are_those_of_its_source(name: str, tmp_path: Path) -> None:
    """Also in branches, and of tokens that it cannot draft."""
    source = make_model(name).write(tmp_path / "whole.gguf")
    path = trimmed(source)
    header = reader.read(path)
    # The height of a matrix may decide in which order its rows are added up.
    tolerance = 1e-5 if name in OTHER_TYPES else 0.0
    with (
        closing(LlamaContext(source, ROLE)) as whole,
        closing(TrimmedDraftContext(path, ROLE, header)) as draft,
    ):
        kept = draft.kept_ids
        others = np.setdiff1d(np.arange(whole.n_vocab), kept)
        assert draft.n_vocab == whole.n_vocab == len(kept) + len(others)

        def compare(expected: np.ndarray, found: np.ndarray) -> None:
            np.testing.assert_allclose(
                found[:, kept], expected[:, kept], rtol=0, atol=tolerance
            )
            assert np.isneginf(found[:, others]).all()

        tokens = [1, 2, 90, int(others[-1]), 7, int(kept[-1]), 300]
        compare(whole.decode(tokens, 6), draft.decode(tokens, 6))
        compare(whole.decode(range(3, 35), 1), draft.decode(range(3, 35), 1))
        for model in (whole, draft):
            model.truncate(5)
            model.fork(1, 5)
        steps = [(0, 9), (1, int(others[7]))]
        compare(whole.decode_branches(steps), draft.decode_branches(steps))


def test_it_drafts_its_tokens_and_the_text_is_the_targets(zoo: Zoo) -> None:
    """It drafts no control tokens, and what its source drafts of the kept tokens."""
    source = zoo["cousin"]
    draft = trimmed(source)
    with closing(TrimmedDraftContext(draft, ROLE, reader.read(draft))) as context:
        kept = set(context.kept_ids.tolist())
    assert not kept & {0, 1, 2}
    for verify in ("coupled", "rejection", "block", "match"):
        with loaded(zoo["target"], draft) as session:
            (said,) = say_like_plain(session, max_tokens=60, verify=verify)
            assert said.speculation["drafted"] > 0
    with loaded(zoo["target"], source) as session:
        of_source = say(session, "the one ", spec="model", max_tokens=60)
    assert 0 < said.speculation["accepted"] <= of_source.speculation["accepted"]


def test_it_drafts_for_the_vocabulary_of_its_source_only(zoo: Zoo) -> None:
    draft = trimmed(zoo["cousin"])

    with loaded(zoo["padded"], draft):
        pass
    for target in ("renamed", "reordered"):
        with pytest.raises(LocalspecError, match="trimmed"), loaded(zoo[target], draft):
            pass


def test_a_damaged_section_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    draft = trimmed(zoo["cousin"])
    whole = draft.read_bytes()
    header = reader.read(draft)
    section = trimmed_vocabulary.find_section(header, header.tokenizer.n_tokens)
    assert section.end <= len(whole) < section.end + header.alignment
    damaged = tmp_path / "damaged.gguf"

    damaged.write_bytes(whole[: section.end - 1])
    with pytest.raises(ModelFileError, match="is incomplete"):
        reader.read(damaged)

    too_large_id = np.int32(header.tokenizer.n_tokens).tobytes()
    start = section.ids_at
    damaged.write_bytes(whole[:start] + too_large_id + whole[start + 4 :])
    with pytest.raises(ModelFileError, match="damaged vocabulary"):
        TrimmedDraftContext(damaged, ROLE, reader.read(damaged))
