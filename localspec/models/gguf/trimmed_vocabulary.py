"""A draft model's file that has output rows for the most used tokens only.

llama.cpp takes as many embeddings as output rows, and no tensor that it does not use.
So for llama.cpp the file is a model of `n_kept` tokens without a tokenizer; it is run
with embeddings as inputs. The ids of the kept tokens (int32) and the embeddings of all
tokens, in the type of `token_embd.weight`, follow the tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from localspec.models.gguf.parser import GgufContents, InvalidGgufError, align
from localspec.models.gguf.tokenizer import TokenizerMetadata

if TYPE_CHECKING:
    from localspec.models.gguf.header import Header

EMBEDDINGS = "token_embd.weight"
ROW_TENSORS = (EMBEDDINGS, "output.weight", "output.bias")
"""The tensors with a row for each token."""
# Values of tokenizer.ggml.token_type (llama_token_type).
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_UNUSED = 5


class TrimmedSection(NamedTuple):
    """What follows the tensors; offsets and sizes in bytes."""

    ids_at: int
    rows_at: int
    end: int
    n_kept: int
    n_tokens: int
    """Of the whole vocabulary."""
    width: int
    """Numbers of an embedding."""
    row_bytes: int
    type: int
    """Of GGML_TYPES."""


def find_section(file: GgufContents | Header, n_tokens: int) -> TrimmedSection:
    """`n_tokens` is that of the whole vocabulary.  Raises InvalidGgufError."""
    table = next((each for each in file.tensors if each.name == EMBEDDINGS), None)
    if table is None or len(table.shape) != 2 or not 0 < table.shape[1] <= n_tokens:
        raise InvalidGgufError(
            "has a damaged vocabulary: its embeddings do not match it"
        )
    width, n_kept = table.shape
    row_bytes = table.n_bytes // n_kept
    last = file.tensors[-1]
    alignment = file.keys.get("general.alignment", 32)
    assert isinstance(alignment, int)  # as the parser requires
    ids_at = file.data_offset + align(last.offset + last.n_bytes, alignment)
    rows_at = ids_at + 4 * n_kept
    return TrimmedSection(
        ids_at=ids_at,
        rows_at=rows_at,
        end=rows_at + row_bytes * n_tokens,
        n_kept=n_kept,
        n_tokens=n_tokens,
        width=width,
        row_bytes=row_bytes,
        type=table.type,
    )


def choose_tokens(
    tokenizer: TokenizerMetadata, used: Counter[int], n: int
) -> list[int]:
    """The `n` tokens to keep, ascending: the most used, then those with the lowest ids.

    BPE and SPM give frequent texts low ids. Control tokens and those that end a text
    are left out.
    """
    types = tokenizer.read_texts().types or (_NORMAL,) * tokenizer.n_tokens
    left_out = (_UNKNOWN, _CONTROL, _UNUSED)
    tokens = {token for token, type_ in enumerate(types) if type_ not in left_out}
    tokens -= tokenizer.eog_ids
    by_use = sorted(tokens, key=lambda token: (-used[token], token))
    return sorted(by_use[:n])
