"""The settings that can be changed to save memory: in words, as typed, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from localspec.machine.parameters import DEFAULT_CTX
from localspec.models.header import Header
from localspec.protocol.wire import Load

STEPS = (32768, 16384, DEFAULT_CTX, 4096, 2048)
"""Contexts that are tried."""
_SMALL_BATCH = 128
"""Of the draft: it reads a prompt in smaller steps, and takes a quarter of the buffers."""

Change = tuple[str, str, str, Load]
"""In words, as typed, what it costs, and the settings then."""


def both(load: Load, **given: object) -> Load:
    """Both contexts with the same."""
    target = replace(load.target_settings, **given)  # type: ignore[arg-type]
    rest = {name: value for name, value in given.items() if name != "n_ctx"}
    draft = replace(load.draft_settings, **rest)  # type: ignore[arg-type]
    return replace(load, target_settings=target, draft_settings=draft)


def target_with(load: Load, **changes: object) -> Load:
    return replace(load, target_settings=replace(load.target_settings, **changes))  # type: ignore[arg-type]


def draft_with(load: Load, **changes: object) -> Load:
    return replace(load, draft_settings=replace(load.draft_settings, **changes))  # type: ignore[arg-type]


def drafts(load: Load) -> tuple[Load, ...]:
    """With the draft, with it reading in small steps, and without it."""
    if load.draft is None:
        return (load,)
    return load, draft_with(load, n_ubatch=_SMALL_BATCH), replace(load, draft=None)


def single(load: Load, target: Header, devices: bool) -> Iterator[Change]:
    """In words, as typed, and what it costs."""
    settings = load.target_settings
    ctx = settings.n_ctx or DEFAULT_CTX
    if load.draft and load.draft_settings.n_ubatch > _SMALL_BATCH:
        yield (
            "draft reads prompts in steps of 128", "", "prompts are read a little slower",
            draft_with(load, n_ubatch=_SMALL_BATCH),
        )  # fmt: skip
    if settings.kv_type == "f16" and settings.flash_attn != "off":
        yield (
            "keys and values in q8_0", "--kv q8_0", "hardly any quality",
            both(load, kv_type="q8_0"),
        )  # fmt: skip
    if settings.swa_full and target.number("attention.sliding_window"):
        costs = "the last bits after a guess is taken back"
        less_kept = target_with(load, swa_full=False)
        yield "sliding windows keep only what they see", "", costs, less_kept
    for less in [one for one in STEPS if one < ctx][:2]:
        costs = "a shorter memory of the chat"
        yield f"context {less:,}", f"--ctx {less}", costs, both(load, n_ctx=less)
    if load.draft:
        if devices and load.draft_settings.n_gpu_layers:
            yield (
                "draft on the CPU", "--draft-gpu-layers 0", "guesses cost more",
                draft_with(load, n_gpu_layers=0),
            )  # fmt: skip
        yield "no draft", "--draft none", "copies only what repeats", replace(load, draft=None)
    if devices and target.moe and not settings.cpu_moe:
        yield (
            "experts in the computer's memory", "--cpu-moe", "every token waits for slower memory",
            target_with(load, cpu_moe=True),
        )  # fmt: skip
    if devices:
        half = (target.n_layer + 1) // 2
        yield (
            f"{half} of {target.n_layer + 1} layers on the GPU", f"--gpu-layers {half}",
            "the others are read from slower memory", target_with(load, n_gpu_layers=half),
        )  # fmt: skip
