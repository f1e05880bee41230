"""Chat templates by name, for models whose own is missing or does not work."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from localspec.errors import UsageError

_FOLDER = Path(__file__).with_name("templates")

DEFAULT_TEMPLATE = "chatml"
"""What most models without a template of their own understand best."""

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
"""What ends an answer where the model has no token for it; these are all the names there are."""


@cache
def load_source(name: str) -> str:
    """The template of that name.  Raises UsageError where there is none."""
    if name not in STOP_STRINGS:
        raise UsageError(
            f"There is no chat template called {name!r}.", f"Use one of: {', '.join(STOP_STRINGS)}."
        )
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
