"""What `conversion.py` asks its child process, `conversion_child.py`, and its answers.

Both sides import this file. It imports no llama.cpp, which only the child loads.
"""

from __future__ import annotations

from msgspec import Struct


class QuantizeRequest(Struct, frozen=True, tag_field="op", tag="quantize"):
    """Write a copy of a file in another type; answered with `QuantizedFile`."""

    source: str
    out: str
    origin: str
    """The name of the source, for the copy's header."""
    file_type: int
    """A number of llama.cpp's enum `llama_ftype`."""


class CompareRequest(Struct, frozen=True, tag_field="op", tag="compare"):
    """Compare a copy with its source; answered with `Comparison`."""

    source: str
    copy: str
    texts: list[str]
    """Beginnings of texts, which the source continues."""
    n_tokens: int
    """How many tokens are compared in all."""


ChildRequest = QuantizeRequest | CompareRequest


class QuantizedFile(Struct, frozen=True):
    n_bytes: int


class Comparison(Struct, frozen=True):
    """A copy beside its source, on tokens that the source wrote."""

    tokens: int
    same: float
    """The share of these tokens that the copy would have chosen, too."""
    divergence: float
    """The mean Kullback-Leibler divergence of the copy's distribution from the source's,
    in nats.
    """
    source_ms: float
    """The time of a token that is written; `copy_ms` is the copy's."""
    copy_ms: float
    source_read_ms: float
    """The time of a token of a prompt that is read."""
    copy_read_ms: float
