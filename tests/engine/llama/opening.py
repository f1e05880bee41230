"""How tests name the function that opens models."""

from collections.abc import Callable

from localspec.engine.llama.context import LlamaContext

OUTPUTS = 6
"""Rows of logits that a read may ask for, unless a test says otherwise."""

Open = Callable[..., LlamaContext]
