"""Rejects projectors (mmproj files) on which llama.cpp would abort, or answer nonsense.

llama.cpp refuses many wrong files by itself. These it loads, and ends its process with
the first picture or audio: a width that its heads do not divide, patches that do not
fill the picture, and stacks that do not fill a piece of audio (ggml.c, clip.cpp). A
projector of another kind of the same width makes rows that mean nothing to the model.
"""

from __future__ import annotations

from localspec.errors import ModelFileError
from localspec.models.gguf import architectures
from localspec.models.gguf.header import Header
from localspec.models.projector_kinds import (
    KINDS,
    ORDINARY,
    audio_kind,
    projector_kind,
)
from localspec.sanitize import sanitize

_ANOTHER_FILE = "Use the mmproj file of this model, from the same repository."
_MAX_SIDE = 65_536
_MAX_LAYERS = 512
_MAX_MEL_BINS = 1024
_STACKING_KINDS = ("meralion", "ultravox", "voxtral")
"""Kinds whose rows are stacks of positions (clip.cpp, `audio_has_stack_frames`)."""
_MAX_STACK = 1500
_AUDIO_FRAMES = 3000
"""Of a piece of 30 seconds."""


def check_projector(projector: Header, name: str) -> None:
    """Raise ModelFileError unless llama.cpp can run the projector of a file."""
    shown = sanitize(name, multiline=False)
    if projector.architecture not in architectures.IMAGE_PARTS:
        raise ModelFileError(
            f"{shown} is not a projector (mmproj): it is a model of its own.",
            _ANOTHER_FILE,
        )
    for kind in (projector_kind(projector), audio_kind(projector)):
        why_refused = KINDS.get(kind, ORDINARY).why_refused
        if why_refused:
            raise ModelFileError(
                f"{shown} is a projector of the kind {kind}, which cannot be used here: "
                f"{why_refused}.",
                "Use another model that sees or hears.",
            )
    for sense in ("vision", "audio"):
        if projector.keys.get(f"clip.has_{sense}_encoder") is True:
            problem = _find_problem(projector, sense)
            if problem:
                raise ModelFileError(
                    f"{shown} has a damaged header: {problem}.", _ANOTHER_FILE
                )


def _find_problem(projector: Header, sense: str) -> str:
    """What is wrong with the sizes of a tower; empty if nothing is."""

    def number(key: str) -> int | None:
        value = projector.keys.get(f"clip.{sense}.{key}")
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value

    width = number("embedding_length")
    heads = number("attention.head_count")
    layers = number("block_count")
    if layers is not None and not 0 <= layers <= _MAX_LAYERS:
        return f"it has {layers} layers"
    if width is not None and heads is not None and width > 0:
        # A projector without layers (gemma4uv) has no heads either.
        if heads <= 0 and layers:
            return f"it has {heads} heads"
        if heads > 0 and width % heads:
            return f"{heads} heads do not divide a width of {width}"
    if sense == "vision":
        return _find_grid_problem(
            projector, image=number("image_size"), patch=number("patch_size")
        )
    mel_bins = number("num_mel_bins")
    if mel_bins is not None and not 1 <= mel_bins <= _MAX_MEL_BINS:
        return f"it has {mel_bins} mel bins"
    return _find_stack_problem(projector, number("projector.stack_factor"))


def _find_stack_problem(projector: Header, stack: int | None) -> str:
    """What is wrong with the rows of a piece of audio; empty if nothing is.

    A piece has 1,500 positions, of which `stack` become a row. llama.cpp allocates half
    the rows of its 3,000 frames, rounded down: 187 for a stack of 8. The graph computes
    188, the last of four positions, and llama.cpp ends its process.
    """
    kind = audio_kind(projector)
    if kind not in _STACKING_KINDS:
        return ""
    if stack is None or not 1 <= stack <= _MAX_STACK:
        return f"its rows are stacks of {stack}"
    shrink = 2 if kind == "voxtral" else 1  # It takes the mean of two positions, too.
    allocated = -(-_AUDIO_FRAMES // stack) // 2 // shrink
    computed = -(-_AUDIO_FRAMES // 2 // shrink // stack)
    if allocated != computed:
        return (
            f"its stacks of {stack} do not fill a piece of audio, so this build of "
            "llama.cpp would end"
        )
    return ""


def _find_grid_problem(
    projector: Header, *, image: int | None, patch: int | None
) -> str:
    """What is wrong with the patches of a picture; empty if nothing is.

    A picture of 384 pixels has 27 × 27 whole patches of 14, and 6 pixels are left over.
    Such a projector is right if it has 729 positions, or one more for its class.
    """
    if patch is not None and not 0 < patch <= _MAX_SIDE:
        return f"its patch size is {patch}"
    if image is not None and not 0 < image <= _MAX_SIDE:
        return f"its image size is {image}"
    if image is None or patch is None or not image % patch:
        return ""
    side = image // patch
    positions = projector.tensors_by_name.get("v.position_embd.weight")
    if positions is not None and positions.shape[-1] in (side * side, side * side + 1):
        return ""
    return f"patches of {patch} do not fill a picture of {image}"
