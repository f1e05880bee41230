"""Projectors (mmproj) as headers alone: the towers of published models, and tiny ones.

A ghost has the header of a whole file and a hole in place of its weights, so that a
tower of a gigabyte takes no space on the disk.  Names and order of the tensors are those
of llama.cpp's conversion (tools/mtmd/clip-impl.h).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.gguf.parser import GGML_TYPES, TensorInfo, Value, align
from localspec.models.gguf.writer import pack_entry, serialize

_TYPE_IDS = {type_.name: number for number, type_ in GGML_TYPES.items()}
_ALIGNMENT = 32
Shape = tuple[int, ...]
"""Row length first."""


@dataclass
class Tower:
    """A vision tower: its kind, its numbers, and what differs from most towers."""

    kind: str
    n_text: int
    n_embd: int = 32
    n_layer: int = 1
    n_ff: int = 64
    n_head: int = 2
    image: int = 64
    patch: int = 16
    is_fused: bool = False
    is_gated: bool = False
    has_bias: bool = True
    layer_norms: tuple[tuple[str, int], ...] = ()
    """More norms of a layer, with their widths."""
    rest: dict[str, Shape] = field(default_factory=dict)
    """Tensors outside the layers."""
    keys: dict[str, Value] = field(default_factory=dict)
    """More keys, below `clip.vision.`."""
    hears: bool = False
    sees: bool = True
    audio_kind: str = ""
    audio_keys: dict[str, Value] = field(default_factory=dict)
    """Below `clip.audio.`."""

    def write(self, path: Path, type_: str = "F16") -> Path:
        """The file: a header and a hole. `type_`: of its matrices."""
        tensors = list(self._place_tensors(type_))
        last = tensors[-1]
        n_bytes = align(last.offset + last.n_bytes, _ALIGNMENT)
        entries = [pack_entry(key, value) for key, value in self._all_keys().items()]
        header = serialize(entries, tensors, _ALIGNMENT)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(header)
        os.truncate(path, len(header) + n_bytes)
        return path

    def _all_keys(self) -> dict[str, Value]:
        vision: dict[str, Value] = {
            "image_size": self.image,
            "patch_size": self.patch,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "block_count": self.n_layer,
            "projection_dim": self.n_text,
            "attention.head_count": self.n_head,
            "attention.layer_norm_epsilon": 1e-6,
            "image_mean": (0.5, 0.5, 0.5),
            "image_std": (0.5, 0.5, 0.5),
        }
        keys: dict[str, Value] = {
            "general.architecture": "clip",
            "general.type": "mmproj",
            "clip.has_vision_encoder": self.sees,
            "clip.has_audio_encoder": self.hears,
            "clip.use_gelu": True,
        }
        if self.audio_kind:
            keys["clip.vision.projector_type"] = self.kind
            keys["clip.audio.projector_type"] = self.audio_kind
        else:
            keys["clip.projector_type"] = self.kind
        if self.sees:
            for key, value in (vision | self.keys).items():
                keys[f"clip.vision.{key}"] = value
        for key, value in self.audio_keys.items():
            keys[f"clip.audio.{key}"] = value
        return keys

    def _place_tensors(self, type_: str) -> Iterator[TensorInfo]:
        offset = 0
        for name, shape in self._shapes():
            is_matrix = len(shape) > 1 and "position" not in name
            if name.endswith(".bias") or "conv_dw" in name:
                is_matrix = False  # Of a convolution over time.
            type_name = type_ if is_matrix else "F32"
            if len(shape) == 4 and "Q" in type_:
                type_name = "F16"  # Convolutions are not quantised.
            if len(shape) == 4 and name.startswith("a."):
                type_name = "F32"
            row = GGML_TYPES[_TYPE_IDS[type_name]].row_bytes(shape[0])
            n_bytes = row * math.prod(shape[1:])
            yield TensorInfo(
                name, shape, _TYPE_IDS[type_name], offset=offset, n_bytes=n_bytes
            )
            offset += align(n_bytes, _ALIGNMENT)

    def _shapes(self) -> Iterator[tuple[str, Shape]]:
        n = self.n_embd
        if not self.sees:
            yield from self.rest.items()
            return
        if self.n_layer:
            yield "v.patch_embd.weight", (self.patch, self.patch, 3, n)
        matrices: list[tuple[str, Shape]] = []
        if self.is_fused:
            matrices.append(("attn_qkv", (n, 3 * n)))
        else:
            matrices += [(f"attn_{part}", (n, n)) for part in "qkv"]
        matrices += [("attn_out", (n, n)), ("ffn_up", (n, self.n_ff))]
        matrices.append(("ffn_down", (self.n_ff, n)))
        if self.is_gated:
            matrices.append(("ffn_gate", (n, self.n_ff)))
        norms = [("ln1", n), ("ln2", n), *self.layer_norms]
        for il in range(self.n_layer):
            for name, shape in matrices:
                yield f"v.blk.{il}.{name}.weight", shape
                if self.has_bias:
                    yield f"v.blk.{il}.{name}.bias", (shape[1],)
            for name, width in norms:
                yield f"v.blk.{il}.{name}.weight", (width,)
                if self.has_bias:
                    yield f"v.blk.{il}.{name}.bias", (width,)
        yield from self.rest.items()


def gemma3(n_text: int = 2560) -> Tower:
    """Of Gemma 3 4B: 64 × 64 patches, whatever the picture is."""
    return Tower(
        "gemma3",
        n_text,
        n_embd=1152,
        n_layer=27,
        n_ff=4304,
        n_head=16,
        image=896,
        patch=14,
        rest={
            "v.position_embd.weight": (1152, 4096),
            "v.post_ln.weight": (1152,),
            "v.post_ln.bias": (1152,),
            "mm.soft_emb_norm.weight": (1152,),
            "mm.input_projection.weight": (n_text, 1152),
        },
        keys={"projector.scale_factor": 4},
    )


def qwen35(n_text: int = 4096) -> Tower:
    """Of Qwen3.5 9B; its rows grow with the picture."""
    return Tower(
        "qwen3vl_merger",
        n_text,
        n_embd=1152,
        n_layer=27,
        n_ff=4304,
        n_head=16,
        image=768,
        is_fused=True,
        rest={
            "v.patch_embd.weight.1": (16, 16, 3, 1152),
            "v.patch_embd.bias": (1152,),
            "v.position_embd.weight": (1152, 2304),
            "v.post_ln.weight": (1152,),
            "v.post_ln.bias": (1152,),
            "mm.0.weight": (4608, 4608),
            "mm.0.bias": (4608,),
            "mm.2.weight": (4608, n_text),
            "mm.2.bias": (n_text,),
        },
        keys={"spatial_merge_size": 2},
    )


def smolvlm(n_text: int = 576) -> Tower:
    """Of SmolVLM 256M: a picture is tiles of 32 × 32 patches."""
    return Tower(
        "idefics3",
        n_text,
        n_embd=768,
        n_layer=12,
        n_ff=3072,
        n_head=12,
        image=512,
        rest={
            "v.position_embd.weight": (768, 1024),
            "v.post_ln.weight": (768,),
            "v.post_ln.bias": (768,),
            "mm.model.fc.weight": (768 * 16, n_text),
        },
        keys={"projector.scale_factor": 4, "preproc_image_size": 512},
    )


def gemma4() -> Tower:
    """As of Gemma 4: no biases, norms of heads, a gate."""
    return Tower(
        "gemma4v",
        2816,
        n_embd=1152,
        n_layer=27,
        n_ff=4304,
        n_head=16,
        image=768,
        has_bias=False,
        is_gated=True,
        layer_norms=(
            ("attn_q_norm", 72),
            ("attn_k_norm", 72),
            ("attn_post_norm", 1152),
            ("ffn_post_norm", 1152),
        ),
        rest={
            "v.position_embd.weight": (1152, 10240, 2),
            "mm.input_projection.weight": (1152, 2816),
        },
        keys={"projector.scale_factor": 3},
    )


def pixtral() -> Tower:
    """As of Ministral 3 and Devstral Small 2."""
    return Tower(
        "pixtral",
        4096,
        n_embd=1024,
        n_layer=24,
        n_ff=4096,
        n_head=16,
        image=1540,
        patch=14,
        has_bias=False,
        is_gated=True,
        rest={
            "v.pre_ln.weight": (1024,),
            "mm.1.weight": (1024, 4096),
            "mm.2.weight": (4096, 4096),
            "v.token_embd.img_break": (4096,),
            "mm.input_norm.weight": (1024,),
            "mm.patch_merger.weight": (4096, 1024),
        },
        keys={"spatial_merge_size": 2},
    )


def gemma4_unified() -> Tower:
    """As of Gemma 4 12B: no layers, and patches of 48 × 48 pixels."""
    n_embd = 3840
    return Tower(
        "gemma4uv",
        3840,
        n_embd=n_embd,
        n_layer=0,
        n_ff=0,
        n_head=0,
        image=768,
        rest={
            "v.patch_embd.weight": (48 * 48 * 3, n_embd),
            "v.patch_embd.bias": (n_embd,),
            "v.position_embd.weight": (n_embd, 1120, 2),
            "v.patch_norm.1.weight": (48 * 48 * 3,),
            "v.patch_norm.1.bias": (48 * 48 * 3,),
            "v.patch_norm.2.weight": (n_embd,),
            "v.patch_norm.2.bias": (n_embd,),
            "v.patch_norm.3.weight": (n_embd,),
            "v.patch_norm.3.bias": (n_embd,),
            "mm.input_projection.weight": (n_embd, 3840),
        },
        keys={"projector.scale_factor": 3},
    )


def muse_glimmer() -> Tower:
    """As of Muse-Glimmer 30B, in its kind; its true numbers are not known."""
    return Tower(
        "muse-glimmer",
        4096,
        n_embd=1152,
        n_layer=27,
        n_ff=4304,
        n_head=16,
        image=448,
        patch=14,
        rest={
            "v.position_embd.weight": (1152, 1024),
            "v.pre_ln.weight": (1152,),
            "v.pre_ln.bias": (1152,),
            "v.post_ln.weight": (1152,),
            "v.post_ln.bias": (1152,),
            "mm.0.weight": (4608, 4608),
            "mm.1.weight": (4608, 4608),
            "mm.2.weight": (4608, 4096),
        },
        keys={"spatial_merge_size": 2},
    )


def _audio_keys(
    n_text: int, n_embd: int, *, n_layer: int, n_ff: int, n_head: int
) -> dict[str, Value]:
    return {
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "block_count": n_layer,
        "projection_dim": n_text,
        "attention.head_count": n_head,
        "attention.layer_norm_epsilon": 1e-5,
        "num_mel_bins": 128,
    }


def _whisper_large() -> dict[str, Shape]:
    n = 1280
    n_ff = 5120
    shapes: dict[str, Shape] = {
        "a.conv1d.1.weight": (3, 128, n),
        "a.conv1d.1.bias": (1, n),
        "a.conv1d.2.weight": (3, n, n),
        "a.conv1d.2.bias": (1, n),
        "a.position_embd.weight": (n, 1500),
        "a.post_ln.weight": (n,),
        "a.post_ln.bias": (n,),
    }
    for i in range(32):
        block = f"a.blk.{i}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes[f"{block}.{part}.weight"] = (n, n)
            if part != "attn_k":
                shapes[f"{block}.{part}.bias"] = (n,)
        shapes[f"{block}.ffn_up.weight"] = (n, n_ff)
        shapes[f"{block}.ffn_up.bias"] = (n_ff,)
        shapes[f"{block}.ffn_down.weight"] = (n_ff, n)
        shapes[f"{block}.ffn_down.bias"] = (n,)
        for norm in ("ln1", "ln2"):
            shapes[f"{block}.{norm}.weight"] = (n,)
            shapes[f"{block}.{norm}.bias"] = (n,)
    return shapes


def qwen2_audio() -> Tower:
    """As of Qwen2-Audio 7B: the encoder of Whisper large."""
    tower = Tower("qwen2a", 4096, sees=False, hears=True, rest=_whisper_large())
    tower.audio_keys = _audio_keys(4096, 1280, n_layer=32, n_ff=5120, n_head=20)
    tower.rest |= {"mm.a.fc.weight": (1280, 4096), "mm.a.fc.bias": (4096,)}
    return tower


def gemma4_conformer() -> Tower:
    """Of Gemma 4 E4B: a conformer of 12 layers, beside its tower for pictures."""
    tower = gemma4()
    tower.hears = True
    tower.audio_kind = "gemma4a"
    n = 1024
    n_ff = 4096
    tower.audio_keys = _audio_keys(tower.n_text, n, n_layer=12, n_ff=n_ff, n_head=8)
    tower.rest |= {
        "a.conv1d.0.weight": (3, 3, 1, 128),
        "a.conv1d.0.norm.weight": (128,),
        "a.conv1d.1.weight": (3, 3, 128, 32),
        "a.conv1d.1.norm.weight": (32,),
        "a.input_projection.weight": (32 * 32, n),
        "a.pre_encode.out.weight": (n, 1536),
        "a.pre_encode.out.bias": (1536,),
        "mm.a.input_projection.weight": (1536, tower.n_text),
    }
    matrices: dict[str, Shape] = {
        "conv_pw1": (n, 2 * n),
        "conv_dw": (5, n),
        "conv_pw2": (n, n),
        "per_dim_scale": (n // 8,),
    }
    for part in ("attn_q", "attn_k", "attn_v", "attn_out", "attn_k_rel"):
        matrices[part] = (n, n)
    for suffix in ("", "_1"):
        matrices[f"ffn_up{suffix}"] = (n, n_ff)
        matrices[f"ffn_down{suffix}"] = (n_ff, n)
        matrices[f"ffn_norm{suffix}"] = (n,)
        matrices[f"ffn_post_norm{suffix}"] = (n,)
    norms = ("attn_pre_norm", "attn_post_norm", "conv_norm", "norm_conv", "ln2")
    for i in range(12):
        for name, shape in matrices.items():
            tower.rest[f"a.blk.{i}.{name}.weight"] = shape
        for name in norms:
            tower.rest[f"a.blk.{i}.{name}.weight"] = (n,)
    return tower


def gemma4_waveform() -> Tower:
    """As of Gemma 4 12B: 640 samples become a row, without layers."""
    tower = gemma4_unified()
    tower.hears = True
    tower.audio_kind = "gemma4ua"
    tower.audio_keys = _audio_keys(3840, 640, n_layer=0, n_ff=0, n_head=0)
    tower.rest["mm.a.input_projection.weight"] = (640, 3840)
    return tower


TOWERS = {
    "gemma3": gemma3,
    "qwen35": qwen35,
    "smolvlm": smolvlm,
    "gemma4": gemma4,
    "gemma4-12b": gemma4_unified,
    "gemma4-12b-audio": gemma4_waveform,
    "gemma4-e4b-audio": gemma4_conformer,
    "muse-glimmer": muse_glimmer,
    "pixtral": pixtral,
    "qwen2-audio": qwen2_audio,
}
"""Towers of true size, by name."""


def tiny(kind: str = "gemma3", n_text: int = 64, *, hears: bool = False) -> Tower:
    """A projector of some kilobytes; llama.cpp is not asked about it."""
    return Tower(
        kind,
        n_text,
        patch=4,
        rest={"mm.input_projection.weight": (n_text, 32)},
        hears=hears,
    )


def read_header(tower: Tower, folder: Path, type_: str = "F16") -> Header:
    return reader.read(tower.write(folder / f"mmproj-{tower.kind}.gguf", type_))
