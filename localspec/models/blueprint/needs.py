"""Which numbers a model of an architecture cannot do without."""

from __future__ import annotations

from localspec.models.blueprint.rows import FAMILIES
from localspec.models.blueprint.shape import Shape

_MIXERS = {
    "mamba2": ("conv", "inner", "state", "state_heads", "groups"),
    "delta": ("conv", "state", "state_heads", "groups", "full_every"),
    "shortconv": ("conv",),
}
_ATTENTION = ("heads",)
_EXPERTS = ("experts", "experts_used")
_MORE = {
    "qwen3moe": _EXPERTS,
    "gpt-oss": (*_EXPERTS, "window", "head_dim"),
    "gemma4": ("window", "sliding_head_dim", "head_dim"),
    "deepseek2": (*_EXPERTS, "expert_ff", "shared_ff", "kv_rank", "head_dim", "value_dim"),
    "qwen35moe": (*_EXPERTS, "expert_ff", "shared_ff"),
    "lfm2moe": (*_EXPERTS, "expert_ff"),
}


def check(shape: Shape) -> None:
    """Raise ValueError, with what is wrong, unless the shape can be drawn."""
    if shape.architecture not in FAMILIES:
        raise ValueError(f"there is no blueprint of {shape.architecture}")
    missing = [name for name in _needed(shape) if not getattr(shape, name)]
    if missing:
        raise ValueError(f"{shape.architecture} needs {', '.join(missing)}")
    for what, wrong in _wrong(shape).items():
        if wrong:
            raise ValueError(what)


def _needed(shape: Shape) -> tuple[str, ...]:
    mixer = FAMILIES[shape.architecture].mixer
    attention = () if shape.architecture == "mamba2" else _ATTENTION
    forward = () if shape.experts or shape.architecture == "mamba2" else ("ff",)
    experts = ("experts_used",) if shape.experts else ()
    more = _MORE.get(shape.architecture, ())
    return (*_MIXERS.get(mixer, ()), *attention, *forward, *experts, *more)


def _wrong(shape: Shape) -> dict[str, bool]:
    heads, kv_heads = shape.heads or 1, shape.n_head_kv or 1
    return {
        "it has no layers, no width or no vocabulary": min(shape.layers, shape.embd, shape.vocab)
        < 1,
        "the heads do not divide the width": shape.embd % heads > 0 and not shape.head_dim,
        "kv_heads do not divide the heads": heads % kv_heads > 0,
        "more experts are used than there are": shape.experts_used > shape.experts,
        "it shares the keys of more layers than it has": shape.shared_kv_layers >= shape.layers,
        "a layer of full_layers is not there": max(shape.full_layers, default=0) >= shape.layers,
        "no dimension of a head is left without rotation": shape.kv_rank > 0
        and not 0 < shape.rope_dim < shape.head_dim,
        "the groups do not divide the inner width": shape.inner % (shape.groups or 1) > 0,
        "shared_ff is no multiple of expert_ff": shape.architecture == "deepseek2"
        and shape.shared_ff % (shape.expert_ff or 1) > 0,
    }
