"""Whether a head can draft for a target: what it reads of it, and what it takes from it.

A head is no model: it goes on from its target's hidden states and mostly uses its embeddings, so
it fits one model only.  llama.cpp checks little of that and aborts on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from localspec.clean import clean
from localspec.models import pairing, soundness
from localspec.models.gguf import architectures
from localspec.models.header import Header
from localspec.models.heads.forms import (
    Target,
    alone,
    is_head,
    kind,
    layers,
    of,
    other,
    own,
)
from localspec.models.pairing import Verdict
from localspec.models.soundness import tensors

_TAPS = 3
"""Layers that an EAGLE-3 head reads, never more or fewer."""


def judge(target: Header, draft: Header, path: Path | None = None) -> Verdict:
    """Whether a draft of any kind can speculate for a target; its `path` if its data is here."""
    if own(target, draft):
        return Verdict("compatible", "own-layer", "it guesses by a layer of its own (MTP)")
    if not is_head(draft):
        return pairing.check(target.tokenizer, draft.tokenizer)
    return check(of(target), draft, path)


def check(target: Target, head: Header, path: Path | None = None) -> Verdict:
    """Everything that llama.cpp would abort on, or silently compute nonsense with."""
    if (refusal := next(_problems(target, head), None)) is not None:
        return refusal
    verdict = pairing.check(target.vocabulary, head.tokenizer)
    if verdict.compatible and (refusal := next(_later(target, head, path), None)) is not None:
        return refusal
    return verdict


def misfit(target: Target, head: Header) -> Verdict | None:
    """The same as far as it needs no vocabulary; None where nothing is wrong."""
    found = (one for one in _problems(target, head) if one.rule != "mask-token")
    return next(found, None)


def _problems(target: Target, head: Header) -> Iterator[Verdict]:
    if (unknown := other(head)) is not None:
        yield _no("head-kind", f"it is a head of the kind {unknown}, which cannot be run yet")
        return
    yield from _refusals(target, head)


def _refusals(target: Target, head: Header) -> Iterator[Verdict]:
    if alone(head):
        yield from _of_the_layer(target, head)
        return
    yield from _of_taps(target, head)
    yield from _of_widths(target, head)
    yield from (_no(*problem) for problem in soundness.problems(head))


def _of_the_layer(target: Target, head: Header) -> Iterator[Verdict]:
    """It goes on from what leaves the last layer of the very model that it was taken out of."""
    if head.architecture != target.architecture:
        mine, theirs = (clean(one.architecture[:40], multiline=False) for one in (head, target))
        yield _no("architecture", f"it is a layer of {mine} models, and the target is of {theirs}")
    if head.n_embd != target.n_embd:
        detail = f"it reads hidden states {head.n_embd:,} wide; the target's are {target.n_embd:,}"
        yield _no("hidden-size", detail)
    if (own := of(head).n_layer) != target.n_layer:
        yield _no("layers", f"it belongs behind {own} layers; the target has {target.n_layer}")


def _later(target: Target, head: Header, path: Path | None) -> Iterator[Verdict]:
    """What matters only between vocabularies that go together, or is slow to see."""
    if alone(head):  # it brings its own matrices
        return
    yield from _of_what_it_borrows(target, head)
    if path is not None:
        yield from (_no(*problem) for problem in soundness.problems_of_data(path, head))


def _of_taps(target: Target, head: Header) -> Iterator[Verdict]:
    name = clean(target.architecture[:40], multiline=False)
    if target.architecture not in architectures.TAPPED:
        what = f"it reads hidden states, which llama.cpp does not give of {name} models"
        yield _no("hidden-states", what)
    read = layers(head)
    if kind(head) == "eagle3" and len(read) != _TAPS:
        yield _no("layers", f"it must read {_TAPS} layers of its target, and names {len(read)}")
    if not read:
        yield _no("layers", "it names no layers of its target to read")
    after_last = target.architecture in architectures.TAPPED_AFTER_LAST
    last = target.n_layer - (not after_last)
    if wrong := [layer for layer in read if not 0 <= layer <= last]:
        detail = f"it reads layer {wrong[0]} of its target, whose layers are 0 to {last}"
        yield _no("layers", detail)


def _of_widths(target: Target, head: Header) -> Iterator[Verdict]:
    block = kind(head) != "eagle3"  # its states are as wide as itself
    wanted = head.n_embd if block else head.number("target_hidden_size")
    if wanted != target.n_embd:
        detail = f"it reads hidden states {wanted:,} wide; the target's are {target.n_embd:,}"
        yield _no("hidden-size", detail)
    own = tensors(head)
    lacks = [name for name in ("token_embd", "output") if f"{name}.weight" not in own]
    if lacks and head.n_embd != target.n_embd:
        detail = (
            f"it has no {lacks[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _no("embeddings", detail)


def _of_what_it_borrows(target: Target, head: Header) -> Iterator[Verdict]:
    """Of the target's own matrices llama.cpp reads as many rows as the head has tokens."""
    own = tensors(head)
    n, theirs = head.tokenizer.n_tokens, target.vocabulary.n_tokens
    block = kind(head) != "eagle3"
    output = "output.weight" in own or (block and "token_embd.weight" in own)
    if not output and n != theirs:
        detail = f"it has no output of its own for its {n:,} tokens; the target's has {theirs:,}"
        yield _no("output", detail)
    mask = head.keys.get("tokenizer.ggml.mask_token_id")
    embedded = "token_embd.weight" in own
    if block and not embedded and isinstance(mask, int) and mask >= theirs:
        yield _no("mask-token", f"its mask token {mask:,} is none of the target's {theirs:,}")


def _no(rule: str, detail: str) -> Verdict:
    return Verdict("incompatible", rule, detail)
