"""Built-in chat templates, to choose for a model whose own is missing or fails."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from localspec.errors import Hint, UsageError

_FOLDER = Path(__file__).with_name("templates")

STOP_STRINGS: dict[str, tuple[str, ...]] = {
    "alpaca": ("### Instruction:",),
    "chatml": ("<|im_end|>",),
    "gemma": ("<end_of_turn>",),
    "llama2": ("[INST]",),
    "llama3": ("<|eot_id|>",),
    "mistral": ("[INST]",),
    "mistral-v7": ("[INST]",),
    "phi3": ("<|end|>",),
    "vicuna": ("USER:",),
    "zephyr": ("<|user|>",),
}
"""Strings that end an answer if the model has no end-of-turn token.

The keys are the names of all templates.
"""
_NAMES = ", ".join(STOP_STRINGS)
HINT = Hint(f"Choose another template with {{template}}: {_NAMES}.")


@cache
def load_source(name: str) -> str:
    """The Jinja source.  Raises UsageError for an unknown name."""
    if name not in STOP_STRINGS:
        raise UsageError(f"Unknown chat template {name!r}.", f"Use one of: {_NAMES}.")
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
