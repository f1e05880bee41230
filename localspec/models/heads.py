"""Whether a head can draft for a target: what it reads of it, and what it takes from it.

A head is no model: it goes on from its target's hidden states and mostly uses its embeddings, so
it fits one model only.  llama.cpp checks little of that and aborts on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.models import header, pairing, reference, soundness
from localspec.models.gguf import architectures
from localspec.models.header import Header
from localspec.models.pairing import Verdict, Vocabulary
from localspec.models.soundness import tensors as _tensors

NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
"""Kinds of heads as people write them."""
RUN = frozenset(NAMES)
"""Those that this localspec can use."""
PREFIXES = ("mtp-", "eagle3-", "dspark-", "dflash-")
"""How the files of heads begin that lie beside their targets; the best first."""
_TAPS = 3
"""Layers that an EAGLE-3 head reads, never more or fewer."""
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
    own, keys = _tensors(facts), facts.keys
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
        return "dspark" if "markov_w1.weight" in _tensors(facts) else "dflash"
    if facts.architecture == "gemma4-assistant" or _layers_only(facts):
        return "mtp"
    return "eagle3" if facts.architecture == "eagle3" else "model"


def named(path: str) -> str:
    """The kind of head that a file's name says: dspark-….gguf."""
    name = path.rpartition("/")[2]
    return next((word[:-1] for word in reference.HEADS if word in name), "model")


def runs(facts: Header) -> bool:
    """Whether a head can be used out of this file."""
    return kind(facts) in RUN and _other(facts) is None


def _layers_only(facts: Header) -> bool:
    """Whether it holds layers that guess without the model that they belong to (mtp-….gguf)."""
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
    return _has_predicting_layer(facts) and not alone(facts)


def alone(facts: Header) -> bool:
    """Whether a file holds such a layer and not the model it belongs to, whose name it has."""
    return _has_predicting_layer(facts) and _layers_only(facts)


def is_head(facts: Header) -> bool:
    """No model by itself."""
    return facts.architecture in architectures.HEADS or _layers_only(facts)


def _has_predicting_layer(facts: Header) -> bool:
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
        return judge(target, header.read(path), path).compatible
    except (LocalspecError, OSError):
        return False


def found(kind_: str, name: str) -> str:
    """That a head is used though nobody named it, in a line."""
    what = f"the {NAMES[kind_]} head {name} beside it"
    if kind_ == "mtp":
        what = "a layer of its own that predicts further tokens (MTP)"
    return clean(f"Guesses come from {what}. Without: --draft none.", multiline=False)


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
    if (other := _other(head)) is not None:
        yield _no("head-kind", f"it is a head of the kind {other}, which cannot be run yet")
        return
    yield from _refusals(target, head)


def _other(head: Header) -> str | None:
    """What a head is that has a kind's architecture and needs other calls."""
    if head.architecture == "gemma4-assistant":
        return "Gemma 4 assistant"
    if "selector_hidden.weight" in _tensors(head):
        return "DFlash2"
    if _layers_only(head) and not alone(head):
        return f"MTP of {clean(head.architecture[:40], multiline=False)} models"
    return "DeepSeek V4 DSpark" if head.number("hyper_connection_count") else None


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
    own = _tensors(head)
    lacks = [name for name in ("token_embd", "output") if f"{name}.weight" not in own]
    if lacks and head.n_embd != target.n_embd:
        detail = (
            f"it has no {lacks[0]} of its own, and is {head.n_embd:,} wide; "
            f"the target's is {target.n_embd:,}"
        )
        yield _no("embeddings", detail)


def _of_what_it_borrows(target: Target, head: Header) -> Iterator[Verdict]:
    """Of the target's own matrices llama.cpp reads as many rows as the head has tokens."""
    own = _tensors(head)
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
