"""Tiny models that see: a text model and its projector, with random weights.

Each kind has the shape of a published family: what the projector writes around a
picture, how many rows it makes, and where they stand.

| kind | tower | what is particular |
|---|---|---|
| `smolvlm` | idefics3 | a picture is tiles, with tokens between them |
| `gemma3` | siglip | sliding window; a picture's rows attend to each other |
| `qwen2vl` | qwen2vl | M-RoPE |
| `qwen3vl` | qwen3vl | M-RoPE, deepstack: rows are wider than the model |
| `qwen35` | qwen3vl | interleaved M-RoPE, recurrent, an MTP layer |
| `gemma4` | gemma4v | sliding window; rows attend to each other in windowed layers |
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tests.support import head_models, head_targets, tinygguf
from tests.support.tinygguf import Model, RandomTensors, Shape

KINDS = ("smolvlm", "gemma3", "qwen2vl", "qwen3vl", "qwen35", "gemma4")
TURN = "<|turn|>"
"""Begins a message, and ends an answer."""
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|turn|>' + message['role'] + ': ' + message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn|>assistant: ' }}{% endif %}"
)
_QWEN_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_GRID_WORDS = tuple(f"<row_{1 + i // 2}_col_{1 + i % 2}>" for i in range(4))
_WORDS = {
    "smolvlm": ("<fake_token_around_image>", "<global-img>", "\n\n", *_GRID_WORDS),
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen2vl": _QWEN_WORDS,
    "qwen3vl": _QWEN_WORDS,
    "qwen35": _QWEN_WORDS,
    "gemma4": ("<|image>", "<image|>"),
}
"""The control tokens that a projector of the kind writes."""

_HEIGHTS = ("token_embd.weight", "output.weight", "per_layer_token_embd.weight")
"""Tensors with a row for each token."""
_FF = 48
_N_LAYERS = 2


class VisionFiles(Struct, frozen=True):
    """The files of a kind."""

    model: Path
    projector: Path


class VisionModels:
    """The kinds by name; each is written on first use."""

    def __init__(self, folder: Path, weights: Kind = Kind.Q8_0) -> None:
        """Q8_0 computes the same at every width, F32 nearly the same in any order."""
        self.folder = folder
        self._weights = weights

    def __getitem__(self, kind: str) -> VisionFiles:
        files = VisionFiles(
            self.folder / f"{kind}.gguf", self.folder / f"mmproj-{kind}.gguf"
        )
        if not files.model.exists():
            model = self.make_text_model(kind)
            replace(model, kind=self._weights).write(files.model)
            self.make_tower(kind).write(files.projector)
        return files

    def make_text_model(self, kind: str) -> Model:
        model = text_model(kind)
        if kind == "qwen35":
            model = head_targets.with_layer(model, 3)
        return model

    def make_tower(self, kind: str) -> Tower:
        return tower(kind)

    def draft(self, kind: str) -> Path:
        """A draft model that mostly agrees with the text model."""
        path = self.folder / f"draft-{kind}.gguf"
        if not path.exists():
            tinygguf.nudged(self.make_text_model(kind), seed=4, by=0.02).write(path)
        return path

    def head(self, name: str) -> Path:
        """`eagle3` or `dflash` for `smolvlm`, or the `assistant` of `gemma4`."""
        path = self.folder / f"head-{name}.gguf"
        if path.exists():
            return path
        if name == "assistant":
            model = head_models.assistant(text_model("gemma4"))
            words = _WORDS["gemma4"]
        else:
            model = head_models.block()
            if name == "eagle3":
                model = head_models.eagle3()
            words = _WORDS["smolvlm"]
        return with_words(model, words).write(path)


def text_model(kind: str) -> Model:
    makers: dict[str, Callable[[], Model]] = {
        "smolvlm": head_models.deep,
        "gemma3": lambda: tinygguf.sliding(2, window=48),
        "qwen2vl": lambda: qwen("qwen2vl"),
        "qwen3vl": lambda: qwen("qwen3vl", n_deepstack=1),
        "qwen35": lambda: head_targets.target("qwen35"),
        "gemma4": lambda: head_targets.gemma4("dense"),
    }
    return with_words(head_models.quantised(makers[kind]()), _WORDS[kind])


def with_words(model: Model, words: Sequence[str]) -> Model:
    """The model with more control tokens, of which it generates none."""
    model.controls = (*words, TURN)
    model.template = TEMPLATE
    model.words = (*model.words, *model.controls)
    n = len(model.vocabulary())
    rng = np.random.default_rng(77)
    for name in _HEIGHTS:
        old = model.tensors.get(name)
        if old is None or len(old) >= n:
            continue
        scale = 0.0 if name == "output.weight" else float(old.std())
        new = rng.standard_normal((n - len(old), old.shape[1])) * scale
        model.tensors[name] = np.concatenate([old, new.astype(np.float32)])
    if "vocab_size" in model.keys:
        model.keys["vocab_size"] = n
    return model


def qwen(architecture: str, *, n_deepstack: int = 0) -> Model:
    """qwen2vl or qwen3vl: a head of 16 numbers turns by 2 + 3 + 3 angles."""
    shape = Shape(n_layer=3)
    model = Model(architecture, keys=tinygguf.transformer_keys(shape))
    model.keys["rope.dimension_sections"] = [2, 3, 3, 0]
    if n_deepstack:
        model.keys["n_deepstack_layers"] = n_deepstack
    random = RandomTensors(5, model)
    tinygguf.add_ends(random, model, shape.n_embd, tied=False)
    for i in range(shape.n_layer):
        random.attention(f"blk.{i}", shape, head_norms=architecture == "qwen3vl")
        random.feed_forward(f"blk.{i}", shape)
        if architecture == "qwen2vl":
            for name, n in (("q", 64), ("k", 32), ("v", 32)):
                bias = np.zeros(n, np.float32)
                model.tensors[f"blk.{i}.attn_{name}.bias"] = bias
    return model


# --- projectors


class Tower:
    """A vision tower of two layers, and what follows it; `write` makes the file.

    `audio_keys` and `audio_kind` are of a tower for audio, beside it or alone.
    """

    def __init__(self, kind: str, *, n_out: int, image: int, patch: int) -> None:
        self.kind = kind
        self.sees = True
        self.audio_kind = ""
        """llama.cpp's name of the tower for audio, if it is another than `kind`."""
        self.audio_keys: dict[str, int] = {}
        self.width = 32
        self.patch = patch
        self.tensors: dict[str, NDArray[np.floating]] = {}
        self.keys = {
            "image_size": image,
            "patch_size": patch,
            "embedding_length": self.width,
            "feed_forward_length": _FF,
            "block_count": _N_LAYERS,
            "projection_dim": n_out,
            "attention.head_count": 2,
        }
        self._rng = np.random.default_rng(3)

    def random(self, name: str, *shape: int, std: float = 0.0) -> None:
        values = self._rng.standard_normal(shape) * (std or shape[-1] ** -0.5)
        self.tensors[name] = values.astype(np.float32)

    def fill(self, name: str, n: int, value: float) -> None:
        self.tensors[name] = np.full(n, value, np.float32)

    def norm(self, name: str, n: int, *, bias: bool = True) -> None:
        self.fill(f"{name}.weight", n, 1.0)
        if bias:
            self.fill(f"{name}.bias", n, 0.0)

    def matrix(self, name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        self.random(f"{name}.weight", rows, columns)
        if bias:
            self.fill(f"{name}.bias", rows, 0.0)

    def add_patches(self, name: str) -> None:
        shape = (self.width, 3, self.patch, self.patch)
        self.random(name, *shape, std=1 / self.patch)

    def add_layers(self, *, fused: bool = False, bias: bool = True) -> None:
        n = self.width
        self.add_patches("v.patch_embd.weight")
        for i in range(_N_LAYERS):
            block = f"v.blk.{i}"
            if fused:
                self.matrix(f"{block}.attn_qkv", 3 * n, n, bias=bias)
            else:
                for name in ("attn_q", "attn_k", "attn_v"):
                    self.matrix(f"{block}.{name}", n, n, bias=bias)
            self.matrix(f"{block}.attn_out", n, n, bias=bias)
            self.matrix(f"{block}.ffn_up", _FF, n, bias=bias)
            self.matrix(f"{block}.ffn_down", n, _FF, bias=bias)
            self.norm(f"{block}.ln1", n, bias=bias)
            self.norm(f"{block}.ln2", n, bias=bias)

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, "clip")
        writer.add_type("mmproj")
        writer.add_bool("clip.has_vision_encoder", self.sees)
        writer.add_bool("clip.has_audio_encoder", bool(self.audio_keys))
        if self.audio_kind:
            writer.add_string("clip.vision.projector_type", self.kind)
            writer.add_string("clip.audio.projector_type", self.audio_kind)
        else:
            writer.add_string("clip.projector_type", self.kind)
        writer.add_bool("clip.use_gelu", True)
        if self.sees:
            for key, value in self.keys.items():
                writer.add_uint32(f"clip.vision.{key}", value)
            writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
            writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
            writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
        if self.audio_keys:
            for key, value in self.audio_keys.items():
                writer.add_uint32(f"clip.audio.{key}", value)
            writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
        for name, values in self.tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def tower(kind: str) -> Tower:
    """The projector of a kind."""
    if kind == "smolvlm":
        return _idefics3()
    if kind == "gemma3":
        return _gemma3()
    if kind == "gemma4":
        return _gemma4()
    if kind == "qwen2vl":
        return _qwen2()
    return _qwen3(n_out=256 if kind == "qwen35" else 64, deepstack=kind == "qwen3vl")


def _idefics3() -> Tower:
    made = Tower("idefics3", n_out=64, image=64, patch=16)
    made.keys |= {"projector.scale_factor": 2, "preproc_image_size": 128}
    made.add_layers()
    made.norm("v.post_ln", 32)
    made.random("v.position_embd.weight", 16, 32, std=0.3)
    made.random("mm.model.fc.weight", 64, 128)
    return made


def _gemma3() -> Tower:
    made = Tower("gemma3", n_out=64, image=128, patch=8)
    made.keys["projector.scale_factor"] = 4
    made.add_layers()
    made.norm("v.post_ln", 32)
    made.random("v.position_embd.weight", 256, 32, std=0.3)
    made.fill("mm.soft_emb_norm.weight", 32, 1.0)
    made.random("mm.input_projection.weight", 32, 64, std=32**-0.5)
    return made


def _gemma4() -> Tower:
    made = Tower("gemma4v", n_out=256, image=96, patch=8)
    made.keys["projector.scale_factor"] = 3
    made.add_layers(bias=False)
    made.random("v.position_embd.weight", 2, 256, 32, std=0.3)
    made.random("mm.input_projection.weight", 256, 32)
    for i in range(_N_LAYERS):
        block = f"v.blk.{i}"
        made.norm(f"{block}.attn_q_norm", 16, bias=False)
        made.norm(f"{block}.attn_k_norm", 16, bias=False)
        made.norm(f"{block}.attn_post_norm", 32, bias=False)
        made.norm(f"{block}.ffn_post_norm", 32, bias=False)
        made.random(f"{block}.ffn_gate.weight", _FF, 32)
    return made


def _qwen2() -> Tower:
    made = Tower("qwen2vl_merger", n_out=64, image=96, patch=8)
    made.add_layers()
    made.norm("v.post_ln", 32)
    made.add_patches("v.patch_embd.weight.1")
    made.matrix("mm.0", 128, 128)
    made.matrix("mm.2", 64, 128)
    return made


def _qwen3(*, n_out: int, deepstack: bool) -> Tower:
    made = Tower("qwen3vl_merger", n_out=n_out, image=96, patch=8)
    made.keys["spatial_merge_size"] = 2
    made.add_layers(fused=True)
    made.norm("v.post_ln", 32)
    made.add_patches("v.patch_embd.weight.1")
    made.fill("v.patch_embd.bias", 32, 0.0)
    made.random("v.position_embd.weight", 144, 32, std=0.3)
    made.matrix("mm.0", 128, 128)
    made.matrix("mm.2", n_out, 128)
    if deepstack:
        made.norm("v.deepstack.0.norm", 128)
        made.matrix("v.deepstack.0.fc1", 128, 128)
        made.matrix("v.deepstack.0.fc2", n_out, 128)
    return made


# --- pictures


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """Random pixels, shape (height, width, 3), in blocks that survive scaling."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8)
    return np.ascontiguousarray(
        blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
    )


def png(pixels: NDArray[np.uint8]) -> bytes:
    """The file of a picture."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in parts:
        checksum = zlib.crc32(name + body)
        data += struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)
    return data


def bmp(pixels: NDArray[np.uint8]) -> bytes:
    """The file of a picture, the last row first, as BMP has it."""
    height, width, _ = pixels.shape
    padding = b"\0" * (-3 * width % 4)
    rows = b"".join(row[:, ::-1].tobytes() + padding for row in pixels[::-1])
    start = 54
    header = struct.pack("<2sIHHI", b"BM", start + len(rows), 0, 0, start)
    sizes = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return header + sizes + rows
