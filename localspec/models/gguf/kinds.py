"""Files that are sound and yet write no text: what they are, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from localspec.models.gguf import architectures
from localspec.models.gguf.parser import Value

_WRITER = "Give a model that writes text."


@dataclass(frozen=True, slots=True)
class Kind:
    """What such a file is, and what to give instead."""

    what: str
    hint: str = _WRITER


def no_writer(architecture: str, keys: Mapping[str, Value]) -> Kind | None:
    """None for a model that writes from left to right, and for a head."""
    if keys.get("general.type") == "adapter":
        return Kind(
            "is an adapter (LoRA): it changes a model and is none", "Give the model itself."
        )
    if architecture == "clip":
        return Kind("is the image part of a model (mmproj)", "Give the main file of the model.")
    for names, what in (
        (architectures.SPEECH, "is a model of speech"),
        (architectures.IMAGES, "makes images"),
        (architectures.DIFFUSION, "does not write from left to right (diffusion)"),
        (frozenset({"t5"}), "reads and writes in two halves (T5), which cannot be run here"),
    ):
        if architecture in names:
            return Kind(f"{what}: {architecture}")
    if architecture in architectures.ENCODERS or _gives_vectors(architecture, keys):
        return Kind(
            f"makes vectors of texts and writes none (embedding or reranker): {architecture}"
        )
    return None


def _gives_vectors(architecture: str, keys: Mapping[str, Value]) -> bool:
    """A writer's architecture that was trained to embed or to rank says how it sums up a text."""
    if architecture in architectures.HEADS:
        return False
    pooling = keys.get(f"{architecture}.pooling_type", 0)
    causal = keys.get(f"{architecture}.attention.causal", True)
    return causal is False or (isinstance(pooling, int) and pooling > 0)
