"""Tiny models that hear: a text model and its projector, with random weights; and audio.

| kind | tower | what is particular |
|---|---|---|
| `voxtral` | whisper | hears alone; 250 rows for each 30 seconds, also of one second |
| `qwen2a` | whisper, qwen2vl | M-RoPE; sees, too; 750 rows for each 30 seconds |
| `gemma4a` | conformer, gemma4v | sees, too; 25 rows a second, in pieces of 30 seconds |
| `gemma4ua` | none, gemma4v | samples become rows at once; 25 rows a second |
"""

import io
import wave

import numpy as np
from numpy.typing import NDArray

from tests.support import head_models, head_targets
from tests.support.tinygguf import Model
from tests.support.vision_models import (
    Tower,
    VisionModels,
    qwen,
    tower,
    with_words,
)

HEARING_KINDS = ("voxtral", "qwen2a", "gemma4a", "gemma4ua")
"""All of them; each but the first sees, too."""
SEEING_AND_HEARING = HEARING_KINDS[1:]
RATE = 16_000
_WIDTH = 32
_FF = 48
_N_LAYERS = 2
_N_MEL = 16
_POSITIONS = 1500
_FRAME = 640  # Samples of a row of `gemma4ua`.
_QWEN_WORDS = (
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)
_GEMMA_WORDS = ("<|image>", "<image|>", "<|audio>", "<audio|>")


class AudioModels(VisionModels):
    """The kinds by name; each is written on first use."""

    def make_text_model(self, kind: str) -> Model:
        if kind == "voxtral":
            model = head_models.quantised(head_models.deep())
            return with_words(model, ("[BEGIN_AUDIO]",))
        if kind == "qwen2a":
            return with_words(head_models.quantised(qwen("qwen2vl")), _QWEN_WORDS)
        model = head_targets.gemma4("dense")
        return with_words(head_models.quantised(model), _GEMMA_WORDS)

    def make_tower(self, kind: str) -> Tower:
        return _MAKERS[kind]()


def _audio_keys(n_out: int, **more: int) -> dict[str, int]:
    return {
        "embedding_length": _WIDTH,
        "feed_forward_length": _FF,
        "block_count": _N_LAYERS,
        "projection_dim": n_out,
        "attention.head_count": 2,
        "num_mel_bins": _N_MEL,
        **more,
    }


def _halve(made: Tower, name: str) -> None:
    """Kernels of convolutions over time are of 16 bits."""
    made.tensors[name] = made.tensors[name].astype(np.float16)


def _add_whisper(made: Tower) -> None:
    n = _WIDTH
    for number, n_in in ((1, _N_MEL), (2, n)):
        made.random(f"a.conv1d.{number}.weight", n, n_in, 3, std=(3 * n_in) ** -0.5)
        _halve(made, f"a.conv1d.{number}.weight")
        made.random(f"a.conv1d.{number}.bias", n, 1, std=0.02)
    made.random("a.position_embd.weight", _POSITIONS, n, std=0.3)
    for i in range(_N_LAYERS):
        block = f"a.blk.{i}"
        for name in ("attn_q", "attn_v", "attn_out"):
            made.matrix(f"{block}.{name}", n, n)
        made.matrix(f"{block}.attn_k", n, n, bias=False)
        made.matrix(f"{block}.ffn_up", _FF, n)
        made.matrix(f"{block}.ffn_down", n, _FF)
        made.norm(f"{block}.ln1", n)
        made.norm(f"{block}.ln2", n)
    made.norm("a.post_ln", n)


def _voxtral() -> Tower:
    made = Tower("voxtral", n_out=64, image=64, patch=16)
    made.sees = False
    stack = 3
    made.audio_keys = _audio_keys(64, **{"projector.stack_factor": stack})
    _add_whisper(made)
    made.random("mm.a.mlp.1.weight", _FF, stack * _WIDTH)
    made.random("mm.a.mlp.2.weight", 64, _FF)
    return made


def _qwen2a() -> Tower:
    made = tower("qwen2vl")
    made.audio_kind = "qwen2a"
    made.audio_keys = _audio_keys(64)
    _add_whisper(made)
    made.matrix("mm.a.fc", 64, _WIDTH)
    return made


def _gemma4a() -> Tower:
    made = tower("gemma4")
    made.audio_kind = "gemma4a"
    made.audio_keys = _audio_keys(256)
    n = _WIDTH
    channels = 4
    made.random("a.conv1d.0.weight", channels, 1, 3, 3, std=0.3)
    made.random("a.conv1d.1.weight", channels, channels, 3, 3, std=0.15)
    for i in (0, 1):
        made.fill(f"a.conv1d.{i}.norm.weight", channels, 1.0)
    made.random("a.input_projection.weight", n, channels * _N_MEL // 4)
    for i in range(_N_LAYERS):
        block = f"a.blk.{i}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_out", "attn_k_rel"):
            made.random(f"{block}.{name}.weight", n, n)
        for name in ("ffn_up", "ffn_up_1"):
            made.random(f"{block}.{name}.weight", _FF, n)
        for name in ("ffn_down", "ffn_down_1"):
            made.random(f"{block}.{name}.weight", n, _FF)
        made.random(f"{block}.conv_pw1.weight", 2 * n, n)
        made.random(f"{block}.conv_dw.weight", n, 5)
        made.random(f"{block}.conv_pw2.weight", n, n)
        made.fill(f"{block}.per_dim_scale.weight", n // 2, 1.0)
        for name in (
            "attn_pre_norm", "attn_post_norm", "ffn_norm", "ffn_norm_1",
            "ffn_post_norm", "ffn_post_norm_1", "conv_norm", "norm_conv", "ln2",
        ):  # fmt: skip
            made.fill(f"{block}.{name}.weight", n, 1.0)
    made.random("mm.a.input_projection.weight", 256, n)
    return made


def _gemma4ua() -> Tower:
    made = tower("gemma4")
    made.audio_kind = "gemma4ua"
    made.audio_keys = _audio_keys(256) | {
        "embedding_length": _FRAME,
        "feed_forward_length": 0,
        "block_count": 0,
        "attention.head_count": 0,
    }
    made.random("mm.a.input_projection.weight", 256, _FRAME)
    return made


_MAKERS = {
    "voxtral": _voxtral,
    "qwen2a": _qwen2a,
    "gemma4a": _gemma4a,
    "gemma4ua": _gemma4ua,
}


# --- audio


def tune(seconds: float, seed: int = 0, rate: int = RATE) -> NDArray[np.float32]:
    """Tones that change five times a second, and some noise; from -1 to 1."""
    rng = np.random.default_rng(seed)
    n = int(seconds * rate)
    time = np.arange(n) / rate
    tones = rng.uniform(200, 2500, int(seconds * 5) + 1)
    phase = 2 * np.pi * np.cumsum(tones[(time * 5).astype(int)]) / rate
    samples = 0.4 * np.sin(phase) + 0.02 * rng.standard_normal(n)
    return samples.astype(np.float32)


def wav(samples: NDArray[np.float32], rate: int = RATE, channels: int = 1) -> bytes:
    """The file of some samples, in 16 bits; each channel has the same."""
    whole = (samples * 32767).clip(-32768, 32767).astype("<i2")
    frames = np.repeat(whole, channels)
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(frames.tobytes())
    return made.getvalue()
