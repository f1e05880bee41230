"""In one line: what settings were chosen, and why."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.fit.report import Fit, Room
from localspec.units import gib

_OF_HEADS = {
    "eagle3": "EAGLE-3 head: a layer trained on this very model's hidden states, so its guesses "
    "are kept more often than a small model's, and cost less",
    "mtp": "MTP: a layer of the model's own, trained with it to predict one token more; better "
    "guesses than a small model's, and nothing else to load",
    "dflash": "DFlash head: trained on this very model's hidden states; guesses several tokens in "
    "one pass, where a small model needs one for each",
    "dspark": "DSpark head: trained on this very model's hidden states; guesses several tokens in "
    "one pass, and knows how sure it is of each",
}


def of_head(kind: str) -> str:
    """What a head is, and why it is better here than a small draft; nothing for a model."""
    return _OF_HEADS.get(kind, "")


def why(fit: Fit, first: Fit, n_layer: int) -> str:
    """`first`: with the usual settings; where it fits, it was taken, perhaps with more context."""
    return f"{', '.join(_chosen(fit, first, n_layer))}: {_reason(fit, first)}"


def _chosen(fit: Fit, first: Fit, n_layer: int) -> Iterator[str]:
    settings, draft = fit.load.target_settings, fit.load.draft_settings
    yield f"context {settings.n_ctx or 0:,}"
    if settings.kv_type != "f16":
        yield f"keys and values in {settings.kv_type}"
    if fit.rooms and settings.n_gpu_layers != -1:
        yield f"{settings.n_gpu_layers} of {n_layer + 1} layers on the GPU"
    if not settings.swa_full:
        yield "sliding windows that keep only what they see"
    if settings.cpu_moe:
        yield "experts in the computer's memory"
    if first.load.draft and not fit.load.draft:
        yield "no draft"
    elif first.load.draft_settings.n_gpu_layers and not draft.n_gpu_layers:
        yield "the draft on the CPU"


def _reason(fit: Fit, first: Fit) -> str:
    unknown = [room for room in fit.rooms if room.verdict == "unknown"]
    if unknown:
        return f"how much memory is free on {where(unknown[0])} is unknown"
    room = fit.tightest
    if fit.verdict == "no":
        free = gib(room.device.free or 0)
        return f"needs {gib(room.total)} of {where(room)}, which has {free} free"
    if fit is first or first.verdict == "fits":
        spare = room.spare or 0
        return f"fits {where(room)}, {gib(spare)} to spare" if spare > 0 else f"fills {where(room)}"
    needs = f"{gib(first.tightest.total)} of {where(first.tightest)}, more than there is"
    if first.load.draft and not fit.load.draft:
        return f"with a draft it takes {needs}"
    return f"the usual settings take {needs}"


def where(room: Room) -> str:
    """A device in words."""
    if room.device.kind == "cpu":
        return "this computer's memory"
    return room.device.description or room.device.name
