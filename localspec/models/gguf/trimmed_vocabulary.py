"""A draft model's file whose output matrix has the rows of a vocabulary's most used
tokens only.

llama.cpp takes as many embeddings as output rows, and no tensor that it does not use.
So for llama.cpp the file is a model of `n_kept` tokens without a tokenizer; it is run
with embeddings as inputs. The ids of the kept tokens (int32) and the embeddings of all
tokens, in the type of `token_embd.weight`, follow the tensors.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from localspec.models.gguf.parser import GgufContents, InvalidGgufError
from localspec.models.gguf.tokenizer import TokenizerMetadata

if TYPE_CHECKING:
    from localspec.models.gguf.header import Header

ROW_TENSORS = ("token_embd.weight", "output.weight", "output.bias")
"""The tensors with a row for each token."""
# Unknown, control and unused, in tokenizer.ggml.token_type.
_TYPES_NOT_DRAFTED = (
    2,
    3,
    5,
)


class TrimmedSection(NamedTuple):
    """What follows the tensors; offsets and sizes in bytes."""

    ids_at: int
    rows_at: int
    end: int
    n_kept: int
    n_tokens: int  # Of the whole vocabulary.
    width: int  # Numbers of an embedding.
    row_bytes: int
    type: int  # Of ggml.


def find_section(file: GgufContents | Header, n_tokens: int) -> TrimmedSection:
    """`n_tokens`: of the whole vocabulary.  Raises InvalidGgufError."""
    table = next((each for each in file.tensors if each.name == ROW_TENSORS[0]), None)
    if table is None or len(table.shape) != 2 or not 0 < table.shape[1] <= n_tokens:
        raise InvalidGgufError(
            "has a damaged vocabulary: its embeddings do not match it"
        )
    (width, n_kept), last = table.shape, file.tensors[-1]
    alignment = file.keys.get("general.alignment", 32)
    assert isinstance(alignment, int)  # as the parser requires
    ids_at = file.data_offset - (-(last.offset + last.n_bytes) // alignment) * alignment
    rows_at, row_bytes = ids_at + 4 * n_kept, table.n_bytes // n_kept
    end = rows_at + row_bytes * n_tokens
    return TrimmedSection(
        ids_at, rows_at, end, n_kept, n_tokens, width, row_bytes, table.type
    )


def choose_tokens(
    tokenizer: TokenizerMetadata, used: Counter[int], n: int
) -> list[int]:
    """The `n` tokens to keep, ascending: the most used, then those with the lowest ids.

    BPE and SPM give frequent texts low ids. Control tokens and those that end a text
    are left out.
    """
    types = tokenizer.read_texts().types or (1,) * tokenizer.n_tokens
    drafted = {i for i, kind in enumerate(types) if kind not in _TYPES_NOT_DRAFTED}
    ranked = sorted(
        drafted - tokenizer.eog_ids, key=lambda token: (-used[token], token)
    )
    return sorted(ranked[:n])
