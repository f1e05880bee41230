"""Whether a head can draft for a target: what it reads of it, and what it takes from it.

A head is no model: it goes on from its target's hidden states and mostly uses its embeddings, so
it fits one model only.  llama.cpp checks little of that and aborts on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.models import header, pairing, reference
from localspec.models.gguf import architectures
from localspec.models.header import Header
from localspec.models.pairing import Verdict, Vocabulary

if TYPE_CHECKING:
    from localspec.models.gguf.tensors import Tensor

NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
"""Kinds of heads as people write them."""
RUN = frozenset({"eagle3", "dflash", "dspark"})
"""Those that can be used out of a file of their own; MTP runs inside its target's only."""
PREFIXES = tuple(word for word in reference.HEADS if word != "mtp-")
"""How the files of heads begin that lie beside their targets; the best first."""
_TAPS = 3
"""Layers that an EAGLE-3 head reads, never more or fewer."""
_I64 = 27


@dataclass(frozen=True, slots=True)
class Target:
    """What a head must know of the model it drafts for."""

    architecture: str
    n_layer: int
    n_embd: int
    vocabulary: Vocabulary


def of(facts: Header) -> Target:
    return Target(facts.architecture, facts.n_layer, facts.n_embd, facts.tokenizer)


def kind(facts: Header) -> str:
    """What a file drafts as: `model`, or the kind of its head."""
    if facts.architecture == "dflash":
        return "dspark" if "markov_w1.weight" in _tensors(facts) else "dflash"
    if facts.architecture == "gemma4-assistant" or _alone(facts):
        return "mtp"
    return "eagle3" if facts.architecture == "eagle3" else "model"


def named(path: str) -> str:
    """The kind of head that a file's name says: dspark-….gguf."""
    name = path.rpartition("/")[2]
    return next((word[:-1] for word in reference.HEADS if word in name), "model")


def runs(facts: Header) -> bool:
    """Whether a head can be used out of this file."""
    return kind(facts) in RUN and _other(facts) is None


def _alone(facts: Header) -> bool:
    """Whether it is a layer that guesses without the model that it belongs to (mtp-….gguf)."""
    own = _tensors(facts)
    guesses = facts.number("nextn_predict_layers") > 0
    return guesses and bool(own) and "blk.0.attn_norm.weight" not in own


def layers(facts: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in its own order."""
    value = facts.keys.get(f"{facts.architecture}.target_layers", ())
    found = value if isinstance(value, tuple) else ()
    return tuple(layer for layer in found if isinstance(layer, int))


def predicts(facts: Header) -> bool:
    """Whether a model brings a layer of its own that guesses (MTP): its file is then its head."""
    known = facts.architecture in architectures.PREDICTING
    n = facts.number("nextn_predict_layers")
    block = f"blk.{facts.n_layer - 1}.nextn.eh_proj.weight"
    return known and n == 1 and block in _tensors(facts)


def drafting(target: Header, draft: Header) -> str:
    """What a draft is beside this target: `model`, or the kind of head.

    The target's own file twice is its own layer that guesses, where it has one.
    """
    return "mtp" if own(target, draft) else kind(draft)


def own(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own layer that guesses: the same file."""
    same = draft is target or draft.tensors == target.tensors
    return same and predicts(target)


def beside(path: Path, target: Header) -> Path | None:
    """The head in a model's folder that fits it: eagle3-…, as repositories name them.

    A download that came later may lie in the folder of a later commit.
    """
    for prefix in PREFIXES:
        for folder in _folders(path):
            for found in sorted(folder.glob(f"{prefix}*.gguf")):
                if fits(target, found):
                    return found
    return None


def _folders(path: Path) -> Iterator[Path]:
    """The file's own; of one in the hub's cache those of the repository's other commits too."""
    yield path.parent
    if path.parent.parent.name == "snapshots":
        yield from sorted(path.parent.parent.iterdir())


def fits(target: Header, path: Path) -> bool:
    """Whether a file is a head for this model."""
    try:
        header.check(path)
        return check(of(target), header.read(path)).compatible
    except LocalspecError:
        return False


def found(kind_: str, name: str) -> str:
    """That a head is used though nobody named it, in a line."""
    what = f"the {NAMES[kind_]} head {name} beside it"
    if kind_ == "mtp":
        what = "a layer of its own that predicts further tokens (MTP)"
    return clean(f"Guesses come from {what}. Without: --draft none.", multiline=False)


def check(target: Target, head: Header) -> Verdict:
    """Everything that llama.cpp would abort on, or silently compute nonsense with."""
    if (refusal := misfit(target, head)) is not None:
        return refusal
    if kind(head) != "eagle3" and "tokenizer.ggml.mask_token_id" not in head.keys:
        return _no("mask-token", "it has no mask token, which its blocks are made of")
    return pairing.check(target.vocabulary, head.tokenizer)


def judged(target: Header, draft: Header) -> Verdict:
    """Whether a draft of any kind goes with a target, by their headers."""
    if own(target, draft):
        return Verdict("compatible", "own-layer", "it guesses by a layer of its own (MTP)")
    if kind(draft) != "model":
        return check(of(target), draft)
    return pairing.check(target.tokenizer, draft.tokenizer)


def misfit(target: Target, head: Header) -> Verdict | None:
    """The same as far as it needs no vocabulary; None where nothing is wrong."""
    if (other := _other(head)) is not None:
        return _no("head-kind", f"it is a head of the kind {other}, which cannot be run yet")
    return next(_refusals(target, head), None)


def _other(head: Header) -> str | None:
    """What a head is that has a kind's architecture and needs other calls."""
    if head.architecture == "gemma4-assistant":
        return "Gemma 4 assistant"
    if "selector_hidden.weight" in _tensors(head):
        return "DFlash2"
    if _alone(head):
        return "MTP in a file of its own"
    return "DeepSeek V4 DSpark" if head.number("hyper_connection_count") else None


def _refusals(target: Target, head: Header) -> Iterator[Verdict]:
    yield from _of_taps(target, head)
    yield from _of_widths(target, head)
    yield from _of_reduced_vocabulary(head)


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
    own = _tensors(head)
    lacks = [name for name in ("token_embd", "output") if f"{name}.weight" not in own]
    if lacks and head.n_embd != target.n_embd:
        detail = (
            f"it has no {lacks[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _no("embeddings", detail)
    if not block and head.n_layer != 1:
        yield _no("head-layers", f"an EAGLE-3 head has one layer; it has {head.n_layer}")


def _of_reduced_vocabulary(head: Header) -> Iterator[Verdict]:
    own = _tensors(head)
    map_, output = own.get("d2t"), own.get("output.weight")
    if map_ is None:
        return
    if map_.type != _I64:
        detail = f"its reduced vocabulary (d2t) is of type {map_.type_name} and must be I64"
        yield _no("reduced-vocabulary", detail)
    if output is None or output.shape[-1] != map_.shape[0]:
        rows = "none" if output is None else f"{output.shape[-1]:,}"
        detail = f"its reduced vocabulary (d2t) has {map_.shape[0]:,} tokens, its output has {rows}"
        yield _no("reduced-vocabulary", detail)


def _tensors(facts: Header) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in facts.tensors}


def _no(rule: str, detail: str) -> Verdict:
    return Verdict("incompatible", rule, detail)
