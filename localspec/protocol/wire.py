"""The commands that the engine is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

VerifyMode = Literal["coupled", "rejection", "match"]
KvType = Literal["f32", "bf16", "f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
Split = Literal["none", "layer", "row"]

DRAFT_MAX = 16
"""The longest draft ever verified: fixes n_outputs_max and n_rs_seq when a pair is loaded."""

DRAFT_LENGTH = 5
"""Draft length where nobody asked for another."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn; llama.cpp's defaults.  `top_k` 0 and `repeat_penalty` 1 are off."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """One llama.cpp model and context, in llama.cpp's words.  None: what suits this machine."""

    n_gpu_layers: int = -1
    """-1: all of them."""
    main_gpu: int = 0
    split_mode: Split = "layer"
    tensor_split: tuple[float, ...] = ()
    kv_type: KvType = "f16"
    flash_attn: FlashAttention = "auto"
    n_ctx: int | None = None
    n_ubatch: int = 512
    n_threads: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load a target, and a draft model if there is one."""

    target: str
    draft: str | None = None
    target_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_settings: ContextSettings = field(default_factory=ContextSettings)
    draft_max: int = DRAFT_MAX


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a text."""

    text: str
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    verify: VerifyMode = "coupled"
    spec: str = "auto"
    """`auto`, `off`, or a drafter's name."""
    draft_length: int = DRAFT_LENGTH
    why: str = ""
    """Why this way of speculating, when whoever asked knows better than the engine."""
