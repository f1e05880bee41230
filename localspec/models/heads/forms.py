"""What a head is: its kind, what it reads of its target, what its blocks are like."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.clean import clean
from localspec.models import reference
from localspec.models.gguf import architectures
from localspec.models.header import Header
from localspec.models.pairing import Vocabulary
from localspec.models.soundness import tensors

NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
"""Kinds of heads as people write them."""
RUN = frozenset(NAMES)
"""Those that this localspec can use."""
_BLOCK = 16
"""Rows of a block whose file does not say."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a head must know of the model it drafts for."""

    architecture: str
    n_layer: int
    n_embd: int
    vocabulary: Vocabulary


def of(facts: Header) -> Target:
    """Layers that guess further tokens (MTP) stand behind those that can be read."""
    n_layer = facts.n_layer - facts.number("nextn_predict_layers")
    return Target(facts.architecture, n_layer, facts.n_embd, facts.tokenizer)


@dataclass(frozen=True, slots=True)
class Form:
    """What the blocks of a DFlash or DSpark head are like.

    `size` is how many rows a block may have: with more, llama.cpp leaves out the Markov matrices
    without a word.  `first` is the row whose logits are the first guess's.
    """

    size: int
    first: int
    confident: bool
    """Whether it tells how sure it is of each guess."""
    causal: bool


def form(facts: Header) -> Form:
    own, keys = tensors(facts), facts.keys
    markov = "markov_w1.weight" in own
    anchored = markov and keys.get("dflash.sample_from_anchor", True) is True
    told = keys.get("dflash.has_confidence_head", True) is True
    return Form(
        size=facts.number("block_size", _BLOCK),
        first=0 if anchored else 1,
        # Without the matrix llama.cpp would give what was in that memory before.
        confident=markov and told and "conf_proj.weight" in own,
        causal=keys.get("dflash.attention.causal") is True,
    )


def kind(facts: Header) -> str:
    """What a file drafts as: `model`, or the kind of its head."""
    if facts.architecture == "dflash":
        return "dspark" if "markov_w1.weight" in tensors(facts) else "dflash"
    if facts.architecture == "gemma4-assistant" or layers_only(facts):
        return "mtp"
    return "eagle3" if facts.architecture == "eagle3" else "model"


def named(path: str) -> str:
    """The kind of head that a file's name says: dspark-….gguf."""
    name = path.rpartition("/")[2]
    return next((word[:-1] for word in reference.HEADS if word in name), "model")


def runs(facts: Header) -> bool:
    """Whether a head can be used out of this file."""
    return kind(facts) in RUN and other(facts) is None


def layers_only(facts: Header) -> bool:
    """Whether it holds layers that guess without the model that they belong to (mtp-….gguf)."""
    own = tensors(facts)
    guesses = facts.number("nextn_predict_layers") > 0
    return guesses and bool(own) and "blk.0.attn_norm.weight" not in own


def layers(facts: Header) -> tuple[int, ...]:
    """The target's layers whose inputs a head reads, in its own order."""
    value = facts.keys.get(f"{facts.architecture}.target_layers", ())
    found = value if isinstance(value, tuple) else ()
    return tuple(layer for layer in found if isinstance(layer, int))


def predicts(facts: Header) -> bool:
    """Whether a model brings a layer of its own that guesses (MTP): its file is then its head."""
    return _has_predicting_layer(facts) and not alone(facts)


def alone(facts: Header) -> bool:
    """Whether a file holds such a layer and not the model it belongs to, whose name it has."""
    return _has_predicting_layer(facts) and layers_only(facts)


def is_head(facts: Header) -> bool:
    """No model by itself."""
    return facts.architecture in architectures.HEADS or layers_only(facts)


def _has_predicting_layer(facts: Header) -> bool:
    known = facts.architecture in architectures.PREDICTING
    n = facts.number("nextn_predict_layers")
    block = f"blk.{facts.n_layer - 1}.nextn.eh_proj.weight"
    return known and n == 1 and block in tensors(facts)


def drafting(target: Header, draft: Header) -> str:
    """What a draft is beside this target: `model`, or the kind of head.

    The target's own file twice is its own layer that guesses, where it has one.
    """
    return "mtp" if own(target, draft) else kind(draft)


def own(target: Header, draft: Header) -> bool:
    """Whether the draft is the target's own layer that guesses: the same file."""
    same = draft is target or draft.tensors == target.tensors
    return same and predicts(target)


def other(head: Header) -> str | None:
    """What a head is that has a kind's architecture and needs other calls."""
    if head.architecture == "gemma4-assistant":
        return "Gemma 4 assistant"
    if "selector_hidden.weight" in tensors(head):
        return "DFlash2"
    if layers_only(head) and not alone(head):
        return f"MTP of {clean(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.number("hyper_connection_count") else None
